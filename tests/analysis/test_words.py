"""Curves of changed words from metrics.jsonl."""

import json

from swep_ds.analysis.words import curves, draw
from tests.support.finished import finished


def test_curves_of_several_runs(tmp_path):
    runs = []
    for method in ("prior_aug", "swep"):
        (tmp_path / method).mkdir()
        runs.append(finished(tmp_path / method, method))
    lines = [{"update": n, "loss": 1.0, "words_changed": n / 100, "words_changed_clean": 0.01} for n in (1, 5, 10)]
    lines.append({"update": 11, "loss": 1.0})
    (runs[0] / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (runs[1] / "metrics.jsonl").write_text('{"update": 1, "words_changed": 0.5, "words_changed_clean": 0.0}\n')
    table = curves(runs)
    assert table["method"].tolist() == ["prior_aug"] * 3 + ["swep"]
    assert table["update"].tolist() == [1, 5, 10, 1]
    assert table["words_changed"].tolist() == [0.01, 0.05, 0.1, 0.5]
    draw(table, 0.2, tmp_path)
    drawn = (tmp_path / "words.svg").read_text()
    assert drawn.startswith("<?xml")
    for label in ("update", "tokens nearest to another word (%)", "swep", "prior_aug, before perturbation"):
        assert f"<!-- {label} -->" in drawn
    assert "SSMBA" in drawn
