"""Reads the published sets of `sets.yaml` and writes what it saw into docs/data_sets.md.

    git clone https://github.com/TQuad/turkish-nlp-qa-dataset published/TQuad/turkish-nlp-qa-dataset
    python -m tools.data_sets published TQuad     # some, as a table
    python -m tools.data_sets published --write   # all, into the page

Every file is read twice: by this package with the settings of the entry, for testing and for training, and plainly by
`json` and `csv`. The numbers of questions have to agree, and every answer at its offset has to be trained there. What
does not agree is said, and the command fails.
"""

import argparse
import sys
from pathlib import Path

from tools.data_sets.check import check, load_sets
from tools.data_sets.page import PAGE, tables, write


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="has the repositories as OWNER/NAME")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of sets; default: all")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    options = parser.parse_args()
    entries = load_sets()
    if options.write and options.names:
        parser.error("--write: the page has all sets: name none")
    if unknown := {*options.names} - {entry["name"] for entry in entries}:
        parser.error(f"{', '.join(sorted(unknown))}: no set of sets.yaml")
    entries = [entry for entry in entries if not options.names or entry["name"] in options.names]
    seen = {entry["name"]: check(entry, options.folder) for entry in entries}
    problems = [f"{name}: {problem}" for name, result in seen.items() for problem in result.problems]
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    if options.write and not problems:
        write(tables(seen, entries))
    elif not options.write:
        print(tables(seen, entries))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
