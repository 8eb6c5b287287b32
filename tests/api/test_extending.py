"""Methods and data readers from outside of the package work in recipes, and through `wrap`, like those inside."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

import swep_ds as sd
from swep_ds import methods
from swep_ds.commands.recipes import list_all
from swep_ds.common import plugins
from swep_ds.common.settings import describe
from swep_ds.data import readers
from swep_ds.data.readers import read_examples
from swep_ds.methods.objective import NO_NOISE, Objective
from swep_ds.models.extractive import ExtractiveQA
from swep_ds.pipeline.recipe import Recipe
from tests.pipeline.test_recipe import MINIMAL
from tests.support import tiny_batches, tiny_models
from tests.support.bad_input import refused
from tests.support.tiny_engine import inputs
from tests.support.tiny_objective import JOINT


class ScaledSettings(sd.Settings):
    name: Literal["scaled"] = "scaled"
    scale: float = 0.1  # the noise's
    side: Literal[-1, 1] = 1
    extra: Any = None


class Scaled(sd.Method):
    def __init__(self, settings: ScaledSettings, hidden_size: int, embedding_size: int):
        super().__init__()
        self.scale = settings.scale

    def passes(self, progress: float) -> list[sd.Pass]:
        return [sd.Pass("noisy", 1.0, self._scale)]

    def _scale(self, inputs: sd.Inputs) -> sd.Perturbed:
        return sd.Perturbed(inputs.embeddings * (1 + self.scale * (2 * sd.uniform(inputs) - 1)))


@pytest.fixture
def registry():
    """What a test registers is forgotten after it."""
    kept = [(registered, dict(registered)) for registered in (methods.METHODS, readers._readers)]
    yield
    for registered, before in kept:
        registered.clear()
        registered.update(before)


def recipe(**method) -> Recipe:
    return Recipe.model_validate(MINIMAL | {"method": method})


def test_a_registered_method_is_one_of_the_recipes(registry, tmp_path):
    assert sd.method("scaled")(Scaled) is Scaled
    written = tmp_path / "mine.yaml"
    written.write_text(recipe(name="scaled", scale=0.5).dump())
    loaded = Recipe.load(str(written), ["method.scale=0.25"])
    assert loaded.method == ScaledSettings(scale=0.25)
    assert Recipe.load(str(written), ["method.name=swep"]).method == sd.Swep()
    assert "scal is not a field; did you mean '" in refused(Recipe.load, str(written), ["method.scal=1"])
    assert type(methods.build(loaded.method, 16, 16)) is Scaled
    fields = describe(recipe(name="scaled"))
    said = {field.name: (field.type, field.meaning) for field in fields if field.name.startswith("method.")}
    assert said == {
        "method.name": ("scaled", ""),
        "method.scale": ("number", "the noise's"),
        "method.side": ("-1 | 1", ""),
        "method.extra": ("any", ""),
    }


def loss(method: sd.Settings) -> torch.Tensor:
    batch = inputs(tiny_batches.batch(dtype=torch.float32))
    return sd.wrap(tiny_models.model(), method, seed=1)(**batch).loss


def test_a_registered_method_trains_through_wrap_and_may_be_defined_again(registry, monkeypatch, caplog):
    for _ in range(2):
        sd.method("scaled")(Scaled)
    plain = loss(sd.Mle())
    assert loss(ScaledSettings(scale=0.5)) != plain
    assert NO_NOISE not in caplog.text
    torch.testing.assert_close(loss(ScaledSettings(scale=0.0)), plain)
    assert NO_NOISE in caplog.text
    for weight in (1.0, -1.0):
        monkeypatch.setattr(Scaled, "passes", lambda self, progress, weight=weight: [sd.Pass("clean", weight)])
        torch.testing.assert_close(loss(ScaledSettings()), weight * plain)
    for passes in ([], [sd.Pass("clean", 0.0)]):
        monkeypatch.setattr(Scaled, "passes", lambda self, progress, passes=passes: passes)
        with pytest.raises(TypeError, match=r"^method scaled: none of its passes trains"):
            loss(ScaledSettings())


def test_the_documented_perturbation_is_independent_of_the_batch_and_of_padding(registry, monkeypatch):
    page = Path(__file__).parents[2] / "docs/api.md"
    names = {"sd": sd}
    exec(re.search(r"```python\n(def shake.*?)```", page.read_text(), re.DOTALL)[1], names)
    monkeypatch.setattr(Scaled, "_scale", lambda self, inputs: names["shake"](inputs))
    sd.method("scaled")(Scaled)
    module = Objective(ExtractiveQA(tiny_models.model()), methods.build(ScaledSettings(), 16, 16), 1).double()
    batch = tiny_batches.batch((6, 12, 9, 7))
    whole = module(batch, JOINT)[0].item()
    assert whole != pytest.approx(loss(sd.Mle()).item())
    assert module(tiny_batches.rounded(batch), JOINT)[0].item() == pytest.approx(whole, rel=1e-10)


class TakenSettings(sd.Settings):
    name: Literal["swep"] = "swep"


class Taken(sd.Method):
    settings: TakenSettings


def test_what_is_not_a_method_is_refused():
    for name, cls, said in (
        ("swep", Taken, r"'swep' is taken by swep_ds\.methods\.settings\.SwepSettings"),
        ("bare", type("Bare", (sd.Method,), {}), "needs the annotation settings: ITS_SETTINGS"),
        ("other", Scaled, r'with the field name: Literal\["other"\]'),
    ):
        with pytest.raises(TypeError, match=said):
            sd.method(name)(cls)
    with pytest.raises(TypeError, match=r"write @sd\.method"):
        sd.method(Scaled)


ROWS = [{"question": "Who?", "context": "Ann did.", "answers": {"text": ["Ann"], "answer_start": [0]}, "title": "t"}]


def test_a_registered_reader_reads_its_sources(registry):
    @sd.reader("memo")
    def read(address: str):
        if address == "gone":
            raise FileNotFoundError(2, "No such file or directory", address)
        yield from ROWS * int(address)

    [example] = read_examples("memo:1", training=True)
    assert (example.span, example.answers, example.article) == ((0, 3), ("Ann",), "t")
    assert len(read_examples("memo:3", training=False)) == 3
    for source, said in [
        ("memo:gone", "its reader memo cannot read it"),
        ("memo:0", "memo:0: holds no questions"),
        ("memoir:1", "no such file or folder"),
    ]:
        assert said in refused(read_examples, source, training=True)
    with pytest.raises(TypeError, match="'memo' is taken"):
        sd.reader("memo")(print)


PACKAGE = """
from typing import Literal
import swep_ds as sd

