"""Pipelines: order, composition, state, and how they are written."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.defence import AttackerView, CostReport, Defence, NoiseLaw, RoundContext, Stage
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors
from fedseal.defences.noise import GaussianNoise
from fedseal.defences.pipeline import Pipeline, build_defence
from fedseal.defences.pruning import TopK

BATCH = Batch(torch.zeros(1, 1, 2, 2), torch.zeros(1, dtype=torch.int64))


def no_loss(model: object, batch: object) -> Tensor:
    raise AssertionError("these defences need no loss")


CONTEXT = RoundContext(nn.Linear(1, 1), no_loss, generator(0))


class Adding(Defence):
    """Multiplies by ten and adds its number at every hook, so that the order can be read off; counts its calls."""

    def __init__(self, number: int, name: str = "adding", stage: Stage = "update", samples: bool = False) -> None:
        self.number = number
        self.info = Info("", name=name)
        self.stage = stage  # type: ignore[misc]
        self.needs_sample_grads = samples  # type: ignore[misc]
        self.calls = torch.zeros(1)

    def _add(self, tensors: Tensors) -> Tensors:
        self.calls = self.calls + 1
        return {name: 10 * tensor + self.number for name, tensor in tensors.items()}

    def prepare(self, dataset: Batch, source: torch.Generator) -> Batch:
        return Batch(10 * dataset.images + self.number, dataset.labels)

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        return self.prepare(batch, context.generator)

    def wrap_model(self, model: nn.Module) -> nn.Module:
        return nn.Sequential(model, nn.Identity())

    def on_sample_grads(self, grads: Tensors, context: RoundContext) -> Tensors:
        return self._add({name: tensor.sum(0) for name, tensor in grads.items()})

    def on_gradient(self, gradient: Tensors, context: RoundContext) -> Tensors:
        return self._add(gradient)

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        return self._add(update)

    def on_aggregate(self, update: Tensors) -> Tensors:
        return self._add(update)

    def state_dict(self) -> dict[str, Tensor]:
        return {"calls": self.calls}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.calls = state["calls"]

    def report(self) -> CostReport:
        return CostReport(extra_passes=self.number, state_bytes=4, remarks=(f"I am {self.number}",))

    def attacker_view(self) -> AttackerView:
        noise = NoiseLaw("gaussian", self.number) if self.number > 1 else None
        return AttackerView(self.name, {"number": self.number}, lambda gradient, observed: self._add(gradient), noise)


def zero() -> Tensors:
    return {"w": torch.zeros(1)}


def test_hooks_run_in_the_written_order_and_the_server_undoes_them_in_reverse():
    pipeline = Pipeline([Adding(1), Adding(2)])
    assert float(pipeline.on_gradient(zero(), CONTEXT)["w"]) == 12
    assert float(pipeline.on_update(zero(), CONTEXT)["w"]) == 12
    assert float(pipeline.on_aggregate(zero())["w"]) == 21
    assert float(pipeline.prepare(BATCH, generator(0)).images.max()) == 12
    assert float(pipeline.on_batch(BATCH, CONTEXT).images.max()) == 12
    assert len(list(pipeline.wrap_model(nn.Identity()).modules())) == 5


def test_the_one_reducer_reduces():
    pipeline = Pipeline([Adding(1, stage="sample", samples=True), Adding(2)])
    assert pipeline.needs_sample_grads
    assert float(pipeline.on_sample_grads({"w": torch.ones(3, 1)}, CONTEXT)["w"]) == 31
    plain = Pipeline([Adding(1), Adding(2)])
    assert not plain.needs_sample_grads
    assert float(plain.on_sample_grads({"w": torch.tensor([[1.0], [3.0]])}, CONTEXT)["w"]) == 2


def test_two_reducers_are_refused():
    members = [Adding(1, "one", "sample", samples=True), Adding(2, "two", "sample", samples=True)]
    with pytest.raises(UsageError, match="one and two both reduce"):
        Pipeline(members)


@pytest.mark.parametrize(
    ("early", "late"),
    [("data", "model"), ("model", "sample"), ("sample", "gradient"), ("gradient", "update"), ("data", "update")],
)
def test_a_stage_never_comes_after_a_later_one(early: Stage, late: Stage):
    first, second = Adding(1, "first", early), Adding(2, "second", late)
    Pipeline([first, second])
    Pipeline([first, first, second, second])
    with pytest.raises(UsageError) as caught:
        Pipeline([second, first])
    assert "first acts on the " + early in caught.value.message
    assert caught.value.hint == "Write first+second."


def test_states_are_kept_apart_by_position():
    pipeline = Pipeline([Adding(1), TopK(ratio=0.5, feedback=True), Adding(2)])
    for _ in range(3):
        pipeline.on_update({"w": torch.arange(4.0)}, CONTEXT)
    state = pipeline.state_dict()
    assert sorted(state) == ["0.calls", "1.w", "2.calls"]
    other = Pipeline([Adding(1), TopK(ratio=0.5, feedback=True), Adding(2)])
    other.load_state_dict(state)
    assert other.state_dict().keys() == state.keys()
    assert all(torch.equal(other.state_dict()[key], value) for key, value in state.items())


def test_state_prefixes_do_not_run_into_each_other():
    members = [Adding(number) for number in range(12)]
    pipeline = Pipeline(members)
    pipeline.load_state_dict({f"{index}.calls": torch.full((1,), float(index)) for index in range(12)})
    assert [float(member.calls) for member in members] == list(range(12))


def test_costs_add_up_and_views_chain():
    pipeline = Pipeline([Adding(1, "one"), Adding(2, "two"), Adding(1, "three")])
    report = pipeline.report()
    assert (report.extra_passes, report.state_bytes) == (4, 12)
    assert report.remarks == ("I am 1", "I am 2", "I am 1")
    view = pipeline.attacker_view()
    assert view.name == "one+two+three"
    assert view.parameters == {"one.number": 1, "two.number": 2, "three.number": 1}
    assert view.noise == NoiseLaw("gaussian", 2)
    assert view.unused == ()
    assert float(view.simulate(zero(), zero())["w"]) == 121


def test_independent_noise_adds_up_and_what_does_not_fit_is_said():
    twice = Pipeline([Adding(3, "one"), Adding(4, "two")]).attacker_view()
    assert twice.noise == NoiseLaw("gaussian", 5)
    assert "not used" not in twice.describe()
    mixed = build_defence("gaussian:sigma=0.3+laplace:scale=0.1").attacker_view()
    assert mixed.noise == NoiseLaw("gaussian", 0.3)
    assert mixed.describe().endswith("; not used: laplace noise of scale 0.1")
    assert build_defence("gaussian:sigma=0.1+laplace:scale=0.3").attacker_view().noise == NoiseLaw("laplace", 0.3)


def test_penalties_and_priors_of_members_add_up():
    class Costly(Defence):
        def attacker_view(self) -> AttackerView:
            return AttackerView(
                "costly", penalty=lambda gradient, observed: torch.tensor(2.0), image_prior=lambda images: images.sum()
            )

    alone, both = Costly().attacker_view(), Pipeline([Costly(), Costly()]).attacker_view()
    assert both.penalty is not None
    assert both.image_prior is not None
    assert float(both.penalty({}, {})) == 2 * float(alone.penalty({}, {}))
    assert float(both.image_prior(torch.ones(3))) == 6
    assert Pipeline([Adding(1), Adding(1)]).attacker_view().penalty is None


def test_specs_with_signs_in_numbers_are_told_from_pipelines():
    built = build_defence("gaussian:sigma=1e+1,clip=2e+0+topk:ratio=0.5")
    assert isinstance(built, Pipeline)
    noise, pruning = built.members
    assert isinstance(noise, GaussianNoise)
    assert (noise.sigma, noise.clip) == (10, 2)
    assert isinstance(pruning, TopK)
    assert isinstance(build_defence("topk"), TopK)


def test_a_pipeline_is_its_members_one_after_the_other():
    update = {"w": torch.randn(40, 40)}
    piped = build_defence("gaussian:sigma=0.1+topk:ratio=0.5").on_update(
        update, RoundContext(nn.Linear(1, 1), no_loss, generator(3))
    )
    noisy = GaussianNoise(sigma=0.1).on_update(update, RoundContext(nn.Linear(1, 1), no_loss, generator(3)))
    assert torch.equal(piped["w"], TopK(ratio=0.5).on_update(noisy, CONTEXT)["w"])


@pytest.mark.parametrize("spec", ["topk+", "+topk", "topk++topk", "", "topk+gausian"])
def test_malformed_pipelines_are_refused(spec: str):
    with pytest.raises(UsageError):
        build_defence(spec)
