"""The command `swep-ds augment` as a script."""

from swep_ds.cli import main
from swep_ds.commands.augment import augment

if __name__ == "__main__":
    main(augment)
