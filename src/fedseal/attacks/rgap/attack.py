"""`rgap`: rebuild the input of each layer from the last to the first, by linear algebra in double precision.

Threat model: passive server, one image behind the gradient, a network that is a chain of convolutions, linear layers
and pointwise activations. Departures: biases are used where there are any; softmax cross-entropy beside the paper's
logistic loss; ReLU is taken too, by its active units; the small systems of `convolution` instead of one large.

Equations: with k = dL/dz of a layer z = W x, its gradient is dW = k x^T, and z itself is known from the layer above:
both are linear in x and are solved together by least squares; then k of the layer below is W^T k times the activation's
slope.

Cost: least squares per layer, direct where the system is small and by conjugate gradients else; double precision.

Known breaks: one image only; layers with fewer equations than inputs lose information for good (the attack says how
much); any noise, pruning or quantisation is amplified from layer to layer; skip connections, pooling and batch
normalisation are refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedseal.attacks.reading import attack_model, estimated_gradient, image_count, input_normalisation
from fedseal.attacks.rgap.convolution import Inverted, invert_directly, invert_iteratively, is_small
from fedseal.attacks.rgap.head import HeadSolution, solve_head
from fedseal.core.attack import ATTACKS, Attack, Budget, Listener
from fedseal.core.errors import CapabilityError, InputError, TrialError
from fedseal.core.observation import Observation
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.models.chains.stages import Link, read_chain

_AS_GOOD, _ROUNDING = 10.0, 1e-8

Report = Callable[[int, Tensor], None]


@dataclass(frozen=True)
class Rebuilt:
    """An input [C, H, W], the label, and what each layer left undetermined, by name."""

    inputs: Tensor
    label: int
    undetermined: dict[str, int]
    misfit: float


@ATTACKS.register(
    "rgap",
    Info(
        "rebuild one image layer by layer in closed form",
        paper="Zhu and Blaschko, ICLR 2021",
        threat="passive",
        needs=("batch_size",),
    ),
)
class RecursiveAttack(Attack):
    """Solves for the input of each layer, from the last one to the image.

    Args:
        iterations: of conjugate gradients, in layers too large to factorise.
        cutoff: singular values below this share of the largest count as none.
        report_every: iterations between two reports to the listener.
    """

    def __init__(self, iterations: int = 400, cutoff: float = 1e-7, report_every: int = 3) -> None:
        if iterations < 1 or not 0 < cutoff < 1 or report_every < 1:
            raise InputError("rgap needs iterations >= 1, 0 < cutoff < 1 and report_every >= 1.")
        self._iterations = iterations
        self._cutoff = cutoff
        self._report_every = report_every

    def check(self, observation: Observation) -> None:
        """Refuse several images, and models that are no chain."""
        super().check(observation)
        if image_count(observation) != 1:
            raise CapabilityError(
                f"R-GAP rebuilds one image; {image_count(observation)} are behind this update.",
                hint="Use a matching attack such as `ig` for batches.",
            )
        read_chain(attack_model(observation), observation.knowledge.image_shape)

    def run_many(
        self,
        observations: Sequence[Observation],
        budget: Budget,
        seeds: Sequence[int],
        listener: Listener | None = None,
    ) -> list[Reconstruction]:
        """Attack one observation after the other; the model is read once."""
        first = observations[0]
        for observation in observations:
            if image_count(observation) != 1:
                self.check(observation)
        stages = read_chain(attack_model(first), first.knowledge.image_shape)
        shown = torch.full((len(observations), 1, *first.knowledge.image_shape), 0.5)
        found = []
        for target, observation in enumerate(observations):

            def report(step: int, inputs: Tensor, target: int = target, observation: Observation = observation) -> None:
                is_image = inputs.numel() == shown[target, 0].numel()  # inner layers are solved before the image
                if listener is not None and is_image and step % self._report_every == 0:
                    shown[target, 0] = _to_image(observation, inputs)
                    listener(target / len(observations), shown)

            found.append(self._attack(observation, stages, budget, report))
            if listener is not None:
                shown[target] = found[-1].images.to(shown)
                listener((target + 1) / len(observations), shown)
        return found

    def _attack(self, observation: Observation, stages: list[Link], budget: Budget, report: Report) -> Reconstruction:
        started = time.perf_counter()
        gradient = {name: value.double() for name, value in estimated_gradient(observation).items()}
        last = stages[-1]
        heads = solve_head(last, gradient[last.weight_name], gradient.get(last.bias_name))
        iterations = budget.iterations or self._iterations
        rebuilt = [self._rebuild(stages, gradient, head, iterations, report) for head in heads]
        equal = _equally_good(rebuilt)
        shape = observation.knowledge.image_shape
        best = min(equal, key=lambda one: _outside(input_normalisation(observation).undo(one.inputs.reshape(shape))))
        if not bool(torch.isfinite(best.inputs).all()):
            raise TrialError("R-GAP's linear systems have no finite solution.", hint="The update may be defended.")
        notes = tuple(
            f"layer `{name}` leaves {count:,} of its inputs undetermined: no attack can be exact below it"
            for name, count in best.undetermined.items()
            if count
        )
        if len(equal) > 1:
            notes += (f"{len(equal)} images have this gradient; the one nearest to the range of images was taken",)
        return Reconstruction(
            _to_image(observation, best.inputs)[None],
            torch.tensor([best.label]),
            best.misfit,
            seconds=time.perf_counter() - started,
            notes=notes,
        )

    def _rebuild(
        self, stages: list[Link], gradient: Tensors, head: HeadSolution, iterations: int, report: Report
    ) -> Rebuilt:
        features, slope = head.features, head.slope
        undetermined: dict[str, int] = {}
        below = stages[-1]
        for stage in reversed(stages[:-1]):
            outputs = features.reshape(stage.output_shape)
            slope = below.apply_transposed(slope.reshape(1, *below.output_shape))[0].reshape(stage.output_shape)
            slope = slope * stage.activation.slope(outputs)
            inverted = self._invert(stage, slope, gradient[stage.weight_name], outputs, iterations, report)
            undetermined[stage.name] = inverted.undetermined
            features, below = inverted.inputs, stage
        inputs = features.reshape(stages[0].input_shape)
        return Rebuilt(inputs, _label(head), undetermined, _misfit(stages, inputs, head))

    def _invert(
        self, stage: Link, slope: Tensor, gradient: Tensor, outputs: Tensor, iterations: int, report: Report
    ) -> Inverted:
        if len(stage.output_shape) == 1:
            energy = slope.square().sum().clamp(min=1e-300)
            return Inverted((slope @ gradient / energy).view(stage.input_shape), 0)
        known = stage.activation.known(outputs)
        z = stage.activation.inverse(outputs)
        if stage.bias is not None:
            z = z - stage.bias[:, None, None]
        if is_small(stage):
            inverted = invert_directly(stage, slope, gradient, z, known, self._cutoff)
            if inverted is not None:
                return inverted
        return invert_iteratively(stage, slope, gradient, z, known, iterations, report)


def _equally_good(rebuilt: list[Rebuilt]) -> list[Rebuilt]:
    """Return the solutions that fit as well as the best does.

    The last layer's equation can have several roots, which differ in scale; a network without biases fits them all.
    """
    least = min(one.misfit for one in rebuilt)
    return [one for one in rebuilt if not one.misfit > _AS_GOOD * least + _ROUNDING] or rebuilt


def _outside(image: Tensor) -> float:
    """Return by how much pixels leave [0, 1], on average."""
    return float((image - image.clamp(0, 1)).abs().mean())


def _misfit(stages: list[Link], inputs: Tensor, head: HeadSolution) -> float:
    """Return how far the features of the rebuilt image are from those the last layer gave away, relatively."""
    features = inputs[None]
    for stage in stages[:-1]:
        outputs = stage.biased(stage.apply(features.view(1, *stage.input_shape)))
        features = stage.activation.forward(outputs)
    return float((features.reshape(-1) - head.features).norm() / head.features.norm().clamp(min=1e-300))


def _label(head: HeadSolution) -> int:
    """Return the only class whose logit the loss wants larger; with one logit, 1 or 0."""
    return int(head.slope[0] < 0) if len(head.slope) == 1 else int(head.slope.argmin())


def _to_image(observation: Observation, inputs: Tensor) -> Tensor:
    like = next(iter(observation.parameters.values()))
    dtype = torch.float32 if like.dtype == torch.float16 else like.dtype
    images = inputs.to(dtype).reshape(observation.knowledge.image_shape)  # a model may begin by flattening them
    return input_normalisation(observation).undo(images).clamp(0, 1)
