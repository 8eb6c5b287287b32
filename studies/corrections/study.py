"""What corrections by users are worth: a model retrained on them, against before and against as many random pairs.

    python -m studies.corrections.study studies/corrections/start.yaml \\
        --own amazon_reviews_v1.0.json.gz --others squad_dev.jsonl.gz --into runs/corrections

Makes the files, trains, asks and tests what is not there yet, and prints the tables. Run it from the top of the
checkout. If it is stopped, the same command resumes. The recipe says how the start is trained.

Each paragraph of --own is a text. Half of the articles are the pool, the others the test. For each seed the start is
asked `ASKED` questions of the pool over all texts. A simulated person calls a reply wrong if it matches no gold answer
exactly, and marks the first one. Verdicts are rows as `swep-ds serve` writes them, with the passages that hold the
marked words as context. Random pairs are such rows about questions of the pool that were not asked.
"""

import argparse
import json
import random
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np

import swep_ds as sd
from studies.own_pairs.study import BATCH, OTHERS, SEEDS, Elsewhere, heading, rows, train, write
from swep_ds.analysis.crossed import estimate
from swep_ds.common.files import read_json, write_atomically
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.data.splits import clusters
from swep_ds.evaluation.scores import Scorer
from swep_ds.texts.pairs import Searched

COUNTS = (100, 300)  # corrections, or random pairs
PASSES = 2  # over them
ASKED = 400  # questions of the pool
TESTED = 250  # questions of other articles
UNANSWERED = 100  # so many are also asked about a passage that does not answer them
PASSAGES = 3  # read for each question
LONGEST = 100  # words of a paragraph of --others: as many as a passage has
MIXED = 1 / 3  # the share of the start's questions in each update, so that the model still declines
ARMS = ("corrections", "random pairs")
MODES = ("may decline", "must answer")
WAYS = ("texts", "passage")  # how the test is asked: over all texts, or about the passages that hold the answer
Replies = dict[str, list[str]]  # by question what the model replies in each of `MODES`


def write_others(file: Path, source: str) -> None:
    """The questions about short paragraphs; every second one also asks a paragraph that does not answer it."""
    examples = [each for each in read_examples(source, training=True) if len(each.context.split()) <= LONGEST]
    lines = rows(examples, 2, Elsewhere(list(dict.fromkeys(each.context for each in examples))), instead=False)
    # without titles: wrong paragraphs would tie all articles to each other, and none could be held out
    write(file, ({key: value for key, value in line.items() if key != "title"} for line in lines))


