"""Cuts a model's vocabulary to the words that texts use: a multilingual model for one language, or for one domain.

    swep-ds trim FacebookAI/xlm-roberta-base --texts articles --data train.json --output xlm-roberta-articles
    swep-ds train --recipe new_wikipedia --set model.name=xlm-roberta-articles

What is not kept is cut into shorter words, down to characters. From texts of kept words the model computes the same as
before. Give all data of training, and texts like those that it will be asked about.
"""

from swep_ds.commands.cli import Parser
from swep_ds.common.errors import InputError
from swep_ds.common.files import check_new_folder, read_texts, user_path


def trim() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="hub id or local folder")
    parser.add_argument("--texts", type=user_path, metavar="FOLDER", help="folder of .txt and .md files")
    parser.add_argument("--data", nargs="+", default=[], metavar="SOURCE", help="data whose questions and texts count")
    parser.add_argument("--output", required=True, type=user_path, metavar="FOLDER", help="a new folder")
    arguments = parser.parse_args()
    check_new_folder("--output", arguments.output)
    if not arguments.texts and not arguments.data:
        raise InputError("the words of which texts to keep is not said: give --texts, --data or both")
    texts = [*read_texts(arguments.texts, f"--texts {arguments.texts}").values()] if arguments.texts else []

    from swep_ds.data.readers import read_examples  # these imports take seconds: after the arguments are checked
    from swep_ds.pipeline.trim import trim as trim_model

    for source in arguments.data:
        texts += [
            text
            for example in read_examples(source, training=False, labels=False)
            for text in (example.question, example.context)
        ]
    before, after = trim_model(arguments.model, texts, arguments.output)
    print(f"{after:,} of {before:,} words in {arguments.output}")
