"""The command `swep-ds report` as a script."""

from swep_ds.commands.cli import main
from swep_ds.commands.report import report

if __name__ == "__main__":
    main(report)
