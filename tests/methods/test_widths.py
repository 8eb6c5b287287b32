"""A method trains with embeddings of a model's width, or says before training that it cannot."""

import pytest
import torch

from swep_ds.common.errors import InputError
from swep_ds.methods import METHODS, build
from swep_ds.methods.objective import Objective
from swep_ds.models.extractive import ExtractiveQA
from tests.support import tiny_batches, tiny_models
from tests.support.tiny_objective import split


@pytest.mark.parametrize("width", [6, 14, 16])
@pytest.mark.parametrize("method", METHODS)
def test_a_width_is_refused_before_training_or_trained_with(method, width):
    qa = ExtractiveQA(tiny_models.model("bert", hidden_size=width))
    settings = METHODS[method]()
    if settings.draws_noise and width % 4:
        with pytest.raises(InputError, match=rf"^model\.name: its word embeddings are {width} wide, .* {method} draws"):
            build(settings, qa.hidden_size, qa.embedding_size)
        return
    objective = Objective(qa, build(settings, qa.hidden_size, qa.embedding_size), seed=1).train()
    for loss, _, _ in split(objective, tiny_batches.batch(dtype=torch.float32)):
        loss.backward()
    assert all(parameter.grad is not None for parameter in qa.model.qa_outputs.parameters())
