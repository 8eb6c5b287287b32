"""Hand-made runs for reports, and a parser of the pages."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path

import yaml

from swep_ds.pipeline.export import NOISE
from swep_ds.pipeline.recipe import Recipe
from swep_ds.training.ds_config import complete_ds_config
from tests.support import tiny_run
from tests.support.finished import finished

CONTEXT = "The monastery was founded in 1204 by an abbot from the northern valley."
SCRIPT, RTL, EMOJI = "<script>alert('x')</script> & who?", "من \u202eبنى الدير؟", "When 🏰👩‍👩‍👧?"
LONG = "abbot" * 400
# question, accepted answer, this run's answer, another run's answer
QUESTIONS = {
    "r1": (SCRIPT, "1204", "1204", "an abbot"),  # gained 100
    "r2": (RTL, "an abbot", "an abbot", "valley"),  # gained 100
    "r3": (EMOJI, "northern valley", "the northern valley!", "northern"),  # gained 100 - 200 / 3
    "w1": ("</title><img src=x onerror=y>", "1204", "", "1204"),  # lost 100, nothing answered
    "w2": ("Who\x00\x1b?", "an abbot", f"<b>{LONG}</b>", "an abbot"),  # lost 100
    "w3": ("Where?", "northern valley", "valley of the abbot", "valley"),  # F1 40, the other's 200 / 3
}


class Page(HTMLParser):
    """A page's elements, its text and that below each id, and whether every element is closed where it should be."""

    def __init__(self, html: str):
        super().__init__()
        self.open, self.ids, self.elements, self.texts, self.text = [], [], [], {}, ""
        self.feed(html)
        self.close()
        assert not self.open
        self.text = " ".join(self.text.split())
        self.texts = {name: " ".join(text.split()) for name, text in self.texts.items()}

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in ("meta", "br", "img", "link", "input"):
            self.open.append(tag)
            self.ids.append(dict(attributes).get("id"))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.ids.pop()
        self.handle_data(" ")  # between the texts of two cells

    def handle_data(self, data):
        self.text += data
        for name in filter(None, self.ids):
            self.texts[name] = self.texts.get(name, "") + data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)

    def of_class(self, name: str) -> int:
        return sum(attributes.get("class") == name for _, attributes in self.elements)


def contrast(first: str, other: str) -> float:
    """The contrast of two colours, by WCAG 2."""
    luminances = []
    for colour in (first, other):
        channels = (int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5))
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        luminances.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


def metrics(updates) -> str:
    fixed = {"nll_clean": 4.0, "nll_noisy": 4.5, "mu": 1.01, "mu_distance": 0.01, "sigma": 0.3, "words_changed": 0.2}
    fixed |= {"words_changed_clean": 0.1, "learning_rate": 1e-3, "grad_norm": 2.0, "samples_per_second": 8.0}
    lines = ({"update": u, "loss": 5 - u / 100, "kl_per_token": 0.1 * u, "seconds": 2.0 * u} for u in updates)
    return "".join(json.dumps(line | fixed) + "\n" for line in lines)


def write_runs(home: Path) -> Path:
    """`home`, with the folders of a run ("run"), and of another run with other answers ("other")."""
    tree = yaml.safe_load((finished(home) / "recipe.yaml").read_text())
    qas = [
        {"id": name, "question": question, "answers": [{"text": gold, "answer_start": CONTEXT.index(gold)}]}
        for name, (question, gold, *_) in QUESTIONS.items()
    ]
    article = {"title": "t", "paragraphs": [{"context": CONTEXT, "qas": qas}]}
    (home / "test.json").write_text(json.dumps({"data": [article]}))
    tree["data"]["eval"] = {"squad": str(home / "test.json"), "gone": str(home / "gone.json")}
    score = {"exact_match": 50.0, "f1": 56.666667, "total": 6}
    results = json.loads((home / "results.json").read_text()) | {
        "world_size": 2,
        "inputs": {},
        "train": {"updates": 40, "seconds": 80.0, "samples_per_second": 8.0, "peak_memory_bytes": 3 * 2**20},
        "selection": {"data_set": "squad", "update": 30, "exact_match": 1.0, "f1": 2.0},
        "eval": {"squad": score, "gone": score | {"f1": 12.3456}},
        "versions": {"torch": "9.8.7"},
        "provenance": {"date": "2026-01-02", "machine": "CPU", "commit": "abc"},
    }
    health = {"step_seconds": [2.0, 2.0], "data_seconds": [0.01, 0.5], "forward_seconds": [0.5, 0.6]}
    health |= {"memory_mib": [100.0, 2345.0], "not_finite": []}
    for number, name in enumerate(("run", "other")):
        folder = home / name
        (folder / "predictions").mkdir(parents=True)
        (folder / "recipe.yaml").write_text(yaml.safe_dump(tree))
        answers = {name: answers[number] for name, (_, _, *answers) in QUESTIONS.items()}
        for data_set in ("squad", "gone"):
            (folder / "predictions" / f"{data_set}.json").write_text(json.dumps(answers))
        (folder / "results.json").write_text(json.dumps(results))
        (folder / "metrics.jsonl").write_text(metrics(range(1, 41)))
        (folder / "health.jsonl").write_text("".join(json.dumps({"update": u} | health) + "\n" for u in (1, 2)))
        (folder / "batch.json").write_text('{"windows": 16, "micro_batch_size": 8, "gradient_accumulation_steps": 1}')
        given = {"world_size": 2, "backwards": 2, "hidden_size": 16, "on_cpu": True}
        recipe = Recipe.load(str(folder / "recipe.yaml"))
        config = complete_ds_config(str(tiny_run.ds_config(home, 3)), recipe.train, **given)
        (folder / "ds_config.json").write_text(json.dumps(config))
        shutil.copytree(home / "model", folder / "model")
        shutil.copy(home / NOISE, folder)
    return home
