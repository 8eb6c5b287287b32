"""Pretrain the quick-start encoder anew: `python scripts/pretrain_quickstart.py FOLDER` (about 25 min on 2 cores).

The shipped encoder lies in swep_ds/data/quickstart/encoder and was made with the defaults; pretrain.py tells how.
"""

import argparse
from pathlib import Path

from swep_ds.data.quickstart.pretrain import Settings, pretrain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to save tokenizer and encoder")
    parser.add_argument("--updates", type=int, default=Settings.updates, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="default: %(default)s")
    arguments = parser.parse_args()
    pretrain(Settings(updates=arguments.updates, seed=arguments.seed), arguments.folder)


if __name__ == "__main__":
    main()
