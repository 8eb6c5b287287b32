"""scripts/same_scores.py sees a score that differs, and reads what official scripts print."""

import json
import sys
from contextlib import nullcontext

import pytest

from swep_ds.evaluation.scores import Scorer
from tests.support import scripts
from tests.support.bad_input import refused

script = scripts.load("scripts/same_scores.py")


@pytest.mark.parametrize("wrong", [None, "NoAns_f1", "best_f1_thresh", "f1"])
def test_every_score_is_compared(monkeypatch, tmp_path, capsys, wrong):
    """Against a scorer that is this project's own, but for one score."""

    def official(path, golds, predictions, *options, odds=None):
        scorer = Scorer(*options)
        scores = scorer.score(predictions, golds) | (scorer.best_thresholds(predictions, golds, odds) if odds else {})
        there = {ours: theirs for theirs, ours in script.V2_NAMES.items()} if odds else {}
        scores = {there.get(name, name): value for name, value in scores.items()}
        return scores | {name: value + 0.01 for name, value in scores.items() if name == wrong}

    monkeypatch.setattr(script, "MADE_UP", 30)
    monkeypatch.setattr(script, "official", official)
    golds, contexts = script.made_up(script.random.Random(0), list(script.HARD))
    assert script.check(tmp_path, "texts", golds, contexts, ("zh", "ar"), True) == (wrong is None)
    shown = capsys.readouterr().out
    lines = [line for line in shown.splitlines() if not line.startswith(" ")]
    assert ["13 scores" in line for line in lines] == [False, True, False, False]
    assert (f"    {wrong}: " in shown) == (wrong is not None)
    for name in (script.SQUAD1, script.SQUAD2, script.MLQA):
        (tmp_path / name).touch()
    monkeypatch.setattr(sys, "argv", ["same_scores.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="some scores differ") if wrong else nullcontext():
        script.same_scores()


def test_an_official_script_runs_on_files(tmp_path):
    golds, predictions, odds = {"é": ("ال", "b"), "2": ()}, {"é": "上"}, {"é": 0.5, "2": -1.0}
    body = "import json, sys; print(json.dumps({'arguments': sys.argv[4:], 'files': [json.load(open(f)) for f in %s]}))"
    (tmp_path / script.SQUAD2).write_text(body % "[*sys.argv[1:3], sys.argv[4]]")
    given = script.official(tmp_path / script.SQUAD2, golds, predictions, odds=odds)
    data, *others = given["files"]
    [article] = data["data"]
    assert data["version"] == "v2.0"
    assert {qa["id"]: tuple(a["text"] for a in qa["answers"]) for qa in article["paragraphs"][0]["qas"]} == golds
    assert others == [predictions, odds]
    assert given["arguments"][-2:] == ["--na-prob-thresh", "inf"]
    for body in ("import sys; sys.exit('no ' + sys.argv[3])", ""):  # the second is a download that failed
        (tmp_path / script.MLQA).write_text(body)
        said = refused(script.official, tmp_path / script.MLQA, golds, predictions, "de")
        assert f"fails ({'no de' if body else ''!r}): fetch the published script" in said
    assert json.dumps(script.noisy(script.random.Random(0), "", ""))
