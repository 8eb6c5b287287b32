"""The command `swep-ds calibrate` as a script."""

from swep_ds.commands.calibrate import calibrate
from swep_ds.commands.cli import main

if __name__ == "__main__":
    main(calibrate)
