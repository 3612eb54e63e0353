"""The exact identity g_b[c] = p[c] - n_c / B, solved for the counts n.

p, the batch mean of the softmax, is what the attacker lacks. With public data p = sum_k n_k / B p(. | class k), which
makes the identity linear in n alone; else p is taken from noise, or is 1 / C where that explains the gradient better. A
network that is sure of itself even on noise has learned too much for either; its labels are read off gradient sizes.
Without a bias the same equation is read along the mean feature v = mean h: g_W v / |v|^2 = mean_i (p_i - y_i) z_i with
z_i = h_i . v / |v|^2, whose mean is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import nnls
from torch import Tensor

from fedseal.attacks.labels.class_means import mean_gradients, with_missing_classes
from fedseal.attacks.labels.clipping import undo_clipping
from fedseal.attacks.labels.counts import misfit, round_to_sum
from fedseal.attacks.labels.guess import LabelGuess, guess_from_counts
from fedseal.attacks.labels.last_layer import LastLayer, last_layer
from fedseal.attacks.labels.llg import llg
from fedseal.attacks.labels.probes import Responses, noise_inputs, public_responses, respond
from fedseal.attacks.labels.rules import LABEL_RULES
from fedseal.attacks.labels.signs import idlg, yin
from fedseal.attacks.reading import image_count
from fedseal.core.observation import Observation
from fedseal.core.registry import Info

_POOR = 0.25
_CONFIDENT = 0.25
_SUM_WEIGHT = 1e3
_NO_BIAS = "no last bias: the identity is read along the mean feature, which is approximate"
_POOR_FIT = "inferred counts are far from whole numbers: the softmax is badly estimated, or the update was altered"
_UNIFORM = "counts are inferred as if the softmax were uniform, which explains the gradient better than noise does"
_TRAINED = "the network is confident even on noise, which says little of its softmax on data: labels by gradient sizes"


@LABEL_RULES.register("identity", Info("solve g_b = p - n / B for the counts n, with the best estimate of p at hand"))
def identity(observation: Observation, seed: int) -> LabelGuess:
    """Solve the identity with the best p at hand: class-conditional on public data, else noise or 1 / C.

    For one image this is iDLG's rule. For a confident network without public data it is LLG up to C images, and the
    sizes of Yin's row minima beyond, the best rules measured there.
    """
    if image_count(observation) == 1:
        return idlg(observation, seed)
    layer = last_layer(observation, seed)
    public = public_responses(observation, layer.model, seed)
    if public is not None:
        guess = _class_conditional(layer, public)
        return LabelGuess(
            guess.labels, (*guess.notes, f"labels were inferred with {len(public.features)} public images")
        )
    noise = respond(observation, layer.model, noise_inputs(observation, seed))
    if _confidence(noise.probabilities) > _CONFIDENT:
        guess = (llg if layer.count <= layer.num_classes else yin)(observation, seed)
        return LabelGuess(guess.labels, (*guess.notes, _TRAINED))
    from_noise = _given_responses(layer, noise)
    from_uniform = _Estimate(
        layer.count * (1 / layer.num_classes - bias_equation(layer, noise.features)[0]), (_UNIFORM,)
    )
    return _guess(layer, min(from_noise, from_uniform, key=lambda estimate: misfit(estimate.counts, layer.count)))


@LABEL_RULES.register("identity-noise", Info("the same equation with p measured on noise, without public data"))
def identity_noise(observation: Observation, seed: int) -> LabelGuess:
    """Solve the identity with p from noise, whatever else is known."""
    if image_count(observation) == 1:
        return idlg(observation, seed)
    layer = last_layer(observation, seed)
    return _guess(layer, _given_responses(layer, respond(observation, layer.model, noise_inputs(observation, seed))))


def counts_given_responses(layer: LastLayer, responses: Responses) -> Tensor:
    """Return whole counts [C] that sum to B if the batch's mean softmax is that of `responses`."""
    return round_to_sum(_given_responses(layer, responses).counts, layer.count)


def bias_equation(layer: LastLayer, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient [C] the identity is read from and z [N], the readout of features [N, D] it goes with.

    The bias' gradient and ones; without a bias the weight's gradient along the mean feature, and h . v / |v|^2.
    """
    if layer.bias_gradient is not None:
        return layer.bias_gradient, features.new_ones(len(features))
    mean = features.mean(0)
    direction = mean / mean.square().sum().clamp(min=torch.finfo(mean.dtype).tiny)
    return layer.weight_gradient @ direction, features @ direction


@dataclass(frozen=True)
class _Estimate:
    """Counts [C], not yet whole, with what is to be said of them."""

    counts: Tensor
    notes: tuple[str, ...] = ()


def _given_responses(layer: LastLayer, responses: Responses) -> _Estimate:
    gradient, readout = bias_equation(layer, responses.features)
    mean = (responses.probabilities * readout[:, None]).mean(0)
    gradient, notes = undo_clipping(mean, gradient, layer.count)
    return _Estimate(layer.count * (mean - gradient), notes)


def _class_conditional(layer: LastLayer, public: Responses) -> LabelGuess:
    """Minimise |G^T n / B - g| over n >= 0 with sum n = B, G from the public data's class means."""
    gradient, readout = bias_equation(layer, public.features)
    mean = (public.probabilities * readout[:, None]).mean(0)
    gradient, clipped = undo_clipping(mean, gradient, layer.count)
    classes, known, missing = mean_gradients(public, readout)
    system = with_missing_classes(classes, known).T
    weight = _SUM_WEIGHT * max(float(system.abs().max()), torch.finfo(torch.float64).tiny)
    left = torch.cat([system, torch.full_like(system[:1], weight)]).cpu().numpy()
    right = torch.cat([gradient, torch.full_like(gradient[:1], weight)]).cpu().numpy()
    shares = torch.from_numpy(nnls(left, right, maxiter=100 * len(gradient))[0]).to(gradient)
    return _guess(layer, _Estimate(layer.count * shares, (*missing, *clipped)))


def _confidence(probabilities: Tensor) -> float:
    """Return the mean largest probability of [N, C], scaled so that a uniform softmax has 0 and a sure one 1."""
    floor = 1 / probabilities.shape[1]
    return (float(probabilities.amax(1).mean()) - floor) / max(1 - floor, floor)


def _guess(layer: LastLayer, estimate: _Estimate) -> LabelGuess:
    notes = (*layer.notes, *estimate.notes)
    if layer.bias_gradient is None:
        notes = (*notes, _NO_BIAS)
    if misfit(estimate.counts, layer.count) > _POOR:
        notes = (*notes, _POOR_FIT)
    return guess_from_counts(round_to_sum(estimate.counts, layer.count), notes)
