"""What 10 to 1,000 own question-answer pairs give, from a plain encoder and from a model that answers questions.

    python study.py new_wiki.yaml --own new_wiki_v1.0.json.gz --others SQuAD.dev.jsonl.gz --into runs/new_wiki
    python study.py quickstart.yaml --own quickstart:reviews --others quickstart:encyclopedia --into runs/reviews \\
        --levers

Makes the files, trains and tests what is not there yet, and prints the table. Needs `pip install '.[texts]'`.
The recipe says how the start is trained. If it is stopped, the same command resumes.

Own pairs are drawn anew for each seed from half of the articles; the test is drawn once from the others. Of both a
fifth asks a text that does not answer: of the texts without the answer, the one that BM25 ranks first. The start was
trained on the other questions, with such a text for every second one: a third has no answer, as in SQuAD 2.0.
"""

import argparse
import json
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import swep_ds as sd
from swep_ds.analysis.runs import Run
from swep_ds.analysis.significance import QuestionScores, compare
from swep_ds.data.example import Example
from swep_ds.data.places import occurrences
from swep_ds.data.readers import read_examples
from swep_ds.texts.index import TextIndex
from swep_ds.texts.words import words

COUNTS = (10, 50, 200, 1000)
LEVERS_AT = 200  # pairs
SEEDS = (0, 1, 2)
TESTED = 500  # questions
PARAGRAPHS = 5  # paragraphs of an article in a text, where many texts are asked
UNANSWERED = 5  # one of so many own questions is asked of a text that does not answer it
BEST = 100  # passages, of which the first is taken whose text does not hold the answer
OTHERS = 1000  # questions of a mix that are not own ones
BATCH = 8  # windows in an update; of a mix half of them are own pairs
# passes over the own pairs, by their number: fewer for a start that can already answer
EPOCHS = {"encoder": {10: 20, 50: 10, 200: 5, 1000: 2}, "start": {10: 10, 50: 4, 200: 3, 1000: 1}}
ALONE = "start alone"  # without own pairs
ARMS = {
    "encoder": "the encoder, trained on the pairs",
    "start": "the start, trained on the pairs",
    "mix": "the start, trained on a mix of the pairs and its own questions",
}
COMPARED = (("start", "encoder"), ("start", ALONE), ("mix", "start"))
LEVERS = {  # sections that change in the arm "start"
    "label smoothing 0.1": {"train": {"label_smoothing": 0.1}},
    "mean with the start": {"train": {"average": "start"}},
    "four times the updates": {"train": {"max_updates": 4 * LEVERS_AT * EPOCHS["start"][LEVERS_AT] // BATCH}},
    "Prior-Aug 0.333": {"method": {"name": "prior_aug", "prior_variance": 0.333}},
}
FIGURES = ("f1", "exact_match", "has_answer_f1", "no_answer_f1", "best_f1")


class Elsewhere:
    """Finds texts that are like a question's own and do not hold its answer."""

    def __init__(self, texts: list[str]):
        self.texts = texts
        self._folded = [" ".join(words(text)) for text in texts]
        self._index = TextIndex({f"{number:06d}": text for number, text in enumerate(texts)})

    def of(self, example: Example) -> str:
        answers = [f" {' '.join(words(answer))} " for answer in example.answers]
        for passage in self._index.best(example.question, BEST):
            place = int(passage.name)
            text = f" {self._folded[place]} "
            if self.texts[place] != example.context and not any(answer in text for answer in answers):
                return self.texts[place]
        raise ValueError(f"question {example.id}: the {BEST} best passages all hold its answer")


def rows(examples: list[Example], every: int, elsewhere: Elsewhere, *, instead: bool) -> Iterator[dict]:
    """The questions as rows; each `every`-th one is asked of a wrong text, in place of its own or as well."""
    for number, example in enumerate(examples):
        row = {"id": example.id, "title": example.article, "question": example.question}
        wrong = number % every == 0
        if not (wrong and instead):
            answers = list(example.answers)
            if example.span:
                answers = {"text": [example.context[slice(*example.span)]], "answer_start": [example.span[0]]}
            yield row | {"context": example.context, "answers": answers}
        if wrong:
            yield row | {"id": f"{example.id}-elsewhere", "context": elsewhere.of(example), "answers": []}


def write(file: Path, lines: Iterator[dict]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")


def texts(examples: list[Example], asked: set[str]) -> dict:
    """SQuAD's layout for benchmarks/texts.py: articles cut into texts of `PARAGRAPHS`, and the questions `asked`."""
    questions = defaultdict(lambda: defaultdict(list))  # by article and paragraph
    for example in examples:
        of_paragraph = questions[example.article][example.context]
        if example.id in asked:
            answers = [{"text": text, "answer_start": example.context.index(text)} for text in example.answers]
            of_paragraph.append({"id": example.id, "question": example.question, "answers": answers})
    data = []
    for article, paragraphs in questions.items():
        parts = [{"context": context, "qas": here} for context, here in paragraphs.items()]
        for first in range(0, len(parts), PARAGRAPHS):
            data.append({"title": f"{article} {first}", "paragraphs": parts[first : first + PARAGRAPHS]})
    return {"version": "1.1", "data": data}


def make(folder: Path, mine: str, others: str) -> None:
    """Writes others.jsonl, the pairs of each seed, texts.json and test.jsonl. Pairs and test share no text."""
    examples = list(read_examples(others, training=True))
    elsewhere = Elsewhere(list(dict.fromkeys(example.context for example in examples)))
    write(folder / "others.jsonl", rows(examples, 2, elsewhere, instead=False))
    examples = []
    for example in read_examples(mine, training=False):
        if example.answers and occurrences(example.context, example.answers[0]):
            examples.append(example)
    articles = sorted({example.article for example in examples})
    random.Random(0).shuffle(articles)
    tested = set(articles[: len(articles) // 2])
    pairs = [example for example in examples if example.article not in tested]
    elsewhere = Elsewhere(list(dict.fromkeys(example.context for example in pairs)))
    for seed in SEEDS:
        drawn = random.Random(seed + 1).sample(pairs, min(max(COUNTS), len(pairs)))
        for count in COUNTS:
            if count <= len(drawn):
                lines = rows(drawn[:count], UNANSWERED, elsewhere, instead=True)
                write(folder / f"pairs-{count}-seed{seed}.jsonl", lines)
    test = [example for example in examples if example.article in tested]
    elsewhere = Elsewhere(list(dict.fromkeys(example.context for example in test)))  # no text of the pairs
    test = random.Random(0).sample(test, min(TESTED, len(test)))
    document = texts(examples, {example.id for example in test})
    (folder / "texts.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    write(folder / "test.jsonl", rows(test, UNANSWERED, elsewhere, instead=True))  # last: it says that all is there


def train(folder: Path, recipe: sd.Recipe, **sections) -> Path:
    if not (folder / "results.json").exists():
        sd.train(recipe, output_dir=folder, **sections)
    return folder


def train_on_pairs(folder: Path, recipe: sd.Recipe, arm: str, count: int, seed: int) -> Path:
    pairs = str(folder / f"pairs-{count}-seed{seed}.jsonl")
    data = {"train": pairs, "holdout_fraction": 0.0}
    begins = "encoder" if arm == "encoder" else "start"
    updates = -(-count * EPOCHS[begins][count] // BATCH)
    settings = {"micro_batch_size": BATCH, "epochs": 10_000, "max_updates": updates}
    model = {}
    if arm == "mix":
        data["train"] = [{"source": source, "weight": 1} for source in (pairs, recipe.data.train)]
        data["max_train_examples"] = OTHERS
        settings["max_updates"] = 2 * updates
    if begins == "start":
        model["name"] = str(folder / "start" / "model")
        settings["learning_rate"] = recipe.train.learning_rate / 2
    lever = LEVERS.get(arm, {})
    method = lever.get("method", {})
    output = folder / f"{arm.replace(' ', '-')}-{count}-seed{seed}"
    settings |= lever.get("train", {})
    return train(output, recipe, seed=seed, data=data, train=settings, model=model, method=method)


def study(given: argparse.Namespace) -> None:
    folder = given.into
    if not (folder / "test.jsonl").exists():
        make(folder, given.own, given.others)
    data = {"train": str(folder / "others.jsonl"), "eval": {"test": str(folder / "test.jsonl")}}
    recipe = sd.Recipe.make(given.recipe, data=data)
    tables = [heading("pairs", "arm", *FIGURES)]
    alone = {}
    if given.arms != ["encoder"]:
        alone[ALONE] = [train(folder / "start", recipe)] * len(SEEDS)
        tables.append(means(0, "the start", alone[ALONE][:1]))
    differences = []
    for count in COUNTS:
        if not (folder / f"pairs-{count}-seed0.jsonl").exists():
            continue
        arms = [*given.arms]
        if given.levers and count == LEVERS_AT:
            arms += LEVERS
        folders = {arm: [train_on_pairs(folder, recipe, arm, count, seed) for seed in SEEDS] for arm in arms}
        tables += [means(count, ARMS.get(arm, arm), runs) for arm, runs in folders.items()]
        folders |= alone
        compared = [*COMPARED, *((lever, "start") for lever in LEVERS)]
        pairs = [(arm, base) for arm, base in compared if arm in folders and base in folders]
        differences += [difference(count, arm, base, folders) for arm, base in pairs]
    print(*tables, "", heading("pairs", "difference", "f1", "exact_match"), *differences, sep="\n")


def heading(*columns: str) -> str:
    return f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"


def means(count: int, arm: str, folders: list[Path]) -> str:
    """The mean over seeds, and their standard deviation."""
    cells = [str(count), arm]
    for figure in FIGURES:
        values = [sd.Run(folder).scores["test"][figure] for folder in folders]
        cells.append(f"{statistics.mean(values):.1f}")
        if len(values) > 1:
            cells[-1] += f" ± {statistics.stdev(values):.1f}"
    return f"| {' | '.join(cells)} |"


def difference(count: int, arm: str, base: str, folders: dict[str, list[Path]]) -> str:
    """The mean difference and its 95 % interval over seeds and questions."""
    rows = {}
    for name in (arm, base):
        rows[name] = []
        for seed, folder in zip(SEEDS, folders[name], strict=True):
            run = sd.Run(folder)
            tested = {"test": run.results.eval["test"]}  # the start has held-out articles as well
            results = run.results.model_copy(update={"eval": tested})
            rows[name].append(Run(folder, name, seed, run.recipe.model.name, recipe=run.recipe, results=results))
    [differences] = compare([(rows, base)], QuestionScores())
    cells = [str(count), f"{arm} less {base}"]
    for metric in ("f1", "exact_match"):
        figures = differences[arm, "test", metric]
        low, high = figures["difference_low"], figures["difference_high"]
        cells.append(f"{figures['difference']:+.1f}, {low:+.1f} to {high:+.1f}")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("recipe", help="of the start; its model is the encoder")
    options.add_argument("--own", required=True, help="source of the own pairs and of the test")
    options.add_argument("--others", required=True, help="source that the start is trained on")
    options.add_argument("--into", required=True, type=Path, help="a folder for files and runs")
    options.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    options.add_argument("--levers", action="store_true", help=f"train also with each lever, on {LEVERS_AT} pairs")
    study(options.parse_args())
