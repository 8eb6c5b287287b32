"""--plan: what it prints about data, memory and the ds_configs that fit, and about what cannot be known."""

import json
import math
import re
import resource
import shlex
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from threading import Thread

import psutil
import pytest
from huggingface_hub import HfApi, constants

from benchmarks import random_model
from swep_ds.commands.train import train
from swep_ds.common.files import check_hub
from swep_ds.cost.memory import States
from swep_ds.cost.plan import GIB, Devices, _row, plan, plan_sweep
from swep_ds.models.hub import load_tokenizer
from swep_ds.pipeline.build import training_batches, training_features
from swep_ds.pipeline.examples import load_examples
from swep_ds.pipeline.recipe import RECIPES, Recipe
from swep_ds.sweeps.sweep import read_sweep
from swep_ds.training.ds_config import complete_ds_config
from tests.support.bad_input import refused
from tests.support.fork_server import ROOT, free_port
from tests.support.sweep_files import finish, write
from tests.support.tiny_run import prepare

SIZES = {"world_size": 2, "backwards": 2, "hidden_size": 64, "on_cpu": False}
LARGE = Devices(1, 2**40, True, None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp("plan")).parent


def printed(capsys, folder: Path, devices: Devices, *overrides: str, ds_config: str | None = None) -> str:
    recipe = Recipe.load(str(folder / "recipe.yaml"), list(overrides))
    plan(recipe, devices, ds_config, ["--recipe", "tiny"])
    return capsys.readouterr().out


def gpus(count: int, mib: float) -> Devices:
    return Devices(count, int(mib * 2**20), True, None)


def peaks(text: str) -> dict[str, float]:
    rows = [line.replace("│", " ").split() for line in text.splitlines() if line.startswith("│")]
    return {row[0]: float(row[9].replace(",", "")) for row in rows}


def test_parameters_updates_and_tokens(capsys, folder):
    overrides = ["train.micro_batch_size=4", "train.epochs=2", "train.max_updates=null", "eval.select_on=test"]
    text = printed(capsys, folder, gpus(2, 1000), *overrides)
    recipe = Recipe.load(str(folder / "recipe.yaml"), overrides)
    assert f"{3 * 16 * 16 + 3 * 16:,} of the method" in text  # two layers with bias, 16 -> 16 -> 2 * 16
    tokenizer = load_tokenizer(recipe.model.name)
    features = training_features(recipe, tokenizer, load_examples(recipe)[0])
    ranks = [training_batches(recipe, tokenizer, features, rank, 2, on_gpu=True) for rank in (0, 1)]
    batches = [rank[update] for rank in ranks for update in range(rank.updates_per_epoch)]
    epoch = [batch.attention_mask for batch in batches if batch.weight.sum() > 0]
    tokens, positions = sum(int(mask.sum()) for mask in epoch), sum(mask.numel() for mask in epoch)
    assert f"{ranks[0].updates} updates of 8 windows, {tokens / ranks[0].updates_per_epoch:,.0f} tokens each" in text
    updates = range(ranks[0].updates_per_epoch)
    shapes = {(len(ranks[0].windows(update)), batches[update].input_ids.shape[1]) for update in updates}
    assert f"padding {1 - tokens / positions:.1%}; {len(shapes)} shapes\n" in text
    assert all(width % 16 == 0 or width == ranks[0].lengths.max() for _, width in shapes)
    assert f"4 x {max(mask.shape[1] for mask in epoch)} tokens" in text
    assert "data.train: " in refused(printed, capsys, folder, LARGE, "data.train=nowhere/to/be.json")


def test_the_widest_batch_of_a_mix_may_come_after_the_first_epoch(capsys, folder, tmp_path):
    sources = []
    for name, lengths, weight in (("large", [8] * 39 + [40], 1), ("small", [8] * 5, 9)):
        rows = [{"question": "a", "context": " ".join("b" * length), "answer": "b"} for length in lengths]
        (tmp_path / f"{name}.json").write_text(json.dumps(rows))
        sources.append({"source": str(tmp_path / f"{name}.json"), "weight": weight})
    overrides = [f"data.train={json.dumps(sources)}", "data.repeated_answers=first", "train.max_updates=null"]
    text = printed(capsys, folder, gpus(1, 1000), *overrides)
    recipe = Recipe.load(str(folder / "recipe.yaml"), overrides)
    features = training_features(recipe, load_tokenizer(recipe.model.name), load_examples(recipe)[0])
    batches = training_batches(recipe, load_tokenizer(recipe.model.name), features, 0, 1, on_gpu=True)
    widths = [batches[update].input_ids.shape[1] for update in range(batches.updates)]
    assert max(widths[: batches.updates_per_epoch]) < max(widths)
    assert f"8 x {max(widths)} tokens" in text


