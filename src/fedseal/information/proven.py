"""Proven: what no attacker can exceed, where the defence is differentially private.

Reconstruction robustness (Balle, Cherubin and Hayes, S&P 2022; Hayes, Mahloujifar and Balle, NeurIPS 2023): an attack
succeeds if the mean squared error of an image is at most eta. Without the update, the best guess succeeds with
probability kappa. What the server sees with the unit is close to what it would have seen without it, so that success
has at most the probability the privacy of the release allows:

- Gaussian noise of scale s on something of sensitivity D, released T times: Phi(Phi^-1(kappa) + sqrt(T) D / s);
- Laplace noise: exp(D / b) kappa;
- subsampled steps: the least over delta of exp(epsilon(delta)) kappa + delta, by the accountant of the defence.

kappa is estimated on public images: the guess is chosen on one half of them and counted on the other, and the upper
confidence limit enters. It is the best of the guesses tried (means and public images), not of all guesses there are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from scipy.special import ndtr, ndtri
from torch import Tensor

from fedseal.core.batch import Batch
from fedseal.core.errors import InputError
from fedseal.core.modality import IMAGE, TABLE, TEXT
from fedseal.core.privacy import PrivacyUnit, PrivateRelease
from fedseal.core.seeds import generator
from fedseal.defences.accounting import Accountant, composed_epsilon, release_epsilon
from fedseal.metrics.shares import upper_limit

_NOUNS = {IMAGE: "image", TEXT: "text", TABLE: "record"}

LEVELS_DB = (10.0, 15.0, 20.0)
"""Where FedLeak's risk levels begin."""

SAYS_SOMETHING = 0.99
"""A bound above this proves nothing worth printing."""

NEGLIGIBLE = 0.1
"""An attacker whose chance of any success rises by less than this, whatever it does, has learnt next to nothing."""

_DELTAS = tuple(10.0**exponent for exponent in range(-12, 0))
_LEAST_IMAGES = 20


@dataclass(frozen=True)
class ProvenReading:
    """What is proven of one defence, for one round or several.

    Attributes:
        unit: whose presence the release hides.
        rounds: over how many rounds the bound holds.
        epsilon: at `delta`, of everything released; None where it is infinite.
        delta: at which epsilon is stated.
        advantage: the most that any event can become likelier by the update (total variation).
        kappa: by level in dB, the upper confidence limit of the best guess's success.
        bounds: by level in dB, the most any attacker succeeds with.
        images: public images kappa was counted on.
        modality: what they are.
    """

    unit: PrivacyUnit
    rounds: int
    epsilon: float | None
    delta: float
    advantage: float
    kappa: Mapping[float, float]
    bounds: Mapping[float, float]
    images: int
    modality: str = IMAGE

    @property
    def is_low(self) -> bool:
        """Whether no attacker gains anything to speak of, whatever it tries."""
        return self.advantage <= NEGLIGIBLE

    def sentence(self) -> str:
        """Return what is proven in plain words."""
        who = "a client's whole update" if self.unit == "update" else f"a single {_NOUNS[self.modality]}"
        span = "one round" if self.rounds == 1 else f"{self.rounds} rounds"
        telling = {level: bound for level, bound in self.bounds.items() if bound < SAYS_SOMETHING}
        if not telling:
            size = "infinite" if self.epsilon is None else f"{self.epsilon:.3g}"
            return f"The epsilon of {span} is {size}, too large to prove anything about {who}."
        level, bound = max(telling.items())
        return (
            f"Proven for {who} over {span}: no attacker rebuilds {self._success(level)} with a probability above "
            f"{bound:.1%} (a guess: {self.kappa[level]:.1%}); any success becomes likelier by at most "
            f"{self.advantage:.1%}."
        )

    def _success(self, level: float) -> str:
        """Return what is rebuilt at a level: errors are squared, of words their unlike share."""
        if self.modality == TEXT:
            return f"a text but for {10 ** (-level / 10):.0%} of its words"
        if self.modality == TABLE:
            return f"a record to a root mean square error of {10 ** (-level / 20):.2g} of its columns' ranges"
        return f"an image at {level:.0f} dB"


def success_bound(
    kappa: float, releases: Sequence[PrivateRelease], *, rounds: int = 1, accountant: Accountant = "prv"
) -> float:
    """Return the most any attacker succeeds with, if the best guess succeeds with probability `kappa`.

    Args:
        kappa: in [0, 1].
        releases: everything one round releases.
        rounds: how often.
        accountant: for subsampled releases.
    """
    if not 0 <= kappa <= 1:
        raise InputError(f"a probability lies between 0 and 1, got {kappa}.")
    if any(release.multiplier <= 0 for release in releases) or not releases:
        return 1.0
    laplace = sum(_count(r, rounds) / r.multiplier for r in releases if r.family == "laplace")
    gaussian = [r for r in releases if r.family == "gaussian"]
    kappa = min(1.0, kappa * math.exp(min(laplace, 700.0)))
    if all(release.rate == 1 for release in gaussian):
        return float(ndtr(ndtri(kappa) + _mu(gaussian, rounds)))
    history = [(r.multiplier, r.rate, _count(r, rounds)) for r in gaussian]
    least = 1.0
    for delta in _DELTAS:
        epsilon = composed_epsilon(history, delta, accountant)
        least = min(least, kappa * math.exp(min(epsilon, 700.0)) + delta)
    return least


