"""SSMBA is plain fine-tuning on the questions and on augmented samples of them (Ng, Cho, Ghassemi, EMNLP 2020).

The method is in the data: `swep-ds augment` makes the samples once, `data.augmented` names them.
"""

from swep_ds.methods.mle import Mle
from swep_ds.methods.settings import SsmbaSettings


class Ssmba(Mle):
    settings: SsmbaSettings
    replayable = True
