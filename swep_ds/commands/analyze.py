"""The paper's analyses of a run, as figures and tables in a folder.

    swep-ds analyze words RUN [RUN ...] [--augmented samples.json]   # words changed, over training
    swep-ds analyze heatmap RUN --data news --questions ID ID        # how far each word moves, and to which
    swep-ds analyze tsne RUN --data news --first 5                   # embeddings before and after
    swep-ds analyze frequency RUN                                    # by word-frequency rank

RUN is the folder of a finished run, for `words` also of an unfinished one. For a run of swep, `heatmap`, `tsne` and
`frequency` read the noise generator in noise.safetensors. The noise is keyed by the run's seed and the question's id:
the same questions give the same figures. `tsne` needs `pip install scikit-learn`.
"""

import argparse
import json
from itertools import islice
from pathlib import Path

from swep_ds.commands.cli import Parser, at_least
from swep_ds.common.errors import InputError
from swep_ds.common.files import check_output_folder, user_path, write_atomically


def words(arguments: argparse.Namespace, folder: Path) -> list[str]:
    from swep_ds.analysis.formats import to_csv
    from swep_ds.analysis.words import curves, draw, share_of_samples

    table = curves(arguments.run)
    samples = share_of_samples(arguments.augmented) if arguments.augmented else None
    folder.mkdir(parents=True, exist_ok=True)
    draw(table, samples, folder)
    write_atomically(folder / "words.csv", to_csv(table))
    lines = []
    for run, row in table.groupby("run", sort=False).last().iterrows():
        changed = f"{row.words_changed:.2%} of the tokens at update {row['update']}"
        lines.append(f"{run}: {changed}, {row.words_changed_clean:.2%} before perturbation")
    if samples is not None:
        lines.append(f"SSMBA's texts: {samples:.2%}")
    return lines


def heatmap(arguments: argparse.Namespace, folder: Path) -> list[str]:
    from swep_ds.analysis.formats import to_csv
    from swep_ds.analysis.heatmap import nearest_words, page, word_distances

    run, windows = load_windows(arguments)
    texts = word_distances(run, windows)
    tokens = nearest_words(run, windows)
    folder.mkdir(parents=True, exist_ok=True)
    ids = [window.example.id for window in windows]
    write_atomically(folder / "heatmap.html", page(ids, texts, run.recipe.title, run.draws))
    changed = tokens["token"] != tokens["nearest_after"]
    write_atomically(folder / "changed_words.csv", to_csv(tokens[changed]))
    counts = changed.groupby(tokens["question_id"], sort=False).agg(["sum", "size"])
    return [
        f"{id_}: {count} of {total} tokens are nearest to another word" for id_, count, total in counts.itertuples()
    ]


def tsne(arguments: argparse.Namespace, folder: Path) -> list[str]:
    from swep_ds.analysis.formats import to_csv
    from swep_ds.analysis.tsne import coordinates, draw

    run, windows = load_windows(arguments)
    table = coordinates(run, windows)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "tsne.csv", to_csv(table))
    draw(table, run.recipe.title, folder)
    return []


def frequency(arguments: argparse.Namespace, folder: Path) -> list[str]:
    from swep_ds.analysis.frequency import by_frequency, markdown
    from swep_ds.analysis.trained_run import TrainedRun

    run = TrainedRun.load(arguments.run)
    table = by_frequency(run, run.training_examples(), arguments.windows)
    folder.mkdir(parents=True, exist_ok=True)
    text = markdown(table, run.recipe.title)
    write_atomically(folder / "frequency.md", text)
    write_atomically(folder / "frequency.json", json.dumps(table, indent=2) + "\n")
    return [text.rstrip()]


def load_windows(arguments: argparse.Namespace):
    """The run, and the windows of the chosen questions, by default of the first with an answer in a window."""
    from swep_ds.analysis.trained_run import TrainedRun, answer_windows

    run = TrainedRun.load(arguments.run)
    examples = run.test_examples(arguments.data)
    if not arguments.questions:
        windows = list(islice(answer_windows(examples, run.tokenizer, run.windows), arguments.first))
        if not windows:
            raise InputError(f"{arguments.run}: no question of {arguments.data or 'its source domain'} has an answer")
        return run, windows
    asked = [example for example in examples if example.id in arguments.questions]
    windows = {window.example.id: window for window in answer_windows(asked, run.tokenizer, run.windows)}
    for id_ in arguments.questions:
        if id_ not in windows:
            raise InputError(f"--questions {id_}: no such question, or no window holds its answer: name another")
    return run, [windows[id_] for id_ in arguments.questions]


def analyze() -> None:
    options = Parser(description=__doc__)
    commands = options.add_subparsers(required=True, metavar="words|heatmap|tsne|frequency")

    def add(command, **runs) -> argparse.ArgumentParser:
        sub = commands.add_parser(command.__name__)
        sub.set_defaults(command=command)
        sub.add_argument("run", type=user_path, metavar="RUN", help="folder of a run", **runs)
        sub.add_argument("--output", type=user_path, help="folder to write to (default: analysis/ in the first RUN)")
        return sub

    def add_questions(sub: argparse.ArgumentParser, first: int) -> None:
        sub.add_argument("--data", help="name of one of the run's test sets (default: its first)")
        chosen = sub.add_mutually_exclusive_group()
        chosen.add_argument("--questions", nargs="+", metavar="ID", help="ids of the questions")
        text = "the first N questions that have an answer"
        chosen.add_argument("--first", type=at_least(1), metavar="N", default=first, help=text)

    sub = add(words, nargs="+")
    sub.add_argument("--augmented", type=user_path, help="samples of `swep-ds augment`, to show SSMBA's share")
    add_questions(add(heatmap), first=3)
    add_questions(add(tsne), first=5)
    sub = add(frequency)
    sub.add_argument("--windows", type=at_least(1), default=200, help="training windows to perturb")
    arguments = options.parse_args()
    first = arguments.run[0] if isinstance(arguments.run, list) else arguments.run
    folder = arguments.output or first / "analysis"
    check_output_folder("--output", folder)
    for line in arguments.command(arguments, folder):
        print(line)
    print(f"written to {folder}")
