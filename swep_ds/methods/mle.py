"""MLE, maximum likelihood, is plain fine-tuning."""

from swep_ds.methods.base import Method, Pass
from swep_ds.methods.settings import MleSettings


class Mle(Method):
    settings: MleSettings
    replayable = True

    def passes(self, progress: float) -> list[Pass]:
        return [Pass("clean", 1.0)]
