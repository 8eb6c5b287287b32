"""A plan of a model on the hub takes its config alone, and a hub that cannot be reached is an error at once."""

import sys

import pytest
from huggingface_hub import constants

from swep_ds.commands.train import train
from swep_ds.common.errors import InputError
from swep_ds.common.files import check_hub
from tests.support.hub import MODEL, stand_in
from tests.support.ports import free_port


@pytest.fixture
def online(monkeypatch):
    def at(address: str) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        path = "{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{address}/{path}")

    return at


def test_a_plan_needs_the_config_alone(online, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    options = ["--recipe", "large_t5", "--output_dir", "runs/large", "--resume", "never"]
    monkeypatch.setattr(sys, "argv", ["train", "--plan", "8x80", *options])
    with stand_in() as address:
        online(address)
        train()
    said = capsys.readouterr().out
    assert f"swep on {MODEL}: autocast" in said
    assert "parameters: 222,903,552 of the model" in said  # as the published weights have
    assert "updates and tokens: not known, because model.name google-t5/t5-base: no tokenizer" in said
    assert f"swep-ds train --ranks 8 --ds_config zero0 {' '.join(options)}" in said
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_hub_that_cannot_be_reached_is_an_error_and_one_that_answers_is_none(online):
    online(address := f"http://127.0.0.1:{free_port()}")
    said = rf"^model\.name {MODEL}: no such file or folder, and the hub {address} cannot be reached"
    with pytest.raises(InputError, match=said):
        check_hub(MODEL, "none.json", f"model.name {MODEL}")
    with stand_in() as address:
        online(address)
        for repository, file in ((MODEL, "config.json"), (MODEL, "none.json"), ("no-one/none", "config.json")):
            check_hub(repository, file, "model.name")
    check_hub("a/path/to/nothing", "config.json", "model.name")  # is no hub id
