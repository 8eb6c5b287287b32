"""Packs finished runs of `learned_noise` without weights and without the texts of the data, and unpacks them.

    python studies/learned_noise/places.py pack seed0.tar.xz runs/learned_noise/*-seed0
    python studies/learned_noise/places.py unpack seed0.tar.xz --into runs/learned_noise

An answer is packed as its place in its paragraph; one that declines has none. Unpacking reads it there, from the data
that the runs' recipes name, relative to the current folder, and compares the answers' SHA-256. It drops settings that
this version no longer has. The sweep then resumes beside the unpacked runs, and its table is theirs, too. Confidences
and n best lists stay behind.
"""

import argparse
import hashlib
import json
import lzma
import sys
import tarfile
import tempfile
from pathlib import Path

import yaml

from swep_ds.common.errors import InputError
from swep_ds.data.readers import read_examples
from swep_ds.pipeline.folder import UNAVERAGED, RunFolder
from swep_ds.pipeline.recipe import HOLDOUT

KEPT = ("recipe.yaml", "ds_config.json", "batch.json", "metrics.jsonl", "results.json")
PLACES = "places"
# settings of `train` in older runs
GONE = ("packing", "on_checkpoint_failure", "stall_seconds", "freeze_updates", "average_last")


class Answers:
    """Reads answers at their places. Paragraphs are read once for all runs."""

    def __init__(self) -> None:
        self._paragraphs: dict[str, dict[str, str]] = {}

    def at(self, run: Path, name: str, columns: dict[str, list]) -> dict[str, str]:
        """The answers of a run to data set `name`, by question id.

        Raises InputError: the data lack a question.
        """
        data = RunFolder(run).read_recipe().data
        source = data.train if name == HOLDOUT else data.eval[name]
        if source not in self._paragraphs:
            questions = read_examples(source, training=False, labels=False)
            self._paragraphs[source] = {question.id: question.context for question in questions}
        paragraphs = self._paragraphs[source]
        if missing := next((id_ for id_ in columns["id"] if id_ not in paragraphs), None):
            raise InputError(f"{source}: lacks question {missing}: it is other data than {run.name} had")
        places = zip(columns["id"], columns["start"], columns["end"], strict=True)
        return {id_: "" if start is None else paragraphs[id_][start:end] for id_, start, end in places}


def digest(answers: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(answers).encode()).hexdigest()


def pack(archive: Path, runs: list[Path]) -> None:
    """Raises InputError: a run is not finished, or an answer is not what stands at its place."""
    answers = Answers()
    with tempfile.TemporaryDirectory() as folder:
        for run in runs:
            for part in filter(Path.is_dir, (run, run / UNAVERAGED)):
                target = Path(folder, run.name, part.relative_to(run))
                (target / PLACES).mkdir(parents=True)
                for name in KEPT:
                    if (part / name).is_file():
                        (target / name).write_bytes((part / name).read_bytes())
                RunFolder(part).check_finished()
                for file in sorted((part / "predictions").glob("*.json")):
                    best = {
                        k: v[0]
                        for k, v in json.loads((part / "n_best" / file.name).read_text(encoding="utf-8")).items()
                    }
                    columns = {key: [answer.get(key) for answer in best.values()] for key in ("start", "end")}
                    columns = {"id": list(best)} | columns
                    texts = json.loads(file.read_text(encoding="utf-8"))
                    if answers.at(part, file.stem, columns) != texts:
                        raise InputError(f"{file}: answers are not at their places in n_best/{file.name}")
                    (target / PLACES / file.name).write_text(
                        json.dumps(columns | {"sha256": digest(texts)}), encoding="utf-8"
                    )
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        with tarfile.open(archive, "w:xz") as tar:
            for path in sorted(files, key=lambda path: (path.name, path)):  # files of one name have much in common
                tar.add(path, path.relative_to(folder))


def drop_gone(recipe: Path) -> None:
    """Removes `GONE` from a recipe.yaml; writes nothing if it has none of them."""
    tree = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    kept = {name: value for name, value in tree["train"].items() if name not in GONE}
    if kept != tree["train"]:
        text = yaml.safe_dump(tree | {"train": kept}, sort_keys=False, allow_unicode=True)
        recipe.write_text(text, encoding="utf-8")


def unpack(archives: list[Path], into: Path) -> None:
    """Writes nothing unless all answers come back.

    Raises InputError: a run is there already, an archive is damaged, or the data are not those of the runs.
    """
    answers = Answers()
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into) as folder:
        for archive in archives:
            try:
                with tarfile.open(archive) as tar:
                    tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
                    tar.extractall(folder)
            except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
                raise InputError(f"{archive}: is not a complete archive ({error}): fetch it again") from error
        runs = sorted(Path(folder).iterdir())
        for run in runs:
            if (into / run.name).exists():
                raise InputError(f"{into / run.name}: exists: remove it, or unpack into another folder")
        for recipe in Path(folder).rglob("recipe.yaml"):
            drop_gone(recipe)
        for file in sorted(Path(folder).glob(f"**/{PLACES}/*.json")):
            run, columns = file.parents[1], json.loads(file.read_text(encoding="utf-8"))
            texts = answers.at(run, file.stem, columns)
            if digest(texts) != columns["sha256"]:
                raise InputError(f"{run.name}, {file.stem}: other answers stand at their places: these are other data")
            (run / "predictions").mkdir(exist_ok=True)
            (run / "predictions" / file.name).write_text(json.dumps(texts), encoding="utf-8")
        for run in runs:
            run.rename(into / run.name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    packing = commands.add_parser("pack")
    packing.add_argument("archive", type=Path)
    packing.add_argument("runs", type=Path, nargs="+")
    unpacking = commands.add_parser("unpack")
    unpacking.add_argument("archives", type=Path, nargs="+")
    unpacking.add_argument("--into", type=Path, required=True)
    arguments = parser.parse_args()
    try:
        if arguments.command == "pack":
            pack(arguments.archive, arguments.runs)
        else:
            unpack(arguments.archives, arguments.into)
    except (InputError, OSError) as error:
        sys.exit(f"error: {error}")
