"""The command `swep-ds train` as a script."""

from swep_ds.commands.cli import main
from swep_ds.commands.train import train

if __name__ == "__main__":
    main(train)
