"""The paper's analyses of a run, as figures and tables in a folder.

    swep-ds analyze words RUN [RUN ...] [--augmented samples.json]   # words changed, over training
    swep-ds analyze heatmap RUN --data news --questions ID ID        # how far each word moves, and to which
    swep-ds analyze tsne RUN --data news --first 5                   # embeddings before and after
    swep-ds analyze frequency RUN                                    # by word-frequency rank

RUN is the folder of a finished run, for `words` also of an unfinished one. For a run of swep, `heatmap`, `tsne` and
`frequency` read the noise generator in noise.safetensors. The noise is keyed by the run's seed and the question's id:
the same questions give the same figures. `tsne` needs `pip install scikit-learn`.
"""

from swep_ds.commands.cli import Parser, at_least
from swep_ds.common.files import check_output_folder, user_path, write_atomically


def analyze() -> None:
    options = Parser(description=__doc__)
    commands = options.add_subparsers(dest="analysis", required=True, metavar="words|heatmap|tsne|frequency")
    parsers = {name: commands.add_parser(name) for name in ("words", "heatmap", "tsne", "frequency")}
    for name, sub in parsers.items():
        number = {"words": "+"}.get(name, 1)
        sub.add_argument("runs", nargs=number, type=user_path, metavar="RUN", help="folder of a run")
        sub.add_argument("--output", type=user_path, help="folder to write to (default: analysis/ in the first RUN)")
    for name, first in (("heatmap", 3), ("tsne", 5)):
        parsers[name].add_argument("--data", help="name of one of the run's test sets (default: its first)")
        chosen = parsers[name].add_mutually_exclusive_group()
        chosen.add_argument("--questions", nargs="+", metavar="ID", help="ids of the questions")
        text = "the first N questions that have an answer"
        chosen.add_argument("--first", type=at_least(1), metavar="N", default=first, help=text)
    text = "samples of `swep-ds augment`, to show SSMBA's share"
    parsers["words"].add_argument("--augmented", type=user_path, help=text)
    parsers["frequency"].add_argument("--windows", type=at_least(1), default=200, help="training windows to perturb")
    arguments = vars(options.parse_args())
    analysis = arguments.pop("analysis")
    folder = arguments.pop("output") or arguments["runs"][0] / "analysis"
    check_output_folder("--output", folder)

    from swep_ds.analysis import figures, word_analyses  # after the arguments: these imports take seconds

    made = getattr(word_analyses, analysis)(**arguments)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.texts.items():
        write_atomically(folder / name, text)
    for name, figure in made.figures.items():
        figures.save(figure, folder, name)
    print(*made.lines, f"written to {folder}", sep="\n")
