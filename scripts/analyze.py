"""The paper's analyses of a finished run, as figures and tables in a folder.

    python scripts/analyze.py words RUN [RUN ...] [--augmented samples.json]   # words changed, over training
    python scripts/analyze.py heatmap RUN --data news --questions ID ID        # how far each word moves
    python scripts/analyze.py tsne RUN --data news --first 5                   # embeddings before and after
    python scripts/analyze.py frequency RUN                                    # by word-frequency rank

RUN is a run's folder; its noise generator is saved in it as noise.safetensors. Noise is drawn by the run's seed and the
question's id: the same questions give the same figures. `tsne` needs `pip install 'swep-ds[analysis]'`.
Exit codes: 0 done; 2 bad input (one line says what and how to mend it); anything else is a fault.
"""

import argparse
import json
from pathlib import Path

from swep_ds.cli import Parser, main
from swep_ds.errors import InputError
from swep_ds.files import check_output_folder, path_of, write_atomically


def parser() -> argparse.ArgumentParser:
    options = Parser(description=__doc__)
    commands = options.add_subparsers(required=True, metavar="words|heatmap|tsne|frequency")
    made = {name: commands.add_parser(name) for name in ("words", "heatmap", "tsne", "frequency")}
    for (name, one), command in zip(made.items(), (words, heatmap, tsne, frequency), strict=True):
        several = {"nargs": "+"} if name == "words" else {}
        one.add_argument("run", type=path_of("RUN"), metavar="RUN", help="folder of a run", **several)
        one.add_argument(
            "--output", type=path_of("--output"), help="folder to write to (default: analysis/ in the first RUN)"
        )
        one.set_defaults(command=command)
    made["words"].add_argument(
        "--augmented", type=path_of("--augmented"), help="SSMBA's samples, of scripts/augment.py: their share"
    )
    for name, first in (("heatmap", 3), ("tsne", 5)):
        made[name].add_argument("--data", help="name of one of the run's test sets (default: its first)")
        chosen = made[name].add_mutually_exclusive_group()
        chosen.add_argument("--questions", nargs="+", metavar="ID", help="of these ids")
        chosen.add_argument("--first", type=int, default=first, help=f"the first so many questions (default: {first})")
    made["tsne"].add_argument("--max_tokens", type=int, default=500, help="a random part of more (default: 500)")
    made["tsne"].add_argument("--seed", type=int, default=0, help="of that choice and of t-SNE (default: 0)")
    made["frequency"].add_argument("--windows", type=int, default=200, help="training windows perturbed (default: 200)")
    return options


def words(arguments: argparse.Namespace, folder: Path) -> list[str]:
    from swep_ds.analysis.words import curves, draw, share_of_samples

    table = curves(arguments.run)
    samples = share_of_samples(arguments.augmented) if arguments.augmented else None
    prepared(folder)
    draw(table, samples, [folder / "words.png", folder / "words.svg"])
    write_atomically(folder / "words.csv", table.to_csv(index=False))
    last = table.groupby("run", sort=False).last()
    lines = [
        f"{run}: {row.words_changed:.2%} of the tokens at update {row['update']}, {row.words_changed_clean:.2%} before"
        for run, row in last.iterrows()
    ]
    return lines + ([f"SSMBA's texts: {samples:.2%}"] if samples is not None else [])


def heatmap(arguments: argparse.Namespace, folder: Path) -> list[str]:
    from swep_ds.analysis.heatmap import page, png, word_distances

    run, examples = questions(arguments)
    texts, titles = word_distances(run, examples), [example.id for example in examples]
    prepared(folder)
    write_atomically(folder / "heatmap.html", page(titles, texts, heading(run)))
    png(titles, texts, heading(run), folder / "heatmap.png")
    return []


def tsne(arguments: argparse.Namespace, folder: Path) -> list[str]:
    from swep_ds.analysis.tsne import coordinates, draw

    at_least(arguments, max_tokens=10, seed=0)
    if arguments.seed >= 2**32:
        raise InputError(f"--seed {arguments.seed}: scikit-learn takes numbers below 2^32: lower it")
    run, examples = questions(arguments)
    table = coordinates(run, examples, arguments.max_tokens, arguments.seed)
    prepared(folder)
    write_atomically(folder / "tsne.csv", table.to_csv(index=False))
    draw(table, heading(run), [folder / "tsne.png", folder / "tsne.svg"])
    return []


def frequency(arguments: argparse.Namespace, folder: Path) -> list[str]:
    from swep_ds.analysis.frequency import by_frequency, markdown
    from swep_ds.analysis.saved_run import SavedRun

    at_least(arguments, windows=1)
    run = SavedRun.load(arguments.run)
    table = by_frequency(run, run.training_examples(), arguments.windows)
    prepared(folder)
    text = markdown(table, heading(run))
    write_atomically(folder / "frequency.md", text)
    write_atomically(folder / "frequency.json", json.dumps(table, indent=2) + "\n")
    return [text.rstrip()]


def questions(arguments: argparse.Namespace):
    """The run and the questions that were chosen."""
    from swep_ds.analysis.saved_run import SavedRun

    at_least(arguments, first=1)
    run = SavedRun.load(arguments.run)
    examples = run.test_examples(arguments.data)
    if not arguments.questions:
        return run, examples[: arguments.first]
    by_id = {example.id: example for example in examples}
    if missing := [one for one in arguments.questions if one not in by_id]:
        raise InputError(f"--questions {missing[0]}: no such question there; one that is: {examples[0].id}")
    return run, [by_id[one] for one in arguments.questions]


def at_least(arguments: argparse.Namespace, **least: int) -> None:
    for name, value in least.items():
        if getattr(arguments, name) < value:
            raise InputError(f"--{name} {getattr(arguments, name)}: must be at least {value}")


def heading(run) -> str:
    return f"{run.recipe.method.name}, {run.recipe.model.name}, seed {run.recipe.seed}"


def prepared(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--output {folder}: cannot be made ({error.strerror}): name another folder") from None


def analyze() -> None:
    arguments = parser().parse_args()
    first = arguments.run[0] if isinstance(arguments.run, list) else arguments.run
    folder = arguments.output or first / "analysis"
    check_output_folder("--output", folder)
    for line in arguments.command(arguments, folder):
        print(line)
    print(f"written to {folder}")


if __name__ == "__main__":
    main(analyze)
