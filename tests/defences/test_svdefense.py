"""SVDefense: the rank its energy asks for, by closed forms; and what it leaves in the open."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import jvp, vjp

from fedseal.attacks.span import span_of
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.defence import RoundContext
from fedseal.core.errors import UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.defences.svdefense import SVDefense
from fedseal.defences.truncation import decomposed, truncated
from fedseal.federation.client import RoundConfig, client_round


def context() -> RoundContext:
    def no_loss(model: object, batch: object) -> Tensor:
        raise AssertionError("truncation needs no loss")

    return RoundContext(nn.Linear(1, 1), no_loss, generator(0))


def with_values(values: list[float], rows: int, columns: int, seed: int = 0) -> Tensor:
    """Return a matrix of given singular values."""
    left = torch.linalg.qr(torch.randn(rows, len(values), generator=generator(seed), dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(columns, len(values), generator=generator(seed + 1), dtype=torch.float64))[0]
    return left @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ right.T


def sent(spec: str, matrix: Tensor) -> Tensor:
    return build_defence(spec).on_update({"w": matrix}, context())["w"]


@pytest.mark.parametrize(("energy", "rank"), [(0.1, 1), (0.63, 1), (0.65, 2), (0.98, 2), (0.999, 3)])
def test_the_rank_is_the_least_that_holds_the_energy(energy: float, rank: int):
    matrix = with_values([8.0, 5.9, math.sqrt(100 - 64 - 5.9**2)], 5, 7)  # squares 64, 34.8, 1.2 of 100
    low = sent(f"svdefense:energy={energy},stretch=0,power=0", matrix)
    assert int(torch.linalg.matrix_rank(low)) == rank
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    expected = (left[:, :rank] * values[:rank]) @ right[:rank]
    torch.testing.assert_close(low, expected)


def test_a_concentrated_client_withholds_more_and_an_even_one_does_not():
    even, narrow = with_values([1.0] * 4, 4, 6), with_values([1.0, 1e-9, 1e-9, 1e-9], 4, 6)
    plain = SVDefense(energy=0.75, stretch=1.0)
    assert float(plain._withheld([decomposed(even)])) == pytest.approx(0.25)  # entropy 1
    assert float(plain._withheld([decomposed(narrow)])) == pytest.approx(0.5, abs=1e-6)  # entropy 0
    assert float(SVDefense(energy=0.1, stretch=5.0)._withheld([decomposed(narrow)])) == 1.0


def test_the_entropy_of_two_values_by_hand():
    share = 0.25
    expected = -(share * math.log(share) + (1 - share) * math.log(1 - share)) / math.log(2)
    assert float(decomposed(with_values([3.0, 1.0], 2, 5)).entropy()) == pytest.approx(expected)


def test_channels_count_by_their_norm():
    matrix = torch.diag(torch.tensor([1.0, 2.0, 3.0]))  # orthogonal rows: the largest weighted ones are kept
    torch.testing.assert_close(
        sent("svdefense:energy=0.5,stretch=0,power=1", matrix), torch.diag(torch.tensor([0, 0, 3.0]))
    )
    mixed = torch.tensor([[1.0, 0.2], [0.1, 0.5]], dtype=torch.float64)
    weights = torch.tensor([[1.0], [math.hypot(0.1, 0.5) / math.hypot(1, 0.2)]], dtype=torch.float64)
    left, values, right = torch.linalg.svd(mixed * weights)
    expected = values[0] * torch.outer(left[:, 0], right[0]) / weights
    torch.testing.assert_close(sent("svdefense:energy=0.5,stretch=0,power=1", mixed), expected)


def test_convolutions_are_matrices_of_their_outputs_and_biases_pass():
    update = {"conv": torch.randn(6, 3, 5, 5, generator=generator(0)), "bias": torch.randn(6, generator=generator(1))}
    low = SVDefense(energy=0.5).on_update(update, context())
    assert low["conv"].shape == (6, 3, 5, 5)
    assert int(torch.linalg.matrix_rank(low["conv"].flatten(1), rtol=1e-5)) < 6
    assert torch.equal(low["bias"], update["bias"])


@pytest.mark.parametrize("shape", [(4, 7), (7, 4), (5, 5)])
def test_the_derivative_of_the_truncation_is_its_slope(shape: tuple[int, int]):
    matrix, direction = (torch.randn(shape, generator=generator(seed), dtype=torch.float64) for seed in (0, 1))

    def low(value: Tensor) -> Tensor:
        part = decomposed(value)
        kept = torch.zeros_like(part.values)
        kept[:2] = 1
        return truncated(part, kept)

    size = 1e-6
    measured = (low(matrix + size * direction) - low(matrix - size * direction)) / (2 * size)
    torch.testing.assert_close(jvp(low, (matrix,), (direction,))[1], measured, rtol=1e-6, atol=1e-8)
    back = torch.randn(shape, generator=generator(2), dtype=torch.float64)
    assert float((vjp(low, matrix)[1](back)[0] * direction).sum()) == pytest.approx(float((back * measured).sum()))


def test_the_derivative_is_finite_where_singular_values_are_equal():
    matrix = with_values([2.0], 6, 9)  # rank one: all others are equal, namely zero

    def low(value: Tensor) -> Tensor:
        part = decomposed(value)
        return truncated(part, part.leading(0.5))

    slope = jvp(low, (matrix,), (torch.randn(6, 9, generator=generator(1), dtype=torch.float64),))[1]
    assert bool(torch.isfinite(slope).all())


def test_the_rows_of_what_is_sent_stay_in_the_span_of_the_inputs():
    inputs = torch.randn(5, 40, generator=generator(0), dtype=torch.float64)
    gradient = torch.randn(12, 5, generator=generator(1), dtype=torch.float64) @ inputs
    low = sent("svdefense:energy=0.7", gradient)
    basis = torch.linalg.qr(inputs.T)[0]
    assert int(torch.linalg.matrix_rank(low)) < 5
    assert float((low - low @ basis @ basis.T).norm() / low.norm()) < 1e-12


def test_the_span_test_tells_the_one_input_of_a_client_from_another():
    inputs = torch.randn(2, 40, generator=generator(0), dtype=torch.float64)
    gradient = torch.outer(torch.randn(12, generator=generator(1), dtype=torch.float64), inputs[0])
    test = span_of(sent("svdefense:energy=0.5", gradient))
    apart = test.distances(inputs)
    assert float(apart[0]) < 1e-6 < 0.5 < float(apart[1])


def linear_net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 60), nn.ReLU(), nn.Linear(60, 10))


@pytest.mark.parametrize(("attack", "images"), [("first-layer", 1), ("spear", 1)])
def test_exact_attacks_read_an_image_from_what_is_sent(attack: str, images: int):
    model = linear_net()
    batch = Batch(torch.rand(images, 3, 4, 4, generator=generator(0)), torch.arange(images))
    defence = build_defence("svdefense:energy=0.5")
    done = client_round(model, [batch], RoundConfig(), defence, generator(0))
    known = Knowledge((3, 4, 4), 10, batch_size=images, defence=defence.attacker_view())
    found = ATTACKS.build(attack).run(Observation(model, done.update, known), Budget(), 0)
    torch.testing.assert_close(found.images, batch.images, rtol=0, atol=1e-3)


def test_factors_are_shorter_than_what_they_make():
    low = {"w": with_values([5.0, 1e-3, 1e-3], 30, 40).float(), "b": torch.ones(30)}
    defence = SVDefense(energy=0.9)
    rank_one = defence.on_update(low, context())
    assert defence.protocol_bytes(rank_one) == -(30 * 40 - (30 + 40)) * 4
    assert SVDefense(energy=1).protocol_bytes(low) == 0


def test_bad_options_are_refused_in_words():
    for bad in ({"energy": 0.0}, {"energy": 1.1}, {"stretch": -1.0}, {"power": 2.0}):
        with pytest.raises(UsageError, match="svdefense needs"):
            SVDefense(**bad)
