"""`swep-ds score`: files of predictions in every form, against the rules and the intervals written a second time."""

import csv
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from swep_ds.analysis.prediction_files import read_prediction_file, score_files
from swep_ds.commands.score import score
from swep_ds.common.errors import InputError
from tests.evaluation.test_scores import f1_by_hand, normalize_by_hand, v2_by_hand
from tests.support.bad_input import refused

WANTED = {"1": "Zürich", "b": "", "7": "the \u2028 cat"}
ROWS = [{"id": 1, "prediction_text": "Zürich", "no_answer_probability": 0.0}]
ROWS += [{"id": "b", "prediction_text": ""}, {"id": 7.0, "prediction_text": "the \u2028 cat"}]
N_BEST = {id_: [{"text": text, "probability": 0.6}, {"text": "another"}] for id_, text in WANTED.items()}
FORMS = {
    "squad": json.dumps(WANTED),
    "n_best": json.dumps(N_BEST, indent=4),
    "list": json.dumps(ROWS, ensure_ascii=False),
    "lines": "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS) + "\n\n",
    "answer": "\n".join(json.dumps({"id": id_, "question": "?", "answer": text}) for id_, text in WANTED.items()),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["", "bom"])
def test_every_form_gives_the_same_answers(form, mark, tmp_path):
    (tmp_path / "file").write_text(mark + FORMS[form], encoding="utf-8")
    questions = {}
    if form == "answer":
        questions = dict.fromkeys(WANTED, "?")
    assert read_prediction_file(tmp_path / "file") == (WANTED, questions)


def test_a_single_row_is_no_file_of_two_questions(tmp_path):
    (tmp_path / "file").write_text(json.dumps(ROWS[0]))
    assert read_prediction_file(tmp_path / "file") == ({"1": "Zürich"}, {})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 0.2, "b": 0.9}', "{'id': 'a', 'answer': 0.2} is no prediction: give "),  # probabilities of no answer
        ('{"version": "1.1", "data": [{"title": "A", "paragraphs": []}]}', "is no prediction"),  # the data set
        ('[{"id": "a", "prediction_text": null}]', "is no prediction"),
        ('[{"id": NaN, "prediction_text": "b"}]', "is no prediction"),
        ("[]", "holds no prediction: give "),
        ("id,prediction_text\na,b\n", "not JSON"),
        ('{"a": "b", "a": "c"}', "the key 'a' is given twice: keep one"),
        ('{"id": 1, "answer": "b"}\n{"id": "1", "answer": "b"}', "the id '1' is given twice: keep one"),
        ('{"id": 1, "answer": "b"}\n{"id": 2,', "line 2 is not JSON"),
    ],
)
def test_another_file_is_refused_by_its_name_with_one_fix(text, said, tmp_path):
    (tmp_path / "file").write_text(text)
    message = refused(read_prediction_file, tmp_path / "file")
    assert said in message.removeprefix(f"{tmp_path / 'file'}: ")
    assert message.count(str(tmp_path)) == 1


@pytest.fixture
def scored(tmp_path, monkeypatch, capsys):
    """Scores predictions, by file name, on questions, accepted answers by id; `per_text` questions share a text."""
    monkeypatch.chdir(tmp_path)

    def call(golds, files, *words: str, per_text: int = 1) -> str:
        rows = []
        for number, (id_, answers) in enumerate(golds.items()):
            text = f"Text {number // per_text} has big cats and a dog."
            rows.append({"id": id_, "question": f"Which, {number}?", "context": text, "answers": answers})
        (tmp_path / "data.json").write_text(json.dumps(rows))
        for name, predictions in files.items():
            if isinstance(predictions, str):
                (tmp_path / name).write_bytes(predictions.encode())
            else:
                (tmp_path / name).write_text(json.dumps(predictions))
        monkeypatch.setattr(sys, "argv", ["swep-ds score", *files, "--data", "data.json", *words])
        score()
        return capsys.readouterr().out

    return call


