"""Generated question-answer pairs as rows that `read_examples` takes.

Two layouts, those of Info-HCVAE (Lee et al., ACL 2020), told apart by content:
  - features: lines of five columns, tab between them: token ids of "[CLS] question [SEP] context [SEP]" and padding,
    attention mask, token types, and the answer's first and last position in the ids. The published pairs.
  - JSON lines {"context", "question", "answer"}. What its generator writes.
Questions that no model could be trained on are dropped and counted by reason.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import rich.progress
from rich.markup import escape
from transformers import PreTrainedTokenizerFast

from swep_ds.console import Console
from swep_ds.errors import InputError, printable, reason
from swep_ds.files import check_output, open_input, parse_json, write_atomically

NO_ANSWER = "answer not in the context"
BLANK = "blank question, context or answer"
NO_TEXT = "half a surrogate pair in question, context or answer"
LONGEST_LINE = 2**26  # bytes
Pair = tuple[str, str, str, int]  # question, context, answer, its first character in the context


def convert_pairs(source: Path, output: Path, load_tokenizer: Callable[[], PreTrainedTokenizerFast]) -> Counter:
    """Writes the pairs of `source` to `output`: JSON lines with id, question, context and answers.

    Args:
        load_tokenizer: of the vocabulary that features were made with; called for those only.

    Returns:
        Counts: "written", and what was dropped by reason.

    Raises:
        InputError: a file that cannot be read or written, a malformed line (names it), or no pair left.
    """
    check_output("OUTPUT.jsonl", output)
    if output.exists():
        raise InputError(f"{output}: exists already: name another file")
    counts: Counter = Counter()

    def rows() -> Iterator[str]:
        size, shown = source.stat().st_size, escape(printable(source.name))
        with rich.progress.wrap_file(open_input(source), size, description=shown, console=Console()) as file:
            lines = _lines(source, file)
            for number, pair in _pairs(source, lines, load_tokenizer):
                reason = pair if isinstance(pair, str) else _fault(pair)
                counts[reason or "written"] += 1
                if not reason:
                    yield json.dumps(_row(f"{source.stem}-{number}", *pair), ensure_ascii=False) + "\n"
        if not counts["written"]:
            raise InputError(f"{source}: holds no pair to train on ({dict(counts) or 'it is empty'})")

    open_input(source).close()
    try:
        write_atomically(output, rows())
    except OSError as error:
        raise InputError(f"{error.filename or source}: {error.strerror}") from None
    return counts


def _lines(source: Path, file: BinaryIO) -> Iterator[str]:
    """Raises InputError of a line that is no UTF-8 or longer than `LONGEST_LINE`, which it does not read whole."""
    for number in itertools.count(1):
        line = file.readline(LONGEST_LINE)
        if not line:
            return
        if len(line) == LONGEST_LINE:
            raise InputError(f"{source}: line {number} has more than {LONGEST_LINE >> 20} MiB: it is no generated pair")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{source}: line {number} is no UTF-8 text: name a file of generated pairs") from None


def _fault(pair: Pair) -> str | None:
    texts = pair[:3]
    if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
        return NO_TEXT
    return None if all(text.strip() for text in texts) else BLANK


def _row(id_: str, question: str, context: str, answer: str, start: int) -> dict[str, Any]:
    answers = {"text": [answer], "answer_start": [start]}
    return {"id": id_, "question": question, "context": context, "answers": answers}


def _pairs(source: Path, lines: Iterable[str], load_tokenizer) -> Iterable[tuple[int, Pair | str]]:
    """The number of every line and its pair, or why it is dropped."""
    read = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if read is None:
            if line.lstrip().startswith("{"):
                read = _read_json
            elif re.match(r"[\d ]+\t", line):
                read = _Features(load_tokenizer())
            else:
                raise InputError(f"{source}: line {number} is no generated pair: see scripts/convert_pairs.py")
        try:
            yield number, read(line)
        except (ValueError, IndexError, InputError) as error:
            raise InputError(
                f"{source}: line {number} is no generated pair ({reason(error)}): see scripts/convert_pairs.py"
            ) from None


def _read_json(line: str) -> Pair | str:
    row = parse_json(line, "its text")
    if not isinstance(row, dict):
        raise ValueError("it is no JSON object")
    for name in ("question", "context", "answer"):
        if not isinstance(row.get(name), str):
            raise ValueError(f"its {name!r} is missing" if name not in row else f"its {name!r} is no text")
    question, context, answer = row["question"], row["context"], row["answer"].strip()
    # where the answer was taken from is not said: its first occurrence as whole words
    found = re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", context)
    return (question, context, answer, found.start()) if found else NO_ANSWER


class _Features:
    """Reads lines of token ids back as text, of which the same tokenizer makes the same ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        self.pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.separator = tokenizer.sep_token_id

    def __call__(self, line: str) -> Pair | str:
        columns = line.split("\t")
        if len(columns) < 5:
            raise ValueError(f"it has {len(columns)} columns in place of 5")
        ids, first, last = [int(i) for i in columns[0].split()], int(columns[3]), int(columns[4])
        if not 0 <= min(ids) <= max(ids) < len(self.pieces):
            known = len(self.pieces)
            raise ValueError(f"token ids {min(ids)} to {max(ids)}, and the tokenizer has {known}: give --tokenizer")
        middle = ids.index(self.separator)
        end = ids.index(self.separator, middle + 1)
        if not middle < first <= last < end:
            return NO_ANSWER
        question, _ = self._text(ids[1:middle])
        context, spans = self._text(ids[middle + 1 : end])
        start, stop = spans[first - middle - 1][0], spans[last - middle - 1][1]
        return question, context, context[start:stop], start

    def _text(self, ids: list[int]) -> tuple[str, list[tuple[int, int]]]:
        """The words with a blank between them, and every id's characters in it."""
        text, spans = "", []
        for piece in (self.pieces[i] for i in ids):
            continues = piece.startswith("##")
            text += "" if continues or not text else " "
            begin = len(text)
            text += piece.removeprefix("##") if continues else piece
            spans.append((begin, len(text)))
        return text, spans
