"""Measures asking many texts: how often search finds the passage with the answer, and how long a question takes.

    python -m benchmarks.texts new_wiki_v1.0.json.gz
    python -m benchmarks.texts new_wiki_v1.0.json.gz amazon_reviews_v1.0.json.gz --questions 400 --model MODEL
    python -m benchmarks.texts new_wiki_v1.0.json.gz --weights 1 0 0

FILE is a data set in SQuAD's format. The paragraphs of an article, joined by blank lines, are one text. For questions
drawn from all of them, which have an answer, the script prints at several k how often one of the k best passages holds
the answer at its place. --weights compares terms: words alone are 1 0 0. With --model, the model answers each
question from the k best passages of all texts, and from the paragraph that it was written about: exact match and F1 of
both, how often the answer is of the right text, and how often the model declines.
"""

import gzip
import json
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.commands.cli import Parser, at_least, main
from swep_ds.common.files import user_path
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.evaluation.scores import Golds, Scorer
from swep_ds.texts import index
from swep_ds.texts.index import FIELDS, TextIndex

COUNTS = (1, 5, 10, 20)
GAP = "\n\n"


def bench() -> None:
    options = Parser(description=__doc__)
    options.add_argument("files", metavar="FILE", nargs="+", type=user_path)
    options.add_argument("--questions", type=at_least(1), default=1000, help="drawn from each file")
    options.add_argument("--model", help="a question-answering model that reads the best passages")
    options.add_argument("--passages", type=at_least(1), nargs="+", default=COUNTS, help="how many --model reads")
    options.add_argument("--weights", type=float, nargs=len(FIELDS), metavar="WEIGHT", help=f"of {', '.join(FIELDS)}")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    if given.weights:
        FIELDS.update(zip(FIELDS, given.weights, strict=True))
    cache = TemporaryDirectory()
    index.CACHE = Path(cache.name)  # an index that an earlier call has kept would be opened, not made
    answerer = QuestionAnswerer(given.model) if given.model else None
    for file in given.files:
        texts, places = articles(file)
        examples = [example for example in read_examples(str(file), training=True) if example.answers]
        drawn = random.Random(given.seed).sample(examples, min(given.questions, len(examples)))
        began = time.perf_counter()
        passages = TextIndex(texts)
        made = time.perf_counter() - began
        words = sum(len(text.split()) for text in texts.values())
        size = f"{len(texts)} texts with {words:,} words, {len(passages):,} passages"
        print(f"{file.name}: {size}; indexed in {made:.2f} s")
        ranks = []
        began = time.perf_counter()
        for example in drawn:
            name, begin = places[example.context]
            start, end = (begin + place for place in example.span)
            ranked = passages.best(example.question, max(COUNTS))
            holding = [n for n, p in enumerate(ranked, 1) if p.name == name and p.begin <= start and end <= p.end]
            ranks.append(min(holding, default=max(COUNTS) + 1))
        each = (time.perf_counter() - began) / len(drawn)
        shares = ", ".join(f"{100 * sum(rank <= k for rank in ranks) / len(ranks):.1f} % at {k}" for k in COUNTS)
        print(f"  {len(drawn)} questions, the answer's passage is among the best: {shares}; {1000 * each:.1f} ms each")
        if answerer:
            read(answerer, texts, places, drawn, given.passages)


def articles(file: Path) -> tuple[dict[str, str], dict[str, tuple[str, int]]]:
    """The texts by name, and by paragraph its text's name and its first character there."""
    content = file.read_bytes()
    if file.suffix == ".gz":
        content = gzip.decompress(content)
    document = json.loads(content)
    texts = {}
    places = {}
    for number, article in enumerate(document["data"]):
        name = f"{number} {article['title']}"
        texts[name] = ""
        for paragraph in article["paragraphs"]:
            if texts[name]:
                texts[name] += GAP
            places[paragraph["context"]] = (name, len(texts[name]))
            texts[name] += paragraph["context"]
    return texts, places


def read(
    answerer: QuestionAnswerer,
    texts: dict[str, str],
    places: dict[str, tuple[str, int]],
    drawn: list[Example],
    counts: Sequence[int],
) -> None:
    """Prints the scores of answers from the right paragraph, and from the best passages of all texts."""
    golds = {example.id: example.answers for example in drawn}
    scorer = Scorer("mlqa en")
    replies = answerer.answer((example.question, example.context) for example in drawn)
    answers = {example.id: reply.text for example, [reply] in zip(drawn, replies, strict=True)}
    print(f"  reading the right paragraph: {scored(answers, scorer, golds)}")
    for count in counts:
        asks = answerer.over(texts, count)
        began = time.perf_counter()
        replies = [reply for [reply] in asks.answer(example.question for example in drawn)]
        each = (time.perf_counter() - began) / len(drawn)
        answers = {example.id: reply.text for example, reply in zip(drawn, replies, strict=True)}
        right = [reply.name == places[example.context][0] for example, reply in zip(drawn, replies, strict=True)]
        line = f"  reading the best {count}: {scored(answers, scorer, golds)}"
        print(f"{line}; of the right text {100 * sum(right) / len(right):.1f} %; {1000 * each:.0f} ms a question")


def scored(answers: Mapping[str, str], scorer: Scorer, golds: Golds) -> str:
    score = scorer.score(answers, golds)
    declined = sum(text == "" for text in answers.values()) / len(answers)
    return f"exact match {score['exact_match']:.1f}, F1 {score['f1']:.1f}, declined {100 * declined:.1f} %"


if __name__ == "__main__":
    main(bench)