def drawn(seed: int, *, unanswerable: bool) -> tuple[dict, dict, dict]:
    """The answers accepted by 240 questions, and two files of predictions for them."""
    rng = np.random.default_rng(seed)
    texts = ["cats", "big cats", "The Cats!", "a dog", "big dog", *[""] * 2]
    golds = {f"q{n}": list(rng.choice(texts[:5], rng.integers(1, 3))) for n in range(240)}
    if unanswerable:
        golds |= {f"q{n}": [] for n in range(0, 240, 3)}
    before = {id_: str(rng.choice(texts)) for id_ in golds}
    after = {id_: answers[0] if answers and rng.random() < 0.1 else before[id_] for id_, answers in golds.items()}
    return golds, before, after


def by_hand(predictions, golds, *, v2: bool) -> np.ndarray:
    """EM and F1 of each question, [Q, 2], in percent."""
    points = []
    for id_, answers in golds.items():
        if id_ not in predictions:
            points.append((0.0, 0.0))
        elif v2:
            points.append(v2_by_hand(predictions[id_], answers))
        else:
            given = normalize_by_hand(predictions[id_])
            em = float(given in map(normalize_by_hand, answers))
            points.append((em, max(f1_by_hand(predictions[id_], answer) for answer in answers)))
    return 100 * np.array(points)


def line(name: str, printed: str) -> np.ndarray:
    """EM and F1 with their intervals and, of a difference, their p values: [2, 3 or 4]."""
    [text] = re.findall(rf"^    {re.escape(name)}: EM (.*)", printed, re.MULTILINE)
    numbers = np.array(re.findall(r"-?\d+\.?\d*(?:e-\d+)?", text.replace("F1", "")), float)
    return np.column_stack([numbers[:6].reshape(2, 3), numbers[6:].reshape(2, -1)])


@pytest.mark.parametrize("v2", [False, True])
def test_scores_are_the_official_ones_and_differences_students_t(v2, scored):
    golds, before, after = drawn(0, unanswerable=v2)
    del after["q0"], after["q1"]
    printed = scored(golds, {"before.json": before, "after.json": after | {"more": "cats"}})
    assert "over the 238 of 240 questions that all files answer: after.json lacks 2\n" in printed
    del golds["q0"], golds["q1"]
    old_Q2, new_Q2 = by_hand(before, golds, v2=v2), by_hand(after, golds, v2=v2)
    em, f1 = new_Q2.mean(0)
    assert re.search(rf"data\.json +│ +{em:.2f} │ +{f1:.2f} │ +238 ", printed)
    for part, chosen in (("with an", 1), ("without an", 0)) if v2 else ():
        em, f1 = new_Q2[[bool(answers) == chosen for answers in golds.values()]].mean(0)
        assert re.search(rf" {part} answer +│ +{em:.2f} │ +{f1:.2f} │", printed)
    for column in range(2):
        tested = stats.ttest_rel(new_Q2[:, column], old_Q2[:, column])
        wanted = [(new_Q2 - old_Q2).mean(0)[column], *tested.confidence_interval(0.95), tested.pvalue]
        assert line("after.json less before.json", printed)[column] == pytest.approx(wanted, rel=0.05, abs=0.006)
        wanted = stats.ttest_1samp(old_Q2[:, column], 0).confidence_interval(0.95)
        assert line("before.json", printed)[column] == pytest.approx([old_Q2[:, column].mean(), *wanted], abs=0.006)


def test_intervals_over_texts_are_those_of_a_bootstrap(scored):
    golds, before, _ = drawn(1, unanswerable=False)
    for number in range(0, 240, 8):  # half of the questions on a text have one fate
        right = number % 16 == 0
        before |= {f"q{n}": golds[f"q{n}"][0] if right else "none" for n in range(number, number + 4)}
    printed = scored(golds, {"file.json": before}, per_text=8)
    means_T2 = by_hand(before, golds, v2=False).reshape(30, 8, 2).mean(1)
    samples = means_T2[np.random.default_rng(0).integers(30, size=(4000, 30))].mean(1)
    assert line("file.json", printed)[:, 1:] == pytest.approx(np.percentile(samples, [2.5, 97.5], axis=0).T, abs=1.5)
    single = line("file.json", scored(golds, {"file.json": before}))
    assert (np.diff(single[:, 1:]) < 0.8 * np.diff(line("file.json", printed)[:, 1:])).all()
    assert "no intervals: the questions are about fewer than 5 texts" in scored(golds, {"f": before}, per_text=60)


