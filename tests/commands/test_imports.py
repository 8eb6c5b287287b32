"""What commands import: each of these packages takes from half a second to several, and 40 to 300 MB."""

import json
import subprocess
import sys
from pathlib import Path

import swep_ds as sd
from swep_ds.__main__ import COMMANDS
from swep_ds.api import answerer
from swep_ds.evaluation.spans import Answer
from tests.support import fake_runs
from tests.support.finished import finished

HEAVY = ("torch", "transformers", "datasets", "deepspeed", "matplotlib", "pandas", "openpyxl")
# Runs commands in one process, and notes after each its exit code and which of HEAVY have been imported so far
CALL = """
import json, sys
from swep_ds import __main__ as command
_, calls, heavy, notes = sys.argv
for words in json.loads(calls):
    sys.argv[:] = ["swep-ds", *words]
    try:
        command.main()
    except SystemExit as end:
        imported = [name for name in json.loads(heavy) if name in sys.modules]
        print(json.dumps([" ".join(words), end.code or 0, imported]), file=open(notes, "a"))
"""


class Stub:
    """Answers every question with "b"."""

    def __init__(self, model: str):
        pass

    def check(self, examples, n_best):
        pass

    def answer_together(self, examples):
        return [[Answer("b", None, None, score=0.0, probability=0.5)] for _ in examples]


def write_runs(folder: Path) -> list[str]:
    """Two finished runs without a model, tested on "squad" and "news"."""
    sizes = {"squad": 8, "news": 6}
    cells = fake_runs.sweep(folder, sizes, right=4, variants={"MLE": {"method.name": "mle"}}, seeds=[0, 1])
    for cell in cells:
        (cell.folder / "model").mkdir()
        (cell.folder / "model" / "config.json").write_text(json.dumps({"seed": cell.recipe.seed}))
        (cell.folder / "confidence").mkdir()
        for name, questions in sizes.items():
            confidences = {f"{name}{number}": 0.5 + cell.recipe.seed / 10 for number in range(questions)}
            (cell.folder / "confidence" / f"{name}.json").write_text(json.dumps(confidences))
    return [str(cell.folder) for cell in cells]


def test_a_command_imports_only_the_heavy_packages_that_it_needs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = write_runs(tmp_path)
    asked = [{"id": str(number), "question": "which?", "context": f"a b c {number}"} for number in range(8)]
    Path("asked.jsonl").write_text("\n".join(map(json.dumps, asked)))
    with monkeypatch.context() as patch:
        patch.setattr(answerer, "QuestionAnswerer", Stub)
        sd.forecast(runs, "asked.jsonl")  # which keeps the answers
    Path("empty").mkdir()
    finished(tmp_path / "tiny", "mle")
    predictions = f"{runs[0]}/predictions/news.json"
    light = [[], ["recipes"], ["recipes", "--fields"], ["recipes", "--schema", "sweep"]]
    light += [[name, "--help"] for name in COMMANDS]
    light += [["score", predictions, "--data", "news.json"]]
    refused = [[name, "--unknown"] for name in COMMANDS]
    refused += [["train", "--set", "train.epochs=two"], ["train", "--plan", "--ds_config", "none"]]
    with_pandas = [["table", *runs], ["table", *runs, "--leaderboard"]]
    with_pandas += [["forecast", *runs], ["forecast", *runs, "--text", "asked.jsonl"]]
    answer = ["answer", "tiny/model", "--question", "which?", "--text", "the old bridge over the river"]
    calls = [(words, 0, set()) for words in light] + [(words, 2, set()) for words in refused]
    calls += [(["table", "empty"], 2, {"pandas"}), *((words, 0, {"pandas"}) for words in with_pandas)]
    calls += [(answer, 0, {"pandas", "torch", "transformers"})]  # Arrow imports pandas
    words = json.dumps([words for words, _, _ in calls])
    command = [sys.executable, "-c", CALL, words, json.dumps(HEAVY), "notes.jsonl"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    noted = [json.loads(line) for line in Path("notes.jsonl").read_text().splitlines()]
    for (words, code, needed), (said, ended, imported) in zip(calls, noted, strict=True):
        assert (said, ended, set(imported) - needed) == (" ".join(words), code, set())
