"""Cuts a model's vocabulary to the words that texts use: a multilingual model to one language, or to one domain.

    swep-ds trim FacebookAI/xlm-roberta-base --texts articles --data train.json --output xlm-roberta-articles

Other words are then cut into shorter ones, down to characters. Give all training data, and texts like those that the
model will be asked about. Words that all stay give the logits that they gave before.
"""

from itertools import chain

from swep_ds.commands.cli import Parser
from swep_ds.common.console import quiet
from swep_ds.common.errors import InputError
from swep_ds.common.files import check_new_folder, user_path
from swep_ds.texts.folder import FolderTexts


def trim() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="hub id or local folder")
    parser.add_argument("--texts", type=user_path, metavar="FOLDER", help="folder of texts and documents")
    parser.add_argument("--data", nargs="+", default=[], metavar="SOURCE", help="questions with their contexts")
    parser.add_argument("--output", required=True, type=user_path, metavar="FOLDER", help="a new folder")
    given = parser.parse_args()
    check_new_folder("--output", given.output)
    if not given.texts and not given.data:
        raise InputError("no text says which words to keep: give --texts, --data or both")
    texts = []
    if given.texts:
        folder = FolderTexts(given.texts, f"--texts {given.texts}")
        texts.append(folder[name] for name in folder.states())  # read when they are needed

    from swep_ds.data.readers import read_examples  # after the arguments: these imports take seconds
    from swep_ds.pipeline.vocabulary import trim

    for source in given.data:
        examples = read_examples(source, training=False, labels=False)
        texts += [(example.question, example.context) for example in examples]
    with quiet():
        before, after = trim(given.model, chain.from_iterable(texts), given.output)
    print(f"kept {after:,} of {before:,} words: {given.output}")
