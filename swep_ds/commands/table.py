"""Makes one table, and curves, of the runs in any number of folders.

    swep-ds table runs/paper_bert runs/paper_electra runs/paper_t5 --output tables
    swep-ds table runs/mle runs/swep --against mle --line squadshifts
    swep-ds table runs/learned_noise runs/learned_noise_new_wiki --leaderboard --against "Prior-Aug 0.1"

Rows are methods, columns data sets, blocks models. A block has the means and standard deviations of scores over seeds,
with the paper's numbers if there are any; calibration; F1 above the line of in-domain F1; and differences to a base
row, with intervals. With --output all is written as table.md, .csv and .json, table-BLOCK.tex, notes.tex, and figures
(PNG, SVG, PDF): curves over axes of numbers, differences of other blocks, and F1 on shifted sets if there is a line.
Exit codes: 0: done. 1: some runs are missing from the table, which names them. 2: bad input (one line says what and
how to fix it).
"""

import sys

from swep_ds.commands.cli import Parser
from swep_ds.common.errors import EXIT_FAULT
from swep_ds.common.files import check_output_folder, user_path


def table() -> None:
    parser = Parser(description=__doc__)
    text = "folder of a sweep, or of one or more runs"
    parser.add_argument("folders", nargs="+", type=user_path, metavar="FOLDER", help=text)
    parser.add_argument("--against", metavar="ROW", help="the row that others are compared with (default: MLE)")
    text = "line that predicts F1 on shifted data from in-domain F1: squadshifts or a YAML file (default: fit one to "
    text += "the base row)"
    parser.add_argument("--line", help=text)
    parser.add_argument("--output", type=user_path, metavar="DIR", help="write table and figures there")
    text = "in place of the table: methods x sources, with F1 on shifted text, differences and the cost of a run"
    parser.add_argument("--leaderboard", action="store_true", help=text)
    arguments = parser.parse_args()
    if arguments.leaderboard and arguments.line:
        parser.error("--leaderboard has no --line")
    check_output_folder("--output", arguments.output)

    from swep_ds.analysis import formats, leaderboard  # takes seconds: after the arguments are checked
    from swep_ds.analysis.robustness import published
    from swep_ds.analysis.runs import find_runs

    line = published(arguments.line) if arguments.line else None
    runs = find_runs(arguments.folders)
    if arguments.leaderboard:
        shown = leaderboard.publish(runs, arguments.output, arguments.against)
    else:
        shown = formats.publish(runs, arguments.output, arguments.against, line)
    if shown.missing:
        sys.exit(EXIT_FAULT)
