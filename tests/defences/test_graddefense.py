"""GradDefense: sensitivities, slices, noise where it belongs, and the server's filter."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import Defence, RoundContext
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten
from fedseal.defences.graddefense import GradDefense, denoise, sensitivities, slice_borders
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.federation.loss import cross_entropy_loss
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)


def net() -> nn.Module:
    return build_model("lenet:init=wide-uniform", input_shape=SHAPE, num_classes=4, seed=0)


def data(count: int = 6, seed: int = 0) -> Batch:
    source = generator(seed, "images")
    return Batch(torch.rand(count, *SHAPE, generator=source), torch.randint(4, (count,), generator=source))


def context(model: nn.Module, batch: Batch, **values: int) -> RoundContext:
    loss = cross_entropy_loss(RoundConfig().normalisation, "mean")
    return RoundContext(model, loss, generator(0, "noise"), batch=batch, **values)  # type: ignore[arg-type]


def play(defence: Defence, batch: Batch, seed: int = 0, round_number: int = 0) -> Tensors:
    source = generator(seed, round_number)
    return client_round(net(), [batch], RoundConfig(), defence, source, round_number=round_number).update.tensors


def test_sensitivity_is_the_norm_of_the_summed_gradients_slope():
    model, batch = copy.deepcopy(net()).double(), data(2).to("cpu", torch.float64)
    got = sensitivities(batch, context(model, batch))
    step, slopes = 1e-5, torch.zeros(2, SHAPE[1] * SHAPE[2], len(got), dtype=torch.float64)

    def sums(images: Tensor) -> Tensor:
        loss = context(model, batch).loss(model, Batch(images, batch.labels))
        return torch.stack([g.sum() for g in torch.autograd.grad(loss, list(model.parameters()))])

    for image in range(2):
        for pixel in range(slopes.shape[1]):
            shift = torch.zeros(2, slopes.shape[1], dtype=torch.float64)
            shift[image, pixel] = step
            shift = shift.view_as(batch.images)
            slopes[image, pixel] = (sums(batch.images + shift) - sums(batch.images - shift)) / (2 * step)
    torch.testing.assert_close(got.double(), slopes.norm(dim=1).mean(0), rtol=1e-4, atol=1e-8)


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=8),
    st.lists(st.floats(0, 10), min_size=8, max_size=8),
    st.integers(1, 12),
)
def test_slices_cover_everything_once_in_order(sizes: list[int], weights: list[float], slices: int):
    borders = slice_borders(sizes, torch.tensor(weights[: len(sizes)]), slices)
    assert len(borders) == slices + 1
    assert borders[0] == 0
    assert borders[-1] == sum(sizes)
    assert borders == sorted(borders)


def test_slices_have_equal_sensitivity():
    sizes, weights = [1000, 4000, 500], torch.tensor([3.0, 1.0, 6.0])
    borders = slice_borders(sizes, weights, 10)
    density = torch.cat([torch.full((n,), float(w) / n) for n, w in zip(sizes, weights, strict=True)])
    shares = [float(density[a:b].sum()) for a, b in itertools.pairwise(borders)]
    assert shares == pytest.approx([1.0] * 10, abs=0.02)


def test_without_sensitivity_slices_are_equally_long():
    assert slice_borders([50, 50], torch.zeros(2), 4) == [0, 25, 50, 75, 100]


def test_noise_is_on_the_sampled_slices_only_and_of_the_right_size():
    defence, batch = GradDefense(scale=0.02), data()
    sent, plain = flatten(play(defence, batch)), flatten(play(Defence(), batch))
    sizes = [p.numel() for p in net().parameters()]
    borders = slice_borders(sizes, defence.state_dict()["sensitivity"], 10)
    pieces = [(sent[a:b], plain[a:b]) for a, b in itertools.pairwise(borders) if b > a]
    touched = [not torch.equal(mine, theirs) for mine, theirs in pieces]
    assert sum(touched) == 5
    noise = torch.cat([mine - theirs for (mine, theirs), hit in zip(pieces, touched, strict=True) if hit])
    assert float(noise.std()) == pytest.approx(0.02, rel=0.1)


def test_which_slices_are_hit_changes_with_the_seed():
    hits = {tuple((flatten(play(GradDefense(), data(), seed)) != 0).tolist()) for seed in range(2)}
    uploads = [flatten(play(GradDefense(), data(), seed)) for seed in range(4)]
    assert len(hits) == 1  # nothing is ever zeroed
    untouched = [frozenset((u == flatten(play(Defence(), data()))).nonzero().flatten().tolist()) for u in uploads]
    assert len(set(untouched)) > 1


def test_clipping_bounds_each_samples_share_of_a_slice():
    bound = 1e-4
    batch = data(1)
    defence = GradDefense(scale=bound, clip=True, perturbed=10)
    assert (defence.needs_sample_grads, defence.stage) == (True, "sample")
    sent = flatten(play(defence, batch))
    borders = slice_borders([p.numel() for p in net().parameters()], defence.state_dict()["sensitivity"], 10)
    for a, b in itertools.pairwise(borders):
        assert float(sent[a:b].norm()) <= bound * (1 + 1.5 * max(b - a, 1) ** 0.5)


def test_pure_noise_loses_its_energy_in_the_filter():
    scale = 0.01
    noise = {"w": scale * torch.randn(200, 97, generator=generator(0)), "b": scale * torch.randn(53)}
    left = flatten(denoise(noise, scale, 6.0))
    assert float(left.square().sum()) < 0.1 * float(flatten(noise).square().sum())
    assert [t.shape for t in denoise(noise, scale, 6.0).values()] == [t.shape for t in noise.values()]


def test_a_strong_signal_survives_the_filter():
    scale, source = 0.01, generator(0)
    signal = torch.outer(torch.randn(342, generator=source), torch.randn(57, generator=source)).flatten()
    noisy = {"w": signal + scale * torch.randn(len(signal), generator=source)}
    cleaned = denoise(noisy, scale, 6.0)["w"]
    assert float((cleaned - signal).norm()) < 0.5 * float((noisy["w"] - signal).norm())


def test_the_filter_without_noise_is_the_identity():
    update = {"w": torch.randn(100)}
    assert GradDefense(scale=0).on_aggregate(update) is update
    assert GradDefense(scale=0).on_gradient(update, None) is update  # type: ignore[arg-type]


def test_an_attacker_tells_clean_slices_from_noisy_ones():
    source = generator(0)
    signal = torch.where(torch.rand(6000, generator=source) < 0.5, 0.0, 0.003) * torch.randn(6000, generator=source)
    signal[1500] = 0.3
    noisy = signal.clone()
    noisy[1000:3000] += 0.01 * torch.randn(2000, generator=source)
    view = GradDefense(scale=0.01).attacker_view()
    read = view.read({"w": noisy})["w"]
    assert torch.equal(read[3200:] != 0, torch.ones(2800, dtype=torch.bool))  # clean zeros count as seen
    assert torch.allclose(read[3200:], signal[3200:])
    assert float((read[1200:2800] != 0).double().mean()) < 0.01
    assert read[1500] == noisy[1500]  # far above the noise
    dummy = view.simulate({"w": torch.ones(6000)}, {"w": read})["w"]
    assert torch.equal(dummy, (read != 0).float())


def test_an_attacker_keeps_what_is_noisy_everywhere():
    noise = {"w": 0.01 * torch.randn(5000, generator=generator(0))}
    assert torch.equal(GradDefense(scale=0.01).attacker_view().read(noise)["w"], noise["w"])
    law = GradDefense(scale=0.01, slices=4, perturbed=4).attacker_view().noise
    assert law is not None
    assert law.scale == 0.01


def test_sensitivities_are_measured_once_in_so_many_rounds():
    defence = GradDefense(refresh=2)
    play(defence, data(seed=0), round_number=0)
    first = defence.state_dict()["sensitivity"]
    play(defence, data(seed=1), round_number=1)
    assert defence.state_dict()["sensitivity"] is first
    assert defence.report().extra_passes == 0
    play(defence, data(seed=1), round_number=2)
    assert not torch.equal(defence.state_dict()["sensitivity"], first)
    assert defence.report().extra_passes > 1


def test_the_root_set_comes_from_the_clients_data_if_it_is_known():
    many = data(60, seed=3)
    defence = GradDefense(root=2)
    assert defence.prepare(many, generator(0)) is many
    play(defence, data(1))
    alone = GradDefense(root=2)
    play(alone, data(1))
    assert not torch.equal(defence.state_dict()["sensitivity"], alone.state_dict()["sensitivity"])


def test_a_model_without_second_derivatives_is_refused():
    class Fused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(12, 36), nn.Linear(144, 4)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).chunk(3, -1)
            out: Tensor = self.out(nn.functional.scaled_dot_product_attention(q, k, v).flatten(1))
            return out

    with pytest.raises(CapabilityError, match="differentiated twice"):
        client_round(Fused(), [data()], RoundConfig(), GradDefense(), generator(0))


@pytest.mark.parametrize(
    "option", ["scale=-1", "scale=nan", "perturbed=11", "slices=0", "q=0.5", "root=0", "refresh=0"]
)
def test_nonsense_is_refused(option: str):
    with pytest.raises(UsageError, match="graddefense"):
        build_defence(f"graddefense:{option}")
