"""What 10 to 1,000 own question-answer pairs give, from a plain encoder and from a model that answers questions.

    python study.py new_wiki.yaml --own new_wiki_v1.0.json.gz --others SQuAD.dev.jsonl.gz --into runs/new_wiki
    python study.py quickstart.yaml --own quickstart:reviews --others quickstart:encyclopedia --into runs/reviews

Makes the files, trains and tests what is not there yet, and prints the table. Needs `pip install '.[texts]'`.
The recipe says how the start is trained; the runs on own pairs change what `SETTINGS` has.

Own pairs are drawn anew for each seed from half of the articles; the test is drawn once from the others. Of both a
fifth asks a text that does not answer: of the texts without the answer, the one that BM25 ranks first. The start was
trained on the other questions, with such a text for every second one: a third has no answer, as in SQuAD 2.0.
"""

import argparse
import json
import random
import statistics
from collections.abc import Iterator
from pathlib import Path

import bm25s

import swep_ds as sd
from swep_ds.api.texts import WORD
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples

COUNTS = (10, 50, 200, 1000)
SEEDS = (0, 1, 2)
TESTED = 500  # questions
UNANSWERED = 5  # one of so many own questions is asked of a text that does not answer it
BATCH = 8  # windows in an update; of a mix half of them are own pairs
# passes over the own pairs, by their number: fewer for a start that can already answer
EPOCHS = {"encoder": {10: 20, 50: 10, 200: 5, 1000: 3}, "start": {10: 10, 50: 4, 200: 3, 1000: 2}}
# by arm: what it starts from, and whether the start's questions are mixed in
ARMS = {"encoder": ("encoder", False), "start": ("start", False), "mix": ("start", True)}
OTHERS = 1000  # questions of a mix that are not own ones
FIGURES = ("f1", "exact_match", "has_answer_f1", "no_answer_f1")


class Elsewhere:
    """Finds texts that are like a question's own and do not hold its answer."""

    def __init__(self, texts: list[str]):
        self.texts = texts
        self._folded = [" ".join(words(text)) for text in texts]
        self._index = bm25s.BM25()
        self._index.index([words(text) for text in texts], show_progress=False)

    def of(self, example: Example) -> str:
        answers = [f" {' '.join(words(answer))} " for answer in example.answers]
        for place in (-self._index.get_scores(words(example.question))).argsort(kind="stable"):
            text = f" {self._folded[place]} "
            if self.texts[place] != example.context and not any(answer in text for answer in answers):
                return self.texts[place]
        raise ValueError(f"question {example.id}: all texts hold its answer")


def words(text: str) -> list[str]:
    return [word.casefold() for word in WORD.findall(text)]


def rows(examples: list[Example], every: int, elsewhere: Elsewhere, *, replace: bool) -> Iterator[dict]:
    """The questions as rows; each `every`-th one is asked of a wrong text, in place of its own or as well."""
    for number, example in enumerate(examples):
        row = {"id": example.id, "title": example.article, "question": example.question}
        wrong = number % every == 0
        if not (wrong and replace):
            answers = list(example.answers)
            if example.span:
                answers = {"text": [example.context[slice(*example.span)]], "answer_start": [example.span[0]]}
            yield row | {"context": example.context, "answers": answers}
        if wrong:
            yield row | {"id": f"{example.id}-elsewhere", "context": elsewhere.of(example), "answers": []}


def write(file: Path, lines: Iterator[dict]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def make(folder: Path, own: str, others: str) -> None:
    """Writes others.jsonl, test.jsonl and the pairs of each seed."""
    examples = list(read_examples(others, training=True))
    elsewhere = Elsewhere(list(dict.fromkeys(example.context for example in examples)))
    write(folder / "others.jsonl", rows(examples, 2, elsewhere, replace=False))
    examples = [example for example in read_examples(own, training=False) if example.answers]
    elsewhere = Elsewhere(list(dict.fromkeys(example.context for example in examples)))
    articles = sorted({example.article for example in examples})
    random.Random(0).shuffle(articles)
    tested = set(articles[: len(articles) // 2])
    test = [example for example in examples if example.article in tested]
    pairs = [example for example in examples if example.article not in tested]
    test = random.Random(0).sample(test, min(TESTED, len(test)))
    write(folder / "test.jsonl", rows(test, UNANSWERED, elsewhere, replace=True))
    for seed in SEEDS:
        drawn = random.Random(seed + 1).sample(pairs, min(max(COUNTS), len(pairs)))
        for count in COUNTS:
            if count <= len(drawn):
                write(
                    folder / f"pairs-{count}-seed{seed}.jsonl", rows(drawn[:count], UNANSWERED, elsewhere, replace=True)
                )


def train(folder: Path, recipe: sd.Recipe, **sections) -> sd.Run:
    if (folder / "results.json").exists():
        return sd.Run(folder)
    return sd.train(recipe, output_dir=folder, **sections)


def train_on_pairs(folder: Path, recipe: sd.Recipe, arm: str, count: int, seed: int) -> sd.Run:
    begins, mixed = ARMS[arm]
    pairs = str(folder / f"pairs-{count}-seed{seed}.jsonl")
    data = {"train": pairs, "holdout_fraction": 0.0}
    updates = -(-count * EPOCHS[begins][count] // BATCH)
    settings = {"micro_batch_size": BATCH, "epochs": 10_000, "max_updates": updates}
    model = {}
    if mixed:
        half = {"weight": 0.5}
        data = {
            "train": [{"source": pairs, **half}, {"source": recipe.data.train, **half}],
            "max_train_examples": OTHERS,
        }
        settings["max_updates"] = 2 * updates
    if begins == "start":
        model["name"] = str(sd.Run(folder / "start").model_dir)
        settings["learning_rate"] = recipe.train.learning_rate / 2
    output = folder / f"{arm}-{count}-seed{seed}"
    return train(output, recipe, seed=seed, data=data, train=settings, model=model)


def study(given: argparse.Namespace) -> None:
    folder = given.into
    if not (folder / "test.jsonl").exists():
        make(folder, given.own, given.others)
    data = {"train": str(folder / "others.jsonl"), "eval": {"test": str(folder / "test.jsonl")}}
    recipe = sd.Recipe.make(given.recipe, data=data)
    lines = []
    if given.arms != ["encoder"]:
        lines.append(line(0, "start", [train(folder / "start", recipe)]))
    for count in COUNTS:
        for arm in given.arms:
            if (folder / f"pairs-{count}-seed0.jsonl").exists():
                lines.append(line(count, arm, [train_on_pairs(folder, recipe, arm, count, seed) for seed in SEEDS]))
    print(f"| pairs | arm | {' | '.join(FIGURES)} |\n| --- | --- |{' --- |' * len(FIGURES)}")
    print("\n".join(lines))


def line(count: int, arm: str, runs: list[sd.Run]) -> str:
    """A row of the table: the mean over seeds, and their standard deviation."""
    cells = [str(count), arm]
    for figure in FIGURES:
        values = [run.scores["test"][figure] for run in runs]
        cells.append(f"{statistics.mean(values):.1f}")
        if len(values) > 1:
            cells[-1] += f" ± {statistics.stdev(values):.1f}"
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("recipe", help="of the start; its model is the encoder")
    options.add_argument("--own", required=True, help="source of the own pairs and of the test")
    options.add_argument("--others", required=True, help="source that the start is trained on")
    options.add_argument("--into", required=True, type=Path, help="a folder for files and runs")
    options.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    study(options.parse_args())
