"""The studies' sweeps load, and have as many runs as they say; tests/sweeps/test_sweep.py: those of the package."""

import re

import pytest

from swep_ds.common.files import ds_config_path
from swep_ds.sweeps.sweep import read_sweep
from tests.support.fork_server import ROOT
from tests.sweeps.test_sweep import check_equal_compute, check_two_masks

FILES = [*(ROOT / "studies" / "learned_noise").glob("*.yaml"), *(ROOT / "studies" / "science").glob("*.yaml")]
assert len(FILES) == 6
BATCH = ("micro_batch_size", "max_tokens", "gradient_accumulation_steps", "group_by_length")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_studys_sweep_compares_runs_of_common_batches(file, tmp_path):
    sweep, cells = read_sweep(str(file), tmp_path)
    assert ds_config_path(sweep.ds_config).is_file()
    text = file.read_text(encoding="utf-8")
    assert text.startswith(f"# swep-ds sweep {file.relative_to(ROOT)} ")
    assert int(re.search(r"(\d+) runs", text)[1]) == len(cells)
    assert len({tuple(getattr(cell.recipe.train, size) for size in BATCH) for cell in cells}) == 1
    recipes = {cell.variant: cell.recipe for cell in cells if cell.seed == cells[0].seed}
    if file.stem == "learned_noise":
        assert len(cells) == 36  # as docs/protocol.md says
        check_equal_compute(recipes)
    if file.stem in ("learned_noise", "science_e1", "science_e3"):
        check_two_masks(recipes)
