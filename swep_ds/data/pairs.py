"""Generated question-answer pairs as rows that `read_examples` takes.

Two layouts, those of Info-HCVAE (Lee et al., ACL 2020), told apart by content:
  - features: lines of five columns, tab between them: token ids of "[CLS] question [SEP] context [SEP]" and padding,
    attention mask, token types, and the answer's first and last position in the ids. The published pairs.
  - JSON lines {"context", "question", "answer"}. What its generator writes.
Questions that no model could be trained on are dropped and counted by reason.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import rich.progress
from transformers import PreTrainedTokenizerFast

from swep_ds.console import Console
from swep_ds.errors import InputError
from swep_ds.files import write_atomically

NO_ANSWER = "answer not in the context"
BLANK = "blank question, context or answer"
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
    if output.exists():
        raise InputError(f"{output}: exists already: name another file")
    counts: Counter = Counter()

    def rows() -> Iterator[str]:
        with rich.progress.open(source, encoding="utf-8", description=source.name, console=Console()) as lines:
            for number, pair in _pairs(source, lines, load_tokenizer):
                reason = pair if isinstance(pair, str) else _fault(pair)
                counts[reason or "written"] += 1
                if not reason:
                    yield json.dumps(_row(f"{source.stem}-{number}", *pair), ensure_ascii=False) + "\n"
        if not counts["written"]:
            raise InputError(f"{source}: holds no pair to train on ({dict(counts) or 'it is empty'})")

    try:
        write_atomically(output, rows())
    except OSError as error:
        raise InputError(f"{error.filename or source}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{source}: no UTF-8 text (byte {error.start}): name a file of generated pairs") from None
    return counts


def _fault(pair: Pair) -> str | None:
    question, context, answer, _ = pair
    return None if question.strip() and context.strip() and answer.strip() else BLANK


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
        except (ValueError, KeyError, TypeError, IndexError) as error:
            what = f"{type(error).__name__}: {error}"
            raise InputError(
                f"{source}: line {number} is no generated pair ({what}): see scripts/convert_pairs.py"
            ) from None


def _read_json(line: str) -> Pair | str:
    row = json.loads(line)
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
        ids, first, last = [int(i) for i in columns[0].split()], int(columns[3]), int(columns[4])
        if max(ids) >= len(self.pieces):
            raise ValueError(f"token id {max(ids)}, and the tokenizer has {len(self.pieces)}: give --tokenizer")
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
