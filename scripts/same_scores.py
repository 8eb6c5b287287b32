"""Checks that the scores are those of the official scorers, on whole prediction files.

    python scripts/same_scores.py SCORERS new_wiki_v1.0.json.gz BioASQ.jsonl.gz

SCORERS is a folder that holds the official scripts under their names: SQuAD's evaluate-v1.1.py and evaluate-v2.0.py,
and MLQA's mlqa_evaluation_v1.py. Each runs as a program on files, as published. Every data source is scored by v1.1's
rules, with 2 % of the predictions missing; by v2.0's, with a third of the questions made unanswerable and with random
null odds, some of them equal; and by MLQA's for English. Two made-up data sets follow: texts of MLQA's seven languages,
and texts of characters that are hard to normalise.
Predictions are accepted answers, parts of the context, and what people and models make of an answer: other case,
articles, punctuation, spaces, repeated or missing words, nothing.
Exit codes: 0 all scores are equal; 1 a score differs; 2 bad input.
"""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from swep_ds.commands.cli import Parser, main
from swep_ds.common.errors import InputError
from swep_ds.common.files import user_path
from swep_ds.data.readers import read_examples
from swep_ds.evaluation.scores import Scorer

SQUAD1, SQUAD2, MLQA = "evaluate-v1.1.py", "evaluate-v2.0.py", "mlqa_evaluation_v1.py"
V2_NAMES = {
    "exact": "exact_match",
    "HasAns_exact": "has_answer_exact_match",
    "HasAns_f1": "has_answer_f1",
    "HasAns_total": "has_answer_total",
    "NoAns_exact": "no_answer_exact_match",
    "NoAns_f1": "no_answer_f1",
    "NoAns_total": "no_answer_total",
    "best_exact": "best_exact_match",
    "best_exact_thresh": "best_exact_match_threshold",
    "best_f1_thresh": "best_f1_threshold",
}
ROUNDING = 1e-9  # points: from Python 3.12 on, `sum` adds up floats more exactly than v1.1's loop
MADE_UP = 4000  # questions
# Words of each language with its articles, and words of other languages and scripts that texts quote
WORDS = {
    "ar": "الكتاب كتاب القاهرة في ال مدينة «النيل» ١٩٩٠ المالية، السؤال؟ بالمئة NASA 2008",
    "de": "Die Straße der des einem Königs Eine Dresden, „Zwinger“ 1728 das Haus DEM groß-artig ÄRA den Ufer",
    "en": "The the A an theatre “quoted” U.S. well-known cat's café 1990–1995 naïve £5 A.",
    "es": "El la los unas «Prado» ¿Quién? ¡Sí! niño año 1819 LAS elote unáнимe UN Bogotá, del",
    "hi": "हिन्दी दिल्ली। का १९४७ भारत, गंगा नदी; “ताज” महल the 2008 है॥",
    "vi": "của Việt Nam là cái Hà-Nội chiếc những CỦA sông 1010 người, “Huế” nhà",
    "zh": "上海 在2008年 上海。 北京、天津 《红楼梦》 the NASA 㐀 ３４ 人口：一千万 龥 x y 中a国",
}
HARD = "aAnthe THE \t\n\r\x0b\x1c\x1f\x85\u00a0\u1680\u2003\u2028\u202f\u3000\u200b\ufeff\u0301\u0130ßſKΣς7٣²½"
HARD += ".,-_'\"$+<=>^`|~–—“”‘’«»¿¡。、・·…€§°ªº®йЙиال上龥龦㐀𠀀ก\u0e31を한😀\u0640\u064b\u0940"


def noisy(rng: random.Random, answer: str, context: str) -> str:
    """A prediction that is more or less like the answer."""
    words = answer.split() or [""]
    begin = rng.randrange(max(1, len(context)))
    changes: list[Callable[[], str]] = [
        *[lambda: answer] * 3,
        lambda: "",
        lambda: rng.choice((" ", "the", "A.", "?!", "\u00a0", "“”")),
        lambda: context[begin : begin + rng.randrange(1, 60)],
        lambda: f"{rng.choice(('the', 'A', 'an', 'Die', 'el', 'của', 'ال', 'в'))} {answer}",
        lambda: answer + rng.choice(".,!?)\"'。，؟।”’–\u200b\u0301"),
        lambda: rng.choice((answer.upper(), answer.lower(), answer.title(), answer.casefold())),
        lambda: rng.choice(("-", "  ", "\u3000", "", "–", "'")).join(words),
        lambda: " ".join(words[: rng.randrange(1, len(words) + 1)]),
        lambda: " ".join(words[rng.randrange(len(words)) :]),
        lambda: " ".join(rng.sample(words, len(words)) + words[:1]),
        lambda: answer[rng.randrange(len(answer) + 1) :],
    ]
    return rng.choice(changes)()


