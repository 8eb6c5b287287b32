"""The exported model loads with transformers alone, computes what the engine computed, and says what it is."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoTokenizer

from swep_ds import methods
from swep_ds.api.answerer import QuestionAnswerer
from swep_ds.data.windows import WindowCutter
from swep_ds.evaluation.results import Evaluated
from swep_ds.methods import METHODS
from swep_ds.methods.mle import Mle, MleSettings
from swep_ds.pipeline.export import model_card, save_tokenizer
from swep_ds.pipeline.folder import READING
from swep_ds.pipeline.recipe import Recipe
from swep_ds.pipeline.saved import ReadingSettings, load_saved
from tests.support import tiny
from tests.support.fork_server import HANGS, run_script
from tests.support.tiny_run import ds_config, prepare

# Makes runs and keeps the engine's logits right before the export.
TRAIN = """
import runpy
import torch
import swep_ds.pipeline.stage
from swep_ds import ranks
from swep_ds.data.batches import Batch

export = swep_ds.pipeline.stage.export_model

def keep_logits(engine, tokenizer, folder, *rest):
    inputs = tokenizer(["who built it?", "when"], ["the old bridge over the river", "in 1998"], padding=True,
                       return_tensors="pt")
    with torch.no_grad():
        logits = engine(Batch(inputs["input_ids"], inputs["attention_mask"], inputs["token_type_ids"]))
    if ranks.is_main():
        torch.save({"inputs": dict(inputs), "logits": [part.float() for part in logits]}, f"{folder.parent}.logits")
    export(engine, tokenizer, folder, *rest)

swep_ds.pipeline.stage.export_model = keep_logits
runpy.run_module("tests.support.several_runs", run_name="__main__")
"""

LOAD = """
import sys
sys.modules["swep_ds"] = None  # importing it raises
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer
for run in sys.argv[1:]:
    model, info = AutoModelForQuestionAnswering.from_pretrained(f"{run}/model", output_loading_info=True)
    assert not any(info.values()), info
    kept = torch.load(f"{run}.logits")
    tokenizer = AutoTokenizer.from_pretrained(f"{run}/model")
    inputs = tokenizer(["who built it?", "when"], ["the old bridge over the river", "in 1998"], padding=True,
                       return_tensors="pt")
    assert all(torch.equal(inputs[key], kept["inputs"][key]) for key in kept["inputs"])
    with torch.no_grad():
        output = model.eval()(**inputs)
    torch.save([output.start_logits.float(), output.end_logits.float()], f"{run}.loaded")