def advantage(releases: Sequence[PrivateRelease], *, rounds: int = 1) -> float:
    """Return the most by which the releases can make any event likelier: their total variation, or a bound of it."""
    if any(release.multiplier <= 0 for release in releases) or not releases:
        return 1.0
    laplace = sum(_count(r, rounds) / r.multiplier for r in releases if r.family == "laplace")
    mu = _mu([r for r in releases if r.family == "gaussian"], rounds)  # not amplified by sampling: still a bound
    return min(1.0, float(2 * ndtr(mu / 2) - 1) + (1 - math.exp(-laplace)))


def prove(
    releases: Sequence[PrivateRelease],
    public: Batch,
    *,
    labels_known: bool,
    rounds: int = 1,
    delta: float = 1e-5,
    confidence: float = 0.95,
    seed: int = 0,
) -> ProvenReading | None:
    """Return what the releases of a defence prove about images like the public ones; None if it claims nothing.

    Args:
        releases: of one round, by `Defence.releases`.
        public: images the prior is known by; none of them private.
        labels_known: whether the attacker's guess may depend on the label.
        rounds: over which they compose.
        delta: at which epsilon is stated.
        confidence: of the limit of kappa.
        seed: of the halves.
    """
    if not releases:
        return None
    if rounds < 1:
        raise InputError(f"a proof needs at least one round, got {rounds}.")
    guesses = {level: best_guess(public, level, labels_known, seed) for level in LEVELS_DB}
    kappa = {level: upper_limit(hits, n, confidence) for level, (hits, n) in guesses.items()}
    epsilon = release_epsilon(releases, rounds, delta)
    return ProvenReading(
        unit=releases[0].unit,
        rounds=rounds,
        epsilon=epsilon if math.isfinite(epsilon) else None,
        delta=delta,
        advantage=advantage(releases, rounds=rounds),
        kappa=kappa,
        bounds={level: success_bound(value, releases, rounds=rounds) for level, value in kappa.items()},
        images=guesses[LEVELS_DB[0]][1],
        modality=public.modality,
    )


def best_guess(public: Batch, level_db: float, labels_known: bool, seed: int) -> tuple[int, int]:
    """Return how many of how many held-out public images the best guess of the other half rebuilds at a level.

    The guess is one image, or one per class if the labels are known: the mean, or the public image that most others
    are close to.
    """
    if len(public) < _LEAST_IMAGES:
        raise InputError(
            f"{len(public)} public images are too few to say what a guess achieves.",
            hint=f"Raise public_fraction: at least {_LEAST_IMAGES} are needed.",
        )
    order = torch.randperm(len(public), generator=generator(seed, "kappa")).to(public.labels.device)
    halves = order[::2], order[1::2]
    eta = 10 ** (-level_db / 10)
    groups = public.labels if labels_known else torch.zeros_like(public.labels)
    hits = 0
    for group in set(groups.tolist()):
        known, held = (half[groups[half] == group] for half in halves)
        if len(held) and len(known):
            guess = _favourite(public.inputs[known].flatten(1), eta)
            hits += int(_errors(public.inputs[held].flatten(1), guess.unsqueeze(0)).le(eta).sum())
        else:
            hits += len(held)  # nothing is known of a class one half lacks: the safe side
    return hits, len(halves[1])


def _favourite(images: Tensor, eta: float) -> Tensor:
    """Return the candidate [D] that lies within `eta` of most images [N, D]: their mean, or one of them."""
    candidates = torch.cat([images.mean(0, keepdim=True), images]) if images.is_floating_point() else images
    return candidates[int(_errors(images, candidates).le(eta).sum(0).argmax())]


def _errors(images: Tensor, guesses: Tensor) -> Tensor:
    """Return the mean squared errors [N, G] between images [N, D] and guesses [G, D]; of words, their unlike share."""
    if not images.is_floating_point():
        return torch.stack([(images != guess).double().mean(1) for guess in guesses], 1)
    return torch.cdist(images.double(), guesses.double()).square() / images.shape[1]


def _count(release: PrivateRelease, rounds: int) -> int:
    return release.steps * rounds


def _mu(releases: Sequence[PrivateRelease], rounds: int) -> float:
    return math.sqrt(sum(_count(r, rounds) / r.multiplier**2 for r in releases))
