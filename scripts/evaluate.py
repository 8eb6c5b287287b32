"""The command `swep-ds evaluate` as a script."""

from swep_ds.commands.cli import main
from swep_ds.commands.evaluate import evaluate

if __name__ == "__main__":
    main(evaluate)
