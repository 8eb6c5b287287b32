"""The paper's Figure 1: the words that are nearest to the perturbed embeddings of a text, in place of its own.

Nearest is meant as in `swep_ds/methods/nearest.py`: by the largest inner product with the word-embedding table. Not all
words are nearest to themselves before the perturbation, so the table says what they were nearest to then.
"""

from collections.abc import Sequence

import pandas as pd
from torch import Tensor

from swep_ds.analysis.saved_run import SavedRun
from swep_ds.analysis.windows import AnswerWindow
from swep_ds.methods.nearest import nearest

COLUMNS = ["question_id", "part", "word", "token", "nearest_before", "nearest_after"]


def nearest_words(run: SavedRun, windows: Sequence[AnswerWindow]) -> pd.DataFrame:
    """A row with the columns `COLUMNS` for each token of the windows' words, the question's first.

    part: "question", "context" or "answer".
    word: the whitespace word of the text; token: the tokenizer's.
    nearest_before, nearest_after: tokens; the token is changed where `nearest_after` differs from `token`.

    Raises:
        InputError: the run's method has no perturbation to look at.
    """
    vocabulary, rows = run.qa.model.get_input_embeddings().num_embeddings, []
    for window in windows:
        batch = run.batch([window])

        def look_up(ids: Tensor) -> Tensor:
            return run.qa.embed(batch._replace(input_ids=ids[None]))[0]  # noqa: B023 (called in this iteration)

        before, perturbed = run.perturb(batch)
        ids = (batch.input_ids[0], *(nearest(e[0], look_up, vocabulary) for e in (before, perturbed.embeddings)))
        tokens = [run.tokenizer.convert_ids_to_tokens(row.tolist()) for row in ids]
        for word in window.words:
            part = "question" if word.question else "answer" if word.answer else "context"
            for at in word.positions:
                rows.append((window.example.id, part, word.text, *(row[at] for row in tokens)))
    return pd.DataFrame(rows, columns=COLUMNS)
