"""Differential privacy against Opacus itself: the step of its optimiser, and its accountants."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import RoundContext
from fedseal.core.seeds import generator
from fedseal.defences.accounting import PrivacyLedger, composed_epsilon
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round, sample_gradients
from fedseal.federation.loss import cross_entropy_loss
from fedseal.models.registry import build_model

opacus = pytest.importorskip("opacus")

SHAPE = (1, 12, 12)


@pytest.fixture
def model() -> nn.Module:
    return build_model("lenet:init=wide-uniform", input_shape=SHAPE, num_classes=4, seed=0)


@pytest.fixture
def batch() -> Batch:
    source = generator(1, "batch")
    return Batch(torch.rand(6, *SHAPE, generator=source), torch.randint(4, (6,), generator=source))


def opacus_step(
    model: nn.Module, batch: Batch, sigma: float, clip: float, expected: int, source: torch.Generator | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the clipped sums and the final gradients of one step of Opacus' optimiser."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = GradSampleModule(model)
        optimiser = DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=0.1),
            noise_multiplier=sigma,
            max_grad_norm=clip,
            expected_batch_size=expected,
            generator=source,
        )
        nn.functional.cross_entropy(wrapped(batch.images), batch.labels).backward()
        optimiser.pre_step()
    parameters = {name.removeprefix("_module."): p for name, p in wrapped.named_parameters()}
    sums = {name: p.summed_grad.detach().clone() for name, p in parameters.items()}
    grads = {name: p.grad.detach().clone() for name, p in parameters.items() if p.grad is not None}
    wrapped.to_standard_module()
    return sums, grads


@pytest.mark.parametrize("clip", [1e-3, 1.0, 30.0, 1e6])
@pytest.mark.parametrize("expected", [6, 11])
def test_clipped_gradients_are_those_of_opacus(model: nn.Module, batch: Batch, clip: float, expected: int):
    defence = build_defence(f"dp-sgd:sigma=0,clip={clip},batch_size={expected}")
    ours = client_round(model, [batch], RoundConfig(), defence, generator(0)).update.tensors
    _, theirs = opacus_step(model, batch, 0.0, clip, expected)
    assert list(ours) == list(theirs)
    scale = max(float(tensor.abs().max()) for tensor in theirs.values())
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-6, atol=1e-6 * scale)


def test_given_the_same_noise_the_whole_step_is_that_of_opacus(model: nn.Module, batch: Batch):
    defence = build_defence("dp-sgd:sigma=0.7,clip=2")
    loss = cross_entropy_loss(RoundConfig().normalisation, "mean")
    samples = sample_gradients(model, batch, loss)
    ours = defence.on_sample_grads(samples, RoundContext(model, loss, torch.Generator().manual_seed(5)))
    _, theirs = opacus_step(model, batch, 0.7, 2.0, 6, torch.Generator().manual_seed(5))
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
@pytest.mark.parametrize(("sigma", "rate"), [(1.0, 0.01), (0.8, 0.02), (4.0, 0.2)])
def test_epsilon_of_a_thousand_steps_is_opacus_own(accountant: str, sigma: float, rate: float):
    from opacus.accountants import create_accountant

    theirs = create_accountant(accountant)
    ours = PrivacyLedger("dp-sgd", 1e-5, accountant, None)  # type: ignore[arg-type]
    for _ in range(1000):
        theirs.step(noise_multiplier=sigma, sample_rate=rate)
        ours.spend(sigma, rate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert ours.epsilon() == pytest.approx(theirs.get_epsilon(1e-5), abs=1e-2)
    assert ours.steps == 1000


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_changing_noise_is_composed_as_opacus_does(accountant: str):
    from opacus.accountants import create_accountant

    theirs = create_accountant(accountant)
    ours = PrivacyLedger("fed-cdp", 1e-5, accountant, None)  # type: ignore[arg-type]
    for number in range(9):
        sigma = (2.0, 1.5, 1.0)[number % 3]
        theirs.step(noise_multiplier=sigma, sample_rate=0.05)
        ours.spend(sigma, 0.05)
    assert ours.epsilon() == pytest.approx(theirs.get_epsilon(1e-5), abs=1e-2)


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 10), (3.0, 100), (10.0, 1)])
def test_without_subsampling_the_closed_form_is_what_prv_approximates_and_rdp_bounds(sigma: float, steps: int):
    from opacus.accountants import PRVAccountant

    theirs = PRVAccountant()
    theirs.history = [(sigma, 1.0, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        upper = theirs.get_epsilon(1e-5)
    exact = composed_epsilon([(sigma, 1.0, steps)], 1e-5, "prv")
    assert exact <= upper <= exact + 0.03  # Opacus returns its upper bound, eps_error = 0.01
    assert exact <= composed_epsilon([(sigma, 1.0, steps)], 1e-5, "rdp")


def test_where_opacus_prv_overflows_the_rdp_bound_is_used():
    history = [(0.01, 0.1, 1)]
    assert composed_epsilon(history, 1e-5, "prv") == composed_epsilon(history, 1e-5, "rdp") > 5000
    ledger = PrivacyLedger("dp-sgd", 1e-5, "prv", None)
    ledger.spend(0.01, 0.1)
    assert "RDP" in ledger.describe()


def test_the_report_of_a_subsampled_run_names_its_assumption(model: nn.Module, batch: Batch):
    defence = build_defence("dp-sgd:sigma=1,sample_rate=0.01,batch_size=6")
    cost = client_round(model, [batch], RoundConfig(), defence, generator(0)).cost
    assert cost.epsilon_accounted == pytest.approx(composed_epsilon([(1.0, 0.01, 1)], 1e-5, "prv"))
    assert any("Poisson sampling at rate 0.01" in remark and "PRV" in remark for remark in cost.remarks)
