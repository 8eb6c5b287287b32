"""docs/data_sets.md says of every set of sets.yaml what `python -m tools.data_sets` sees in files made here."""

import json
from dataclasses import replace

import pytest

from swep_ds.pipeline.recipe import DataSection, EvalSection
from tools.data_sets import __main__ as command
from tools.data_sets import check as checking
from tools.data_sets import page
from tools.data_sets.check import check, load_sets, scorer_of
from tools.data_sets.page import BEGIN, END, PAGE, eval_text, settings_text

SETS = load_sets()
READ = [entry for entry in SETS if "not_read" not in entry]
TEXT = PAGE.read_text(encoding="utf-8")
WRITTEN = TEXT.partition(BEGIN)[2].partition(END)[0]
CONTEXT = "The old bridge was built in 1852, and the new bridge in 1911."


def squad(*questions):
    """A document with one paragraph; a question is (answers, further fields)."""
    qas = [
        {"id": str(number), "question": "When?", "answers": answers} | fields
        for number, (answers, fields) in enumerate(questions)
    ]
    return {"data": [{"title": "Bridges", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]}


def at(text, start):
    return [{"text": text, "answer_start": start}]


SPOILT = squad(
    (at("1852", CONTEXT.index("1852")), {}),
    (at("1911", 0), {}),
    (at("bridge", 2), {}),
    (at("ferry", 2), {"id": "0"}),
    (at(" 1911", CONTEXT.index(" 1911")), {}),
    (at("1852", -1), {}),
    ([], {"is_impossible": True}),
    (at("1852", CONTEXT.index("1852")), {"is_impossible": True}),
    ([], {"is_impossible": False}),
    ([*at("1852", CONTEXT.index("1852")), *at("", 0)], {}),
    (at("1852", CONTEXT.index("1852")), {"question": " "}),
)
FIND = {"unanswerable": "train", "misplaced_answers": "find", "repeated_answers": "drop"}
ROWS = [
    {"qid": 1, "frage": "When?", "passage": CONTEXT, "span": {"text": ["1852", "1911"], "start_char": [28, 56]}},
    {"qid": 2, "frage": "What?", "passage": CONTEXT, "span": {"text": [], "start_char": []}},
]
NAMED = {"question": "frage", "context": "passage", "answers": "span", "id": "qid"}


@pytest.fixture
def published(tmp_path):
    """A folder of clones, and the entries of their sets by name."""
    repository = tmp_path / "someone" / "bridges"
    repository.mkdir(parents=True)
    (repository / "spoilt_train.json").write_text(json.dumps(SPOILT))
    (repository / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    (repository / "table.csv").write_text(
        f'question,review,spans\nWhen?,"{CONTEXT}",1852\nWho?,"{CONTEXT}",ANSWERNOTFOUND\n'
    )
    (repository / "hidden.json").write_text(json.dumps(squad(([], {}), ([], {}))))
    (repository / "labels.json").write_text(json.dumps({"tokens": ["The", "old"], "labels": [0, 1]}))
    given = {
        "spoilt": {"files": ["spoilt_train.json"], "data": FIND | {"columns": {"id": None}}},
        "rows": {"files": ["rows.jsonl"], "data": {"unanswerable": "train", "columns": NAMED}},
        "table": {
            "files": ["table.csv"],
            "data": {"unanswerable": "train", "columns": {"context": "review", "answer": "spans"}},
            "fitting": {"scorer": "mlqa", "language": "de"},
        },
        "hidden": {"files": ["hidden.json"], "data": {"unanswerable": "train"}, "official": {"scorer": "cmrc"}},
        "labels": {"files": ["labels.json"], "not_read": "tokens with labels"},
    }
    shared = {"language": ["en"], "repository": "someone/bridges", "commit": "0123456789abcdef"}
    return tmp_path, {name: {"name": name, **shared, **entry} for name, entry in given.items()}


def test_both_readings_agree_on_what_is_in_a_file(published):
    folder, entries = published
    seen = {name: check(entry, folder) for name, entry in entries.items()}
    assert [result.problems for result in seen.values()] == [[]] * 5
    counts = {name: {key: number for key, number in result.counts.items() if number} for name, result in seen.items()}
    assert counts["spoilt"] == {
        "questions": 11,
        "questions of training files": 11,
        "with answers": 8,
        "misplaced": 3,
        "misplaced, once": 1,
        "misplaced, several times": 1,
        "misplaced, nowhere": 1,
        "without offset": 1,
        "without offset, once": 1,
        "impossible with answers": 1,
        "possible without answers": 1,
        "blank answers": 1,
        "blank rows": 1,
        "repeated ids": 1,
        "files for testing": 1,
        "files for training": 1,
        "files with EM 100": 1,
        "trained": 6,
        "left out of training": 5,
    }
    read = {"files for testing": 1, "files for training": 1, "files with EM 100": 1, "trained": 2}
    assert counts["rows"] == {"questions": 2, "with answers": 1, **read}
    assert counts["table"] == {
        "questions": 2,
        "with answers": 1,
        "without offset": 1,
        "without offset, once": 1,
        **read,
    }
    assert counts["hidden"] == {"questions": 2, "withheld": 2, "files for testing": 1}
    assert counts["labels"] == {"files refused": 1}


def lose_the_last(examples):
    return examples[:-1]


def move_the_first(examples):
    return [replace(examples[0], span=(0, 3)), *examples[1:]]


def forget_that_answers_are_withheld(examples):
    return [replace(example, withheld=False) for example in examples]


@pytest.mark.parametrize(
    ("name", "fault", "message"),
    [
        ("rows", lose_the_last, "2 questions, but for testing 1 read and 0 left out"),
        ("rows", move_the_first, "1 answers at their offset are not trained there"),
        ("hidden", forget_that_answers_are_withheld, "its answers are withheld, and it would get a score"),
    ],
)
def test_a_reading_that_differs_is_said_and_fails(name, fault, message, published, monkeypatch, capsys):
    folder, entries = published
    right = checking.read_examples
    monkeypatch.setattr(checking, "read_examples", lambda *given, **options: fault(right(*given, **options)))
    monkeypatch.setattr(command, "load_sets", lambda: list(entries.values()))
    monkeypatch.setattr("sys.argv", ["data_sets", str(folder), name])
    assert command.main() == 1
    said = capsys.readouterr()
    assert f"{name}: " in said.err
    assert message in said.err
    assert f"| {name} | en |" in said.out


def test_the_page_is_written_between_its_markers(published, monkeypatch, tmp_path):
    folder, entries = published
    file = tmp_path / "page.md"
    file.write_text(f"# Sets\n{BEGIN}\nold\n{END}\nend\n")
    monkeypatch.setattr(page, "PAGE", file)
    monkeypatch.setattr(command, "load_sets", lambda: list(entries.values()))
    monkeypatch.setattr("sys.argv", ["data_sets", str(folder), "--write"])
    assert command.main() == 0
    lines = file.read_text().splitlines()
    assert (lines[0], lines[1], lines[-2], lines[-1]) == ("# Sets", BEGIN, END, "end")
    assert ": 4 sets, 1 languages, 17 questions. 4 files are read for testing and 3 for training, " in lines[2]
    link = "[someone/bridges](https://github.com/someone/bridges/tree/0123456789ab)"
    data = "`{unanswerable: train, columns: {context: review, answer: spans}}`"
    row = f"{link} `bridges/table.csv` | {data} | (`{{scorer: mlqa, language: de}}`) | 1 without offset (1 once) |"
    assert f"| table | en | 2 | 2 | {row}" in lines
    assert "| spoilt | en | 11 + 0 | 6 |" in file.read_text()
    assert f"- labels ({link}): tokens with labels" in lines


@pytest.mark.parametrize("entry", READ, ids=lambda entry: entry["name"])
def test_the_page_has_settings_that_a_recipe_takes(entry):
    assert scorer_of(entry).rules.name
    for settings in (entry.get("official"), entry.get("fitting")):
        EvalSection.model_validate(settings or {})
    settings = entry.get("data", {})
    assert DataSection.model_validate({"train": "train.json", **settings}).model_dump().items() >= settings.items()
    rows = [line.split(" | ") for line in WRITTEN.splitlines() if line.startswith(f"| {entry['name']} | ")]
    assert len(rows) == 1
    _, language, questions, trained, source, data, eval_, _ = rows[0]
    assert language == " ".join(entry["language"])
    assert f"/{entry['repository']}/tree/{entry['commit'][:12]})" in source
    assert data.strip("` ") == (settings_text(settings) if settings else "")
    assert eval_.strip() == eval_text(entry)
    total = sum(int(number.replace(",", "")) for number in questions.split(" + "))
    assert 0 < int(trained.replace(",", "")) <= total


def test_the_page_names_enough_sets_and_is_short():
    assert len({entry["name"] for entry in SETS}) == len(SETS)
    assert len(READ) >= 60
    assert len({language for entry in READ for language in entry["language"]}) >= 25
    assert WRITTEN.count("\n| ") == len(READ) + 2
    others = [entry for entry in SETS if "not_read" in entry]
    assert [entry["name"] for entry in others if f"{entry['name']} ([{entry['repository']}]" not in WRITTEN] == []
    assert len(TEXT.splitlines()) <= 115
