"""The command `swep-ds sweep` as a script."""

from swep_ds.commands.cli import main
from swep_ds.commands.sweep import sweep

if __name__ == "__main__":
    main(sweep)
