"""Scores files of predictions of any program, and their differences, with 95 % intervals over questions.

    swep-ds score before.json after.json --data dev-v2.0.json
    swep-ds score before/answers/mine.jsonl after/answers/mine.jsonl --data pairs.xlsx --texts documents

PREDICTIONS is JSON: {"ID": "ANSWER"} for SQuAD's and MLQA's scorers, as run_qa.py and a run's predictions/ have it;
{"ID": [{"text": "ANSWER"}]} as in run_qa.py's nbest_predictions.json, whose first answers count; or a list or JSON
lines of {"id": "ID", "prediction_text": "ANSWER"} for `evaluate`, or with "answer" as `swep-ds answer` and `evaluate
--texts` write them, whose CSV is read, too. "" declines the question; probabilities are not read. In a single
file a question without a prediction scores 0; several files are scored on the questions that all of them answer.
"""

from swep_ds.commands.cli import Parser, add_reading_options
from swep_ds.common.files import user_path
from swep_ds.evaluation.scoring_rules import LANGUAGES, SCORERS
from swep_ds.texts.folder import FolderTexts


def score() -> None:
    parser = Parser(description=__doc__)
    text = "a file of predictions; each further one is compared with the first"
    parser.add_argument("files", nargs="+", type=user_path, metavar="PREDICTIONS", help=text)
    parser.add_argument("--data", required=True, metavar="SOURCE", help="the questions, with their accepted answers")
    text = "folder of the documents that the questions name"
    parser.add_argument("--texts", metavar="FOLDER", type=user_path, help=text)
    parser.add_argument("--scorer", choices=SCORERS, default="squad", help="scoring rules")
    parser.add_argument("--language", choices=LANGUAGES, default="en", help="mlqa: the language of the answers")
    add_reading_options(parser, training=False)
    arguments = vars(parser.parse_args())
    if folder := arguments["texts"]:
        arguments["texts"] = FolderTexts(folder, f"--texts {folder}")

    from swep_ds.analysis.prediction_files import score_files  # after the arguments: this import takes a second

    score_files(**arguments)
