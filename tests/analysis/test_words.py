"""Curves of changed words from metrics.jsonl, and the share of SSMBA's texts."""

import json

import pytest

from swep_ds.analysis.words import curves, draw, share_of_samples
from swep_ds.common.errors import InputError
from tests.support.finished import finished


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    folder = finished(tmp_path / "run", "prior_aug")
    lines = [{"update": n, "loss": 1.0, "words_changed": n / 100, "words_changed_clean": 0.01} for n in (1, 5, 10)]
    others = [{"update": 11, "loss": 1.0}, {"update": 12, "words_changed": 0.5}, [1]]
    text = "".join(json.dumps(line) + "\n" for line in [*lines, *others])
    (folder / "metrics.jsonl").write_text(text + '{"update": 13, "words": {}')  # killed while it wrote
    return folder


def test_curves_of_several_runs(run, tmp_path):
    (tmp_path / "other").mkdir()
    other = finished(tmp_path / "other", "swep")
    (other / "metrics.jsonl").write_text('{"update": 1, "words_changed": 0.5, "words_changed_clean": 0.0}\n')
    table = curves([run, other])
    assert table["method"].tolist() == ["prior_aug"] * 3 + ["swep"]
    assert table["update"].tolist() == [1, 5, 10, 1]
    assert table["words_changed"].tolist() == [0.01, 0.05, 0.1, 0.5]
    draw(table, 0.2, [tmp_path / "words.svg"])
    drawn = (tmp_path / "words.svg").read_text()
    assert drawn.startswith("<?xml")
    for label in ("update", "tokens nearest to another word (%)", "swep", "prior_aug, before perturbation"):
        assert f"<!-- {label} -->" in drawn
    assert "SSMBA" in drawn


def test_runs_without_a_curve(run):
    (run / "metrics.jsonl").write_text('{"update": 1, "loss": 1.0}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl: holds no words_changed: prior_aug changes"):
        curves([run])
    (run / "metrics.jsonl").unlink()
    with pytest.raises(InputError, match=r"metrics\.jsonl: no such file"):
        curves([run])
    (run / "recipe.yaml").unlink()
    with pytest.raises(InputError, match=r"holds no recipe\.yaml, so no run"):
        curves([run])


def test_share_of_ssmbas_texts(tmp_path):
    file = tmp_path / "samples.json"
    file.write_text(json.dumps({"data": [], "ssmba": {"tokens": 200, "corrupted": 50, "changed": 30}}))
    assert share_of_samples(file) == 0.15
    for text in ("[]", "{}", "half", '{"ssmba": {"tokens": 3}}'):
        file.write_text(text)
        with pytest.raises(InputError, match=r"--augmented .*: not (JSON|written by `swep-ds augment`)"):
            share_of_samples(file)
    with pytest.raises(InputError, match=r"--augmented .*: no such file"):
        share_of_samples(tmp_path / "none.json")
