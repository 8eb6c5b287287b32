"""A custom data reader: questions and answers in tab-separated lines.

    python examples/own_data.py --train train.tsv --test test.tsv --output_dir runs/tabs

A line is QUESTION <tab> CONTEXT <tab> ANSWER. Files as SQuAD or MRQA JSON, or as rows, need no reader: name them in
`data.train`. In an installed package the entry point group "swep_ds.readers" names the module.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import swep_ds as sd


@sd.reader("tabs")
def read_tabs(address: str) -> Iterator[dict]:
    for line in Path(address).read_text(encoding="utf-8").splitlines():
        question, context, answer = line.split("\t")
        start = context.index(answer)  # a ValueError is reported as a fault of the file
        yield {"question": question, "context": context, "answers": {"text": [answer], "answer_start": [start]}}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--train", required=True)
    options.add_argument("--test", required=True)
    options.add_argument("--output_dir", required=True)
    options.add_argument("--max_updates", type=int, default=200)
    given = options.parse_args()
    data = {"train": f"tabs:{given.train}", "eval": {"test": f"tabs:{given.test}"}}
    train, method = {"max_updates": given.max_updates}, sd.Swep(beta=1e-4)
    run = sd.train("quickstart_answerable", data=data, train=train, method=method, output_dir=given.output_dir)
    print(run.scores["test"])


if __name__ == "__main__":
    main()
