"""Word-Dropout sets the whole embedding of a token to zero with probability p, and scales nothing up.

Sennrich, Haddow, Birch, "Edinburgh Neural Machine Translation Systems for WMT 16", 2016, which Lee et al. 2021 name.
"""

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, uniform
from swep_ds.methods.settings import WordDropoutSettings


class WordDropout(Method):
    settings: WordDropoutSettings
    replayable = True

    def passes(self, progress: float) -> list[Pass]:
        return [Pass("noisy", 1.0, self._drop)]

    def _drop(self, inputs: Inputs) -> Perturbed:
        kept_NT1 = uniform(inputs, per="token") >= self.settings.drop_probability
        return Perturbed(inputs.embeddings * kept_NT1.to(inputs.embeddings.dtype))
