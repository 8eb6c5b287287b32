"""Started on two ranks, or without a launcher: trainings by the Trainer with SWEP, under DDP or its own DeepSpeed.

Arguments: a folder, and a case, "ddp" or "zero3". `NAME.json` in the folder gets the losses of a training that saves a
checkpoint after two updates, and those of one that resumes from it in another Trainer.
"""

import json
import os
import sys
from pathlib import Path

import deepspeed.ops
import torch.distributed as dist
from safetensors.torch import load_file
from transformers import PreTrainedModel

from tests.api.test_hf import losses, trainer
from tests.support import tiny_models
from tests.support.tiny_engine import ON_RANKS, UPDATES
from tests.support.tiny_run import ROOT

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled


def zero3() -> dict:
    config = json.loads((ROOT / "ds_configs" / "zero3.json").read_text())
    whole = {"stage3_param_persistence_threshold": 0, "stage3_gather_16bit_weights_on_model_save": True}
    config["zero_optimization"] |= whole
    autos = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    return config | dict.fromkeys(autos, "auto") | {"zero_allow_untested_optimizer": True}


def train(model: PreTrainedModel, folder: Path, case: str, resume: Path | None = None) -> list[float]:
    config = zero3() if case == "zero3" else None
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    changes = {"gradient_accumulation_steps": 4 // ranks, "save_strategy": "steps", "save_steps": 2}
    changes |= {"ddp_backend": "gloo"} if ranks > 1 else {}
    # batches for each rank and micro-step
    run = trainer(folder / case, ON_RANKS, accumulation=4, model=model, deepspeed=config, **changes)
    run.train(resume_from_checkpoint=str(resume) if resume else None)
    return losses(run)


if __name__ == "__main__":
    folder, case = Path(sys.argv[1]), sys.argv[2]
    models = tiny_models.model(), tiny_models.model()  # with ZeRO-3's arguments they would be made in parts
    names = sorted(models[0].state_dict())
    whole = train(models[0], folder, case)
    resumed = train(models[1], folder, case, folder / case / "checkpoint-2")
    if dist.get_rank() == 0:
        bare = sorted(load_file(folder / case / f"checkpoint-{UPDATES}" / "model.safetensors")) == names
        (folder / f"{case}.json").write_text(json.dumps({"whole": whole, "resumed": resumed, "bare": bare}))
    dist.barrier()
    dist.destroy_process_group()
