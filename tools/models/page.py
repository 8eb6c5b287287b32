"""The tables of docs/models.md."""

import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import TypeVar

from tools.models.making import architectures
from tools.models.trial import GENERATED, RAW, ROOT, SPANS, WRONG, Cells

LONGEST = 160  # characters of a reason
PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- python -m tools.models begins -->", "<!-- python -m tools.models ends -->"
Key = TypeVar("Key")


def page_cell(cell: str) -> str:
    """A cell as the page shows it: a "no" with what was said, without brackets, fix, class names and numbers."""
    if not cell.startswith("no: "):
        return cell
    text = re.sub(r" is [\d.e+-]+ away from that of transformers.*", " is not that of transformers", cell[4:])
    return "no: " + re.sub(r"(: set it|, which| \().*", "", reason_of(f"no: {text}"))


def reason_of(cell: str) -> str:
    """Why not, without the fix and class names."""
    text = cell.removeprefix("no: ")
    if not text.startswith((WRONG, RAW)):
        text = text.rpartition(": ")[0]
    heads = r"[A-Z]\w+(ForQuestionAnswering|ForConditionalGeneration|ForTextToText|MTModel)(Simple)?"
    text = re.sub(rf"\b{heads}\b", "it", re.sub(f"'{heads}' object", "its object", text))
    text = re.sub(r"(train.compile: PyTorch cannot compile) [\w-]+", r"\1 it", text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def is_refused(cells: Cells) -> bool:
    """Whether it neither answers nor trains, with a message for each."""
    both = [cells.get(column, "no: ") for column in ("answers", "trains")]
    return all(cell.startswith("no: ") and not cell[4:].startswith((WRONG, RAW)) for cell in both)


def grouped(rows: Iterable[tuple[Key, str]]) -> list[tuple[Key, str]]:
    """Keys and the names that have each, most names first."""
    names: dict[Key, list[str]] = {}
    for key, name in rows:
        names.setdefault(key, []).append(f"`{name}`")
    ordered = sorted(names.items(), key=lambda item: (-len(item[1]), item[1]))
    return [(key, ", ".join(listed)) for key, listed in ordered]


def tables(rows: dict[str, Cells]) -> str:
    """What stands between the markers."""
    spans, seq2seq, audio = architectures()
    parts = []
    for title, names, columns in (("head for spans", spans, SPANS), ("encoder-decoder", seq2seq, GENERATED)):
        lines = [f"| {title} | {' | '.join(columns)} |", "| --- " * (1 + len(columns)) + "|"]
        taken = {name: rows[name] for name in names if name in rows and not is_refused(rows[name])}
        cells = ((tuple(page_cell(row.get(column, "-")) for column in columns), name) for name, row in taken.items())
        lines += [f"| {listed} | {' | '.join(row)} |" for row, listed in grouped(cells)]
        parts.append("\n".join(lines))
    versions = ", ".join(f"{package} {version(package)}" for package in ("transformers", "peft", "deepspeed"))
    refused = ((reason_of(cells["answers"]), name) for name, cells in rows.items() if is_refused(cells))
    lines = [f"- {listed}: {reason}" for reason, listed in grouped(refused)]
    kinds = ", ".join(f"`{name}`" for name in audio)
    lines.append(f"- {kinds}: not tried, since they read audio")
    parts.append("\n".join([f"The others neither answer nor train, with {versions}:", *lines]))
    return "\n\n".join(parts)


def write(text: str) -> None:
    """Puts the tables between the page's markers."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(f"{BEGIN}\n")
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
