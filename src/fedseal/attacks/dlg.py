"""Deep Leakage from Gradients and two descendants: match the gradient itself, without a prior.

`dlg` (Zhu et al. 2019) optimises images and label logits together by L-BFGS on the squared distance; `idlg` (Zhao et
al. 2020) reads the label first; `sapag` (Wang et al. 2020) replaces the distance by a Gaussian kernel that also works
on networks with kinks. Threat model: passive server. Departures: the authors run L-BFGS without a line search, which
diverges on many starts; ours searches along each direction, which changes how fast a minimum is reached, not which
function is minimised. SAPAG's optimiser is not documented; Adam is ours.

Equations: `dlg` minimises |g(z, softmax(l)) - u|^2 over images z and label logits l, `idlg` over z with the label read
beforehand; `sapag` sums 1 - exp(-|g_l - u_l|^2 / s_l) over tensors, s_l the variance of the observed one.

Cost: one second-order pass per evaluation; L-BFGS evaluates once or twice per step and keeps `history` vectors per
lane.

Known breaks: kinks (ReLU, max-pooling) mislead L-BFGS, large batches and trained networks have too many minima;
clipping, noise and pruning move the minimum, since the squared distance trusts every entry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedseal.attacks.matching.adam import Adam
from fedseal.attacks.matching.derivatives import SecondOrder
from fedseal.attacks.matching.descent import Descent
from fedseal.attacks.matching.engine import MatchingAttack
from fedseal.attacks.matching.lbfgs import LBFGS
from fedseal.attacks.matching.objectives import GaussianKernel, SquaredError
from fedseal.attacks.matching.priors import Priors
from fedseal.attacks.matching.recipe import LabelMode, Recipe, Start
from fedseal.attacks.matching.schedules import Schedule
from fedseal.core.attack import ATTACKS
from fedseal.core.ranges import Count, Rate, Weight
from fedseal.core.registry import Info


@ATTACKS.register(
    "dlg",
    Info(
        "match the gradient exactly by L-BFGS, images and labels together",
        paper="Zhu et al., NeurIPS 2019",
        threat="passive",
        needs=("batch_size",),
    ),
)
@dataclass(frozen=True)
class DeepLeakage(MatchingAttack):
    """DLG.

    Attributes:
        iterations: the authors' 300 calls of an optimiser that iterates 20 times in each; fewer where a minimum or
            nothing better is found.
        history: steps L-BFGS remembers.
        start: of the dummy inputs.
    """

    iterations: Count = 6000
    history: Count = 50
    start: Start = "normal"
    second_order: SecondOrder = "exact"

    def recipe(self) -> Recipe:
        """Minimise the squared distance anywhere, labels from nothing."""
        return Recipe(SquaredError(), Descent(LBFGS(self.history)), start=self.start, boxed=False, labels="free")


@ATTACKS.register(
    "idlg",
    Info(
        "match the gradient exactly by L-BFGS, label read beforehand",
        paper="Zhao et al., arXiv 2020",
        threat="passive",
        needs=("batch_size",),
    ),
)
@dataclass(frozen=True)
class ImprovedDeepLeakage(DeepLeakage):
    """iDLG: DLG with the labels it is given or infers; they differ in nothing else."""

    def recipe(self) -> Recipe:
        """Keep the labels."""
        return replace(super().recipe(), labels="fixed")


@ATTACKS.register(
    "sapag",
    Info(
        "match the gradient through a Gaussian kernel per layer",
        paper="Wang et al., arXiv 2020",
        threat="passive",
        needs=("batch_size",),
    ),
)
@dataclass(frozen=True)
class GaussianKernelMatching(MatchingAttack):
    """SAPAG.

    Attributes:
        lr: learning rate.
        schedule: of it.
        tv: weight of total variation.
        start: of the dummy inputs.
        labels: fixed, or optimised with the images.
    """

    lr: Rate = 0.05
    schedule: Schedule = "cosine"
    tv: Weight = 0.0
    start: Start = "normal"
    labels: LabelMode = "fixed"

    def recipe(self) -> Recipe:
        """Minimise SAPAG's objective by Adam."""
        descent = Descent(Adam(), lr=self.lr, schedule=self.schedule)
        return Recipe(GaussianKernel(), descent, Priors(tv=self.tv), start=self.start, labels=self.labels)
