"""The command `swep-ds analyze` as a script."""

from swep_ds.cli import main
from swep_ds.commands.analyze import analyze

if __name__ == "__main__":
    main(analyze)
