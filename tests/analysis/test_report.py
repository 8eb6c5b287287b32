"""Reports of hand-made runs: every part is there, every text is harmless, and numbers agree with NumPy or with
hand calculation."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from swep_ds.analysis import charts, report, word_analyses
from swep_ds.analysis.answered import most_changed, read_answered
from swep_ds.analysis.domains import MEAN
from swep_ds.analysis.noise_report import noise_effect
from swep_ds.commands.report import report as command
from swep_ds.common.pages import template
from swep_ds.evaluation import scores
from swep_ds.evaluation.scores import Scorer
from swep_ds.pipeline.export import NOISE
from swep_ds.pipeline.folder import GlobalBatch, RunFolder
from swep_ds.pipeline.recipe import Recipe
from tests.support.bad_input import change_json, refused
from tests.support.report_runs import CONTEXT, EMOJI, LONG, QUESTIONS, RTL, SCRIPT, Page, metrics, write_runs


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return write_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(home, tmp_path) -> Path:
    return Path(shutil.copytree(home / "run", tmp_path / "run"))


def change_data(run: Path, **data) -> None:
    """Sets fields of the recipe; without curves, which take a while."""
    tree = yaml.safe_load((run / "recipe.yaml").read_text())
    tree["data"] |= data
    (run / "recipe.yaml").write_text(yaml.safe_dump(tree))
    (run / "metrics.jsonl").unlink()


@pytest.fixture(scope="module")
def against(home) -> tuple[str, dict, Page]:
    html, tables = report.write_report(home / "run", home / "other")
    assert (home / "run" / "report.html").read_text() == html
    return html, tables, Page(html)


def test_all_parts_are_there(against, home):
    _, tables, page = against
    sections = [name for name in page.texts if not name.startswith(("h-", "p", "main"))]
    assert sections == ["domains", "against", "noise", "curves", "answers", "maps", "cost", "settings"]
    settings = ["swep: ", "beta 0.001", "prior_variance 0.1", str(home / "model"), "global batch 16", "fp32", "Seed 0"]
    settings += ["Ranks 2", "ZeRO stage 3", "torch 9.8.7", "swep-ds train --ranks 2 --ds_config "]
    curves = ["Loss", "NLL, clean pass", "NLL, noisy pass", "nats per token", "mean |μ − 1|", "√α, the prior's"]
    curves += ["nearest to another word's", "perturbed", "Learning rate", "Gradient", "Mean of the noise", "samples/s"]
    ranks = "0 2 0.01 0.5 100 1 2 0.5 0.6 2,345 waits for data"  # 0.5 s of 2 s; 0.6 s is not 1.5 x 0.55
    # without its questions a set has no interval
    domains = [" gone 50.0 12.3 ", "checkpoint of update 30 was chosen: F1 2.00"]
    said = {"domains": domains, "curves": curves, "maps": ["monastery"], "cost": ["3 MiB", "80.0 s", ranks]}
    for section, parts in (said | {"settings": settings}).items():
        assert [part for part in parts if part not in page.texts[section]] == []
    assert "Run run Date 2026-01-02 Machine CPU Commit abc" in page.text
    assert "These results do not say whether the model loses exact answers" in page.text  # few texts
    assert page.count("svg") == 9  # eight curves and the throughput
    assert [page.of_class(name) for name in ("heatmap", "right", "wrong")] == [2, 1, 1]
    columns, rows = tables["worst examples"]
    assert columns == ["data set", "question", "predicted", "accepted", "F1"]
    assert [row[-1] for row in rows] == [0.0, 0.0, pytest.approx(40)]  # "valley of abbot": 2 x 1/3 x 1/2 / (1/3 + 1/2)
    assert {row[1] for row in rows} == {QUESTIONS[name][0] for name in ("w1", "w2", "w3")}


def test_ranks_that_wait_are_slow_or_not_finite_are_named():
    def line(update: int, ranks: int = 4, **more) -> dict:
        seconds = {"step_seconds": [2.0, 2.0, 2.0, 2.0], "data_seconds": [0.2, 0.1, 0.3, 0.1]}
        seconds |= {"forward_seconds": [1.0, 1.0, 1.0, 1.7], "memory_mib": [5.0, 5.0, 5.0, 5.0]}
        return {"update": update, "not_finite": []} | {name: of[:ranks] for name, of in seconds.items()} | more

    health = [line(1, 2, not_finite=[0]), line(2, not_finite=[1])]  # the first before it resumed on other ranks
    health += [line(3, memory_mib=[5.0, 5.0, 5.0, 7.0], not_finite=[1]), line(4)]
    rows = report.ranks_of(health, local_forward=True)
    notes = ["", "not finite at 2 updates, first at 2", "waits for data", "slow forward passes"]
    assert [(row["rank"], row["notes"]) for row in rows] == [*enumerate(notes)]
    assert (rows[0]["seconds"], rows[3]["memory_mib"]) == ((2.0, 0.2, 1.0), 7.0)
    rows = report.ranks_of(health, local_forward=False)  # whose passes wait for each other
    assert [row["notes"] for row in rows] == [*notes[:3], ""]
    assert report.ranks_of([line(1, 1)], local_forward=True) == report.ranks_of([], local_forward=True) == []


def test_answers_are_read_with_another_runs_and_the_places_that_the_run_pointed_at(run, home):
    (run / "n_best").mkdir()
    start = CONTEXT.index("an abbot")
    best = {"r2": [{"text": "an abbot", "start": start, "end": start + 8}], "w1": [{"text": ""}], "w3": []}
    best["r1"] = [{"text": "1204", "start": 0, "end": 4}]  # where the text is another one
    (run / "n_best" / "squad.json").write_text(json.dumps(best))
    for kind, sure in (("confidence", 0.25), ("calibrated", 0.75)):
        (run / kind).mkdir(exist_ok=True)
        (run / kind / "squad.json").write_text(json.dumps({"r1": sure}))
    answered = read_answered(run, Recipe.load(str(run / "recipe.yaml")), "squad", home / "other")
    [first] = [item for item in answered if item.example.id == "r1"]
    assert (first.confidence, first.calibrated) == (0.25, 0.75)
    assert {(item.confidence, item.calibrated) for item in answered if item is not first} == {(None, None)}
    places = dict.fromkeys(QUESTIONS) | {"r2": range(start, start + 8)}
    assert {item.example.id: item.place for item in answered} == places
    gained, lost = ({item.example.id: item.gain for item in items} for items in most_changed(answered, 9))
    assert gained == {"r1": 100.0, "r2": 100.0, "r3": pytest.approx(100 / 3)}
    assert [*gained][2:] == ["r3"]  # the largest first
    assert lost == {"w1": -100.0, "w2": -100.0, "w3": pytest.approx(40 - 200 / 3)}
    assert [*lost][2:] == ["w3"]


def test_no_text_becomes_an_element_and_the_page_needs_nothing_beside_it(against):
    html, _, page = against
    assert {page.count(name) for name in ("script", "img", "link", "iframe", "object")} == {0}
    assert page.texts["answers"].count("</title><img src=x onerror=y>") == 1
    for text in (SCRIPT, RTL, EMOJI):
        assert text in page.texts["against"]
    for text in ("(empty)", LONG[:390], "(2,007 characters)"):
        assert text in page.texts["answers"]
    assert LONG not in html
    attributes = [pair for _, attributes in page.elements for pair in attributes.items()]
    assert all(value.startswith("#") for name, value in attributes if name in ("src", "href", "xlink:href"))
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))


def test_what_the_noise_does_is_said_in_numbers_and_words(run):
    def compared(gold: float, guess: float, shuffled: float, spread: float) -> list[dict]:
        """Forty lines, every second with the comparison; changes against the prior that hold from update 21 on."""
        lines = [{"update": update, "loss": 1.0} for update in range(1, 41)]
        for line in lines[1::2]:
            late, off = line["update"] > 20, spread if line["update"] % 4 else -spread
            for answer, change in (("gold", gold), ("guess", guess)):
                line |= {f"{answer}_nll_prior": 2.0, f"{answer}_nll_learned": 2.0 + late * change + off}
                line |= {f"{answer}_nll_shuffled": 2.0 + late * shuffled + off}
        return lines

    # ten lines, five up and five down by 0.01: 2.262 (t, 9 degrees) * 0.01 * sqrt(10 / 9) / sqrt(10) = 0.0075
    lines = compared(-0.02, -0.05, -0.03, 0.01)
    lines[-1] |= {"kl_per_window": 20.0, "sigma_spread": 0.018, "mu_spread": 0.021}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shown = Page(report.write_report(run)[0]).texts["noise"]
    assert "gold answer 2.000 -0.020 ± 0.008 -0.030 ± 0.008 model's own guess 2.000 -0.050 ± 0.008" in shown
    assert "over 10 lines of metrics.jsonl" in shown
    assert "from the prior was 20 nats per window (sigma varies by +- 1.8 %, mu by +- 2.1 % of the prior's" in shown
    assert (
        "Learned noise lowers the nll of the gold answer by 0.020 nats and lowers the nll of the model's own guess by "
        "0.050 nats, which favours what the model believes already over the gold answer. Shuffled, it changes the nll "
        "of the model's own guess by -0.030 ± 0.008 nats."
    ) in shown

    for changes, said in (
        ((-0.05, 0.0, 0.0), "lowers the nll of the gold answer by 0.050 nats, which favours the gold answer over"),
        ((0.03, 0.03, 0.0), "raises the nll of the gold answer by 0.030 nats and raises the nll of the model's own"),
        ((0.004, -0.004, 0.0), "does to the answer what noise from the prior does"),
    ):
        statement = template("analysis/noise.html.jinja").module.statement(noise_effect(compared(*changes, 0.01)))
        assert said in statement.unescape()
        assert "favours" not in statement or changes[0] != changes[1]
    assert noise_effect([*lines[:26], {"update": 40}]) is None  # three lines in the second half
    assert noise_effect([]) is None


def test_curves_are_averaged_in_blocks_and_each_of_many_has_a_line_of_its_own():
    lines = [{"update": update, "loss": float(update % 7)} for update in range(1, 4001)]
    updates, losses = charts.learning_curves(lines)[0].curves["loss"]
    np.testing.assert_allclose(updates, np.arange(1, 4001).reshape(400, 10).mean(1))
    np.testing.assert_allclose(losses, (np.arange(1, 4001) % 7).reshape(400, 10).mean(1))
    lines = [{"update": u, **{f"nll_adversarial_{k}": k + u / 9 for k in range(6)}} for u in range(1, 4)]
    [chart] = charts.learning_curves(lines)
    drawn = chart.svg()
    assert all(f"NLL, adversarial_{k} pass" in drawn for k in range(6))
    styles = re.findall(r'<path d="[^"]*" clip-path="[^"]*" style="(fill: none; [^"]*var\(--line-\d\)[^"]*)"', drawn)
    assert len(styles) == len(set(styles)) == 6


def test_what_is_missing_is_left_out_and_said(run, monkeypatch, caplog):
    for name in ("metrics.jsonl", "health.jsonl", NOISE):
        (run / name).rename(run / f"{name}.away")
    page = Page(report.write_report(run)[0])
    assert "no line in metrics.jsonl" in page.texts["curves"]
    assert "Without answers: gone: data.eval.gone: data source" in page.texts["answers"]
    assert f"{NOISE}: is missing" in page.texts["maps"]
    assert "against" not in page.texts
    (run / f"{NOISE}.away").rename(run / NOISE)
    large = "The model is not loaded again, since it is large."
    for name, value, said in (("TRIED", 0, "No window holds an answer."), ("MAX_BYTES", 1000, large)):
        monkeypatch.setattr(word_analyses, name, value)
        page = Page(report.write_report(run)[0])
        assert page.of_class("heatmap") == 0
        assert said in page.texts["maps"]
    change_json(run / "results.json", inputs={"data.eval.squad": "of other bytes"})
    shown = Page(report.write_report(run)[0]).texts["answers"]
    assert re.search(r"data\.eval\.squad.*has changed since", shown)
    assert "the report is without the answers to squad (data.eval.squad" in caplog.text
    (run / "results.json").unlink()
    (run / "metrics.jsonl").write_text(metrics([1, 3]) + '{"update": 4, "lo')  # a killed run has half-written lines
    page = Page(report.write_report(run)[0])
    assert "No data set was tested" in page.texts["domains"]
    assert "This run is not finished." in page.text
    assert "Up to update 3." in page.texts["curves"]
    assert word_analyses.curves([run])["update"].tolist() == [1, 3]


def test_what_cannot_be_read_of_this_run_is_not_blamed_on_the_other(against):
    shown = against[2].texts["against"]
    assert "Not compared: gone. This run's questions have changed, or cannot be read." in shown
    assert "The other run did not answer" not in shown


def test_what_the_other_run_did_not_answer_is_reported(run, home, tmp_path):
    """A set that it did not answer, and one on which it was tested with fewer questions."""
    shutil.copy(home / "test.json", tmp_path / "second.json")
    change_data(run, eval={"squad": str(home / "test.json"), "second": str(tmp_path / "second.json")})
    shutil.move(run / "predictions" / "gone.json", run / "predictions" / "second.json")
    scores = json.loads((run / "results.json").read_text())["eval"]
    change_json(run / "results.json", eval={"squad": scores["squad"], "second": scores["gone"]})
    other = Path(shutil.copytree(home / "other", tmp_path / "other"))
    change_json(other / "results.json", eval={"squad": scores["squad"] | {"total": 5}})
    shown = Page(report.write_report(run, other)[0]).texts["against"]
    assert "Not compared: second. The other run did not answer the same questions." in shown
    assert "This run's questions" not in shown
    assert "squad +16.67 +1.11 3 2 " in shown  # 3 of 6 are right, and 2 of 6; their single text gives no interval
    assert " data.eval.second " in shown
    assert MEAN not in shown
    few = "squad: these questions do not show a difference: they are about fewer than 10 texts"
    few += ", too few for an interval."
    assert few in shown
    told = []
    report.write_report(run, other, say=told.append)
    assert told[1:] == [few, "Not compared: second. The other run did not answer the same questions."]
    shutil.rmtree(other / "predictions")
    assert "answers none of the questions" in refused(report.write_report, run, other)


def test_the_terminal_has_the_differences_and_what_they_do_not_show(run, home, monkeypatch, capsys):
    """Thirty texts with a question each. The first run has 18 right, the other those but the first and three more."""
    articles, answers = [], ({}, {})
    for n in range(30):
        qa = {"id": f"q{n}", "question": f"Who, {n}?", "answers": [{"text": "abbot", "answer_start": 4}]}
        articles.append({"title": f"t{n}", "paragraphs": [{"context": f"The abbot of {n}.", "qas": [qa]}]})
        answers[0][f"q{n}"] = "abbot" if n < 18 else "of"
        answers[1][f"q{n}"] = "abbot" if 0 < n < 21 else "of"
    asked = run.parent / "asked.json"
    asked.write_text(json.dumps({"data": articles}))
    other = Path(shutil.copytree(home / "other", run.parent / "before"))
    for folder, predictions in zip((run, other), answers, strict=True):
        change_data(folder, eval={"squad": str(asked)})
        (folder / "predictions" / "squad.json").write_text(json.dumps(predictions))
        em = 100 * sum(text == "abbot" for text in predictions.values()) / 30
        change_json(folder / "results.json", eval={"squad": {"exact_match": em, "f1": em, "total": 30}})
    monkeypatch.setattr(sys, "argv", ["report", str(run), "--against", str(other)])
    command()
    printed = capsys.readouterr().out
    bounds = r"-([\d.]+) to \+([\d.]+)"
    row = rf"squad +│ +-6\.67 │ +-6\.67 │ +1 │ +3 │ +30 │\n│ +│ {bounds} │ {bounds} │"
    low, high = map(float, re.search(row, printed).groups()[2:])
    values = np.array([1] + [0] * 17 + [-1] * 3 + [0] * 9) * 100
    means = values[np.random.default_rng(0).integers(30, size=(4000, 30))].mean(1)
    assert (-low, high) == pytest.approx(np.percentile(means, [2.5, 97.5]), abs=2)
    more = re.search(r"squad: these 30 questions do not show a difference in F1, and about (\d+) more like", printed)
    assert int(more[1]) == pytest.approx(30 * ((high + low) / 2 / 3) ** 2 - 30, rel=0.02)
    assert more[0] in Page((run / "report.html").read_text()).texts["against"]
    assert printed.endswith(f"\nreport in {run / 'report.html'}\n")


def test_answers_that_the_rules_do_not_know_are_named_with_a_scorer(run, monkeypatch):
    change_data(run)
    monkeypatch.setitem(scores.SCRIPTS, "Latin", ("A-Za-z", 0.5, ("klue",)))
    said = "squad: answers are Latin, which SQuAD v1.1 has no rules for: set eval.scorer to klue"
    assert said in Page(report.write_report(run)[0]).texts["domains"]


def test_questions_without_an_answer_are_shown_apart(against, run, home, tmp_path):
    asked = tmp_path / "unanswerable.json"
    document = json.loads((home / "test.json").read_text())
    for qa in document["data"][0]["paragraphs"][0]["qas"]:
        if qa["id"] in ("w1", "w2"):  # the first is declined, the second is not
            qa |= {"answers": [], "is_impossible": True}
    asked.write_text(json.dumps(document))
    mix = [{"source": f"{name}.json", "weight": weight} for name, weight in (("mine", 1), ("squad", 3))]
    change_data(run, eval={"squad": str(asked)}, unanswerable="train", train=mix, home="squad.json")
    predictions = json.loads((run / "predictions" / "squad.json").read_text())
    golds = {name: () if name in ("w1", "w2") else (gold,) for name, (_, gold, *_) in QUESTIONS.items()}
    change_json(run / "results.json", eval={"squad": Scorer().score(predictions, golds)})
    page = Page(report.write_report(run)[0])
    # with an answer: r1 to r3 right, w3 of F1 40; without: w1 right
    # the first table has the score of the headline, the second that of all questions
    shown = page.texts["domains"]
    assert "exact match (EM) in percent of the questions with an answer" in shown
    assert "squad source 75.0 85.0 – 4 " in shown
    assert "squad 66.7 73.3 6 50.0 2 " in shown
    shown = page.texts["answers"]
    assert "squad 1 17 % 0 0 % 1 17 % 0 0 % 4 67 %" in shown  # w3 has a wrong boundary, w2 should have been declined
    assert "Should have been declined" in shown
    assert "(the text holds no answer)" in shown
    trained_on = "Trained on mine.json (25 %), squad.json (75 %); home: squad.json"
    assert trained_on in page.texts["settings"]
    others = against[2].texts  # a run whose questions all have answers
    assert "declined" not in others["answers"]
    assert "without an answer" not in others["domains"]


def test_the_command_hands_on_its_arguments(monkeypatch, capsys):
    given = []
    monkeypatch.setattr(sys, "argv", ["report", "run", "--against", "other", "--output", "page.html"])
    monkeypatch.setattr(report, "write_report", lambda *arguments: given.append(arguments[:3]))
    command()
    assert given == [(Path("run"), Path("other"), Path("page.html"))]
    assert capsys.readouterr().out == "report in page.html\n"


@pytest.mark.parametrize(
    ("windows", "world_size", "ranks"), [(64, 1, ["--ranks", "8"]), (8, 2, []), (None, 2, ["--ranks", "2"])]
)
def test_the_command_has_the_ranks_of_the_runs_global_batch(windows, world_size, ranks, tmp_path):
    recipe = Recipe.load("quickstart", ["train.micro_batch_size=8", "train.gradient_accumulation_steps=1"])
    run = RunFolder(tmp_path)
    if windows:
        run.write_batch(GlobalBatch.of(recipe, windows))
    given = ["--ds_config", f"{tmp_path}/ds_config.json", "--recipe", f"{tmp_path}/recipe.yaml", "--output_dir", "NEW"]
    words = shlex.split(report.command(tmp_path, recipe, run.global_batch(recipe, world_size)))
    assert words == ["swep-ds", "train", *ranks, *given]
