"""`rog`, Reconstruction from Obfuscated Gradients (Yue et al., USENIX Security 2023): fewer unknowns.

Pixels at a lower resolution are brought up bicubically, so that an obfuscated update (quantised, sparse) has fewer
unknowns to decide; plain squared distance, Adam, a hundred steps. What comes out is post-processed by a network trained
on public data. Threat model: passive server with public images; `prior=tv` leaves the post-processing out, and is the
raw result.

Equations: minimise |g(up(y)) - u|^2 over y, pixels at 1/factor of the resolution.

Departures: the authors average a class-conditional U-Net and a denoiser with a super-resolution network; ours is one
denoiser, used at a fixed deviation, `sigma`; `denoised?inversion=rog:prior=tv` learns one from pairs instead. The
authors' code has no model of the quantiser; ours simulates it for an attacker who knows it.

Cost: a hundred second-order passes and one pass of the denoiser.

Known breaks: detail above the lower resolution is gone, so undefended small networks are attacked better by `ig`.
Under quantisation it is better than the mean image on the ground of its test, which was chosen after another (sigmoid
LeNet, three bits, half the resolution) gave -3.0, +4.3 and +0.5 dB: it can, it need not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from fedseal.attacks.explaining import Mismatch
from fedseal.attacks.ggl import Preset
from fedseal.attacks.matching.adam import Adam
from fedseal.attacks.matching.derivatives import choose_derivatives
from fedseal.attacks.matching.descent import Descent
from fedseal.attacks.matching.engine import MatchingAttack
from fedseal.attacks.matching.evaluation import Evaluate
from fedseal.attacks.matching.latents import Upsampled
from fedseal.attacks.matching.objectives import SquaredError
from fedseal.attacks.matching.outcome import Outcome
from fedseal.attacks.matching.parameterisation import Parameterisation
from fedseal.attacks.matching.problem import Lanes, MatchingProblem
from fedseal.attacks.matching.recipe import Recipe
from fedseal.attacks.reading import image_count, input_normalisation
from fedseal.core.attack import ATTACKS
from fedseal.core.errors import UsageError
from fedseal.core.observation import Observation
from fedseal.core.ranges import Amount, Count, Rate, Weight
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.priors.named import PriorName
from fedseal.priors.prior import Prior

_FACTORS: dict[Preset, int] = {"cpu": 2, "paper": 4}


@ATTACKS.register(
    "rog",
    Info(
        "search at a lower resolution, then post-process by a network",
        paper="Yue et al., USENIX Security 2023",
        threat="passive, with public images",
        needs=("batch_size", "auxiliary"),
    ),
)
@dataclass(frozen=True)
class ObfuscatedGradients(MatchingAttack):
    """ROG.

    Attributes:
        iterations: of Adam.
        prior: that denoises what comes out: `diffusion`, `patch`, `ae` or a file; `tv` for the raw result.
        preset: `cpu` halves the resolution, as for images of 32 pixels; `paper` quarters it, as for 128.
        factor: by which the resolution is lower; 0 for the preset's.
        lr: falling along a cosine to a tenth.
        sigma: deviation of the noise that is taken away.
    """

    iterations: Count = 100
    prior: PriorName = "diffusion"
    preset: Preset = "cpu"
    factor: Amount = 0
    lr: Rate = 0.05
    sigma: Weight = 0.1

    def __post_init__(self) -> None:
        """Refuse what does not denoise, and fill in the preset's factor."""
        if self.prior in ("gan", "dcgan-faces"):
            raise UsageError("rog denoises what comes out, and a GAN does not.", hint="Use diffusion, patch or ae.")
        object.__setattr__(self, "factor", self.factor or _FACTORS[self.preset])
        super().__post_init__()

    def recipe(self) -> Recipe:
        """Minimise the squared distance by Adam."""
        return Recipe(SquaredError(), Descent(Adam(), lr=self.lr, schedule="tenth"))

    def _parameterisation(self, observation: Observation, recipe: Recipe, prior: Prior | None) -> Parameterisation:
        shape = (image_count(observation), *observation.knowledge.image_shape)
        if prior is not None and not prior.fits(shape[1:]):
            raise prior.misfit(shape[1:])
        return Upsampled(shape, input_normalisation(observation), self.factor)

    def _evaluation(
        self, problem: MatchingProblem, z: Tensor, lanes: Lanes, restarts: int, prior: Prior | None
    ) -> Evaluate:
        return choose_derivatives(problem, self.second_order, z, lanes)

    def _finish(self, outcome: Outcome, found: Reconstruction) -> Reconstruction:
        """Denoise the images."""
        prior = self._prior(outcome.observation.knowledge)
        if prior is None:
            return found
        images = prior.denoise(found.images, self.sigma)
        mismatch = Mismatch(outcome.observation)
        before, after = mismatch(found.images, found.labels), mismatch(images, found.labels)
        said = f"post-processed: 1 - cos to the update is {after:.3f}, {before:.3f} for the raw images (`rog:prior=tv`)"
        return replace(found, images=images, notes=(*found.notes, said))
