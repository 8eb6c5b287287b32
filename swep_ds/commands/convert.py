"""Makes training data from generated question-answer pairs in a layout that data sources do not read.

    swep-ds convert 0.4_replaced_1.0_harv_features.txt synthetic.jsonl
    swep-ds train --recipe synthetic --set pretrain.train=synthetic.jsonl

Reads the published pairs of Info-HCVAE (Lee et al., ACL 2020), lines of token ids, and the output of its generator,
JSON lines {"context", "question", "answer"}. SQuAD-like JSON and exports of Label Studio, Prodigy, doccano and Argilla
need no conversion: name them as a data source.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

from swep_ds.commands.cli import Parser
from swep_ds.common.errors import InputError, as_input_error
from swep_ds.common.files import check_output, user_path, write_atomically
from swep_ds.data.answers import is_blank
from swep_ds.data.places import occurrences

FIX = "data sources read SQuAD-like JSON and exports of annotation tools as they are; see `swep-ds convert --help`"


def convert() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("source", type=user_path, help="file of generated pairs")
    parser.add_argument("output", type=user_path, metavar="OUTPUT.jsonl", help="a new file")
    text = "hub id or local folder of the tokenizer that made the ids"
    parser.add_argument("--tokenizer", default="google-bert/bert-base-uncased", help=text)
    arguments = parser.parse_args()
    check_output("OUTPUT.jsonl", arguments.output)
    if arguments.output.exists():
        raise InputError(f"{arguments.output}: exists already: name another file")

    from swep_ds.models.hub import load_tokenizer  # after the arguments: this takes seconds

    counts: Counter = Counter()  # "written", and by reason the dropped pairs, which no model can be trained on
    tokenizer = cache(partial(load_tokenizer, arguments.tokenizer, "--tokenizer"))  # not needed where there are no ids
    write_atomically(arguments.output, _rows(arguments.source, tokenizer, counts))
    print(f"{arguments.output}: {counts.pop('written')} pairs")
    for reason, count in counts.items():
        print(f"dropped: {count} ({reason})")


def _rows(source: Path, load_tokenizer: Callable, counts: Counter) -> Iterator[str]:
    with source.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            with as_input_error(f"{source}: line {number} is not a generated pair", FIX):
                if re.match(rb"[\d ]+\t", line):
                    question, context, answer, start = _of_ids(line.decode(), load_tokenizer())
                else:
                    row = json.loads(line)
                    question, context, answer = row["question"], row["context"], row["answer"].strip()
                    # the pair does not say where its answer comes from: take the first occurrence
                    start = next(iter(occurrences(context, answer)), None) if answer else 0
                has_blank = any(map(is_blank, (question, context, answer)))
            if start is None:
                counts["answer not in the context"] += 1
            elif has_blank:
                counts["blank question, context or answer"] += 1
            else:
                counts["written"] += 1
                row = {"id": f"{source.stem}-{number}", "question": question, "context": context}
                row["answers"] = {"text": [answer], "answer_start": [start]}
                yield json.dumps(row, ensure_ascii=False) + "\n"
    if not counts["written"]:
        raise InputError(f"{source}: holds no pair to train on ({dict(counts) or 'it is empty'})")


def _of_ids(line: str, tokenizer) -> tuple[str, str, str, int | None]:
    """Question, context, answer and the answer's first character (None if it is not there) of a line of five columns:
    token ids of "[CLS] question [SEP] context [SEP]" and padding, attention mask, token types, and the answer's first
    and last position in the ids. Words get a blank between them, so that the same tokenizer makes the same ids of the
    text."""
    if type(tokenizer.backend_tokenizer.model).__name__ != "WordPiece":
        raise InputError(f"--tokenizer {tokenizer.name_or_path}: has no WordPiece vocabulary: name that of a BERT")
    columns = line.split("\t")
    ids = list(map(int, columns[0].split()))
    if max(ids) >= len(tokenizer):
        raise ValueError(f"token id {max(ids)}, and the tokenizer has {len(tokenizer)}: give --tokenizer")

    def text(begin: int, end: int) -> str:
        return " ".join(tokenizer.convert_ids_to_tokens(ids[begin:end])).replace(" ##", "").removeprefix("##")

    middle = ids.index(tokenizer.sep_token_id)
    end = ids.index(tokenizer.sep_token_id, middle + 1)
    question = text(1, middle)
    context = text(middle + 1, end)
    first = int(columns[3])
    last = int(columns[4])
    if not middle < first <= last < end:
        return question, context, "", None
    answer = text(first, last + 1)
    return question, context, answer, len(text(middle + 1, last + 1)) - len(answer)
