"""A sweep compares runs of the same data."""

import json

import pytest
import yaml

from swep_ds.errors import InputError
from swep_ds.pipeline.inputs import input_checksums
from swep_ds.sweeps.sweep import check_inputs, read_sweep


def test_a_sweep_refuses_to_go_on_with_other_files_than_its_finished_runs_read(tmp_path):
    train = tmp_path / "train.json"
    train.write_text("{}")
    fields = {"variants": {"MLE": {"method.name": "mle"}}, "set": {"data.train": str(train)}, "seeds": [0, 1]}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(fields))
    _, cells = read_sweep(str(tmp_path / "mine.yaml"), tmp_path / "runs")
    check_inputs(cells)  # nothing is done
    for cell, inputs in zip(cells, ({"inputs": input_checksums(cells[0].recipe)}, {}), strict=True):
        cell.folder.mkdir(parents=True)
        (cell.folder / "recipe.yaml").write_text(cell.recipe.dump())
        (cell.folder / "results.json").write_text(json.dumps({"eval": {}, **inputs}))
    check_inputs(cells)
    content = train.read_bytes()
    train.write_bytes(content + b"\n")
    said = f"^data.train {train}: has changed since {cells[0].name} read it: restore it, name another --output_dir, or"
    with pytest.raises(InputError, match=said):
        check_inputs(cells)
    check_inputs(cells[1:])  # made by a version that noted no checksums
    train.unlink()
    check_inputs(cells)
