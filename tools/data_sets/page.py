"""The tables of docs/data_sets.md."""

from collections import Counter
from datetime import date
from importlib.metadata import version
from itertools import takewhile
from pathlib import Path
from typing import Any

from tools.data_sets.check import Entry, Seen

PAGE = Path(__file__).parents[2] / "docs" / "data_sets.md"
BEGIN, END = "<!-- python -m tools.data_sets begins -->", "<!-- python -m tools.data_sets ends -->"
HEAD = "| set | language | questions | trained | repository and files | `data` | `eval` | in the published files |"
PLACES = ("once", "several times", "nowhere")
FAULTS = {  # a count -> its words, in the order of the cell
    "misplaced": "misplaced",
    "without offset": "without offset",
    "impossible with answers": "impossible with answers",
    "possible without answers": "possible without answers",
    "lost answers": "without a field for answers",
    "blank answers": "with a blank answer",
    "blank rows": "without question or context",
    "repeated ids": "repeated ids",
    "withheld": "answers withheld",
    "golds with F1 0": "answers of which the scorer's rules leave nothing (F1 0)",
}


def tables(seen: dict[str, Seen], entries: list[Entry]) -> str:
    """What stands between the markers: a line for each set that is read, and the others by reason."""
    read = [entry for entry in entries if "not_read" not in entry]
    counts = sum((seen[entry["name"]].counts for entry in read), Counter())
    languages = {language for entry in read for language in entry["language"]}
    said = (
        f"{date.today().isoformat()}, swep-ds {version('swep-ds')}: {len(read)} sets, {len(languages)} languages, "
        f"{counts['questions']:,} questions. {counts['files for testing']} files are read for testing and "
        f"{counts['files for training']} for training, with the counts of a plain reading. With the first accepted "
        f"answer as the prediction, EM is 100 in {counts['files with EM 100']} files."
    )
    lines = [said, "", HEAD, "| --- " * HEAD.count(" |") + "|", *(line(entry, seen[entry["name"]]) for entry in read)]
    lines += ["", "Not read:"]
    reasons: dict[str, list[str]] = {}
    for entry in entries:
        if "not_read" in entry:
            reasons.setdefault(entry["not_read"], []).append(f"{entry['name']} ({_link(entry)})")
    lines += [f"- {', '.join(names)}: {reason}" for reason, names in reasons.items()]
    return "\n".join(lines)


def line(entry: Entry, seen: Seen) -> str:
    """A set's row of the table."""
    counts = seen.counts
    training = counts["questions of training files"]
    cells = [
        entry["name"],
        " ".join(entry["language"]),
        f"{training:,} + {counts['questions'] - training:,}" if training else f"{counts['questions']:,}",
        f"{counts['trained']:,}",
        f"{_link(entry)} {_code(files_pattern(entry))}",
        _code(settings_text(entry["data"])) if "data" in entry else "",
        eval_text(entry),
        "; ".join(faults(entry, counts)),
    ]
    return f"| {' | '.join(cells)} |"


def faults(entry: Entry, counts: Counter[str]) -> list[str]:
    """What is wrong in the files of a set."""
    said = []
    for name, words in FAULTS.items():
        if number := counts[name]:
            where = [f"{counts[f'{name}, {place}']:,} {place}" for place in PLACES if counts[f"{name}, {place}"]]
            said.append(f"{number:,} {words}" + (f" ({', '.join(where)})" if where else ""))
    return [*said, entry["note"]] if "note" in entry else said


def settings_text(value: Any) -> str:
    """Settings as a recipe has them, in a line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {settings_text(part)}" for name, part in value.items()) + "}"
    return "null" if value is None else str(value)


def eval_text(entry: Entry) -> str:
    """The settings of the set's own scorer or, in brackets, of the one that fits its language."""
    if "official" in entry:
        return _code(settings_text(entry["official"]))
    return f"({_code(settings_text(entry['fitting']))})" if "fitting" in entry else ""


def files_pattern(entry: Entry) -> str:
    """The path of the file below the clone's folder, or what the paths begin and end with."""
    folder = entry["repository"].rpartition("/")[2]
    files = [f"{folder}/{file}" for file in entry["files"]]
    if len(files) == 1:
        return files[0]
    end = _same_beginning([file[::-1] for file in files])[::-1]
    return f"{_same_beginning(files)}*{end}"


def _same_beginning(texts: list[str]) -> str:
    letters = takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
    return "".join(column[0] for column in letters)


def write(text: str) -> None:
    """Puts the tables between the page's markers."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(f"{BEGIN}\n")
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def _link(entry: Entry) -> str:
    repository = entry["repository"]
    return f"[{repository}](https://github.com/{repository}/tree/{entry['commit'][:12]})"


def _code(text: str) -> str:
    return f"`{text}`"