def test_what_is_missing_or_unknown_is_counted(scored, caplog):
    golds = {f"q{n}": ["cats"] for n in range(8)}
    printed = scored(golds, {"file.json": {"q0": "cats", "q1": "Cats", "x": "cats"}})
    assert re.search(r"data\.json +│ +25\.00 │ +25\.00 │ +8 ", printed)
    assert "file.json: no prediction for 6 of 8 questions: they score 0" in caplog.text
    assert "file.json: 1 of 3 predictions have no question: left out" in caplog.text
    perfect = line("file.json", scored(golds, {"file.json": dict.fromkeys(golds, "cats")}))
    assert perfect[0, 2] == 100 > perfect[0, 1] > 0  # eight right answers do not prove that all would be


def test_a_comparison_leaves_out_what_a_file_lacks_and_says_what_it_cannot_show(scored):
    """Each file lacks ten of 40 questions. Of the 20 that both have, 12 are right before and 15 after."""
    golds = {f"q{n}": ["cats"] for n in range(40)}
    before = {f"q{n}": "cats" if n < 22 else "dog" for n in range(30)}
    after = {f"q{n}": "cats" if n < 25 else "dog" for n in range(10, 40)}
    printed = scored(golds, {"old": before, "new": after})
    assert [line(name, printed)[0, 0] for name in ("old", "new", "new less old")] == [60, 75, 15]
    values = [100.0] * 3 + [0.0] * 17
    interval = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert line("new less old", printed)[0, 1:3] == pytest.approx([*interval], rel=0.05)
    assert "over the 20 of 40 questions that all files answer: old lacks 10, new lacks 10\n" in printed
    printed_few = scored(golds, {"old": before, "third": {"q0": "dog", "q35": "cats"}})
    assert "no intervals: the questions are about fewer than 5 texts" in printed_few
    with pytest.raises(InputError, match="is answered in all of these files: give fewer of them"):
        scored(golds, {"old": before, "fourth": {"q35": "cats"}})
    [said] = re.findall("these 20 questions do not show a difference in F1, and about (.*) more like them", printed)
    half = stats.norm.ppf(0.975) * stats.sem(values)
    assert int(said) == pytest.approx(20 * (half / 3) ** 2 - 20, rel=0.02)
    same = scored(golds, {"old": before, "new": before})
    assert "each of these 30 questions has the same F1 in both files\n" in same
    many = {f"q{n}": ["cats"] for n in range(4000)}  # 30 points apart: the questions show it
    worse = {id_: "cats" if n % 10 < 7 else "dog" for n, id_ in enumerate(many)}
    shown = scored(many, {"old": worse, "new": dict.fromkeys(many, "cats")})
    assert "missing" not in shown
    assert "do not show" not in shown


