"""Generated question-answer pairs as rows that `read_examples` takes.

Both layouts are those of Info-HCVAE (Lee et al., ACL 2020) and recognised by content:
  - features, the published pairs: lines of five columns with tabs between them: token ids of "[CLS] question [SEP]
    context [SEP]" and padding, attention mask, token types, and the answer's first and last position in the ids.
  - JSON lines {"context", "question", "answer"}, the output of its generator.
Questions that no model can be trained on are dropped and counted by reason.
"""

import itertools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from transformers import PreTrainedTokenizerFast

from swep_ds.common.errors import InputError, as_input_error, reason
from swep_ds.common.files import check_output, open_input, parse_json, write_atomically
from swep_ds.data.answers import occurrences
from swep_ds.data.fields import is_blank, require_text

NO_ANSWER = "answer not in the context"
BLANK = "blank question, context or answer"
NO_TEXT = "half a surrogate pair in question, context or answer"
MAX_LINE_BYTES = 2**26  # bytes
Pair = tuple[str, str, str, int]  # question, context, answer, the answer's first character in the context


def convert_pairs(source: Path, output: Path, load_tokenizer: Callable[[], PreTrainedTokenizerFast]) -> Counter:
    """Writes the pairs of `source` to `output`: JSON lines with id, question, context and answers.

    Args:
        load_tokenizer: loads the tokenizer that made the ids; called only for features.

    Returns:
        Counts: "written", and the dropped pairs by reason.

    Raises:
        InputError: a file cannot be read or written, a line is malformed (the message names it), or no pair is left.
    """
    check_output("OUTPUT.jsonl", output)
    if output.exists():
        raise InputError(f"{output}: exists already: name another file")
    counts: Counter = Counter()

    def rows() -> Iterator[str]:
        with open_input(source) as file:
            for number, pair in _pairs(source, _lines(source, file), load_tokenizer):
                fault = pair if isinstance(pair, str) else _fault(pair)
                counts[fault or "written"] += 1
                if not fault:
                    question, context, answer, start = pair
                    row = {"id": f"{source.stem}-{number}", "question": question, "context": context}
                    row["answers"] = {"text": [answer], "answer_start": [start]}
                    yield json.dumps(row, ensure_ascii=False) + "\n"
        if not counts["written"]:
            raise InputError(f"{source}: holds no pair to train on ({dict(counts) or 'it is empty'})")

    try:
        write_atomically(output, rows())
    except OSError as error:
        raise InputError(f"{error.filename or source}: {error.strerror}") from None
    return counts


def _lines(source: Path, file: BinaryIO) -> Iterator[str]:
    """Raises InputError at a line that is not UTF-8, or longer than `MAX_LINE_BYTES`, whose rest it does not read."""
    for number in itertools.count(1):
        line = file.readline(MAX_LINE_BYTES)
        if not line:
            return
        if len(line) == MAX_LINE_BYTES:
            raise InputError(f"{source}: line {number} is not a generated pair: it has over {MAX_LINE_BYTES >> 20} MiB")
        with as_input_error(f"{source}: line {number} is not UTF-8 text", "name a file of generated pairs"):
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        yield text


def _fault(pair: Pair) -> str | None:
    try:
        return BLANK if any(is_blank(require_text(text, "")) for text in pair[:3]) else None
    except InputError:
        return NO_TEXT


def _pairs(source: Path, lines: Iterable[str], load_tokenizer) -> Iterable[tuple[int, Pair | str]]:
    """The number of every line and its pair, or the reason to drop it."""
    parse = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if parse is None:
            if line.lstrip().startswith("{"):
                parse = _parse_json
            elif re.match(r"[\d ]+\t", line):
                parse = _Features(load_tokenizer())
            else:
                raise InputError(f"{source}: line {number} is not a generated pair: see `swep-ds convert --help`")
        try:
            yield number, parse(line)
        except (ValueError, IndexError, InputError) as error:
            raise InputError(
                f"{source}: line {number} is not a generated pair ({reason(error)}): see `swep-ds convert --help`"
            ) from None


def _parse_json(line: str) -> Pair | str:
    row = parse_json(line, "its text")
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    for name in ("question", "context", "answer"):
        if not isinstance(row.get(name), str):
            raise ValueError(f"its {name!r} is missing" if name not in row else f"its {name!r} is not text")
    question, context, answer = row["question"], row["context"], row["answer"].strip()
    # the pair does not say where its answer comes from: take the first occurrence
    start = next(occurrences(context, answer), None) if answer else 0
    return NO_ANSWER if start is None else (question, context, answer, start)


class _Features:
    """Turns lines of token ids back into text that the same tokenizer turns into the same ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast):
        if type(tokenizer.backend_tokenizer.model).__name__ != "WordPiece":
            raise InputError(
                f"--tokenizer {tokenizer.name_or_path}: has no WordPiece vocabulary, as the features need: "
                "name that of a BERT"
            )
        self.pieces = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
        self.separator = tokenizer.sep_token_id

    def __call__(self, line: str) -> Pair | str:
        columns = line.split("\t")
        if len(columns) < 5:
            raise ValueError(f"it has {len(columns)} columns instead of 5")
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
        """The words with a blank between them, and every id's characters in them."""
        text, spans = "", []
        for piece in (self.pieces[i] for i in ids):
            letters = piece.removeprefix("##")
            text += " " if text and letters == piece else ""
            spans.append((len(text), len(text) + len(letters)))
            text += letters
        return text, spans
