"""R-Drop trains two passes whose dropout differs, and penalises how their predictions diverge (Liang et al. 2021).

loss = 1/2 (nll_1 + nll_2) + alpha * 1/2 (KL(p_1 || p_2) + KL(p_2 || p_1))

Eq. 4 with the cross-entropies averaged instead of added, as the authors' code does. alpha = 0 is MLE with two dropout
masks, the control of methods with two passes. The divergence of a window is the mean over its predictions (start and
end; the target tokens).
"""

from swep_ds.methods.base import Method, Pass
from swep_ds.methods.rivals.settings import RDropSettings


class RDrop(Method):
    settings: RDropSettings
    replayable = True

    def passes(self, progress: float) -> list[Pass]:
        return [Pass("clean", 0.5), Pass("again", 0.5, divergence_weight=self.settings.divergence_weight)]
