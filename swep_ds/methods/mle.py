"""MLE, maximum likelihood, is plain fine-tuning."""

from typing import Literal

from swep_ds.methods.base import Method, Pass, Settings


class MleSettings(Settings):
    name: Literal["mle"] = "mle"


class Mle(Method):
    def __init__(self, settings: MleSettings, hidden_size: int, embedding_size: int):
        super().__init__()

    def passes(self, progress: float) -> list[Pass]:
        return [Pass("clean", 1.0)]
