"""The command `swep-ds answer` as a script."""

from swep_ds.commands.answer import answer
from swep_ds.commands.cli import main

if __name__ == "__main__":
    main(answer)