def made_up(rng: random.Random, words: list[str]) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Accepted answers and contexts by question id: `MADE_UP` questions, with one to three answers of these words."""
    golds = {}
    contexts = {}
    for number in range(MADE_UP):
        context = [rng.choice(words) for _ in range(30)]
        begins = [rng.randrange(25) for _ in range(rng.randint(1, 3))]
        golds[str(number)] = tuple("".join(context[at : at + rng.randint(1, 5)]) for at in begins)
        contexts[str(number)] = "".join(context)
    return golds, contexts


def official(script: Path, golds: dict, predictions: dict, *options: str, odds: dict | None = None) -> dict:
    """What the official script prints, without PR curves. `options`: arguments after the two files."""
    qas = [{"id": id_, "answers": [{"text": text} for text in answers]} for id_, answers in golds.items()]
    version = {SQUAD1: "1.1", MLQA: "1.0"}.get(script.name, "v2.0")
    document = {"version": version, "data": [{"paragraphs": [{"qas": qas}]}]}
    with tempfile.TemporaryDirectory() as folder:
        for name, content in (("data", document), ("predictions", predictions), ("odds", odds)):
            Path(folder, name).write_text(json.dumps(content), encoding="utf-8")
        if odds:  # a threshold of v2.0's scorer applies to its probabilities; these odds decline nothing
            options += ("--na-prob-file", "odds", "--na-prob-thresh", "inf")
        command = [sys.executable, "-X", "utf8", str(script.absolute()), "data", "predictions", *options]
        run = subprocess.run(command, capture_output=True, encoding="utf-8", cwd=folder)
    if run.returncode or not run.stdout:
        raise InputError(f"{script}: fails ({run.stderr.strip()[-200:]!r}): fetch the published script")
    return json.loads(run.stdout)


def compare(title: str, ours: dict, theirs: dict, predictions: int) -> bool:
    """Prints a line; whether all scores are equal."""
    pairs = {name: (ours[V2_NAMES.get(name, name)], value) for name, value in theirs.items()}
    differing = {name: pair for name, pair in pairs.items() if abs(pair[0] - pair[1]) > ROUNDING}
    widest = max(abs(a - b) for a, b in pairs.values())
    print(f"{title:48} {predictions:6} predictions, {len(pairs):2} scores, largest difference {widest:.1g}")
    for name, (our, their) in differing.items():
        print(f"    {name}: {our} here, {their} there")
    return not differing


def check(scorers: Path, title: str, golds: dict, contexts: dict, languages: tuple[str, ...], squad: bool) -> bool:
    """Whether one data set's scores are equal by MLQA's rules for the languages and, with `squad`, SQuAD's."""
    rng, equal = random.Random(0), []
    full = {id_: noisy(rng, rng.choice(answers), contexts[id_]) for id_, answers in golds.items()}
    some = {id_: text for id_, text in full.items() if rng.random() > 0.02}
    if squad:
        theirs = official(scorers / SQUAD1, golds, some)
        equal.append(compare(f"{title}, v1.1", Scorer().score(some, golds), theirs, len(some)))
    if squad and len(golds) > 1:
        partly = {id_: () if rng.random() < 1 / 3 else answers for id_, answers in golds.items()}
        first, *_, last = golds  # at least one of each kind, which both report apart
        partly |= {first: (), last: golds[last]}
        odds = {id_: round(rng.gauss(0 if partly[id_] else 1, 2), rng.choice((1, 9))) for id_ in partly}
        theirs = official(scorers / SQUAD2, partly, full, odds=odds)
        ours = Scorer().score(full, partly) | Scorer().best_thresholds(full, partly, odds)
        equal.append(compare(f"{title}, v2.0", ours, theirs, len(full)))
    for language in languages:
        theirs = official(scorers / MLQA, golds, some, language)
        equal.append(compare(f"{title}, MLQA {language}", Scorer(language).score(some, golds), theirs, len(some)))
    return all(equal)


def same_scores() -> None:
    parser = Parser(description=__doc__)
    parser.add_argument("scorers", type=user_path, help="folder of the official scripts")
    parser.add_argument("data", nargs="*", help="data sources, as in a recipe")
    arguments = parser.parse_args()
    for name in (SQUAD1, SQUAD2, MLQA):
        if not (arguments.scorers / name).is_file():
            raise InputError(f"{arguments.scorers / name}: no such file: fetch the official scorer")
    equal = []
    for source in arguments.data:
        examples = read_examples(source, training=False)
        golds = {example.id: example.answers for example in examples}
        contexts = {example.id: example.context for example in examples}
        equal.append(check(arguments.scorers, Path(source).name, golds, contexts, ("en",), True))
    for language, words in WORDS.items():
        golds, contexts = made_up(random.Random(language), [f"{word} " for word in words.split()] + list(" .,，"))
        equal.append(check(arguments.scorers, "made-up texts", golds, contexts, (language,), False))
    golds, contexts = made_up(random.Random(1), list(HARD))
    equal.append(check(arguments.scorers, "hard characters", golds, contexts, tuple(WORDS), True))
    if not all(equal):
        raise SystemExit("some scores differ")


if __name__ == "__main__":
    main(same_scores)
