"""The command `swep-ds submit` as a script."""

from swep_ds.commands.cli import main
from swep_ds.commands.submit import submit

if __name__ == "__main__":
    main(submit)
