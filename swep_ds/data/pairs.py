"""Generated question-answer pairs as rows that `read_examples` takes.

Both layouts are those of Info-HCVAE (Lee et al., ACL 2020) and recognised by content:
  - features, the published pairs: lines of five columns with tabs between them: token ids of "[CLS] question [SEP]
    context [SEP]" and padding, attention mask, token types, and the answer's first and last position in the ids.
  - JSON lines {"context", "question", "answer"}, the output of its generator.
Questions that no model can be trained on are dropped and counted by reason.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from swep_ds.common.errors import InputError, reason
from swep_ds.common.files import check_output, open_input, write_atomically
from swep_ds.data.answers import occurrences
from swep_ds.data.fields import at, field, is_blank

Pair = tuple[str, str, str, int | None]  # question, context, answer, the answer's first character, if it is there


def convert_pairs(source: Path, output: Path, load_tokenizer: Callable[[], PreTrainedTokenizerFast]) -> Counter:
    """Writes the pairs of `source` to `output`: JSON lines with id, question, context and answers. Returns counts:
    "written", and the dropped pairs by reason.

    Args:
        load_tokenizer: loads the tokenizer that made the ids; called only for features.

    Raises InputError: `output` exists, a line is malformed (the message names it), or no pair is left.
    """
    check_output("OUTPUT.jsonl", output)
    if output.exists():
        raise InputError(f"{output}: exists already: name another file")
    counts: Counter = Counter()

    def rows() -> Iterator[str]:
        for number, (question, context, answer, start) in _pairs(source, load_tokenizer):
            if start is None:
                counts["answer not in the context"] += 1
            elif any(map(is_blank, (question, context, answer))):
                counts["blank question, context or answer"] += 1
            else:
                counts["written"] += 1
                row = {"id": f"{source.stem}-{number}", "question": question, "context": context}
                row["answers"] = {"text": [answer], "answer_start": [start]}
                yield json.dumps(row, ensure_ascii=False) + "\n"
        if not counts["written"]:
            raise InputError(f"{source}: holds no pair to train on ({dict(counts) or 'it is empty'})")

    write_atomically(output, rows())
    return counts


def _pairs(source: Path, load_tokenizer: Callable[[], PreTrainedTokenizerFast]) -> Iterator[tuple[int, Pair]]:
    """The number of every line and its pair."""
    parse: Callable[[str], Pair] | None = None
    with open_input(source) as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if parse is None:
                parse = _parse_json
                if re.match(rb"[\d ]+\t", line):
                    parse = _Features(load_tokenizer())
            with at(f"{source}: line {number}"):
                try:
                    pair = parse(line.decode("utf-8-sig"))
                except (ValueError, IndexError) as error:
                    raise InputError(
                        f"is not a generated pair ({reason(error)}): see `swep-ds convert --help`"
                    ) from None
            yield number, pair


def _parse_json(line: str) -> Pair:
    row = json.loads(line)
    question = field(row, "question", str)
    context = field(row, "context", str)
    answer = field(row, "answer", str).strip()
    if not answer:
        return question, context, answer, 0
    # the pair does not say where its answer comes from: take the first occurrence
    return question, context, answer, next(occurrences(context, answer), None)


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

    def __call__(self, line: str) -> Pair:
        columns = line.split("\t")
        ids = list(map(int, columns[0].split()))
        first = int(columns[3])
        last = int(columns[4])
        if max(ids) >= len(self.pieces):
            raise ValueError(f"token id {max(ids)}, and the tokenizer has {len(self.pieces)}: give --tokenizer")
        middle = ids.index(self.separator)
        end = ids.index(self.separator, middle + 1)
        question = self._text(ids[1:middle])
        context = self._text(ids[middle + 1 : end])
        if not middle < first <= last < end:
            return question, context, "", None
        answer = self._text(ids[first : last + 1])
        stop = len(self._text(ids[middle + 1 : last + 1]))
        return question, context, answer, stop - len(answer)

    def _text(self, ids: list[int]) -> str:
        """The words with a blank between them."""
        return " ".join(self.pieces[i] for i in ids).replace(" ##", "").removeprefix("##")