"""
FILE_BYTES = 6000  # more than any tensor of the model but its word embeddings
# ZeRO-3 last: DeepSpeed leaves a `linear` that rounds differently
RUNS = {"zero2-bf16": (2, "bf16", 2**30), "zero3-files": (3, "fp32", FILE_BYTES)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    recipe, listed = str(prepare(folder)), []
    for name, (stage, precision, file_bytes) in RUNS.items():
        run = {"recipe": recipe, "set": ["train.max_updates=2", f"train.precision={precision}"]}
        run |= {"ds_config": str(ds_config(folder, stage)), "output_dir": str(folder / name)}
        listed.append(run | {"file_bytes": file_bytes})
    (folder / "runs.json").write_text(json.dumps(listed))
    (folder / "train.py").write_text(TRAIN)
    run_script(folder / "train.py", str(folder / "runs.json"), ranks=2)
    arguments = [str(folder / name) for name in RUNS]
    subprocess.run([sys.executable, "-I", "-c", LOAD, *arguments], cwd=folder, check=True, timeout=HANGS)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_exported_model_computes_the_engines_logits_and_is_only_safetensors(runs, name):
    kept, loaded = torch.load(runs / f"{name}.logits")["logits"], torch.load(runs / f"{name}.loaded")
    for left, right in zip(kept, loaded, strict=True):
        assert left.std() > 0.01
        torch.testing.assert_close(right, left, rtol=0, atol=1e-6)
    model = runs / name / "model"
    assert not [file for file in model.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".pkl")]
    # as readable as the other files, and with the backbone's weights only
    modes = {file.stat().st_mode for file in [*model.iterdir(), *(runs / name).glob("*.safetensors")]}
    assert modes == {(runs / name / "recipe.yaml").stat().st_mode}
    written = [load_file(file) for file in sorted(model.glob("*.safetensors"))]
    before = load_file(runs / "model" / "model.safetensors")
    assert sorted(weight for content in written for weight in content) == sorted(before)
    [trained] = [content["qa_outputs.weight"] for content in written if "qa_outputs.weight" in content]
    assert not torch.equal(before["qa_outputs.weight"], trained.float())
    assert not list((runs / name).glob(".model*"))
    scores = json.loads((runs / name / "results.json").read_text())["eval"]["test"]
    assert f"| test | {scores['exact_match']:.2f} | {scores['f1']:.2f} | 9 |" in (model / "README.md").read_text()


@pytest.mark.slow
def test_a_large_model_is_written_in_several_files(runs):
    folder = runs / "zero3-files" / "model"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(folder.glob("*.safetensors"))
    assert len(files) > 4
    for number, file in enumerate(files, 1):
        assert file.name == f"model-{number:05d}-of-{len(files):05d}.safetensors"
        content = load_file(file)
        assert len(content) == 1 or sum(value.nbytes for value in content.values()) <= FILE_BYTES
        assert all(index["weight_map"][name] == file.name for name in content)


# The model card

SCORES = {
    "wiki": {"exact_match": 80.0, "f1": 90.126, "total": 10},
    "news": {"exact_match": 60.0, "f1": 70.0, "total": 20},
    "forum": {"exact_match": 50.0, "f1": 65.0, "total": 30},
}


def card(method: dict, scores: dict, **sections: dict) -> tuple[dict, str]:
    recipe = Recipe.model_validate(
        {
            "model": {"name": "owner/encoder"},
            "method": method,
            "data": {"train": "wiki.json", "eval": {"x": "y"}, "max_length": 200},
            "train": {"learning_rate": 2e-5, "max_updates": 70, "precision": "bf16"},
            "seed": 4,
        }
        | sections
    )
    _, head, text = model_card(recipe, Evaluated(scores, dict.fromkeys(scores, "SQuAD v1.1")), "").split("---\n", 2)
    assert "\n\n\n" not in text
    return yaml.safe_load(head), text


def test_model_card_states_method_data_and_scores():
    data = {"train": "rajpurkar/squad", "eval": {"wiki": "owner/set:plain@test"}, "max_length": 200}
    head, text = card({"name": "swep", "beta": 0.01}, SCORES, data=data)
    for part in (
        "Fine-tuned from `owner/encoder`",
        "Method: swep (noise learned, beta 0.01, ",
        "Training data: `rajpurkar/squad`",
        "200 tokens, step 128",
        "2 epochs, at most 70 updates, learning rate 2e-05, bf16, seed 4",
        "| wiki | 80.00 | 90.13 | 10 |\n| news | 60.00 | 70.00 | 20 |\n| forum | 50.00 | 65.00 | 30 |\n",
        "| mean out of domain | 55.00 | 67.50 | |",
        "Scores as the official scorers compute them: SQuAD v1.1 (wiki, news, forum).\n",
    ):
        assert part in text
    # what the hub reads
    assert (head["pipeline_tag"], head["base_model"]) == ("question-answering", "owner/encoder")
    assert (head["datasets"], "swep" in head["tags"]) == ("rajpurkar/squad", True)
    [model] = head["model-index"]
    first = model["results"][0]
    assert (model["name"], first["task"]["type"]) == ("encoder-swep", "question-answering")
    assert first["dataset"] == {"name": "wiki", "type": "owner/set"}
    assert [(metric["type"], metric["value"]) for metric in first["metrics"]] == [("exact_match", 80.0), ("f1", 90.13)]


def test_model_card_of_two_stages_and_of_a_run_that_was_not_tested():
    stage = {"train": "pairs.json"}
    _, text = card({"name": "mle"}, {"x": SCORES["wiki"]}, pretrain=stage, eval={"select_on": "x"})
    assert "- Method: mle\n" in text
    assert "mean out of domain" not in text  # there is one data set
    assert "- Before that: 2 epochs on `pairs.json`, learning rate 2e-05\n" in text
    assert "- Checkpoint: the best by F1 on one half of `x`; its scores below are of the other half\n" in text
    head, text = card({"name": "mle"}, {})
    assert "| data set |" not in text
    assert "model-index" not in head


@pytest.mark.parametrize("name", METHODS)
def test_model_card_tells_of_its_own_method(name):
    data = {"train": "wiki.json", "eval": {"x": "y"}}
    _, text = card({"name": name}, {}, data=data | ({"augmented": "more.json"} if name == "ssmba" else {}))
    [said] = [line for line in text.splitlines() if line.startswith("Fine-tuned from `owner/encoder`. ")]
    words = re.sub(r"\W", "", said.removeprefix("Fine-tuned from `owner/encoder`. ")).lower()
    assert words.startswith(name.replace("_", ""))  # the method's sentence begins with its name
    assert " None" not in text.split("With swep-ds installed")[0]  # no setting that is not set


def test_the_sentence_of_a_method_is_its_docstring_or_its_files(monkeypatch):
    settings = type("OffSettings", (MleSettings,), {})
    for docstring, said in (("\n    Turns\n    it off.\n\n    And more.\n    ", "Turns it off."), (None, __doc__)):
        method = type("Off", (Mle,), {"__doc__": docstring, "__module__": __name__})
        monkeypatch.setitem(methods._classes, settings, method)
        assert methods.summary(settings()) == said


def test_a_saved_tokenizer_is_of_a_class_that_transformers_4_knows(tmp_path):
    """It takes a list of additional tokens under a name of its own, and refuses it under that of version 5."""
    tokenizer = copy.deepcopy(tiny.wordpiece())
    tokenizer.add_special_tokens({"additional_special_tokens": ["<year>"]})
    save_tokenizer(tokenizer, tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert settings["additional_special_tokens"] == ["<year>"]
    assert "extra_special_tokens" not in settings
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again("Who? <year>", TEXT).data == tokenizer("Who? <year>", TEXT).data
    assert again.all_special_tokens == tokenizer.all_special_tokens


def test_a_model_card_says_which_transformers_computes_its_positions_and_what_its_code_may_cut():
    _, text = card({"name": "mle"}, {})
    assert "With only transformers:\n" in text
    recipe = Recipe.model_validate(
        {"model": {"name": "m"}, "method": {"name": "mle"}, "data": {"train": "t", "eval": {}}}
    )
    words = Recipe.make(recipe, eval={"whole_words": True})
    said = ["inside a word" in model_card(each, Evaluated({}, {}), "") for each in (recipe, words)]
    assert said == [False, True]
    text = model_card(recipe, Evaluated({}, {}), '{"rope_parameters": {"rope_theta": 5}}')
    assert "With only transformers 5 or later (version 4 computes other positions):\n" in text


def test_no_local_path_is_in_a_model_card(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "local").mkdir(parents=True)  # which a hub id could be called
    sources = {"train": "owner/local", "eval": {"x": f"{tmp_path}/x.csv"}, "augmented": "../up/more.json"}
    model, stage = {"name": f"{tmp_path}/encoder/"}, {"train": "~/mine/pairs.json"}
    head, text = card({"name": "ssmba"}, {"x": SCORES["wiki"]}, model=model, data=sources, pretrain=stage)
    assert not {"base_model", "datasets"} & head.keys()
    assert head["model-index"][0]["name"] == "encoder-ssmba"
    for shown in ("from `encoder`", "data: `local`", "with: `more.json`", "on `pairs.json`"):
        assert shown in text
    for path in (tmp_path.name, "../", "~/", "owner"):
        assert path not in text + str(head)


def test_a_model_card_names_the_shares_of_a_mix_and_the_levers():
    mix = [{"source": "/data/mine/train.json", "weight": 1}, {"source": "/data/other/train.json", "weight": 2}]
    mix += [{"source": "owner/set:plain", "weight": 1}, {"source": "owner/more", "weight": 4}]
    data = {"train": mix, "home": "owner/more", "eval": {}, "holdout_fraction": 0.1}
    levers = {"average": "start", "average_start": 0.3, "label_smoothing": 0.1}
    head, text = card({"name": "mle"}, {"held_out": SCORES["wiki"]}, data=data, train=levers)
    shares = "`mine/train.json` (12.5 %), `other/train.json` (25 %), `owner/set:plain` (12.5 %), `owner/more` (50 %)"
    assert f"Training data: {shares}; home: `owner/more`, held out: 10 % of the articles" in text
    assert ", seed 4, label smoothing 0.1\n- Weights: their mean" in text
    assert " with those that training started from, which have a share of 0.3\n" in text
    assert head["datasets"] == ["owner/set", "owner/more"]
    [result] = head["model-index"][0]["results"]
    assert result["dataset"]["type"] == "owner/more"


# The code that a model card shows

QUESTION, TEXT = "Who founded it?", "It was founded in 1204 by an abbot."


@pytest.fixture(scope="module", params=["bert", "roberta", "xlnet", "t5"])
def saved(request, tmp_path_factory) -> Path:
    return prepare(tmp_path_factory.mktemp(request.param), architecture=request.param).parent


def code_blocks(folder: Path, threshold: float | None) -> list[str]:
    recipe = Recipe.load(str(folder / "recipe.yaml"), ["eval.max_answer_tokens=4", "data.max_target_length=4"])
    reading = ReadingSettings.of(recipe, Evaluated({}, {}, threshold))
    (folder / "model" / READING).write_text(json.dumps(reading.model_dump()))
    if recipe.task == "generative":
        load_saved(str(folder / "model")).qa.generation.save_pretrained(folder / "model")  # as an export has it
    text = model_card(recipe, Evaluated({}, {}, threshold), "")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert [len(block.splitlines()) <= 25 for block in blocks] == [True, True]
    return [block.replace("PATH_OF_THIS_FOLDER", str(folder / "model")) for block in blocks]


@pytest.mark.parametrize("threshold", [None, -1e6, 1e6])
def test_both_ways_to_ask_give_the_same_answer(saved, threshold, capsys):
    ours, plain = code_blocks(saved, threshold)
    [reply] = QuestionAnswerer(str(saved / "model"))(QUESTION, TEXT)
    exec(ours, {})
    assert f"{[reply]}\n" == capsys.readouterr().out
    if reply.start is None and threshold is not None:  # generate() alone declines by writing nothing
        return
    exec(plain, {})
    shown = capsys.readouterr().out.strip()
    assert shown == (reply.text or "no answer")
    if threshold is not None:
        assert (shown == "no answer") == (threshold < 0)


@pytest.mark.parametrize("saved", ["bert", "roberta"], indirect=True)  # the code for t5 takes only the first window
def test_the_code_cuts_a_long_text_as_the_run_did(saved):
    _, plain = code_blocks(saved, None)
    loaded, text = load_saved(str(saved / "model")), " ".join(tiny.SENTENCES)
    there = {}
    exec(plain.replace(TEXT, text), there)
    cutter = WindowCutter(loaded.tokenizer, loaded.windows)
    tokens = cutter.encode(text)
    windows = list(cutter.windows(len(cutter.encode(QUESTION).ids), len(tokens.ids)))
    assert len(windows) > 2
    begins = [there["windows"].sequence_ids(number).index(1) for number in range(len(there["offsets"]))]
    cut = [there["offsets"][number, place, 0].item() for number, place in enumerate(begins)]
    assert cut == [int(tokens.starts[begin]) for begin, *_ in windows]
