"""Forecasts what finished runs will score on text without labels, and says how sure that is.

    swep-ds forecast runs/swep-seed0 runs/swep-seed1 runs/swep-seed2 --text asked.jsonl
    swep-ds forecast RUN RUN --text asked.csv --suggest 50 --output label.csv    # the questions to label first
    swep-ds forecast RUN RUN --text asked.csv --labelled label.csv               # labels narrow the interval
    swep-ds forecast RUN RUN                 # the sets that they were tested on, to see how good forecasts are

How often runs of one recipe with different seeds agree tells how many answers are right; of one run its confidence
does. QUESTIONS is any source of data with questions and contexts; answers in it are only compared with. --suggest draws
questions at random, more where scores vary more. Fill in the column answer: copy it from the context, or write "no
answer", and leave the column stratum as it is. --labelled also takes any table of questions drawn at random, with id,
question and answer. Forecasts go to the folder forecast/ of the first run, as do answers, which are computed once. The
same command resumes what was stopped.
"""

from swep_ds.commands.cli import Parser, at_least
from swep_ds.common.files import user_path


def forecast() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=user_path, metavar="RUN", help="folder of a finished run")
    text = "questions with contexts (default: the sets that the runs were tested on)"
    parser.add_argument("--text", metavar="QUESTIONS", help=text)
    text = "file of some of the questions of --text, answered"
    parser.add_argument("--labelled", type=user_path, metavar="FILE", help=text)
    text = "write the N questions whose answers would narrow the interval most"
    parser.add_argument("--suggest", type=at_least(1), metavar="N", help=text)
    parser.add_argument("--output", type=user_path, metavar="FILE.csv", help="new file for these questions")
    arguments = parser.parse_args()

    from swep_ds.api.forecast import forecast as forecast_text  # after the arguments: these imports take a second
    from swep_ds.common.pages import template
    from swep_ds.evaluation.calibration import LEVEL

    made = forecast_text(**vars(arguments))
    print(template("analysis/forecast.jinja").render(forecasts=made, level=LEVEL), end="")
    if arguments.suggest:
        print(f"{arguments.suggest} questions to label in {arguments.output}")
    print(f"swep-ds report {arguments.runs[0]} shows this in its report")
