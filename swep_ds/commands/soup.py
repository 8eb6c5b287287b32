"""Averages the models of finished runs into one model, a soup, which is tested like any other.

    swep-ds soup runs/swep-seed0 runs/swep-seed1 runs/swep-seed2 --output soups/swep
    swep-ds evaluate soups/swep --data news=quickstart:news --output_dir scores

The runs must have trained one architecture from the same weights for the same task; they may differ in seed, method and
data. The soup is a plain Hugging Face folder whose model card names the runs.
"""

from swep_ds.commands.cli import Parser
from swep_ds.common.files import check_new_folder, user_path


def soup() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=user_path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--output", required=True, type=user_path, metavar="FOLDER", help="a new folder")
    arguments = parser.parse_args()
    check_new_folder("--output", arguments.output)

    from swep_ds.pipeline.soup import make_soup  # takes seconds: after the arguments are checked

    make_soup(arguments.runs, arguments.output)
    print(f"soup of {len(arguments.runs)} models in {arguments.output}")
