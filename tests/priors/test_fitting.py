"""Priors are trained on public images, found again, resumed after a kill, measured, and stopped where they diverge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedseal.core.errors import CapabilityError, InputError, TrialError, UsageError
from fedseal.core.trainable import Saved
from fedseal.core.watcher import Tick
from fedseal.preparation import Library
from fedseal.priors.files import load_prior, save_prior
from fedseal.priors.fitting import PriorFit
from fedseal.priors.patches import PatchMixture
from fedseal.priors.plan import plan_for
from fedseal.priors.prior import KINDS, digests_of
from fedseal.priors.quality import frechet, samples

SHORT = {"patch": 4, "ae": 6, "gan": 6, "diffusion": 6}


def fit_of(public: Tensor, kind: str, steps: int | None = None) -> PriorFit:
    return PriorFit(public, plan_for(kind, steps or SHORT[kind]), "clouds")


class Killed(Exception):
    """Stands for a kill."""


class Kept:
    """Keeps the last state of a training."""

    def __init__(self, left: Saved | None = None) -> None:
        self.left = left

    def load(self) -> Saved | None:
        return self.left

    def save(self, state: Saved) -> None:
        self.left = state


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_training_goes_on_as_if_it_had_never_stopped(public: Tensor, kind: str) -> None:
    fit = fit_of(public, kind)
    whole = fit.fit(lambda tick: None, Kept())
    kept = Kept()

    def kill(tick: Tick) -> None:
        if tick.done > fit.size / 2:
            raise Killed

    with pytest.raises(Killed):
        fit.fit(kill, kept)
    assert kept.left is not None
    assert 0 < kept.left.values["step"] < fit.size
    resumed = fit.fit(lambda tick: None, Kept(kept.left))
    for name, value in whole.engine.state_dict().items():
        assert torch.equal(value, resumed.engine.state_dict()[name]), name


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_trained_is_found_again_and_survives_a_file(public: Tensor, kind: str, tmp_path: Path) -> None:
    books, fit = Library(tmp_path / "books"), fit_of(public, kind)
    made = books.get(fit)
    again = books.find(fit_of(public, kind))
    assert again is not None
    assert again.quality == made.quality
    assert books.find(fit_of(public.flip(0), kind)) is None
    save_prior(made, fit.plan, tmp_path / "prior.safetensors")
    read = load_prior(tmp_path / "prior.safetensors")
    assert torch.equal(samples(read, 2), samples(made, 2))
    assert read.origin.words == "clouds"
    assert read.origin.holds(public[3:5]) == 2
    assert read.origin.holds(1 - public[3:5]) == 0


@pytest.mark.parametrize("kind", ["ae", "gan", "diffusion"])
def test_a_training_that_diverges_is_stopped_with_advice(public: Tensor, kind: str) -> None:
    fit = PriorFit(public, replace(plan_for(kind, 60), lr=1e18), "clouds")
    with pytest.raises(TrialError, match=r"diverged: its loss is .*learning rate of 1e\+18"):
        fit.fit(lambda tick: None, Kept())


def test_too_few_images_and_unknown_kinds_are_refused_in_words(public: Tensor) -> None:
    with pytest.raises(CapabilityError, match="at least 16 public images, got 8"):
        fit_of(public[:8], "ae")
    with pytest.raises(UsageError, match=r"no kind of prior called 'vae'.*'ae'"):
        plan_for("vae")


@pytest.mark.parametrize("change", [{"format": 9}, {"kind": "cat"}, {"shape": [1, 8]}, {"width": 10**9}])
def test_a_file_that_is_no_prior_is_refused(public: Tensor, tmp_path: Path, change: Mapping[str, object]) -> None:
    import json

    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    fit, path = fit_of(public, "ae", 1), tmp_path / "prior.safetensors"
    save_prior(Library(None).get(fit), fit.plan, path)
    with safe_open(path, "pt") as opened:
        about = json.loads(opened.metadata()["fedseal.prior"])
    save_file(load_file(path), path, {"fedseal.prior": json.dumps({**about, **change})})
    with pytest.raises(InputError, match="prior"):
        load_prior(path)


def test_digests_depend_on_content_at_eight_bits_and_on_nothing_else(public: Tensor) -> None:
    own = digests_of(public)
    assert len(set(own.tolist())) == len(public)
    eight_bits = (public * 255).round() / 255
    assert torch.equal(digests_of(eight_bits + 1e-4), own)
    assert torch.equal(digests_of(public.double()), own)
    assert not torch.isin(digests_of(public.flip(-1)), own).any()


def test_a_mixture_of_one_gaussian_denoises_as_wiener_filters_do() -> None:
    """With one component and a patch as large as the image the best linear estimate is known in closed form."""
    source = torch.Generator().manual_seed(0)
    mixing = torch.randn(16, 16, generator=source) / 8
    rows = torch.randn(4000, 16, generator=source) @ mixing.t()
    rows = rows - rows.mean(1, keepdim=True)
    mixture = PatchMixture(1, 4, 1)
    mixture._set(rows, torch.ones(4000, 1))
    sigma, clean = 0.2, rows[:1].view(1, 1, 4, 4)
    noisy = clean + sigma * torch.randn(1, 1, 4, 4, generator=source)
    y = noisy.flatten() - noisy.mean()
    covariance = rows.t() @ rows / len(rows)
    expected = covariance @ torch.linalg.solve(covariance + sigma**2 * torch.eye(16), y) + noisy.mean()
    assert torch.allclose(mixture.denoise(noisy, sigma).flatten(), expected, atol=2e-3)


def test_the_distance_between_gaussians_is_that_of_their_means_and_deviations() -> None:
    rows = torch.randn(4000, 3, generator=torch.Generator().manual_seed(1))
    assert frechet(rows, rows) < 1e-5
    assert frechet(rows + 2.0, rows) == pytest.approx(2 * 3**0.5, abs=1e-3)
    assert frechet(3 * rows, rows) == pytest.approx(2 * 3**0.5, abs=0.1)


def test_a_trained_denoiser_takes_noise_away(public: Tensor) -> None:
    prior = Library(None).get(fit_of(public, "patch", 6))
    assert prior.quality is not None
    assert prior.quality.reconstruction_db > 21  # noise of deviation 0.1 alone is 20 dB
