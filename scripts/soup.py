"""The command `swep-ds soup` as a script."""

from swep_ds.commands.cli import main
from swep_ds.commands.soup import soup

if __name__ == "__main__":
    main(soup)
