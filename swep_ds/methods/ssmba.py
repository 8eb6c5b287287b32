"""SSMBA is plain fine-tuning on the questions and on augmented samples of them (Ng, Cho, Ghassemi, EMNLP 2020).

The method is in the data: `swep-ds augment` makes the samples once, `data.augmented` names them.
"""

from typing import Literal

from swep_ds.methods.base import Settings
from swep_ds.methods.mle import Mle


class SsmbaSettings(Settings):
    name: Literal["ssmba"] = "ssmba"


class Ssmba(Mle):
    pass  # the passes of MLE
