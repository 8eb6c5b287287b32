"""Times what happens around the model: preparing training data, decoding and scoring answers.

    python scripts/bench_data.py --data new_wiki_v1.0.json.gz --model ENCODER
    python scripts/bench_data.py --data FILE --model NAME --questions 88000 --answers 10000 --json FILE

`swep_ds.cost.data` says what the baselines are. Exit codes as scripts/train.py; 1 where the loops give other
answers.
"""

import json

from swep_ds.commands.cli import Parser, at_least, main
from swep_ds.common.files import check_output, path_of, write_atomically
from swep_ds.data.quickstart import SOURCE


def bench() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("--data", default=f"quickstart:{SOURCE}", help="a source, as in data.train")
    parser.add_argument("--model", default="quickstart:encoder", help="the model whose tokenizer is used")
    parser.add_argument(
        "--questions", type=at_least(1), default=88_000, help="to prepare (default: 88000, as in SQuAD)"
    )
    parser.add_argument("--answers", type=at_least(1), default=10_000, help="questions to decode (default: 10000)")
    parser.add_argument("--json", type=path_of("--json"), help="also write the figures here")
    arguments = parser.parse_args()
    check_output("--json", arguments.json)

    from swep_ds.cost.data import measure_data  # after the arguments: these imports take seconds

    figures = measure_data(arguments.data, arguments.model, arguments.questions, arguments.answers)
    if arguments.json:
        write_atomically(arguments.json, json.dumps(figures, indent=2) + "\n")
    if not figures["same_answers"]:
        raise SystemExit("the loops give other answers")


if __name__ == "__main__":
    main(bench)
