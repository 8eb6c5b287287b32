"""Makes a run's report from its folder: one HTML page that needs no other file.

    swep-ds report runs/quickstart-swep-seed0
    swep-ds report RUN --against MLE_RUN --output report.html     # with the answers that changed

A finished run has written its report.html; for one that is not finished, the page shows what it has so far.
"""

from swep_ds.commands.cli import Parser
from swep_ds.common.console import Console
from swep_ds.common.files import check_output, user_path


def report() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("run", type=user_path, help="a run's folder")
    text = "a run on the same data sets, such as one of MLE"
    parser.add_argument("--against", type=user_path, metavar="RUN", help=text)
    parser.add_argument("--output", type=user_path, metavar="FILE", help="default: report.html in the run's folder")
    arguments = parser.parse_args()
    check_output("--output", arguments.output)

    from swep_ds.analysis.report import write_report  # takes seconds: after the arguments are checked

    write_report(arguments.run, arguments.against, arguments.output, Console().print)
    print(f"report in {arguments.output or arguments.run / 'report.html'}")
