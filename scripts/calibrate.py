"""The command `swep-ds calibrate` as a script."""

from swep_ds.cli import main
from swep_ds.commands.calibrate import calibrate

if __name__ == "__main__":
    main(calibrate)
