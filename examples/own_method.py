"""A custom method: rotated noise, which keeps the length of each word's embedding.

    python examples/own_method.py --output_dir runs/rotation

The decorator makes it a `method.name` for recipes in this process. In an installed package the entry point group
"swep_ds.methods" names the module, and all commands, sweeps and tables know it.
"""

import argparse
from typing import Literal

from pydantic import Field

import swep_ds as sd


class RotationSettings(sd.Settings):
    name: Literal["rotation"] = "rotation"
    noise_scale: float = Field(0.3, gt=0)  # length of the noise, share of the embedding's


@sd.method("rotation")
class Rotation(sd.Method):
    """e~ = ||e|| (e + s n) / ||e + s n||,   n ~ N(0, ||e||^2 / d I)"""

    settings: RotationSettings

    def passes(self, progress: float) -> list[sd.Pass]:
        return [sd.Pass("clean", 0.5), sd.Pass("noisy", 0.5, self._rotate)]

    def _rotate(self, inputs: sd.Inputs) -> sd.Perturbed:
        embeddings = inputs.embeddings
        length = embeddings.norm(dim=-1, keepdim=True)
        noise = sd.gaussian(inputs).to(embeddings.dtype) * inputs.mask * length / embeddings.shape[-1] ** 0.5
        moved = embeddings + self.settings.noise_scale * noise
        return sd.Perturbed(moved * (length / moved.norm(dim=-1, keepdim=True).clamp(min=1e-6)))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--output_dir", required=True)
    options.add_argument("--max_updates", type=int, default=200)
    given = options.parse_args()
    run = sd.train(
        "quickstart",
        method=RotationSettings(noise_scale=0.2),
        data={"max_eval_examples": 100},  # per domain
        train={"max_updates": given.max_updates},
        output_dir=given.output_dir,
    )
    for name, score in run.scores.items():
        print(f"{name}: F1 {score['f1']:.1f}")


if __name__ == "__main__":
    main()
