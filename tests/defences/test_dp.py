"""Per-sample privacy: sensitivity, noise level, budgets, batch normalisation, schedules, adaptation, state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import Classifier, Defence, RoundContext
from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten
from fedseal.defences import accounting
from fedseal.defences.accounting import BudgetSpentError, gaussian_epsilon
from fedseal.defences.dp import DPSGD, AdaptiveDP, FedCDP, PrivateGradients, clipped_sum, decayed
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.metrics.gradient import relative_distance
from fedseal.models.registry import build_model

SHAPES = {"weight": (30, 7), "bias": (30,), "scalar": ()}
BATCH = Batch(torch.zeros(4, 1, 2, 2), torch.zeros(4, dtype=torch.int64))


def context(round_number: int = 0, step: int = 0, losses: Sequence[float] = (), model: nn.Module | None = None):
    def loss(classifier: Classifier, batch: Batch) -> Tensor:
        return torch.tensor(losses[round_number] if losses else 1.0)

    source = generator(7, round_number, step)
    return RoundContext(model or nn.Linear(1, 1), loss, source, round_number, step, batch=BATCH)


def samples(count: int = 4, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    source = generator(seed, "samples")
    return {name: torch.randn(count, *shape, generator=source).to(dtype) for name, shape in SHAPES.items()}


def played(defence: Defence, rounds: int = 1, steps: int = 1, **options: object) -> list[Tensors]:
    sent = []
    for number in range(rounds):
        for step in range(steps):
            gradient = defence.on_sample_grads(samples(seed=number), context(number, step, **options))  # type: ignore[arg-type]
        last = replace(context(number, steps - 1), kind="gradient" if steps == 1 else "delta")
        sent.append(defence.on_update(gradient, last))
    return sent


@pytest.mark.parametrize("bound", [0.01, 1.0, 20.0, 1e6])
def test_no_clipped_sample_is_longer_than_the_bound(bound: float):
    one_by_one = [clipped_sum({n: t[i : i + 1] for n, t in samples().items()}, bound) for i in range(4)]
    norms = [float(flatten(part).norm()) for part in one_by_one]
    assert max(norms) <= bound
    together = clipped_sum(samples(), bound)
    torch.testing.assert_close(flatten(together), sum(flatten(part) for part in one_by_one))


@pytest.mark.parametrize("bound", [0.01, 1.0, 5.0])
def test_an_outlier_moves_the_clipped_sum_by_at_most_twice_the_bound(bound: float):
    calm, wild = samples(), {name: tensor.clone() for name, tensor in samples().items()}
    for tensor in wild.values():
        tensor[2] *= -1000
    moved = flatten(clipped_sum(wild, bound)) - flatten(clipped_sum(calm, bound))
    assert float(moved.norm()) <= 2 * bound
    assert float(moved.norm()) > 1.9 * min(bound, 15)  # and it does try
    per_tensor = flatten(clipped_sum(wild, bound, "per-tensor")) - flatten(clipped_sum(calm, bound, "per-tensor"))
    assert float(per_tensor.norm()) <= 2 * bound * math.sqrt(len(SHAPES))


@pytest.mark.parametrize("spec", ["dp-sgd:sigma=2,clip=3", "fed-cdp", "dp-adaptive:sigma=0.5,clip=3"])
def test_zero_gradients_leave_noise_of_the_published_scale(spec: str):
    defence = build_defence(spec)
    zeros = {"weight": torch.zeros(16, 300, 300), "bias": torch.zeros(16, 10_000)}
    sent = flatten(defence.on_update(defence.on_sample_grads(zeros, context()), context())).double()
    sigma, clip = {"dp-sgd": (2, 3), "fed-cdp": (6, 4), "dp-adaptive": (0.5, 3)}[defence.name]
    law = defence.attacker_view().noise
    assert law is not None
    assert (law.family, law.scale) == ("gaussian", pytest.approx(sigma * clip / 16))
    assert float(sent.std()) == pytest.approx(law.scale, rel=0.01)
    assert kstest(sent.numpy() / law.scale, "norm").pvalue > 1e-3


@pytest.mark.parametrize(("kind", "factor"), [("gradient", 1.0), ("delta", 0.1)])
def test_the_published_noise_is_that_of_the_upload_whatever_its_kind(kind: str, factor: float):
    defence = build_defence("dp-sgd:sigma=2,clip=3")
    where = replace(context(), kind=kind, learning_rate=0.1)
    zeros = {"weight": torch.zeros(16, 300, 300)}
    step = defence.on_sample_grads(zeros, where)
    upload = {name: factor * tensor for name, tensor in step.items()}  # one local step of learning rate 0.1
    sent = flatten(defence.on_update(upload, where)).double()
    law = defence.attacker_view().noise
    assert law is not None
    assert float(sent.std()) == pytest.approx(law.scale, rel=0.01)


@pytest.mark.parametrize(("options", "divisor"), [("", 4), (",batch_size=10", 10), (",reduction=sum", 1)])
def test_the_sum_is_divided_by_the_expected_batch_size(options: str, divisor: int):
    defence = build_defence(f"dp-sgd:sigma=0,clip=1{options}")
    sent = defence.on_sample_grads(samples(), context())
    expected = clipped_sum(samples(), 1.0)
    for name in sent:
        torch.testing.assert_close(sent[name], expected[name] / divisor)


@pytest.mark.parametrize("name", ["dp-sgd", "fed-cdp", "dp-adaptive"])
@pytest.mark.parametrize("steps", [1, 2])
def test_without_strength_a_round_is_the_plain_one_to_the_bit(name: str, steps: int):
    model = build_model("lenet", input_shape=(1, 12, 12), num_classes=4, seed=0)
    batches = [Batch(torch.rand(3, 1, 12, 12, generator=generator(s)), torch.tensor([0, 1, 2])) for s in range(steps)]
    config = RoundConfig(local_steps=steps)
    defence = build_defence(f"{name}:sigma=0,clip=inf")
    sent = client_round(defence.wrap_model(model), batches, config, defence, generator(0)).update.tensors
    plain = client_round(model, batches, config, Defence(), generator(0)).update.tensors
    assert all(sent[key].numpy().tobytes() == plain[key].numpy().tobytes() for key in plain)
    assert defence.state_dict() == {}
    assert defence.report().remarks == ()
    view = defence.attacker_view()
    assert view.noise is None
    assert view.simulate(plain, sent) is plain


def test_a_large_bound_without_noise_is_the_plain_gradient():
    model = build_model("lenet", input_shape=(1, 12, 12), num_classes=4, seed=0)
    batch = Batch(torch.rand(3, 1, 12, 12, generator=generator(0)), torch.tensor([0, 1, 2]))
    defence = build_defence("dp-sgd:sigma=0,clip=1e9")
    done = client_round(model, [batch], RoundConfig(), defence, generator(0))
    plain = client_round(model, [batch], RoundConfig(), Defence(), generator(0)).update.tensors
    assert relative_distance(plain, done.update.tensors) == pytest.approx(0, abs=1e-6)
    assert done.cost.epsilon_accounted is None
    assert "no noise, hence no epsilon" in done.cost.remarks


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_precision_is_kept_and_half_does_not_overflow(dtype: torch.dtype):
    large = {name: 300 * tensor for name, tensor in samples(dtype=dtype).items()}  # squares leave float16
    sent = DPSGD(sigma=0, clip=1.0).on_sample_grads(large, context())
    assert all(tensor.dtype == dtype for tensor in sent.values())
    reference = clipped_sum({name: tensor.double() for name, tensor in large.items()}, 1.0)
    torch.testing.assert_close(flatten(sent).double(), flatten(reference) / 4, rtol=1e-2, atol=1e-4)


def test_an_empty_poisson_batch_sends_noise_alone():
    defence = build_defence("dp-sgd:sigma=1,clip=1,batch_size=8")
    sent = defence.on_sample_grads({name: tensor[:0] for name, tensor in samples().items()}, context())
    assert float(flatten(sent).std()) == pytest.approx(1 / 8, rel=0.2)


def test_epsilon_composes_over_steps_and_rounds():
    defence = DPSGD(sigma=2.0)
    played(defence, rounds=3, steps=2)
    report = defence.report()
    assert report.epsilon_accounted == pytest.approx(gaussian_epsilon(math.sqrt(6) / 2, 1e-5))
    assert report.epsilon_nominal == pytest.approx(2 * math.sqrt(2 * math.log(1.25e5)) / 2)
    assert report.state_bytes == 24
    assert any("6 steps" in remark and "exact" in remark for remark in report.remarks)


def test_clipping_tensor_by_tensor_is_accounted_with_its_joint_sensitivity():
    defence = FedCDP()
    played(defence, rounds=5)
    assert defence.report().epsilon_accounted == pytest.approx(
        gaussian_epsilon(math.sqrt(5) * math.sqrt(len(SHAPES)) / 6, 1e-5)
    )


def test_a_weight_change_holds_the_noise_of_every_step():
    defence = DPSGD(sigma=2.0, clip=3.0)
    played(defence, steps=4)
    law = defence.attacker_view().noise
    assert law is not None
    assert law.scale == pytest.approx(0.1 * math.sqrt(4) * 6 / 4)  # learning rate, steps, sigma C / B


def test_a_spent_budget_halts_before_sending():
    defence = build_defence("dp-sgd:sigma=5,budget=2")
    sent: list[Tensors] = []

    def train() -> None:
        while True:
            sent.append(defence.on_sample_grads(samples(), context()))

    with pytest.raises(BudgetSpentError, match=r"privacy budget of dp-sgd is spent.*budget = 2"):
        train()
    report = defence.report()
    assert report.epsilon_accounted is not None
    assert report.epsilon_accounted <= 2 < gaussian_epsilon(math.sqrt(len(sent) + 1) / 5, 1e-5)
    assert any("of 2 spent" in remark for remark in report.remarks)
    restored = build_defence("dp-sgd:sigma=5,budget=2")
    restored.load_state_dict(defence.state_dict())
    with pytest.raises(FedsealError, match="spent"):
        restored.on_sample_grads(samples(), context())
    with pytest.raises(BudgetSpentError):
        build_defence("dp-sgd:sigma=0,budget=2").on_sample_grads(samples(), context())


def test_batch_normalisation_is_replaced_and_said_so():
    pytest.importorskip("opacus")
    model = build_model("resnet10:width=8", input_shape=(3, 16, 16), num_classes=4, seed=0).double()
    layers = sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    wrapped = build_defence("dp-sgd").wrap_model(model)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in wrapped.modules())
    assert sum(isinstance(module, nn.BatchNorm2d) for module in model.modules()) == layers > 0
    assert all(parameter.dtype == torch.float64 for parameter in wrapped.parameters())
    batch = Batch(torch.rand(2, 3, 16, 16).double(), torch.tensor([0, 1]))
    done = client_round(wrapped, [batch], RoundConfig(), build_defence("dp-sgd"), generator(0))  # another instance
    assert any(remark.startswith(f"{layers} BatchNorm layers were replaced") for remark in done.cost.remarks)
    assert build_defence("dp-sgd:sigma=0,clip=inf").wrap_model(model) is model


def test_a_model_that_is_itself_a_normalisation_or_of_a_local_class_can_be_replaced():
    pytest.importorskip("opacus")

    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.norm(x)
            return output

    assert isinstance(build_defence("dp-sgd").wrap_model(Local()).norm, nn.GroupNorm)
    assert isinstance(build_defence("dp-sgd").wrap_model(nn.BatchNorm1d(8)), nn.GroupNorm)
    with pytest.raises(InputError, match="cannot be replaced"):
        build_defence("dp-sgd").wrap_model(nn.Sequential(nn.BatchNorm1d(8, affine=False)))


def test_batch_normalisation_is_refused_if_asked_to_or_not_wrapped():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(InputError, match="batch normalisation"):
        build_defence("dp-sgd:batch_norm=refuse").wrap_model(model)
    with pytest.raises(InputError, match="batch normalisation"):
        build_defence("dp-sgd").on_sample_grads(samples(), context(model=model))


def test_without_opacus_the_defaults_work_and_the_rest_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(accounting.importlib.util, "find_spec", lambda name: None)
    defence = build_defence("dp-sgd")
    played(defence)
    assert defence.report().epsilon_accounted is not None
    for spec in ("dp-sgd:accountant=rdp", "dp-sgd:sample_rate=0.1,batch_size=4"):
        with pytest.raises(InputError, match="Opacus") as caught:
            build_defence(spec)
        assert "fedseal[dp]" in str(caught.value.hint)
    with pytest.raises(InputError, match="Opacus"):
        defence.wrap_model(nn.BatchNorm1d(3))


@pytest.mark.parametrize("clipping", ["flat", "per-tensor"])
def test_a_lone_samples_clipping_is_simulated_exactly(clipping: str):
    defence = build_defence(f"dp-sgd:sigma=0,clip=0.5,batch_size=3,clipping={clipping}")
    one = samples(count=1)
    sent = defence.on_update(defence.on_sample_grads(one, context()), context())
    simulated = defence.attacker_view().simulate({name: tensor[0] for name, tensor in one.items()}, sent)
    for name in sent:
        torch.testing.assert_close(simulated[name], sent[name])


def test_a_batchs_clipping_is_not_and_the_view_says_so():
    defence = DPSGD()
    played(defence)
    view = defence.attacker_view()
    plain = {name: tensor.mean(0) for name, tensor in samples().items()}
    assert view.simulate(plain, plain) is plain
    assert "not simulated" in view.describe()


@pytest.mark.parametrize(
    ("decay", "middle", "late"),
    [("linear", 7.0, 4.6), ("staircase", 7.6, 5.2), ("exponential", 6.3246, 4.384), ("cosine", 7.0, 4.1468)],
)
def test_decay_schedules(decay: str, middle: float, late: float):
    values = [decayed(10.0, 4.0, decay, progress) for progress in (0.0, 0.5, 0.9, 1.0)]  # type: ignore[arg-type]
    assert values == pytest.approx([10, middle, late, 4], rel=1e-3)
    assert decayed(3.0, None, decay, 0.7) == 3.0  # type: ignore[arg-type]


def test_fed_cdp_decays_by_the_round_and_then_stays():
    defence = build_defence("fed-cdp:sigma=15,sigma_end=4.85,clip=6,clip_end=2,rounds=100")
    assert isinstance(defence, PrivateGradients)
    seen = []
    for number in (0, 50, 100, 500):
        defence.on_sample_grads(samples(), context(number))
        seen.append(tuple(defence.attacker_view().parameters[key] for key in ("sigma", "clip")))
    assert seen == [(15, 6), (pytest.approx(9.925), 4), (pytest.approx(4.85), 2), (pytest.approx(4.85), 2)]
    mu = math.sqrt(len(SHAPES) * (1 / 15**2 + 1 / 9.925**2 + 2 / 4.85**2))
    assert defence.report().epsilon_accounted == pytest.approx(gaussian_epsilon(mu, 1e-5), rel=1e-6)


def test_sigma_falls_after_three_falls_of_the_loss_in_a_row():
    defence = AdaptiveDP(beta=0.5)
    losses = [5.0, 4.0, 3.0, 2.0, 1.0, 1.5, 1.4, 1.3, 1.2]
    sigmas = []
    for number in range(len(losses)):
        defence.on_sample_grads(samples(), context(number, losses=losses))
        sigmas.append(defence.attacker_view().parameters["sigma"])
    assert sigmas == [1, 1, 1, 0.5, 0.25, 0.25, 0.25, 0.25, 0.125]
    assert defence.report().extra_passes == pytest.approx(1 / 3)
    assert any("private batches" in remark for remark in defence.report().remarks)


def test_the_server_may_record_the_loss_and_is_told_if_it_does_not():
    defence = AdaptiveDP(beta=0.5, loss="server")
    played(defence)
    assert any("0 losses were recorded" in remark for remark in defence.report().remarks)
    for value in (4.0, 3.0, 2.0, 1.0):
        defence.record_loss(value)
    played(defence)
    assert defence.attacker_view().parameters["sigma"] == 0.5
    assert defence.report().extra_passes == 0


def test_the_clip_bound_follows_the_mean_norm():
    norms = flatten({n: t.reshape(4, -1).square().sum(1) for n, t in samples().items()}).view(3, 4).sum(0).sqrt()
    defence = AdaptiveDP(sigma=0.0, clip=float(norms.max()) + 1, alpha=1.0)
    played(defence)
    assert float(defence.state_dict()["clip"]) == pytest.approx(float(norms.mean()), rel=1e-6)
    small = AdaptiveDP(sigma=0.0, clip=1.0, alpha=1.5)
    played(small, rounds=3)
    assert float(small.state_dict()["clip"]) == pytest.approx(1.5**3)  # all clipped: it grows by alpha
    falling = AdaptiveDP(sigma=0.0, clip=1e6)
    played(falling, rounds=3)
    assert float(falling.state_dict()["clip"]) == pytest.approx(1e6 / 8)  # at most by a half a round


def test_the_norms_have_noise_of_their_own_that_is_accounted():
    bounds = []
    for seed in range(300):
        defence = AdaptiveDP(sigma=0.02, clip=10.0, norm_sigma=5.0)
        source = RoundContext(nn.Linear(1, 1), context().loss, generator(seed), batch=BATCH)
        defence.on_update(defence.on_sample_grads(samples(), source), source)
        bounds.append(float(defence.state_dict()["clip"]))
    assert float(torch.tensor(bounds).std()) == pytest.approx(5 * 0.02 * 10 / 4, rel=0.15)
    multiplier = 0.02 / math.sqrt(1 + 1 / 25)
    assert defence.report().epsilon_accounted == pytest.approx(gaussian_epsilon(1 / multiplier, 1e-5))


@pytest.mark.parametrize("spec", ["dp-sgd", "fed-cdp:sigma_end=3,rounds=4", "dp-adaptive:beta=0.5"])
def test_a_run_restored_half_way_goes_on_as_before(spec: str):
    losses = [6.0, 5.0, 4.0, 3.0, 2.0, 1.0]

    def play(defence: Defence, numbers: range) -> list[Tensors]:
        return [
            defence.on_update(defence.on_sample_grads(samples(seed=n), context(n, losses=losses)), context(n))
            for n in numbers
        ]

    unbroken, first, second = (build_defence(spec) for _ in range(3))
    expected = play(unbroken, range(6))
    play(first, range(3))
    saved = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    play(first, range(3, 4))
    second.load_state_dict(saved)
    for got, wanted in zip(play(second, range(3, 6)), expected[3:], strict=True):
        assert all(torch.equal(got[name], wanted[name]) for name in wanted)
    assert second.report().epsilon_accounted == unbroken.report().epsilon_accounted
    assert second.state_dict().keys() == unbroken.state_dict().keys()


@pytest.mark.parametrize("name", ["dp-sgd", "fed-cdp", "dp-adaptive"])
def test_foreign_state_is_refused(name: str):
    with pytest.raises(InputError):
        build_defence(name).load_state_dict({"no.such.parameter": torch.ones(3)})
    with pytest.raises(InputError):
        build_defence("dp-adaptive").load_state_dict({"sigma": torch.tensor(1.0)})


@pytest.mark.parametrize(
    "spec",
    [
        "dp-sgd:sigma=-1",
        "dp-sgd:sigma=nan",
        "dp-sgd:sigma=inf",
        "dp-sgd:clip=0",
        "dp-sgd:clip=inf",
        "dp-sgd:delta=0",
        "dp-sgd:budget=0",
        "dp-sgd:sample_rate=0",
        "dp-sgd:sample_rate=1.5",
        "dp-sgd:sample_rate=0.5",
        "dp-sgd:batch_size=0",
        "dp-sgd:accountant=moments",
        "fed-cdp:sigma_end=0",
        "fed-cdp:clip_end=0",
        "fed-cdp:clip_end=inf",
        "fed-cdp:rounds=0",
        "fed-cdp:sigma=0,clip=inf,clip_end=2",
        "dp-adaptive:alpha=0",
        "dp-adaptive:beta=1.1",
        "dp-adaptive:norm_sigma=0",
        "dp-adaptive:clipping=per-tensor",
    ],
)
def test_nonsense_is_refused(spec: str):
    with pytest.raises(UsageError, match=spec.split(":")[0]):
        build_defence(spec)


def test_traits_and_stage():
    assert build_defence("dp-sgd").traits.accounts_epsilon
    assert not build_defence("dp-sgd:sigma=0").traits.accounts_epsilon
    assert build_defence("dp-sgd+topk").needs_sample_grads
    assert build_defence("dp-sgd").stage == "sample"
