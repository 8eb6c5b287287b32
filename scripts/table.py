"""The command `swep-ds table` as a script."""

from swep_ds.commands.cli import main
from swep_ds.commands.table import table

if __name__ == "__main__":
    main(table)
