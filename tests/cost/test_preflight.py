"""The preflight: fingerprints of files, comparing a thousand ranks, and two real ranks that disagree."""

import json
import re
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest

from swep_ds.cost import preflight
from swep_ds.data import readers
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


def test_files_are_told_apart_by_names_sizes_heads_and_tails(tmp_path):
    big = bytes(3 * preflight.ENDS)

    def fingerprint(**files: bytes) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return preflight.fingerprint(folder.rglob("*"), folder)

    same = fingerprint(a=big, b=b"x")
    assert same.startswith(f"2 file(s), {len(big) + 1:,} bytes, ")
    assert fingerprint(b=b"x", a=big) == same
    other_ends = [fingerprint(a=b"?" + big[1:], b=b"x"), fingerprint(a=big[:-1] + b"?", b=b"x")]
    assert len({same, fingerprint(a=big, c=b"x"), *other_ends}) == 4


def test_where_data_and_models_are_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    assert preflight._data("train.json").startswith("1 file(s), 2 bytes, ")
    assert {preflight._data(name) for name in ("dev.json.gz", "no such thing", "empty")} == {"missing"}
    monkeypatch.setitem(readers._readers, "faq", iter)
    assert preflight._data("quickstart:news") == preflight._data("faq:questions.csv") == "no file"
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for offline, said in ((False, "not in the hub's cache"), (True, "missing from the hub's cache")):
        monkeypatch.setattr(huggingface_hub.constants, "is_offline_mode", lambda offline=offline: offline)
        assert preflight._data("owner/squad:plain@train").startswith(said)
    kept = tmp_path / "hub" / "datasets--owner--squad"
    for file, content in ((kept / "snapshots" / ("0" * 40) / "a.parquet", "PAR1"), (kept / "refs" / "main", "0" * 40)):
        file.parent.mkdir(parents=True)
        file.write_text(content)
    assert preflight._data("owner/squad:plain@train").startswith("cached, 1 file(s), 4 bytes, ")


def test_who_sees_something_else_or_what_is_wrong_is_named():
    hosts = [f"node{rank // 8:03}" for rank in range(1024)]

    def disagreements(**changes: dict[int, str]) -> list[str]:
        """Of 1,024 ranks; `changes` are subject -> (rank -> what it sees)."""
        usual = {"torch": "2.13.0", "data": "1 file(s)"}
        seen = [{name: changes.get(name, {}).get(rank, usual[name]) for name in usual} for rank in range(1024)]
        return preflight.disagreements(hosts, seen)

    assert disagreements() == []
    assert disagreements(torch=dict.fromkeys(range(56, 64), "2.12.0"), data={3: "missing", 9: "2 file(s)"}) == [
        "torch: 2.13.0 on 1016 ranks (node000, node001, node002, node003, node004, [...]), 2.12.0 on 8 ranks (node007)",
        "data: 1 file(s) on 1022 ranks (node000, node001, node002, node003, node004, [...]), "
        "missing on rank 3 (node000), 2 file(s) on rank 9 (node001)",
    ]
    [line] = disagreements(data={rank: f"{rank} file(s)" for rank in range(1024)})
    assert "3 file(s) on rank 3 (node000)" in line
    assert len(line) < 520
    for value in ("missing", "not shared (z)", "not writable (Read-only)"):
        [line] = disagreements(data=dict.fromkeys(range(1024), value))
        assert line.startswith(f"data: {value} on 1024 ranks (")


def test_a_start_that_would_be_refused_fails_the_preflight_and_all_well_leaves_nothing(
    place, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(huggingface_hub.constants, "is_offline_mode", lambda: False)
    mix = [{"source": str(place / f"{name}.json"), "weight": 1} for name in ("train", "test")]
    recipe = Recipe.load(str(place / "recipe.yaml"), [f"data.train={json.dumps(mix)}"])
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
            (cut, config, "new", r"its model\.safetensors is damaged"),
        ):
            assert re.search(said, refused(preflight.preflight, changed, given, tmp_path / folder))
        assert "all ranks see the same" not in capfd.readouterr().out
        preflight.preflight(recipe, config, output)
    said = capfd.readouterr().out
    assert said.endswith("preflight: all ranks see the same\n")
    for number, name in enumerate(("train", "test")):
        line = rf"data\.train\.{number}\.source {place}/{name}\.json +1 file\(s\), [\d,]+ bytes, [0-9a-f]{{8}}\n"
        assert re.search(line, said)
    assert re.search(rf"output_dir {output} +writable, shared\n", said)
    assert said.count("rank 0 (") == 1
    assert not output.parent.exists()


@pytest.mark.slow
def test_ranks_that_disagree_are_named_in_one_line(place, tmp_path):
    """Two ranks in different folders, as on nodes without a common file system."""
    for rank in range(2):
        (tmp_path / f"place{rank}").mkdir()
        (tmp_path / f"place{rank}" / "train.json").write_text((place / "train.json").read_text() + " " * rank)
    shutil.copy(place / "test.json", tmp_path / "place0" / "test.json")
    settings = ["--recipe", str(place / "recipe.yaml"), "--ds_config", str(ds_config(tmp_path, 2))]
    settings += ["--set", "data.train=train.json", "--set", "data.eval.test=test.json", "--output_dir", "run"]
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    ended = run_script(tmp_path / "elsewhere.py", "--preflight", *settings, ranks=2, check=False, cwd=tmp_path)
    assert ended.returncode == 2
    output = [(tmp_path / f"output{rank}").read_text() for rank in range(2)]
    assert "2 ranks (" in output[0]
    assert output[1] == ""
    line = error_line(ended.stderr)
    size = (place / "train.json").stat().st_size
    for part in (
        rf"data\.train train\.json: 1 file\(s\), {size:,} bytes, \w+ on rank 0 \(.*\), 1 file\(s\), {size + 1:,} bytes",
        r"data\.eval\.test test\.json: 1 file.* on rank 0 \(.*\), missing on rank 1 \(",
        r"output_dir run: writable, shared on rank 0 .*, not shared \(a file that rank 0 wrote .*\) on rank 1",
    ):
        assert re.search(part, line), line
    assert "torch" not in line
    assert not [file.name for file in tmp_path.glob("place*/*") if not file.name.endswith(".json")]
