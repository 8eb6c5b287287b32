"""One question of a shell: `swep-ds answer` imports, loads, checks and asks a small encoder each time."""

import os
import subprocess
import sys
from pathlib import Path

SIZES = (1, 3)
LARGE = (5, 20)
UNIT = "starts of `swep-ds answer`"
BASELINE = "a bare transformers script"
QUESTION = "Where was the bridge built?"
TEXT = "The bridge was built in 1903 at Elmford by the county's engineers. It is 40 m long."
SCRIPT = """
import sys
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

folder, question, text = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForQuestionAnswering.from_pretrained(folder).eval()
inputs = tokenizer(question, text, truncation="only_second", max_length=384, return_tensors="pt")
with torch.no_grad():
    output = model(**inputs)
print(tokenizer.decode(inputs.input_ids[0, output.start_logits.argmax() : output.end_logits.argmax() + 1]))
"""


def prepare(size: int, folder: Path) -> None:
    """Six layers of width 384, as MiniLM's, with random weights."""
    from transformers import AutoTokenizer, BertConfig, BertForQuestionAnswering

    from swep_ds.data.quickstart import ENCODER

    tokenizer = AutoTokenizer.from_pretrained(ENCODER)
    width = {"hidden_size": 384, "intermediate_size": 1536, "num_attention_heads": 12}
    config = BertConfig(vocab_size=len(tokenizer), num_hidden_layers=6, **width)
    BertForQuestionAnswering(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "bare.py").write_text(SCRIPT, encoding="utf-8")


def ours(size: int, folder: Path) -> None:
    _start(size, ["-m", "swep_ds", "answer", folder / "model", "--question", QUESTION, "--text", TEXT])


def baseline(size: int, folder: Path) -> None:
    _start(size, [folder / "bare.py", folder / "model", QUESTION, TEXT])


def _start(size: int, words: list) -> None:
    for _ in range(size):
        environment = os.environ | {"DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1"}
        subprocess.run([sys.executable, *words], env=environment, check=True, capture_output=True)
