"""LNSR penalises what noise on embeddings changes in the hidden states of each layer (Hua et al., NAACL 2021; 2022).

    loss = nll(e) + weight * 1/R sum_r 1/L sum_t ||h_rt(e + delta) - h_rt(e)||^2
    delta_t = noise_scale * ||e_t|| / sqrt(d) * xi_t,   xi_t ~ N(0, I)

L tokens in the window, R layers of the encoder. Both passes drop the same units, so that the distance is the noise's.
"""

from swep_ds.methods.base import Inputs, Method, Pass, Perturbed, gaussian
from swep_ds.methods.rivals.settings import LnsrSettings


class Lnsr(Method):
    settings: LnsrSettings

    def passes(self, progress: float) -> list[Pass]:
        weight = self.settings.distance_weight
        clean = Pass("clean", 1.0, repeats_dropout=True)
        return [clean, Pass("noisy", 0.0, self._add, hidden_distance_weight=weight, repeats_dropout=True)]

    def _add(self, inputs: Inputs) -> Perturbed:
        embeddings = inputs.embeddings
        length_NT1 = embeddings.detach().float().norm(dim=-1, keepdim=True)
        scale_NT1 = self.settings.noise_scale * length_NT1 / embeddings.shape[-1] ** 0.5 * inputs.mask
        return Perturbed(embeddings + (scale_NT1 * gaussian(inputs)).to(embeddings.dtype))
