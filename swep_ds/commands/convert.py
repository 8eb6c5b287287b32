"""Makes training data from generated question-answer pairs in a layout that data sources do not read.

    swep-ds convert 0.4_replaced_1.0_harv_features.txt synthetic.jsonl
    swep-ds train --recipe synthetic --set pretrain.train=synthetic.jsonl

Reads the published pairs of Info-HCVAE (Lee et al., ACL 2020), lines of token ids, and the output of its generator,
JSON lines {"context", "question", "answer"}. SQuAD-like JSON needs no conversion: name it as a data source.
"""

from swep_ds.commands.cli import Parser
from swep_ds.common.files import path_of


def convert() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("source", type=path_of("FILE"), help="file of generated pairs")
    parser.add_argument("output", type=path_of("OUTPUT.jsonl"), metavar="OUTPUT.jsonl", help="a new file")
    text = "hub id or local folder of the tokenizer that made the ids"
    parser.add_argument("--tokenizer", default="google-bert/bert-base-uncased", help=text)
    arguments = parser.parse_args()

    from swep_ds.data.pairs import convert_pairs  # after the arguments: these imports take seconds
    from swep_ds.models.hub import load_tokenizer

    counts = convert_pairs(
        arguments.source, arguments.output, lambda: load_tokenizer(arguments.tokenizer, "--tokenizer")
    )
    print(f"{arguments.output}: {counts.pop('written')} pairs")
    for reason, count in counts.items():
        print(f"dropped: {count} ({reason})")
