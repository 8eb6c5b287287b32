"""The command `swep-ds answer` as a script."""

from swep_ds.cli import main
from swep_ds.commands.answer import answer

if __name__ == "__main__":
    main(answer)
