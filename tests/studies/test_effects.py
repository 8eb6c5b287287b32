"""studies/learned_noise/effects.py: means and errors against NumPy, and points above the published line."""

import json
import re
import sys
from unittest import mock

import numpy as np
import pytest
from scipy import stats

from tests.support import scripts

effects = scripts.load("studies/learned_noise/effects.py")


def printed(folder) -> str:
    with mock.patch.object(sys, "argv", ["effects.py", str(folder)]), mock.patch("builtins.print") as shown:
        effects.main()
    return shown.call_args.args[0]


def test_effects_and_points_above_the_published_line(tmp_path):
    """From six runs of 40 updates an arm, logged every 2 updates and compared every 4."""
    rng, numbers = np.random.default_rng(0), {}
    nlls = [f"{answer}_nll_{noise}" for answer in ("gold", "guess") for noise in ("learned", "shuffled", "prior")]
    for arm in (*effects.ARMS, *effects.OTHERS):
        for seed in range(6):
            (folder := tmp_path / f"{arm}-seed{seed}" / "unaveraged").mkdir(parents=True)
            metrics = [{"update": update, "kl_per_window": rng.uniform(10, 30)} for update in range(2, 41, 2)]
            for entry in metrics[1::2]:
                entry |= {name: rng.uniform(1, 2) for name in nlls}
            f1 = {name: {"f1": rng.uniform(60, 80)} for name in ("new_wiki", "amazon")}
            (folder.parent / "metrics.jsonl").write_text("\n".join(map(json.dumps, metrics)))
            (folder / "results.json").write_text(json.dumps({"eval": f1}))
            numbers[arm, seed] = metrics, f1
    text, means = printed(tmp_path), []
    for seed in range(6):
        metrics, _ = numbers["swep", seed]
        [cells] = re.findall(rf"^\| swep-seed{seed} \| (.*) \|$", text, re.MULTILINE)
        kl, _, _, guess, _ = cells.split(" | ")
        assert float(kl) == pytest.approx(np.mean([entry["kl_per_window"] for entry in metrics[-2:]]), abs=0.06)
        compared = [entry for entry in metrics if entry["update"] > 20 and "gold_nll_prior" in entry]
        assert len(compared) == 5
        values = [entry["guess_nll_learned"] - entry["guess_nll_prior"] for entry in compared]
        expected = np.mean(values), np.std(values, ddof=1) / 5**0.5
        assert [float(number) for number in guess.split(" ± ")] == pytest.approx(expected, abs=6e-5)
        gold = [entry["gold_nll_learned"] - entry["gold_nll_prior"] for entry in compared]
        means.append(np.mean(values) - np.mean(gold))
    low, high = stats.ttest_1samp(means, 0).confidence_interval()
    said = re.search(r"swep, guess learned less gold learned: (\S+), 95 % (\S+) to (\S+)", text).groups()
    assert [float(number) for number in said] == pytest.approx([np.mean(means), low, high], abs=6e-5)

    def above(arm: str) -> list[float]:
        f1 = [numbers[arm, seed][1] for seed in range(6)]
        return [scores["amazon"]["f1"] - (1.436 * scores["new_wiki"]["f1"] - 51.73) for scores in f1]

    for arm in (*effects.ARMS, *effects.OTHERS):
        [cells] = re.findall(rf"^\| {arm} \| ([^|]*) \|$", text, re.MULTILINE)
        expected = np.mean(above(arm)), np.std(above(arm), ddof=1)
        assert [float(number) for number in cells.split(" ± ")] == pytest.approx(expected, abs=0.06)
    low, high = stats.ttest_rel(above("prior-aug-0-333"), above("prior-aug-0-1")).confidence_interval()
    said = [float(number) for number in re.findall(r"[-+]\d+\.\d+", text.splitlines()[-1])]
    assert said[1:] == pytest.approx([low, high], abs=0.006)

    for missing in ("prior-aug-0-1-seed3/unaveraged/results.json", "swep-seed2/metrics.jsonl"):
        (tmp_path / missing).rename(kept := tmp_path / "kept")
        with pytest.raises(SystemExit, match=missing):
            printed(tmp_path)
        kept.rename(tmp_path / missing)