def test_max_tokens_are_planned_as_windows_of_the_longest_length(capsys, folder):
    text = printed(capsys, folder, gpus(2, 1000), "train.max_tokens=200", "train.max_updates=null")
    longest = int(re.search(r"micro-batch, \d+ x (\d+) tokens", text)[1])
    assert "global batch: 200 positions x 1 accumulated x 2 device(s) = 400" in text
    assert "updates of at most 2 x 200 positions" in text
    windows = math.ceil(200 / longest)
    assert f"widest micro-batch, {windows} x {longest} tokens" in text
    assert peaks(text) == peaks(printed(capsys, folder, gpus(2, 1000), f"train.micro_batch_size={windows}"))


def test_the_fastest_that_fits_is_taken_with_its_command(capsys, folder, monkeypatch):
    (folder / "custom.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    wide = printed(capsys, folder, gpus(2, 1e6))
    assert "swep-ds train --ranks 2 --ds_config zero1 --recipe tiny\n" in wide
    assert list(peaks(wide)) == ["zero1", "zero2", "zero3", "zero2_offload", "zero3_offload", "zero0"]
    custom = printed(capsys, folder, gpus(2, 1e6), ds_config=f"{folder}/../{folder.name}/custom.json")
    assert list(peaks(custom)) == ["custom"]
    assert f" --ds_config {folder}/../{folder.name}/custom.json --recipe tiny\n" in custom  # as it was given
    by_name = peaks(wide)
    monkeypatch.setattr("swep_ds.cost.plan.ORDER", ["zero3", "zero2", "zero1"])
    small = printed(capsys, folder, gpus(2, (by_name["zero1"] + by_name["zero2"]) / 2 / 0.9))
    assert by_name["zero1"] < by_name["zero2"]  # which has a bucket, much larger than this model
    assert "use zero1, the fastest that fits" in small
    none = printed(capsys, folder, gpus(1, 0.01), "train.max_tokens=200")
    assert "none fits: lower train.max_tokens" in none
    assert "too much" in none
    assert " fits" not in none.replace("What fits", "").replace("none fits", "")


def test_only_ds_configs_that_the_recipe_allows_are_planned(capsys, folder):
    for setting, planned in (
        ("optimizer=adafactor", "zero0"),
        ("precision=fp16", "zero1 zero2 zero3 zero2_offload zero3_offload"),
        ("compile=true", "zero1 zero2 zero2_offload zero0"),
    ):
        text = printed(capsys, folder, gpus(2, 1e6), f"train.{setting}")
        assert list(peaks(text)) == planned.split()
        assert text.count("\nleft out: ") == 6 - len(peaks(text))
    both = ("train.optimizer=adafactor", "train.precision=bf16")
    assert "train.optimizer: adafactor takes no flat pieces" in refused(printed, capsys, folder, gpus(2, 1e6), *both)


def test_both_stages_are_planned_with_one_command(capsys, folder):
    stages = f"pretrain={{train: {folder / 'train.json'}, micro_batch_size: 16}}"
    text = printed(capsys, folder, LARGE, stages)
    order = [text.index(part) for part in ("first stage", "of 16 windows", "second stage", "of 8 windows", "use zero1")]
    assert order == sorted(order)
    assert text.count("swep-ds train") == 1
    first, second = (peaks(part)["zero1"] for part in text.split("second stage"))
    narrow = printed(capsys, folder, gpus(1, (first + second) / 2 / 0.9), stages)  # enough for the second stage alone
    first, second = narrow.split("second stage")
    assert re.search(r"zero1 .* too much", first)
    assert re.search(r"zero1 .* fits", second)
    assert "use zero1" not in narrow


def test_evaluation_is_planned_where_answers_are_generated(capsys, tmp_path):
    prepare(tmp_path, architecture="t5")
    wide = printed(capsys, tmp_path, LARGE, "eval.batch_size=64")
    # layers x (keys and values) x width x (window + answer) x beams x windows x 4 bytes
    kept = 2 * 2 * 16 * (48 + 30) * 4 * 64 * 4
    assert f"evaluation: 64 windows x 4 beams keep {kept / GIB:.2f} GiB" in wide
    few = printed(capsys, tmp_path, LARGE, "eval.batch_size=8")
    assert peaks(few)["zero0"] < peaks(wide)["zero0"]  # evaluation decides
    assert "evaluation:" not in printed(capsys, tmp_path, LARGE, "data.eval={}")


def test_a_head_of_its_own_is_counted(capsys, tmp_path):
    prepare(tmp_path, architecture="t5-v1.1")
    file = tmp_path / "model" / "config.json"
    config = json.loads(file.read_text())
    counts = []
    for tied in (True, False):  # what transformers writes, and what is published
        file.write_text(json.dumps(config | {"tie_word_embeddings": tied}))
        text = printed(capsys, tmp_path, LARGE)
        counts.append(int(re.search(r"parameters: ([\d,]+) of the model", text)[1].replace(",", "")))
    assert counts[1] - counts[0] == config["vocab_size"] * config["d_model"]


def test_a_sweep_takes_its_runs_times_updates_times_passes(capsys, folder):
    first = {"pretrain.train": str(folder / "train.json"), "pretrain.max_updates": 3, "pretrain.micro_batch_size": 4}
    variants = {"MLE": {"method.name": "mle"}, "SWEP": {}, "two stages": {"method.name": "mle", **first}}
    variants["hidden"] = {"method.separate_hidden_pass": True}  # a forward more, which a backward takes twice
    path = write(
        folder, recipe=str(folder / "recipe.yaml"), set={"train.max_updates": 7}, variants=variants, seeds=[0, 1]
    )
    _, cells = read_sweep(path, folder / "runs")
    finish(cells[0])
    plan_sweep(cells, 2)
    lines = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    rows = {name.strip(): [number.strip() for number in numbers] for name, *numbers in lines}
    assert rows["MLE"] == ["2", "1", "7", "1"]
    assert rows["SWEP"] == ["2", "0", "7", "2"]
    assert rows["two stages"] == ["2", "0", "10", "1"]
    assert rows["hidden"] == ["2", "0", "7", "2.33"]
    assert rows["all"] == ["8", "", "", ""]


def test_devices_are_read_and_hold_what_fits_their_memory_and_the_host_s():
    two, cpus = Devices(2, 100, True, 107), Devices(2, 400, False, 400)
    states = States(parameters=10, optimizer=20, gradients=10, step=5, host=48, moments=8, starting=15, saved=7)
    row = _row(states, 50, 0, 0, two, weights=3, saves=2)
    assert (row["start"], row["peak"], row["CPU"]) == (15, 90, 96)
    assert (row["checkpoint"], row["disk"]) == (7, 2 * 7 + 3)
    assert Devices(1, 100, True, None).hold(90, 10**9)
    assert [two.hold(90, host) for host in (96, 97)] == [True, False]
    # on a CPU all are in the same memory, which the ranks share; Adam's moments are not there at the start
    row = _row(states, 50, 0, 0, cpus, weights=3)
    assert [row[name] for name in ("start", "training", "evaluation", "export")] == [15 + 40, 90 + 48, 30 + 48, 33 + 48]
    assert (row["peak"], row["CPU"]) == (138, 276)
    assert [Devices(2, 400, False, size).hold(138, 276) for size in (307, 306)] == [True, False]
    # below ZeRO-3 every rank passes its weights through CPU memory
    states = States(parameters=10, optimizer=20, gradients=10, step=5, loading=40)
    assert _row(states, 50, 0, 0, two)["CPU"] == 80
    here = Devices.parse("2xcpu")
    assert (here.count, here.on_gpu) == (2, False)
    assert here.memory == here.host < psutil.virtual_memory().total
    assert Devices.parse("8x80") == Devices(8, 80 * GIB, True, None)
    assert Devices.parse("1x22.5").memory == int(22.5 * GIB)
    for text in ("8x", "80", "0x80", "8x80GB", "1.5x80"):
        assert refused(Devices.parse, text).startswith(f"--plan {text}: write it as NUMBERxGIB")


def test_a_large_model_takes_little_memory_to_plan_and_its_config_alone(capsys, folder, tmp_path):
    layers = {"num_layers": 6, "num_decoder_layers": 6}  # a quarter of them
    (tmp_path / "config.json").write_text(json.dumps(random_model.CONFIGS["t5-11b"] | layers))
    sets = [f"model.name={tmp_path}", "task=generative", "train.precision=bf16", "data.max_length=384"]
    sets += ["train.micro_batch_size=4", "train.activation_checkpointing=true", "eval.batch_size=4"]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    text = printed(capsys, folder, gpus(8, 80 * 1024), *sets)
    for part in (
        "parameters: 2,851,512,320 of the model",
        "updates and tokens: not known, because",
        "its tokenizer knows no words",
        "activations of the widest micro-batch, 4 x 384 tokens",  # data.max_length
        "swep-ds train --ranks 8 --ds_config zero",
    ):
        assert part in text
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < GIB


MODEL = "google-t5/t5-base"
# Raffel et al. 2020, Section 2.1 and Table 14: 12 layers on each side, widths 768 and 3072, 12 heads of 64
T5_BASE = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 32128}
T5_BASE |= {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_heads": 12, "num_layers": 12, "decoder_start_token_id": 0}


class Hub(BaseHTTPRequestHandler):
    """Has the config of T5-base and nothing else."""

    def do_GET(self) -> None:
        known = self.path.startswith(f"/{MODEL}/")
        there = bool(re.fullmatch(rf"/{MODEL}/resolve/(main|a+)/config.json", self.path))  # by the name or its commit
        body = json.dumps(T5_BASE).encode() if there else b"{}"
        self.send_response(200 if there else 404)
        self.send_header("Content-Length", str(len(body)))
        if known:
            self.send_header("X-Repo-Commit", 40 * "a")
        if there:
            self.send_header("ETag", f'"{40 * "b"}"')
        else:
            self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET


@pytest.fixture
def hub():
    """The address of a stand-in for Hugging Face's hub."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def online(monkeypatch):
    def at(address: str) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", address)
        # a client took its address when it was made, by whichever test
        endpoint = property(lambda client: address, lambda client, value: vars(client).update(endpoint=value))
        monkeypatch.setattr(HfApi, "endpoint", endpoint, raising=False)
        path = "{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{address}/{path}")

    return at


def test_a_plan_of_a_model_on_the_hub_needs_its_config_alone(hub, online, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    options = ["--recipe", "large_t5", "--output_dir", "runs/large"]
    monkeypatch.setattr(sys, "argv", ["train", "--plan", "8x80", *options])
    online(hub)
    train()
    said = capsys.readouterr().out
    for part in (
        f"swep on {MODEL}: autocast",
        "parameters: 222,903,552 of the model",  # as the published weights have
        "updates and tokens: not known, because model.name google-t5/t5-base: no tokenizer",
        f"swep-ds train --ranks 8 --ds_config zero1 {' '.join(options)}",
    ):
        assert part in said
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_hub_that_cannot_be_reached_is_an_error_and_one_that_answers_is_none(hub, online):
    online(address := f"http://127.0.0.1:{free_port()}")
    said = refused(check_hub, MODEL, "none.json", f"model.name {MODEL}")
    assert said.startswith(f"model.name {MODEL}: no such file or folder, and the hub {address} cannot be reached")
    online(hub)
    for repository, file in ((MODEL, "config.json"), (MODEL, "none.json"), ("no-one/none", "config.json")):
        check_hub(repository, file, "model.name")
    check_hub("a/path/to/nothing", "config.json", "model.name")  # is no hub id


def test_every_model_of_large_models_md_has_a_recipe_and_a_ds_config_that_go_together():
    text = (ROOT / "docs" / "large_models.md").read_text()
    rows = [
        [re.findall("`(.*?)`", cell) for cell in row.split("|")[1:-1]] for row in text.splitlines() if "| `zero" in row
    ]
    assert sum(len(names) for *_, names in rows) >= 13
    for [ds_config], [name], models in rows:
        for model in models:
            recipe = Recipe.load(name, [f"model.name={model}"])
            assert (recipe.task == "generative") == ("t5" in model)
            config = complete_ds_config(ds_config, recipe.train, **SIZES)
            assert config["torch_autocast"] == {"enabled": True, "dtype": "bfloat16"}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_loads_with_the_ds_config_in_its_head(path):
    head = path.read_text().replace("\\\n#", "").splitlines()[0]
    words = shlex.split(head.lstrip("# "))
    recipe = Recipe.load(path.stem, [b for a, b in pairwise(words) if a == "--set"])
    complete_ds_config(dict(pairwise(words)).get("--ds_config", "zero2"), recipe.train, **SIZES)
    # transformers: gradients should not be clipped for Adafactor
    assert (recipe.train.max_grad_norm == 0) == (recipe.train.optimizer == "adafactor")
