"""The preflight: what a start would be refused for, and two real ranks that disagree."""

import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from swep_ds.pipeline import run
from swep_ds.pipeline.folder import GlobalBatch, RunFolder
from swep_ds.pipeline.recipe import Recipe
from swep_ds.ranks.group import process_group
from tests.support.bad_input import error_line, refused
from tests.support.fork_server import ROOT, run_script
from tests.support.tiny_run import ds_config, prepare

# scripts/train.py, each rank in a folder of its own; a file takes what it prints
ELSEWHERE = f"""
import os, runpy, sys
rank = os.environ["RANK"]
os.dup2(os.open(f"output{{rank}}", os.O_CREAT | os.O_WRONLY), 1)
os.chdir(f"place{{rank}}")
sys.argv[0] = {str(ROOT / "scripts" / "train.py")!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("place")).parent


def test_a_start_that_would_be_refused_fails_the_preflight_and_all_well_leaves_nothing(place, tmp_path, capfd):
    recipe = Recipe.load(str(place / "recipe.yaml"))
    config = str(ds_config(tmp_path, 2))
    contradictory = tmp_path / "other.json"
    contradictory.write_text('{"gradient_clipping": 7}')
    weights = shutil.copytree(place / "model", tmp_path / "cut") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    cut = Recipe.make(recipe, model={"name": str(weights.parent)})
    output = tmp_path / "runs" / "new"
    with process_group():
        for changed, given, folder, said in (
            (recipe, str(contradictory), "new", r"other\.json: gradient_clipping = 7, but the recipe's"),
            (recipe, config, "cut", r"--output_dir .*cut: holds files that belong to no run \("),
            (cut, config, "new", r"cut: cannot load"),
        ):
            assert re.search(said, refused(run.preflight, changed, given, tmp_path / folder, "auto"))
        assert "can start" not in capfd.readouterr().out
        run.preflight(recipe, config, output, "auto")
    said = capfd.readouterr().out
    assert said.endswith("preflight: 1 rank(s) can start, and see the same\n")
    assert re.search(r"python 3\..*, torch .*, code of this package [0-9a-f]{32}\n", said)
    assert not output.parent.exists()


def test_a_run_keeps_the_global_batch_that_it_began_with_and_its_first_stage_is_tried(place, tmp_path):
    few = ["train.micro_batch_size=4", "train.gradient_accumulation_steps=1"]
    recipe = Recipe.load(str(place / "recipe.yaml"), few)
    recipe = Recipe.make(recipe, pretrain={"train": recipe.data.train, "micro_batch_size": 4})
    (tmp_path / "ds.json").write_text('{"train_batch_size": 8}')
    arguments = recipe, str(tmp_path / "ds.json"), tmp_path / "run", "auto"
    with process_group():
        assert re.search(r"train_batch_size = 8, but .* gives 4", refused(run.preflight, *arguments))
        for folder in (tmp_path / "run", tmp_path / "run" / "pretrain"):
            folder.mkdir(exist_ok=True)
            RunFolder(folder).write_batch(GlobalBatch(8, 4, 1))  # on two ranks
        (tmp_path / "run" / "recipe.yaml").write_text(recipe.dump())
        run.preflight(*arguments)
        RunFolder(tmp_path / "run" / "pretrain").write_batch(GlobalBatch(16, 4, 1))
        assert "first stage (pretrain): " in refused(run.preflight, *arguments)


def test_ranks_of_other_versions_are_named(place, tmp_path, monkeypatch):
    recipe = Recipe.load(str(place / "recipe.yaml"))
    with process_group():
        monkeypatch.setattr(
            run.ranks.group, "gather", lambda value: [value, other] if isinstance(value, dict) else [""]
        )
        monkeypatch.setattr(run.ranks.group, "_hosts", ["a", "b"])
        monkeypatch.setattr(run, "versions", Mock(return_value={"torch": "2.13.0"}))
        other = {"torch": "2.12.0"}
        said = refused(run.preflight, recipe, "zero1", tmp_path / "run", "auto")
    assert "rank 1 (here, host b) starts with other settings than rank 0 (there, host a): torch '2.13.0' there" in said


@pytest.mark.slow
def test_a_folder_that_ranks_do_not_share_is_named_in_one_line(place, tmp_path):
    """Two ranks in different folders, as on nodes without a common file system."""
    for rank in range(2):
        (tmp_path / f"place{rank}").mkdir()
    settings = ["--recipe", str(place / "recipe.yaml"), "--ds_config", str(ds_config(tmp_path, 2))]
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    words = ["--preflight", *settings, "--output_dir", "run"]
    ended = run_script(tmp_path / "elsewhere.py", *words, ranks=2, check=False, cwd=tmp_path)
    assert ended.returncode == 2
    said = error_line(ended.stderr)
    assert "--output_dir run: not shared (a file that rank 0 wrote there cannot be seen): name a folder" in said
    assert "(on rank 1, host " in said
    assert not list(tmp_path.glob("place*/*"))
