"""Makes a run's report again, from its folder alone: one HTML page that needs nothing beside it.

    python scripts/report.py runs/quickstart-swep-seed0
    python scripts/report.py RUN --against MLE_RUN --output report.html     # with the answers that changed against it

A run writes its report.html itself when it is done; of one that is not, the page shows how far it is.
Exit codes: 0 done; 2 bad input (one line says what and how to mend it); anything else is a fault.
"""

from swep_ds.cli import Parser, main
from swep_ds.files import check_output, path_of


def report() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("run", type=path_of("RUN"), help="a run's folder")
    parser.add_argument(
        "--against", type=path_of("--against"), metavar="RUN", help="folder of a run on the same data sets, as of MLE"
    )
    parser.add_argument(
        "--output", type=path_of("--output"), metavar="FILE", help="default: report.html in the run's folder"
    )
    arguments = parser.parse_args()
    check_output("--output", arguments.output)

    from swep_ds.analysis.report import write_report  # after the arguments: these imports take seconds

    write_report(arguments.run, arguments.against, arguments.output)
    print(f"report in {arguments.output or arguments.run / 'report.html'}")


if __name__ == "__main__":
    main(report)
