"""Refiner (Fan et al., USENIX Security 2025): upload the gradient of refined images x* instead of the private x.

x* = argmin UM(x*, x) - beta PM(x*) by t steps from (1 - alpha) x + alpha noise (Eq. 2-4, Sec. 3.4): UM is a weighted
distance of the two gradients, PM the noise ratio an evaluation network sees. The upload is g* brought within epsilon of
the true g (App. J). Labels are not hidden. Threat model: passive server. Departures, unless `preset=paper`: steps of
normalised length (`refinement` says why), and a ball whose radius is a share of the gradient's norm: a radius in the
gradient's own units is another strength on every model and batch size. Derivatives are by finite differences unless
`second_order=exact`. alpha = beta = 0 and epsilon = 0 are the identity.

Cost: t passes for the gradient of the refined images and their second-order products, about 2 t + 1 plain passes per
batch; warm starts keep a refined image per sample and halve that.

Known breaks: the upload stays within epsilon of the true gradient, so it leaks more than the refined image does; an
attacker with the public evaluation network uses it as a prior (`prior`), and averages over rounds. Labels are in plain
view. Of texts (`words`) word vectors are refined and no embedding's gradient is sent; where the projection moves the
upload towards the true gradient, the rows of attention hold the true words' vectors again, which the span test reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.caveat import Caveat
from fedseal.core.channel import Channel
from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.core.traits import Traits
from fedseal.defences.refiner.adaptive import Adaptive, into_the_ball, noise_prior, on_the_sphere
from fedseal.defences.refiner.memory import RefinedMemory
from fedseal.defences.refiner.passes import ClientPasses
from fedseal.defences.refiner.presets import PRESETS, Preset, check_ranges
from fedseal.defences.refiner.privacy import PrivacyJudge, PrivacyMetric, judge_of, noise_judge
from fedseal.defences.refiner.projection import Ball, norm, project
from fedseal.defences.refiner.refinement import RATES, Descent, Rule, refine
from fedseal.defences.refiner.steps import Step
from fedseal.defences.refiner.utility import (
    BatchUtility,
    SampleUtility,
    SecondOrder,
    Weighting,
    layer_factors,
    public_scale,
)
from fedseal.defences.refiner.words import (
    OwnEvaluator,
    WordPasses,
    check_fit_for_words,
    is_text,
    without_embeddings,
)


@DEFENCES.register(
    "refiner",
    Info(
        "send the gradient of refined, noisy images that train almost like the private ones",
        paper="Fan et al., USENIX Security 2025",
        threat="passive",
        strengths=("epsilon=0.01", "epsilon=0.1", "epsilon=0.5", "epsilon=0.9"),
    ),
)
class Refiner(Defence):
    """Refines the batch, then keeps the upload near the true gradient.

    Args:
        epsilon: radius of the ball round the true gradient, in its own units (the paper's 0.01 to 0.9); `inf` sends the
            refined gradient as it is. If neither it nor `epsilon_relative` is given, the preset decides.
        epsilon_relative: the radius as a share of the true gradient's norm, which means the same for every model and
            batch size; in place of `epsilon`.
        alpha: share of noise in the start.
        beta: weight of the privacy metric.
        t: steps of a sample's first visit.
        tau: decay of the layers' weights.
        preset: `calibrated`, the `paper`'s plain steps, or `fast`: fewer steps, a warm start, an early stop. It decides
            what is not given of `t`, `rule`, `warm`, `warm_t` and `tolerance`.
        rule: of a step, see `refinement`.
        lr: of a step; by default the rule's own.
        warm: samples whose refined images are remembered as their next start; 0 starts afresh every time.
        warm_t: steps of a remembered sample, the last of its batch's.
        tolerance: stop when UM changes by a smaller share and PM by less in one step; 0 never stops.
        scope: refine a `batch` jointly against its gradient, or every `sample` against its own.
        elements: weigh gradient elements by |g theta|.
        weights_inside: square the weights, as Eq. 4 can be read.
        privacy: the privacy metric; `mse` and `lpips` are for the ablation.
        evaluator: file of an evaluation network; by default the package's small one.
        second_order: how the gradient of UM is computed.
        adaptive: what an aware attacker does, see `adaptive`.
        prior: weight of the evaluation network in an aware attacker's objective.
    """

    stage = "data"

    def __init__(
        self,
        epsilon: float | None = None,
        epsilon_relative: float | None = None,
        alpha: float = 0.5,
        beta: float = 1.0,
        t: int | None = None,
        tau: float = 0.95,
        preset: Preset = "calibrated",
        rule: Rule | None = None,
        lr: float | None = None,
        warm: int | None = None,
        warm_t: int | None = None,
        tolerance: float | None = None,
        scope: Literal["batch", "sample"] = "batch",
        elements: bool = True,
        weights_inside: bool = False,
        privacy: PrivacyMetric = "noise",
        evaluator: Path | None = None,
        second_order: SecondOrder = "finite-difference",
        adaptive: Adaptive = "ball",
        prior: float = 0.001,
    ) -> None:
        chosen = PRESETS[preset]
        self.rule: Rule = rule or chosen.rule
        self.t = chosen.t if t is None else t
        self.warm = chosen.warm if warm is None else warm
        self.warm_t = chosen.warm_t if warm_t is None else warm_t
        self.tolerance = chosen.tolerance if tolerance is None else tolerance
        self.rate = lr if lr is not None else (chosen.rate if self.rule == chosen.rule else RATES[self.rule])
        if epsilon is not None and epsilon_relative is not None:
            raise UsageError("refiner takes epsilon or epsilon_relative, not both.")
        if epsilon is None and epsilon_relative is None:
            epsilon, epsilon_relative = chosen.epsilon, chosen.epsilon_relative
        self.ball = Ball(epsilon, epsilon_relative)
        self.alpha, self.beta, self.tau = alpha, beta, tau
        self.scope = scope
        self.elements = elements
        self.weights_inside = weights_inside
        self.privacy: PrivacyMetric = privacy
        self.second_order: SecondOrder = second_order
        self.adaptive: Adaptive = adaptive
        self.prior = prior
        counts = {"t": self.t, "warm": self.warm, "warm_t": self.warm_t}
        sizes = {"epsilon": self.ball.size, "beta": beta, "tolerance": self.tolerance, "prior": prior}
        check_ranges({"alpha": alpha, "tau": tau}, counts | sizes, self.rate)
        self.acts = self.ball.size > 0 and (alpha > 0 or (beta > 0 and self.t > 0))
        self.traits = Traits(reads_batch=self.acts)
        self._noise = noise_judge(evaluator)
        self._judge = judge_of(privacy, self._noise)
        self._memory = RefinedMemory(self.warm)
        self._true: Tensors = {}
        self._scale: Tensor = torch.ones(())
        self._words = OwnEvaluator()
        self._sent: Tensors | None = None
        self._seen: Step | None = None
        self._passes = 0.0
        self._radius = 0.0

    def prepare(self, dataset: Batch, generator: torch.Generator) -> Batch:
        """Keep a client's texts, of which the evaluation network of words is trained; of images nothing is needed."""
        self._words.keep(dataset)
        return dataset

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        """Replace the images by refined ones, and keep their true gradient for the projection.

        Texts stay as they are, since no text has the vectors that were refined; the gradient is replaced instead.
        """
        if not self.acts:
            return batch
        if context.step == 0:
            self._passes = 0.0
        passes = WordPasses(context, batch) if is_text(batch) else ClientPasses(context, batch)
        images, judge = passes.private, self._judge_of(passes, batch)
        self._true = passes.gradient(images)
        self._scale = public_scale(
            passes.parameters, layer_factors(passes.parameters, self.tau), elements=self.elements
        )
        keys = self._memory.keys(batch)
        start, known = self._memory.recall(keys, passes.blended(self.alpha, context.generator))
        descent = replace(self._descent(known), bounds=passes.bounds)
        refined = refine(start, images, self._utility(passes, images, batch, context), judge, descent)
        self._memory.keep(keys, refined.images)
        self._passes += 1 + (2 if self.second_order == "finite-difference" else 3) * refined.steps
        with torch.no_grad():
            noise = (judge if isinstance(passes, WordPasses) else self._noise)(refined.images, images).mean()
            error = (refined.images - images).square().mean()
        self._seen = Step(refined, float(noise), float(error))
        if isinstance(passes, WordPasses):
            self._sent = passes.gradient(refined.images)
            self._seen = replace(self._seen, kept=passes.kept(refined.images))
            return batch
        self._sent = None
        return Batch(refined.images.to(batch.images.dtype), batch.labels)

    def _judge_of(self, passes: ClientPasses, batch: Batch) -> PrivacyJudge:
        """Return PM; for words, that of a network trained on the client's texts when it is first asked."""
        if not isinstance(passes, WordPasses):
            return self._judge
        check_fit_for_words(self.privacy, self.scope)
        return self._judge if self.privacy == "mse" else self._words.judge(passes, batch)

    def _utility(
        self, passes: ClientPasses, images: Tensor, batch: Batch, context: RoundContext
    ) -> BatchUtility | SampleUtility:
        weighting = Weighting(self._scale, self.elements, self.weights_inside)
        if self.scope == "sample":
            return SampleUtility(passes, images, batch.labels, weighting, context.model)
        return BatchUtility(passes, self._true, weighting, self.second_order)

    def _descent(self, known: Tensor) -> Descent:
        steps = self.warm_t if bool(known.all()) else self.t
        waits = known * max(0, steps - self.warm_t)
        return Descent(steps, self.t, self.beta, self.rule, self.rate, self.tolerance, waits)

    def on_gradient(self, gradient: Tensors, context: RoundContext) -> Tensors:
        """Bring the refined gradient within the ball round the true one; of texts, send nothing of embeddings."""
        if not self.acts:
            return gradient
        size = float(norm(self._true))
        radius = self.ball.radius(size)
        sent, gap, projected = project(gradient if self._sent is None else self._sent, self._true, radius)
        if self._sent is not None:
            sent = without_embeddings(sent, gradient)
        self._true = {}
        self._radius = radius if context.step == 0 else self._radius + radius
        if self._seen is not None:
            self._seen = replace(self._seen, gap=gap, size=size, projected=projected, radius=radius)
        return sent

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Note how far the update of all local steps can be from the true one; it is sent as it is."""
        if context.kind == "delta":
            self._radius *= context.learning_rate
        return update

    def state_dict(self) -> dict[str, Tensor]:
        """Return the remembered refined images."""
        return self._memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the remembered refined images."""
        if not self.warm and state:
            raise ValueError(f"refiner without a warm start keeps no state, got {sorted(state)}")
        self._memory.load_state_dict(state)

    def report(self) -> CostReport:
        """Report passes of the client's model, and in words what the last step's refinement arrived at."""
        report = super().report()
        if self._seen is None:
            return report
        return CostReport(state_bytes=report.state_bytes, extra_passes=self._passes, remarks=(self._seen.remark(),))

    def caveats(self) -> tuple[Caveat, ...]:
        """Say of the last step when nearly the true gradient was sent, and why."""
        return () if self._seen is None else self._seen.caveats()

    def attacker_view(self) -> AttackerView:
        """Publish epsilon, and by it what an aware attacker does (see `adaptive`)."""
        parameters = {
            "epsilon": self.ball.size,
            "relative": self.ball.is_relative,
            "alpha": self.alpha,
            "beta": self.beta,
            "t": self.t,
            "tau": self.tau,
            "attack": self.adaptive,
        }
        if not self.acts:
            return AttackerView(self.name, parameters)
        bounded = self.ball.size < float("inf")
        channel = Channel() if self._seen is None else self._seen.channel(self._radius)
        if self.adaptive == "appendix-m" and bounded:
            read = on_the_sphere(self._scale, self._known_radius)
            return AttackerView(self.name, parameters, read=read, channel=channel)
        prior = noise_prior(self._noise, self.prior) if self.prior and self._sent is None else None
        if not bounded:
            return AttackerView(self.name, parameters, image_prior=prior, channel=channel)
        inside = into_the_ball(self._known_radius)
        return AttackerView(self.name, parameters, inside, image_prior=prior, channel=channel)

    def _known_radius(self, observed: Tensors) -> Tensor | float:
        """Return the ball's radius to who sees an upload: a share is taken of that upload's norm, which is public."""
        return self.ball.size * norm(observed) if self.ball.is_relative else self._radius
