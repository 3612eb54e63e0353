"""Quantisation: the grid, bias, error bounds, the one-bit and identity ends, and what an attacker makes of it."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import grad, vmap

from fedseal.core.defence import RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.defences.quantise import Quantise, quantise_stochastic

DRAWS = 100_000


def context(seed: int = 0) -> RoundContext:
    def no_loss(model: object, batch: object) -> Tensor:
        raise AssertionError("quantising needs no loss")

    return RoundContext(nn.Linear(1, 1), no_loss, generator(seed))


def quantised(tensor: Tensor, spec: str, seed: int = 0) -> Tensor:
    return build_defence(f"quantise:{spec}").on_update({"w": tensor}, context(seed))["w"]


def sample(size: int = 3000, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(size, generator=generator(1), dtype=torch.float64).pow(3).to(dtype)


@pytest.mark.parametrize("scale", ["max", "l2"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8, 12, 16])
def test_the_error_is_below_one_level_and_half_of_it_to_the_nearest(bits: int, scale: str):
    x = sample(dtype=torch.float64)
    unit = float(x.abs().max() if scale == "max" else x.norm()) / (2 ** (bits - 1) - 1)
    assert float((quantised(x, f"bits={bits},scale={scale}") - x).abs().max()) <= unit * (1 + 1e-9)
    nearest = quantised(x, f"bits={bits},scale={scale},rounding=nearest")
    assert float((nearest - x).abs().max()) <= unit / 2 * (1 + 1e-9)
    levels = (nearest / unit).abs()
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-6)
    assert int(levels.round().unique().numel()) <= 2 ** (bits - 1)
    assert bool((nearest * x >= 0).all())


@pytest.mark.parametrize("scale", ["max", "l2"])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_stochastic_rounding_is_unbiased(bits: int, scale: str):
    x = torch.tensor([1.0, -0.97, 0.5, -0.25, 0.1, 1e-3, -1e-5, 0.0], dtype=torch.float64)
    unit = (x.abs().max() if scale == "max" else x.norm()) / (2 ** (bits - 1) - 1)
    draws = quantise_stochastic(x.expand(DRAWS, -1), unit, generator(2))
    error = draws.std(0) / math.sqrt(DRAWS)
    assert bool(((draws.mean(0) - x).abs() <= 3 * error + 1e-12).all())
    assert bool((draws[:, -1] == 0).all())


def test_the_fedpaq_variance_bound_holds():
    x = torch.randn(200, generator=generator(3), dtype=torch.float64)
    levels = 7
    draws = quantise_stochastic(x.expand(2000, -1), x.norm() / levels, generator(4))
    variance = float((draws - x).square().sum(1).mean())
    assert variance <= min(200 / levels**2, math.sqrt(200) / levels) * float(x.norm()) ** 2


@given(st.integers(2, 16), st.sampled_from(["stochastic", "nearest"]), st.integers(0, 5))
def test_grid_points_stay_where_they_are(bits: int, rounding: str, seed: int):
    once = quantised(torch.randn(500, generator=generator(seed)), f"bits={bits},rounding={rounding}")
    again = quantised(once, f"bits={bits},rounding={rounding}", seed=seed + 1)
    torch.testing.assert_close(again, once, rtol=2e-7, atol=0)


@pytest.mark.parametrize("bits", [25, 26, 28, 31])
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_from_25_bits_on_nothing_is_lost_that_float32_resolves_next_to_the_largest(bits: int, rounding: str):
    x = sample()
    error = (quantised(x, f"bits={bits},rounding={rounding}") - x).abs().max()
    assert float(error) <= float(x.abs().max()) * 2.0**-23


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_32_bits_are_the_identity_to_the_bit(dtype: torch.dtype):
    x = torch.cat([sample(dtype=dtype), torch.tensor([-0.0, 0.0, 1e-7], dtype=dtype)])
    assert quantised(x, "bits=32").numpy().tobytes() == x.numpy().tobytes()
    view = Quantise(bits=32).attacker_view()
    assert view.simulate({"w": x}, {"w": x})["w"] is x


@pytest.mark.parametrize("bits", [1, 2, 8, 32])
@pytest.mark.parametrize("options", ["", ",scale=l2", ",sign=bare", ",rounding=nearest"])
def test_zero_empty_and_scalar_tensors(bits: int, options: str):
    assert quantised(torch.zeros(4), f"bits={bits}{options}").tolist() == [0, 0, 0, 0]
    assert quantised(torch.zeros(0, 3), f"bits={bits}{options}").shape == (0, 3)
    if not (bits == 1 and "bare" in options):
        assert float(quantised(torch.tensor(-2.5), f"bits={bits}{options}")) == -2.5


def test_one_bit_is_the_sign_times_the_mean_magnitude():
    x = torch.tensor([1.0, -2.0, 0.0, -5.0])
    assert quantised(x, "bits=1").tolist() == [2, -2, 2, -2]
    assert quantised(x, "bits=1,sign=bare").tolist() == [1, -1, 1, -1]


def test_feedback_conserves_the_sum_to_the_bit():
    defence = build_defence("quantise:bits=3,rounding=nearest,feedback=true")
    assert defence.traits.keeps_residual
    source = generator(5)
    total, sent = torch.zeros(100, dtype=torch.float64), torch.zeros(100, dtype=torch.float64)
    for number in range(20):
        update = torch.randint(-96, 97, (100,), generator=source).double()
        update[0] = 96 - float(defence.state_dict().get("w", torch.zeros(1))[0])  # the largest: a unit of 32, exact
        update[1:] /= 2
        total += update
        sent += defence.on_update({"w": update}, context(number))["w"]
    assert torch.equal(sent + defence.state_dict()["w"], total)


def test_feedback_survives_a_restart():
    first, second = (build_defence("quantise:bits=2,feedback=true") for _ in range(2))
    first.on_update({"w": sample(50)}, context())
    second.load_state_dict({name: tensor.clone() for name, tensor in first.state_dict().items()})
    assert torch.equal(
        first.on_update({"w": sample(50)}, context(9))["w"], second.on_update({"w": sample(50)}, context(9))["w"]
    )


@pytest.mark.parametrize("spec", ["bits=1", "bits=1,sign=bare", "bits=4,rounding=nearest"])
def test_the_attacker_reproduces_what_was_sent_and_can_differentiate_it(spec: str):
    x = sample(200, torch.float64)
    defence = build_defence(f"quantise:{spec}")
    sent = defence.on_update({"w": x}, context())
    simulate = defence.attacker_view().simulate
    torch.testing.assert_close(simulate({"w": x}, sent)["w"], sent["w"], rtol=1e-9, atol=1e-12)

    def total(value: Tensor) -> Tensor:
        return simulate({"w": value}, sent)["w"].sum()

    lanes = torch.randn(3, 200, generator=generator(6), dtype=torch.float64) * 5
    slopes = vmap(grad(total))(lanes)
    assert torch.equal(slopes, torch.stack([grad(total)(lane) for lane in lanes]))
    if "bits=8" in spec:  # inside the cell nothing pulls, outside everything does
        unit = x.abs().max() / 127
        assert torch.equal(slopes, ((lanes - sent["w"]).abs() > unit).double())
    else:
        assert torch.equal(slopes, torch.ones_like(slopes))


def test_the_grid_of_l2_scaling_is_read_off_the_smallest_level():
    x = sample(400, torch.float64)
    defence = build_defence("quantise:bits=6,scale=l2,rounding=nearest")
    sent = defence.on_update({"w": x}, context())
    torch.testing.assert_close(defence.attacker_view().simulate({"w": x}, sent)["w"], sent["w"])


@pytest.mark.parametrize("spec", ["bits=0", "bits=33", "bits=-1", "bits=x", "rounding=up"])
def test_nonsense_is_refused(spec: str):
    with pytest.raises(UsageError, match="quantise"):
        build_defence(f"quantise:{spec}")


def test_quantisation_comes_last():
    with pytest.raises(UsageError, match="encoding"):
        build_defence("quantise+topk")
    build_defence("gaussian+topk+quantise")


@pytest.mark.parametrize("bits", [2, 8])
def test_an_upload_rounded_without_bias_is_matched_as_it_is(bits: int):
    x = {"w": sample(200, torch.float64)}
    defence = build_defence(f"quantise:bits={bits}")
    assert torch.equal(defence.attacker_view().simulate(x, defence.on_update(x, context()))["w"], x["w"])
