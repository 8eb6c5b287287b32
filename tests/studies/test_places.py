"""studies/learned_noise/places.py: answers leave as places in their paragraphs, and come back the same."""

import json
import tarfile
from pathlib import Path

import pytest

from swep_ds.common.errors import InputError
from swep_ds.pipeline.recipe import HOLDOUT, Recipe
from tests.support import scripts

PARAGRAPH = "The mühle stands by the river Aare, north of town."


@pytest.fixture(scope="module")
def places():
    return scripts.load("studies/learned_noise/places.py")


def write_data(file: Path, id_: str) -> str:
    answers = [{"text": "by the river", "answer_start": PARAGRAPH.index("by the river")}]
    questions = [{"id": id_, "question": "Where does the mill stand?", "answers": answers}]
    article = {"title": "mill", "paragraphs": [{"context": PARAGRAPH, "qas": questions}]}
    file.write_text(json.dumps({"version": "1.1", "data": [article]}))
    return str(file)


def write_run(folder: Path, recipe: Recipe, answers: dict[str, str]) -> None:
    for name, id_ in ((HOLDOUT, "q1"), ("news", "q2")):
        answer = answers[name]
        start = PARAGRAPH.index(answer)
        place = {"start": start, "end": start + len(answer)} if answer else {}
        best = [{"text": answer, "probability": 0.5, "score": 1.0} | place]
        for kind, value in (("n_best", best), ("predictions", answer)):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            (folder / kind / f"{name}.json").write_text(json.dumps({id_: value}))
    (folder / "recipe.yaml").write_text(recipe.dump())
    (folder / "results.json").write_text("{}")
    (folder / "model.safetensors").write_text("weights")


@pytest.fixture
def run(tmp_path) -> Path:
    train, news = (write_data(tmp_path / f"{name}.json", id_) for name, id_ in (("train", "q1"), ("news", "q2")))
    recipe = Recipe.load("quickstart", [f"data.train={train}", f'data.eval={{"news": "{news}"}}'])
    folder = tmp_path / "runs" / "swep-seed0"
    write_run(folder, recipe, {HOLDOUT: "mühle stands by the river", "news": ""})
    return folder


def test_answers_come_back_from_the_data(places, tmp_path, run):
    write_run(run / "unaveraged", Recipe.load(str(run / "recipe.yaml")), {HOLDOUT: "town", "news": "Aare"})
    places.pack(tmp_path / "seed0.tar.xz", [run])
    places.unpack([tmp_path / "seed0.tar.xz"], tmp_path / "unpacked")
    for folder in ("swep-seed0", "swep-seed0/unaveraged"):
        assert not (tmp_path / "unpacked" / folder / "model.safetensors").exists()
        for kept in ("recipe.yaml", "results.json", f"predictions/{HOLDOUT}.json", "predictions/news.json"):
            before, back = tmp_path / "runs" / folder / kept, tmp_path / "unpacked" / folder / kept
            assert back.read_text() == before.read_text(), kept
    with tarfile.open(tmp_path / "seed0.tar.xz") as tar:
        packed = [tar.extractfile(name).read().decode() for name in tar.getnames() if "recipe" not in name]
    assert not any("river" in text or "Aare" in text for text in packed)
    with pytest.raises(InputError, match="swep-seed0: exists"):
        places.unpack([tmp_path / "seed0.tar.xz"], tmp_path / "unpacked")
    assert [path.name for path in (tmp_path / "unpacked").iterdir()] == ["swep-seed0"]


def test_other_data_leave_nothing(places, tmp_path, run):
    archive, into = tmp_path / "seed0.tar.xz", tmp_path / "unpacked"
    predicted = run / "predictions" / "news.json"
    right = predicted.read_text()
    predicted.write_text(json.dumps({"q2": "another answer"}))
    with pytest.raises(InputError, match=r"news\.json: answers are not at their places"):
        places.pack(archive, [run])
    predicted.write_text(right)
    places.pack(archive, [run])
    train = tmp_path / "train.json"
    train.write_text(train.read_text().replace("stands", " stand"))
    with pytest.raises(InputError, match=f"swep-seed0, {HOLDOUT}: other answers stand at their places"):
        places.unpack([archive], into)
    assert list(into.iterdir()) == []
