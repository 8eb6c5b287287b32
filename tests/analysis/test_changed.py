"""The words nearest to perturbed embeddings, against products with the whole table."""

import numpy as np
import pytest

from swep_ds.analysis.changed import COLUMNS, nearest_words
from swep_ds.analysis.windows import answer_windows
from swep_ds.common.errors import InputError
from tests.support.finished import load


@pytest.mark.parametrize("method", ["swep", "adv_aug"])
def test_nearest_words_of_every_token(tmp_path, method):
    settings = {"initialisation": "default"} if method == "swep" else {"step_size": 0.5}
    run = load(tmp_path, method, **settings)
    windows = answer_windows(run.test_examples()[:3], run.tokenizer, run.windows)
    table = run.qa.model.get_input_embeddings().weight.numpy()
    expected = []
    for window in windows:
        before, perturbed = run.perturb(run.batch([window]))
        ids = [window.input_ids, *((e[0].numpy() @ table.T).argmax(-1) for e in (before, perturbed.embeddings))]
        for word in window.words:
            part = "question" if word.question else "answer" if word.answer else "context"
            for at in word.positions:
                names = run.tokenizer.convert_ids_to_tokens([int(row[at]) for row in ids])
                expected.append([window.example.id, part, word.text, *names])
    rows = nearest_words(run, windows)
    assert rows.columns.tolist() == COLUMNS
    assert rows.to_numpy().tolist() == expected
    assert set(rows["part"]) == {"question", "context", "answer"}
    changed = rows["token"] != rows["nearest_after"]
    assert 0 < np.mean(rows["token"] != rows["nearest_before"]) < np.mean(changed) < 1


def test_a_method_without_perturbation_changes_no_word(tmp_path):
    run = load(tmp_path, "mle")
    with pytest.raises(InputError, match="it perturbs nothing"):
        nearest_words(run, answer_windows(run.test_examples()[:1], run.tokenizer, run.windows))