class SilentSettings(sd.Settings):
    name: Literal["silent"] = "silent"

@sd.method("silent")
class Silent(sd.Method):
    "Adds no noise."

    settings: SilentSettings

@sd.reader("silence")
def read(address):
    return []
"""


def installed(folder, module: str, code: str, group: str) -> None:
    """Writes a package as pip would install it."""
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (folder / f"{module}.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\nsilent = {module}\n")


def test_an_installed_package_adds_methods_and_readers_and_one_that_cannot_be_imported_is_named(
    registry, tmp_path, monkeypatch, capsys
):
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.load_entry_points.cache_clear()
    try:
        installed(tmp_path, "quiet_package", PACKAGE, methods.GROUP)
        plugins.load_entry_points(methods.GROUP)
        assert recipe(name="silent").method.name == "silent"
        list_all()
        assert re.search(r"^  silent +Adds no noise. \(package quiet_package\)$", capsys.readouterr().out, re.M)
        assert "silence:x: holds no questions" in refused(read_examples, "silence:x", training=True)
        plugins.load_entry_points.cache_clear()
        installed(tmp_path, "broken_package", "import there_is_no_such_module", readers.GROUP)
        said = refused(read_examples, "silence:x", training=True)
        assert said.startswith("entry point silent = broken_package, group ")
        assert "no_such_module" in said
    finally:
        sys.modules.pop("quiet_package", None)
        plugins.load_entry_points.cache_clear()
        importlib.invalidate_caches()
