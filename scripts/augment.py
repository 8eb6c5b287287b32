"""The command `swep-ds augment` as a script."""

from swep_ds.commands.augment import augment
from swep_ds.commands.cli import main

if __name__ == "__main__":
    main(augment)
