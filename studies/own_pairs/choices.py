"""How to choose among the answers of several passages, and how often no text is declined.

    python -m studies.own_pairs.choices runs/new_wiki/start/model runs/new_wiki/texts.json amazon_reviews_v1.0.json.gz

For questions drawn from each file, the model reads the ten best passages of all texts. Prints exact match where the
answer is taken by its log odds against no answer in its passage (as `QuestionAnswerer.over` does), by its logits, by
its share of the passage's spans, and from the first passage of BM25. Then it asks the same questions of the other
file's texts, where none is answered, and prints how many of them are declined.
"""

import argparse
import random
from pathlib import Path

import swep_ds as sd
from benchmarks.texts import articles
from swep_ds.data.example import Example
from swep_ds.data.readers import read_examples
from swep_ds.evaluation.scores import Scorer
from swep_ds.texts.index import TextIndex
from swep_ds.texts.passages import joined

COUNT = 10  # passages
QUESTIONS = 400


def best_answers(model: sd.QuestionAnswerer, texts: dict[str, str], drawn: list[Example]) -> dict[str, dict[str, str]]:
    """By way of choosing, the answer to each question, by its id."""
    passages = TextIndex(texts)
    chosen: dict[str, dict[str, str]] = {"log odds": {}, "logits": {}, "share of spans": {}, "BM25's first": {}}
    for example in drawn:
        ranked = passages.best(example.question, COUNT)
        pieces = joined(ranked)
        read = []
        for number, (name, begin, end) in enumerate(pieces):
            read.append(Example(str(number), example.question, texts[name][begin:end], (), None, name))
        decoder = model.read(read, 1, null=True)
        answers, nulls = decoder.n_best(1), decoder.nulls()
        scores = {way: [] for way in chosen}
        for number, piece in enumerate(pieces):
            [best] = answers[str(number)]
            scores["log odds"].append(best.score - nulls[str(number)].score)
            scores["logits"].append(best.score)
            scores["share of spans"].append(best.score - decoder.log_sums[number])
            first = ranked[0]
            is_first = piece.name == first.name and piece.begin <= first.begin < piece.end
            scores["BM25's first"].append(float(is_first))
        for way, of_pieces in scores.items():
            place = of_pieces.index(max(of_pieces))
            chosen[way][example.id] = answers[str(place)][0].text
    return chosen


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("model")
    options.add_argument("files", nargs=2, type=Path)
    given = options.parse_args()
    model = sd.QuestionAnswerer(given.model)
    drawn, texts = {}, {}
    for file in given.files:
        texts[file], _ = articles(file)
        examples = [example for example in read_examples(str(file), training=True) if example.answers]
        drawn[file] = random.Random(0).sample(examples, QUESTIONS)
    for file, other in zip(given.files, reversed(given.files), strict=True):
        golds = {example.id: example.answers for example in drawn[file]}
        for way, answers in best_answers(model, texts[file], drawn[file]).items():
            print(f"{file.name}, by {way}: exact match {Scorer('mlqa en').score(answers, golds)['exact_match']:.1f}")
        for count in (1, COUNT):
            asks = model.over(texts[other], count)
            declined = sum(not asks(example.question)[0].text for example in drawn[file])
            print(f"{file.name}, of {other.name}'s {count} best passages: {100 * declined / QUESTIONS:.1f} % declined")


if __name__ == "__main__":
    main()
