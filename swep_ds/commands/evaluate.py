"""Evaluates a saved model on any number of data sets: predictions, scores and a table.

    swep-ds evaluate runs/quickstart-swep-seed0/model --data news=quickstart:news --output_dir scores
    swep-ds evaluate MODEL --data squad=dev-v1.1.json --data bioasq=BioASQ.jsonl.gz --output_dir scores
    swep-ds evaluate MODEL --data pairs=pairs.xlsx --texts FOLDER --output_dir scores

MODEL is a Hugging Face folder or hub id. A model that a run exported keeps that run's window settings. Questions that
it was trained on are scored apart.
With --texts each question is asked about all texts of a folder, as `swep-ds answer --texts` does, and scores tell
faults of search from those of reading. A row then names its `document` or has a context.
Runs under `deepspeed`, `torchrun`, `srun` and plain `python`; the questions are spread over the ranks.
"""

from swep_ds.commands.cli import Parser, add_launch_options, add_reading_options, at_least, launch
from swep_ds.common.console import quiet
from swep_ds.common.errors import InputError
from swep_ds.common.files import check_new_folder, user_path
from swep_ds.evaluation.scoring_rules import LANGUAGES, SCORERS
from swep_ds.texts.folder import FolderTexts


def evaluate() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("model", help="Hugging Face folder or hub id of a question-answering model")
    text = "a test set; may be repeated. Name the source domain first: the out-of-domain mean leaves it out"
    parser.add_argument("--data", action="append", required=True, metavar="NAME=SOURCE", help=text)
    text = "a new or empty folder, for predictions/ and results.json"
    parser.add_argument("--output_dir", type=user_path, required=True, help=text)
    text = "tokens in a window (default: as trained, else the model's limit, at most 384)"
    parser.add_argument("--max_length", type=at_least(1), help=text)
    text = "tokens between windows' starts; in transformers' run_qa their overlap (default: as trained, else 128)"
    parser.add_argument("--doc_stride", type=at_least(1), help=text)
    parser.add_argument("--batch_size", type=at_least(1), default=32, help="windows per rank")
    text = "scoring rules, for all data sets (default: the run's, or squad)"
    parser.add_argument("--scorer", choices=SCORERS, help=text)
    parser.add_argument("--language", choices=LANGUAGES, help="mlqa: for all data sets (default: the run's, or en)")
    text = "decline questions with null odds above it (default: the model's, or never)"
    parser.add_argument("--null_threshold", type=float, help=text)
    text = "tokens of the longest answer (default: the run's, or 30)"
    parser.add_argument("--max_answer_tokens", type=at_least(1), help=text)
    parser.add_argument("--texts", metavar="FOLDER", type=user_path, help="folder of texts to ask")
    parser.add_argument("--passages", type=at_least(1), help="passages of --texts to read (default: 10)")
    add_reading_options(parser, training=False)
    add_launch_options(parser)
    arguments = vars(parser.parse_args())
    check_new_folder("--output_dir", arguments["output_dir"])
    folder = arguments.pop("texts")
    passages = arguments.pop("passages")
    if folder is None and passages is not None:
        raise InputError("--passages are those of --texts: give it too, or leave them out")
    # the imports after the arguments take seconds
    if folder is None:
        with launch(arguments.pop("ranks"), "evaluate"):
            from swep_ds.pipeline.saved import evaluate_saved

            evaluate_saved(arguments.pop("model"), **arguments)
        return
    texts = FolderTexts(folder, f"--texts {folder}")
    for option in ("ranks", "max_length", "doc_stride"):
        if arguments.pop(option) is not None:
            raise InputError(f"--{option}: --texts asks in one process, with the model's windows: leave it out")
    with quiet():
        from swep_ds.api.over_texts import evaluate_over_texts

        evaluate_over_texts(arguments.pop("model"), texts=texts, passages=passages or 10, **arguments)
