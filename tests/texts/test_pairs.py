"""Pairs that name their document: where its answer is, what is asked back, and what follows in a run's data."""

import csv
import json
import random
import string

import pytest

from swep_ds.data.choices import Choices
from swep_ds.data.questions import FILE_NAME
from swep_ds.data.readers import read_examples
from swep_ds.pipeline.asked import HELD_OUT_ROWS, apart, numbers, row_numbers, write_asked
from swep_ds.pipeline.examples import load_examples
from swep_ds.pipeline.recipe import Recipe
from swep_ds.texts.documents import SUFFIXES
from swep_ds.texts.folder import FolderTexts
from swep_ds.texts.pairs import NOWHERE, SEVERAL, PairLocator, Searched
from tests.support.bad_input import refused

FILLER = " ".join(f"filler{number}" for number in range(120))
HANDBOOK = (
    f"The college was founded in 1852 by “Agnes Palder”. {FILLER} It cost 12 million. {FILLER} "
    f"The tower cost 12 million, with state‐of‐the‐art lifts. {FILLER} It re\u00adopened in May."
)
ROWS = [
    ("Who founded the college?", "'agnes  palder'", "Hand book"),
    ("What did the tower cost?", "12 million", "hand-book.TXT"),
    ("Which lifts has it?", "State of the Art", "Hand book.txt"),
    ("When did it open again?", "1625", "year.md"),
    ("What did it do in May?", "reopened", "sub/Hand book.txt"),
    ("Who knows?", "", "year"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs")
    (path / "docs/sub").mkdir(parents=True)
    (path / "docs/Hand book.txt").write_text(HANDBOOK, encoding="utf-8")
    (path / "docs/year.md").write_text("In 16251 nothing opened. 1999 was another year.", encoding="utf-8")
    with open(path / "pairs.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("Question", "Answer", "Document"), *ROWS])
    return path


def read(folder, **options):
    remarks = []
    choices = Choices(unanswerable="train", locate=PairLocator(FolderTexts(folder / "docs", "docs")))
    return read_examples(str(folder / "pairs.csv"), choices=choices, remark=remarks.append, **options), remarks


def test_an_answer_is_found_as_word_and_excel_write_it(folder):
    examples, remarks = read(folder, training=True)
    answers = [example.answers[0] if example.span else None for example in examples]
    assert answers == ["“Agnes Palder”", "12 million", "state‐of‐the‐art", "re\u00adopened", None]
    for example in examples:
        if example.span:
            assert example.context[slice(*example.span)] == example.answers[0]
        assert example.context in HANDBOOK or example.article == "year.md"
        assert len(example.context.split()) <= 150
    assert "tower" in examples[1].context  # the place that the question is about
    assert {example.article for example in examples} == {"Hand book.txt", "year.md"}
    said = {remark.id: (remark.reason, remark.left_out) for remark in remarks}
    assert said == {"pairs.csv-3": (SEVERAL, False), "pairs.csv-5": (NOWHERE, True)}
    assert all(remark.passage for remark in remarks)
    tested, _ = read(folder, training=False)
    assert [(example.context, example.answers) for example in tested] == [(e.context, e.answers) for e in examples]


def test_a_document_has_one_meaning_or_is_asked_back(folder, tmp_path):
    locate = PairLocator(FolderTexts(folder / "docs", "docs"))
    assert (
        refused(locate, "handbuk", "Who?", ["x"])
        == "document 'handbuk': docs has no such text; did you mean 'Hand book.txt'?"
    )
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.txt").write_text("Who?")
    assert refused(PairLocator(FolderTexts(tmp_path, "docs")), "same", "Who?", []) == (
        "document 'same': may be a/same.txt, b/same.txt: give its path in the folder"
    )
    same = PairLocator(FolderTexts(tmp_path, "docs"))
    assert [same(name, "Who?", [])[0]["title"] for name in ("b/same", "B\\same.TXT")] == ["b/same.txt"] * 2
    for table, fault in (
        ("question,answer,document\nWho?,x, ", "document is empty: name one, or give a context"),
        ("question,answer,file\nWho?,x,same", "has no column document (found: "),
        ("Frage,answer,document\nWho?,x,same", "has no column question (found: "),
        ("question,reply,document\nWho?,x,a/same", "(found: ['question', 'document'])"),
    ):
        (tmp_path / "bad.csv").write_text(table)
        choices = Choices(locate=PairLocator(FolderTexts(tmp_path, "docs")))
        assert fault in refused(read_examples, str(tmp_path / "bad.csv"), training=True, choices=choices)
    said = refused(read_examples, str(folder / "pairs.csv"), training=True)
    assert "pairs.csv: row 2: has a document in place of a context: name the folder of documents in data.texts" in said


def test_any_words_of_a_document_are_found_however_they_are_folded():
    rng = random.Random(0)
    words = ["".join(rng.choices(string.ascii_letters + "éß-'’", k=rng.randint(2, 9))).strip("-'’") for _ in range(900)]
    text = " ".join(words)
    document = Searched(text)
    for _ in range(200):
        first = rng.randrange(len(words) - 3)
        wanted = " ".join(words[first : first + 3])
        begin = len(" ".join([*words[:first], ""]))
        changed = rng.choice(
            (str.upper, str.casefold, lambda s: s.replace(" ", "\u00a0"), lambda s: s.replace("-", "‑"))
        )
        places, whole = document.places(changed(wanted))
        assert whole
        assert (begin, begin + len(wanted)) in places


NAMES = [a + b for a in ("bel", "cor", "dun") for b in ("mar", "tin", "vik")]


def test_a_run_holds_out_the_same_pairs_again(tmp_path):
    (tmp_path / "docs").mkdir()
    for name in NAMES:
        (tmp_path / f"docs/{name}.txt").write_text(f"Where is {name}? Here is {name}.")
    rows = [{"question": f"Where is {name}?", "answer": f"Here is {name}", "document": name} for name in NAMES]
    data = {"train": str(tmp_path / "pairs.json"), "texts": str(tmp_path / "docs"), "holdout_fraction": 0.25}

    def load(rows, **more):
        (tmp_path / "pairs.json").write_text(json.dumps(rows))
        sections = {"model": {"name": "m"}, "method": {"name": "mle"}, "data": data | more}
        training, tests = load_examples(Recipe.model_validate(sections), [])
        return training, tests["held_out"]

    training, held_out = load(rows[1:])
    articles = {example.article for example in held_out}
    (tmp_path / "before/model").mkdir(parents=True)
    write_asked(tmp_path / "before/model", {"trained": numbers(training), "held_out": numbers(held_out)})
    more = [{"question": f"Who is {name}?", "answer": f"Here is {name}", "document": name} for name in NAMES]
    more_training, again = load([*rows, *more], holdout_of=str(tmp_path / "before"))
    assert len(more_training) == 2 * (len(NAMES) - len(articles))
    assert (numbers(again) == numbers(held_out)).all()
    assert articles != {example.article for example in load(rows)[1]}
    new, known = apart({"a": training + held_out, "b": held_out}, str(tmp_path / "before/model"))
    assert (new, known) == ({"a": held_out, "b": held_out}, {"a": training})
    assert refused(load, rows, holdout_of=str(tmp_path)).startswith(f"data.holdout_of {tmp_path}: no run with held-out")


def test_another_row_with_the_words_of_a_held_out_question_is_not_held_out_again(tmp_path):
    """As when a question is asked again: `swep-ds report --against` would not compare the two tests."""

    def load(rows, **more):
        (tmp_path / "rows.json").write_text(json.dumps(rows))
        data = {"train": str(tmp_path / "rows.json"), "holdout_fraction": 0.25} | more
        return load_examples(
            Recipe.model_validate({"model": {"name": "m"}, "method": {"name": "mle"}, "data": data}), []
        )

    rows = []
    for name in NAMES:
        row = {"id": name, "question": f"Where is {name}?", "context": f"Here is {name}.", "title": name}
        rows.append(row | {"answers": {"text": ["Here"], "answer_start": [0]}})
    training, tests = load(rows)
    held_out = tests["held_out"]
    (tmp_path / "before/model").mkdir(parents=True)
    asked = {"trained": numbers(training), "held_out": numbers(held_out)}
    first = next(row for row in rows if row["id"] == held_out[0].id)
    again = [first | {"id": "again"}, first | {"id": "elsewhere", "title": "elsewhere", "context": "Here it is."}]
    for more, is_exact in (({}, False), ({HELD_OUT_ROWS: row_numbers(held_out)}, True)):
        write_asked(tmp_path / "before/model", asked | more)
        more_training, tests = load(rows + again, holdout_of=str(tmp_path / "before"))
        assert (tests["held_out"] == held_out) == is_exact
        assert [example.id for example in more_training[len(training) :]] == ["elsewhere"] * is_exact
        assert len(tests["held_out"]) == len(held_out) + 2 * (not is_exact)
    first["title"] = "new"  # the row is another one: its words count
    assert load(rows, holdout_of=str(tmp_path / "before"))[1]["held_out"][0].id == held_out[0].id


def test_the_name_of_any_document_that_can_be_read_is_no_context():
    assert [suffix for suffix in SUFFIXES if not FILE_NAME.fullmatch(f"Hand book{suffix.upper()}")] == []
