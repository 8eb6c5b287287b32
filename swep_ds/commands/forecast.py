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
    from swep_ds.evaluation.calibration import LEVEL

    made = forecast_text(**vars(arguments))
    for name, result in made.items():
        print(f"{name}, {len(result.by_question)} questions, with {LEVEL} % intervals:")
        print(f"    forecast: EM {_said(*result.exact_match)}, F1 {_said(*result.f1)}")
        if result.with_labels:
            em, f1 = ((value.mean, value.low, value.high) for value in result.with_labels.values())
            print(f"    with {result.labelled} labels: EM {_said(*em)}, F1 {_said(*f1)}")
            print(f"    {result.with_labels['f1'].more_labels} more such labels would give F1 within 3 points")
        if result.truth:
            print("    its answers give: EM {:.1f}, F1 {:.1f}".format(*result.truth))
        print("    at home: EM {:.1f}, F1 {:.1f}".format(*result.at_home))
        print(f"    {result.rests_on}: {result.signal_there[1]:.1f} %, at home {result.signal_at_home[1]:.1f} %")
        print("    words that training did not have: {1:.1f} %, at home {0:.1f} %".format(*result.unknown_words))
        for remark in result.remarks:
            print(f"    {remark}")
    if arguments.suggest:
        print(f"{arguments.suggest} questions to label in {arguments.output}")
    print(f"swep-ds report {arguments.runs[0]} shows this in its report")


def _said(value: float, low: float | None, high: float | None) -> str:
    return f"{value:.1f}" if low is None else f"{value:.1f} ({low:.1f} to {high:.1f})"
