"""Forecasts what finished runs will score on text without labels, and says how sure that is.

    swep-ds forecast runs/swep-seed0 runs/swep-seed1 runs/swep-seed2 --text asked.jsonl
    swep-ds forecast RUN RUN --text mine=asked.csv --suggest 50 --output label.csv    # the questions to label first
    swep-ds forecast RUN RUN --text mine=asked.csv --labelled label.csv               # labels narrow the interval

The runs are those of one recipe with different seeds: how often their answers agree tells how many are right. One run
is forecast by its confidence. QUESTIONS is any source of data, such as JSON lines or CSV with the columns question and
context. If all questions have answers, the forecast does not use them, and is then compared with the scores.
--suggest draws questions at random, more where scores vary more. Fill in the column answer: copy it from the context,
or write "no answer". --labelled also takes a table of questions that were drawn at random, with id, question and
answer. The models' answers are computed once, and stay in --output_dir. If it is stopped, the same command resumes.
"""

from typing import TYPE_CHECKING

from swep_ds.commands.cli import Parser, at_least
from swep_ds.common.errors import InputError
from swep_ds.common.files import public_name, user_path

if TYPE_CHECKING:
    from swep_ds.analysis.forecast import Forecast


def forecast() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=user_path, metavar="RUN", help="folder of a finished run")
    text = "questions with contexts; may be repeated"
    parser.add_argument("--text", action="append", required=True, metavar="[NAME=]QUESTIONS", help=text)
    text = "file of some of the questions of --text, answered"
    parser.add_argument("--labelled", type=user_path, metavar="FILE", help=text)
    text = "write the N questions whose answers would narrow the interval most"
    parser.add_argument("--suggest", type=at_least(1), metavar="N", help=text)
    parser.add_argument("--output", type=user_path, metavar="FILE.csv", help="new file for these questions")
    text = "for forecast.json and the answers (default: forecast/ in the first run's folder)"
    parser.add_argument("--output_dir", type=user_path, metavar="FOLDER", help=text)
    arguments = parser.parse_args()
    texts = {}
    for option in arguments.text:
        name, separator, source = option.partition("=")
        if not separator:
            name, source = public_name(option), option
        if name in texts:
            raise InputError(f"--text {name}: is given twice: name one of them otherwise, NAME=QUESTIONS")
        texts[name] = source
    options = {name: getattr(arguments, name) for name in ("labelled", "suggest", "output")}

    from swep_ds.api.forecast import forecast as forecast_texts  # after the arguments: these imports take seconds
    from swep_ds.ranks.group import process_group

    with process_group():
        made = forecast_texts(arguments.runs, texts, **options, folder=arguments.output_dir)
    for one in made.values():
        print("\n    ".join(_lines(one, len(arguments.runs))))
    if arguments.suggest:
        print(f"{arguments.suggest} questions to label in {arguments.output}")


def _lines(one: "Forecast", runs: int) -> list[str]:
    from swep_ds.evaluation.calibration import LEVEL

    lines = [f"{one.data_set}, {len(one.by_question)} questions, with {LEVEL} % intervals:"]
    rows = [("forecast", (one.exact_match, one.f1))]
    if one.with_labels:
        corrected = [(estimate.mean, estimate.low, estimate.high) for estimate in one.with_labels.values()]
        rows.append((f"with {one.labelled} labels", corrected))
    for title, values in rows:
        said = []
        for metric, (value, low, high) in zip(("EM", "F1"), values, strict=True):
            said.append(f"{metric} {value:.1f}" + ("" if low is None else f" ({low:.1f} to {high:.1f})"))
        lines.append(f"{title}: {', '.join(said)}")
    if one.with_labels:
        lines.append(f"{one.with_labels['f1'].more_labels} more labels, drawn likewise, would give F1 within 3 points")
    if one.truth:
        lines.append(f"its answers give EM {one.truth[0]:.1f}, F1 {one.truth[1]:.1f}")
    lines.append(f"at home: EM {one.at_home[0]:.1f}, F1 {one.at_home[1]:.1f}")
    signal = f"{one.rests_on} of {runs} {'run' if runs == 1 else 'runs'}"
    lines.append(f"{signal}: {one.signal_there[1]:.1f} % there, {one.signal_at_home[1]:.1f} % at home")
    there, home = one.unknown_words[1], one.unknown_words[0]
    lines.append(f"words that training did not have: {there:.1f} % there, {home:.1f} % at home")
    return [*lines, *one.remarks]