def rows_of(answers: dict[str, str], ids: str) -> str:
    """What `swep-ds answer --output answers.csv` writes about questions numbered in another file."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, ["id", "question", "answer", "name"], lineterminator="\r\n")
    writer.writeheader()
    for number, (question, answer) in enumerate(answers.items()):
        writer.writerow({"id": f"{ids}{number}", "question": question, "answer": answer, "name": "a, b.pdf"})
    return "\ufeff" + file.getvalue()


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_a_table_may_have_been_saved_by_a_spreadsheet(delimiter, tmp_path):
    text = "\ufeffid,question,answer\r\n1,When?,7.0\r\n2,Who?,\r\n".replace(",", delimiter)
    (tmp_path / "a.csv").write_text(text, encoding="utf-8", newline="")
    assert read_prediction_file(tmp_path / "a.csv") == ({"1": "7.0", "2": ""}, {"1": "When?", "2": "Who?"})


def test_a_damaged_table_is_refused_by_its_name(tmp_path):
    for text, said in (('id,answer\na,"b', "malformed CSV"), ("id;text\na;b\n", "is no prediction")):
        (tmp_path / "a.CSV").write_text(text)
        assert refused(read_prediction_file, tmp_path / "a.CSV").startswith(str(tmp_path / "a.CSV"))
        assert said in refused(read_prediction_file, tmp_path / "a.CSV")


def test_answers_with_other_ids_are_known_by_their_questions(scored, caplog):
    golds = {f"q{n}": [f"{n}.0"] for n in range(8)}  # a cell that is read as a number would be "3"
    right = {f"Which,  {n}?": f"{n}.0" if n < 6 else "" for n in range(8)}
    for ids, is_said in (("q", False), ("asked.csv-", True)):
        caplog.clear()
        assert line("a.csv", scored(golds, {"a.csv": rows_of(right, ids)}))[0, 0] == 75
        assert ("a.csv: its ids do not name the questions of --data: its answers are" in caplog.text) == is_said
    moved = rows_of({question: right[question] for question in reversed(right)}, "q")  # ids of other questions
    assert line("a.csv", scored(golds, {"a.csv": moved}))[0, 0] == 75
    lacking = rows_of({"Which, 7?": "7.0", "Who?": "12.0"}, "x")
    assert line("a.csv", scored(golds, {"a.csv": lacking}))[0, 0] == 12.5
    assert "a.csv: 1 of 2 predictions have no question: left out" in caplog.text
    twice = refused(scored, golds, {"a.csv": rows_of({"Which, 0?": "a", "Which, 0? ": "b"}, "x")})
    assert twice.startswith("a.csv: its ids do not name the questions of --data, and 'Which, 0?' is asked twice: ask ")
    assert "none of its ids is one of" in refused(scored, golds, {"a.csv": rows_of({"Who?": "12.0"}, "x")})


def test_questions_that_name_documents_are_scored_with_their_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("docs").mkdir()
    rows = ["question,answer,document"]
    for n in range(6):
        Path(f"docs/t{n}.txt").write_text(f"The cat number {n} was seen in 190{n} by a dog.")
        rows.append(f"When was it seen?,190{n},t{n}")
    Path("pairs.csv").write_text("\n".join(rows))
    answers = [{"id": f"pairs.csv-{n + 2}", "question": "When was it seen?", "answer": f"190{n}"} for n in range(6)]
    for name, right in (("old", 3), ("new", 6)):
        given = [row | ({} if n < right else {"answer": ""}) for n, row in enumerate(answers)]
        Path(name).write_text("\n".join(map(json.dumps, given)))
    words = ["swep-ds score", "old", "new", "--data", "pairs.csv"]
    monkeypatch.setattr(sys, "argv", words)
    assert "name the folder of documents in data.texts (--texts)" in refused(score)
    monkeypatch.setattr(sys, "argv", [*words, "--texts", "docs"])
    score()
    assert line("new less old", capsys.readouterr().out)[0, 0] == 50


def test_mistakes_are_named(scored):
    golds = {f"q{n}": ["cats"] for n in range(8)}
    given = dict.fromkeys(golds, "cats")
    assert "f: {'id': 'q0', 'answer': ['cats']} is no prediction: give" in refused(scored, golds, {"f": golds})
    assert "of --data data.json ('x' is not, 'q0' is): give the data" in refused(scored, golds, {"f": {"x": "cats"}})
    for words, said in (
        ([Path("data.json"), "f"], "data.json: {'id': 'q0', 'question': 'Which, 0?'"),  # exchanged
        ([Path("f"), "f"], "--data: f: line 1: has no column question, context, answers (found: ['x'])"),
        ([Path("g"), "data.json"], "g: no such file"),
    ):
        assert refused(score_files, words[:1], words[1], None, "squad", "en", ()).startswith(said)
    hidden = refused(scored, dict.fromkeys(golds), {"f": given})
    assert hidden == "--data data.json: its answers are withheld: give data with answers"
    assert "only scorer mlqa has rules by language" in refused(scored, golds, {"f": given}, "--language", "de")


def test_the_rules_are_chosen(scored):
    golds = {f"q{n}": ["die Cats"] for n in range(8)}
    printed = scored(golds, {"f": dict.fromkeys(golds, "cats")}, "--scorer", "mlqa", "--language", "de")
    assert "scoring rules MLQA (de)" in printed
    assert line("f", printed)[:, 0].tolist() == [100, 100]
