"""DeepSpeed's checkpoint files: their names, what they may contain, and what decides that they fit a model."""

import os
from pathlib import Path
from pickle import UnpicklingError

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from transformers import BertConfig

from swep_ds.common.settings import differences
from swep_ds.pipeline import prepare
from swep_ds.training.conversion import parameter_shapes
from swep_ds.training.deepspeed_files import name_files, read_state
from tests.support.tiny_objective import objective

MODEL, OPTIMIZER = "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"


@pytest.mark.parametrize(("stage", "ranks"), [(0, 1), (0, 3), (1, 1), (2, 3), (3, 2)])
def test_files_are_named_by_rank(stage, ranks):
    numbers = range(ranks)
    models = [f"zero_pp_rank_{number}_mp_rank_00_model_states.pt" for number in numbers] if stage == 3 else [MODEL]
    for prefix in ("", "bf16_"):
        optimizers = [f"{prefix}{OPTIMIZER.replace('_0_', f'_{number}_')}" for number in numbers] if stage else []
        assert name_files(["average_rank_0.pt", *models, *optimizers], stage, ranks) == (models, optimizers)


class Call:
    """Pickled as a call of a function."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def saved(folder: Path, *call) -> Path:
    file = folder / "states.pt"
    torch.save({"stage": Call(*call)}, file)
    return file


def test_members_of_enumerations_are_read_however_python_pickled_them(tmp_path):
    file = saved(tmp_path, getattr, ZeroStageEnum, "weights")  # as Python 3.11.2 does
    assert read_state(file) == {"stage": ZeroStageEnum.weights}


def test_code_is_refused_and_not_run(tmp_path):
    with pytest.raises(UnpicklingError, match=r"mkdir"):
        read_state(saved(tmp_path, os.mkdir, str(tmp_path / "ran")))
    assert not (tmp_path / "ran").exists()
    with pytest.raises(UnpicklingError, match="getattr of"):
        read_state(saved(tmp_path, getattr, LossScaler, "backward"))


def test_models_of_as_many_weights_are_distinguished():
    mine = objective("mle")
    saved = prepare.architecture(mine)
    assert prepare.architecture(objective("mle")) == saved
    config: BertConfig = mine.qa.model.config
    config.num_attention_heads = 4
    config.transformers_version = "0.1"
    config._name_or_path = "elsewhere"
    assert differences(saved, prepare.architecture(mine)).startswith("model config num_attention_heads 2")
    config.num_attention_heads = 2
    layer = mine.qa.model.bert.encoder.layer[0].intermediate.dense
    layer.weight = torch.nn.Parameter(layer.weight.T)
    said = differences(saved, prepare.architecture(mine))
    assert "intermediate.dense.weight" in said
    assert ";" not in said
    assert sum(map(len, parameter_shapes(mine).values())) > 0
