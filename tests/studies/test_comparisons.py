"""studies/learned_noise/comparisons.py: numbers of the package's table, Holm's rule over registered ones."""

import re
import sys
from unittest import mock

import numpy as np
import pytest

from swep_ds.analysis import significance, table
from swep_ds.analysis.crossed import holm
from swep_ds.analysis.runs import find_runs
from swep_ds.sweeps.sweep import read_sweep
from tests.support import fake_runs, scripts
from tests.support.bad_input import change_json

METHODS = ("swep", "prior_aug", "neftune", "r3f", "r_drop", "mle")
ADJUSTED = 18  # by Holm's rule
SIZES = {"squad": 40, "nyt": 40, "amazon": 40, "bio": 30}

STUDY = scripts.ROOT / "studies" / "learned_noise"
comparisons = scripts.load("studies/learned_noise/comparisons.py")


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The folder of the runs, and the cells of each row of the four tables."""
    folder, rng = tmp_path_factory.mktemp("comparisons"), np.random.default_rng(0)
    arms = zip(comparisons.ARMS, METHODS, strict=True)
    variants = {arm: {"method.name": method, "train.average": "ema"} for arm, method in arms}
    for cell in fake_runs.sweep(folder, SIZES, variants=variants, seeds=[0, 1, 2, 3]):
        for run, recipe in ((cell.folder, cell.recipe), (cell.folder / "unaveraged", cell.recipe.unaveraged())):
            fake_runs.finish(run, recipe, {name: int(rng.integers(10, 20)) for name in SIZES})
            for name in SIZES:
                change_json(run / "results.json", "eval", name, ece=5.0, aurc=5.0)
    shown, argv = [], ["comparisons.py", str(folder / "runs")]
    with mock.patch.object(sys, "argv", argv), mock.patch("builtins.print", shown.append):
        comparisons.main()
    rows = [[[cell.strip() for cell in line.split("|")[1:-1]] for line in part.split("\n")[3:]] for part in shown]
    return folder / "runs", rows


def test_differences_are_those_of_the_table(compared, tmp_path, monkeypatch):
    runs, printed = compared
    sweep, _ = read_sweep(str(STUDY / "learned_noise.yaml"), tmp_path)
    assert set(comparisons.ARMS) == set(sweep.variants)
    registered, not_registered = comparisons.REGISTERED, comparisons.NOT_REGISTERED
    monkeypatch.setattr(significance, "RESAMPLES", 10)  # the bootstrap is not compared
    of_table = {}
    for pair in (*registered, *not_registered):
        for weights, suffix in (("last", ", unaveraged"), ("average", "")):
            name, base = (arm + suffix for arm in pair)
            refs = [ref for ref in find_runs([runs]) if ref.variant in (name, base)]
            cells = table.make(refs, against=base).cells
            cells = cells[(cells["method"] == name) & (cells["metric"] == "f1")].set_index("data_set")
            for column in ("out-of-domain mean", "squad"):
                of_table[" less ".join(pair), weights, column] = cells.loc[column]
    alone = {(" less ".join(pair), "last", "out-of-domain mean") for pair in registered[:2]}
    outside = {key for key in of_table if key[0] in [" less ".join(pair) for pair in not_registered]}
    together = [key for key in of_table if key not in alone and key not in outside]
    assert len(together) == ADJUSTED
    adjusted = dict(zip(together, holm([of_table[key]["difference_p"] for key in together]), strict=True))
    assert len(printed[1]) * 2 == len(of_table)
    for pair, weights, *cells in printed[1]:
        for column, difference, p in zip(("out-of-domain mean", "squad"), cells[::2], cells[1::2], strict=True):
            entry = of_table[pair, weights, column]
            numbers = [float(number) for number in re.findall(r"[-+]\d+\.\d+", difference)]
            expected = entry[["difference", "difference_low", "difference_high"]].tolist()
            assert numbers == pytest.approx(expected, abs=0.006)
            said = p.split(", ", 1)[1]
            if (pair, weights, column) in adjusted:
                assert float(said) == pytest.approx(adjusted[pair, weights, column], abs=0.0006)
            else:
                assert said == ("not registered" if (pair, weights, column) in outside else "its own rule")
