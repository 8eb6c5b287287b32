"""The command `swep-ds convert` as a script."""

from swep_ds.commands.cli import main
from swep_ds.commands.convert import convert

if __name__ == "__main__":
    main(convert)