class Reviews:
    """The data set: all texts by name, questions of the pool, and those of the test."""

    def __init__(self, source: str):
        examples = read_examples(source, training=True)
        self._names = {
            text: str(number) for number, text in enumerate(dict.fromkeys(each.context for each in examples))
        }
        self.texts = {name: text for text, name in self._names.items()}
        articles = sorted({example.article for example in examples})
        tested = set(random.Random(0).sample(articles, len(articles) // 2))
        self.pool = [example for example in examples if example.article not in tested]
        self.test = random.Random(0).sample([each for each in examples if each.article in tested], TESTED)
        self.clusters = clusters(self.test)

    def with_passages(self, example: Example) -> Example:
        """The question about the passages of its text that hold its answer, in place of the whole text."""
        searched = Searched(example.context)
        held = searched.holding(*example.span)
        first, last = searched.begins[held][0], searched.ends[held][-1]
        span = (example.span[0] - first, example.span[1] - first)
        return replace(example, context=example.context[first:last], span=span, article=self._names[example.context])

    def verdict(self, example: Example) -> dict:
        """A row of corrections.jsonl."""
        held = self.with_passages(example)
        row = {"id": held.id, "question": held.question, "title": held.article, "context": held.context}
        return row | {"answers": {"text": [held.context[slice(*held.span)]], "answer_start": [held.span[0]]}}


def ask(run: Path, examples: list[Example], texts: dict[str, str] | None = None) -> Replies:
    """Asks a run's model about the contexts or, given `texts`, about all of these, always at null threshold 0."""
    model = sd.QuestionAnswerer(run / "model", null_threshold=0.0)
    if texts:
        given = model.over(texts, PASSAGES).answer([example.question for example in examples], n_best=2)
    else:
        given = model.answer([(example.question, example.context) for example in examples], n_best=2)
    both = [[best[0].text, next((reply.text for reply in best if reply.text), "")] for best in given]
    return dict(zip([example.id for example in examples], both, strict=True))


def test(run: Path, reviews: Reviews) -> dict[str, Replies]:
    """The model's replies to the test by way: `WAYS`, and "elsewhere", where no passage answers."""
    file = run / "replies.json"
    if not file.exists():
        held = [reviews.with_passages(example) for example in reviews.test]
        elsewhere = Elsewhere([example.context for example in held])
        wrong = [replace(example, context=elsewhere.of(example)) for example in held[:UNANSWERED]]
        replies = {"texts": ask(run, reviews.test, reviews.texts), "passage": ask(run, held)}
        write_atomically(file, json.dumps(replies | {"elsewhere": ask(run, wrong)}))
    return read_json(file)


def make_pairs(folder: Path, reviews: Reviews, seed: int) -> dict[str, Path]:
    """Asks the start, and writes the files of a seed: by arm, corrections or random pairs."""
    drawn = random.Random(seed + 1).sample(reviews.pool, ASKED + max(COUNTS))
    asked, others = drawn[:ASKED], drawn[ASKED:]
    file = folder / f"asked-seed{seed}.json"
    if not file.exists():
        write_atomically(file, json.dumps(ask(folder / "start", asked, reviews.texts)))
    said = {id_: reply for id_, (reply, _) in read_json(file).items()}
    scores = Scorer("squad").by_question(said, {example.id: example.answers for example in asked})
    wrong = sum(not exact for exact, _ in scores.values())
    print(f"seed {seed}: of {len(asked)} replies {wrong} are wrong, {list(said.values()).count('')} of them declined")
    verdicts = sorted(asked, key=lambda example: scores[example.id][0])  # the wrong first, else in random order
    files = {}
    for count, (arm, examples) in product(COUNTS, zip(ARMS, (verdicts, others), strict=True)):
        files[f"{count} {arm}"] = folder / f"{arm.replace(' ', '-')}-{count}-seed{seed}.jsonl"
        write(files[f"{count} {arm}"], map(reviews.verdict, examples[:count]))
    return files


def retrain(start: Path, recipe: sd.Recipe, pairs: Path, count: int, seed: int) -> Path:
    mix = [{"source": str(pairs), "weight": 1 - MIXED}, {"source": recipe.data.train, "weight": MIXED}]
    data = {"train": mix, "max_train_examples": OTHERS, "holdout_fraction": 0.0, "eval": {}}
    updates = round(count * PASSES / (1 - MIXED) / BATCH)
    settings = {"micro_batch_size": BATCH, "epochs": 10_000, "max_updates": updates}
    settings["learning_rate"] = recipe.train.learning_rate / 2
    return train(pairs.with_suffix(""), recipe, seed=seed, data=data, train=settings, model={"name": f"{start}/model"})


def scored(replies_S: list[dict[str, Replies]], reviews: Reviews, mode: str) -> np.ndarray:
    """[4, S, Q]: EM and F1 in percent over all texts, then those about the passages."""
    golds = {example.id: example.answers for example in reviews.test}
    parts = []
    for way in WAYS:
        said_S = [{id_: both[MODES.index(mode)] for id_, both in replies[way].items()} for replies in replies_S]
        parts.append(np.array([[*Scorer("squad").by_question(said, golds).values()] for said in said_S]))
    return 100 * np.concatenate([np.moveaxis(part_SQ2, -1, 0) for part_SQ2 in parts])


def print_tables(replies: dict[str, list[dict[str, Replies]]], reviews: Reviews) -> None:
    """Means over seeds and questions, and differences with 95 % intervals over both."""
    measures = ("mode", *(f"{metric}, {way}" for way in WAYS for metric in ("EM", "F1")))
    print("\n" + heading("arm", *measures, "declined, texts", "declined, no answer"))
    for arm, mode in product(replies, MODES):
        means = scored(replies[arm], reviews, mode).mean((1, 2)).tolist()
        for way in ("texts", "elsewhere"):
            said = [both[MODES.index(mode)] for of_seed in replies[arm] for both in of_seed[way].values()]
            means.append(100 * said.count("") / len(said))
        print(f"| {arm} | {mode} | {' | '.join(f'{mean:.1f}' for mean in means)} |")
    print("\n" + heading("difference", *measures))
    for count in COUNTS:
        corrections, pairs = (f"{count} {arm}" for arm in ARMS)
        compared = ((corrections, "the start"), (pairs, "the start"), (corrections, pairs))
        for (arm, base), mode in product(compared, MODES):
            differences = scored(replies[arm], reviews, mode) - scored(replies[base], reviews, mode)
            given = estimate([(differences, reviews.clusters)])
            bounds = zip(given.mean, *given.interval(), strict=True)
            cells = [f"{mean:+.1f}, {low:+.1f} to {high:+.1f}" for mean, low, high in bounds]
            print(f"| {arm} less {base} | {mode} | {' | '.join(cells)} |")


def study(given: argparse.Namespace) -> None:
    others = given.into / "others.jsonl"
    if not others.exists():
        write_others(others, given.others)
    recipe = sd.Recipe.make(given.recipe, data={"train": str(others)})
    start = train(given.into / "start", recipe)
    reviews = Reviews(given.own)
    replies = {"the start": [test(start, reviews)] * len(SEEDS)}
    files = {seed: make_pairs(given.into, reviews, seed) for seed in SEEDS}
    for count, seed, arm in product(COUNTS, SEEDS, ARMS):
        run = retrain(start, recipe, files[seed][f"{count} {arm}"], count, seed)
        replies.setdefault(f"{count} {arm}", []).append(test(run, reviews))
    print_tables(replies, reviews)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("recipe", help="of the start; its model is the encoder")
    options.add_argument("--own", required=True, help="source of the pool and of the test")
    options.add_argument("--others", required=True, help="source that the start is trained on")
    options.add_argument("--into", required=True, type=Path, help="a folder for files and runs")
    study(options.parse_args())
