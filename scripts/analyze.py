"""The command `swep-ds analyze` as a script."""

from swep_ds.commands.analyze import analyze
from swep_ds.commands.cli import main

if __name__ == "__main__":
    main(analyze)
