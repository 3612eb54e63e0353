"""Defences inside of a loop of one's own: our own round with SGD, any optimiser, and what is silently wrong refused."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fedseal.core.batch import Batch, Normalisation
from fedseal.core.defence import Defence
from fedseal.core.errors import InputError, UsageError
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, train
from fedseal.hooks import SealedTraining, poisson_loader, sealed_model
from fedseal.models.registry import build_model

RATE = 0.1


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(108, 8), nn.Tanh(), nn.Linear(8, 4))


def data(count: int, seed: int = 1) -> TensorDataset:
    source = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.rand(count, 1, 8, 8, generator=source), torch.randint(4, (count,), generator=source))


def pairs(steps: int, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    images, labels = data(steps * size).tensors
    return list(zip(images.split(size), labels.split(size), strict=True))


def looped(
    sealed: SealedTraining, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]], **options: Any
) -> None:
    schedule = options.get("schedule")
    for images, labels in batches:
        images, labels = sealed.batch(images, labels)
        sealed.total(nn.functional.cross_entropy(sealed.model(images), labels)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()


@pytest.mark.parametrize(
    "spec",
    [
        "none",
        "dp-sgd:sigma=0.5,clip=0.1",
        "fed-cdp:sigma=0.5,clip=0.1",
        "soteria:ratio=0.5",
        "refiner:t=2,warm_t=2",
        "lids:samples=2,epochs=2,cache=false",
        "mixup",
        "topk:ratio=0.8",
        "gaussian:sigma=0.1",
        "dp-sgd:sigma=0.1,clip=1+topk:ratio=0.5",
    ],
)
def test_with_sgd_the_loop_sends_what_our_own_round_sends_to_the_bit(spec: str) -> None:
    batches = pairs(3)
    held = [Batch(images, labels) for images, labels in batches]
    everything = Batch(*data(12).tensors)
    ours = build_defence(spec)
    source = generator(5, "round")
    ours.prepare(everything, source)
    config = RoundConfig(local_steps=3, learning_rate=RATE)
    wanted = train(small().eval(), held, config, ours, source).update
    model = small().eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    sealed = SealedTraining(spec, model, optimizer, generator=generator(5, "round"))
    sealed.prepare(everything)
    looped(sealed, optimizer, batches)
    got = sealed.update()
    assert got.kind == wanted.kind == "delta"
    assert sealed.steps == 3
    for name, tensor in wanted.tensors.items():
        assert torch.equal(got.tensors[name], tensor), name


def test_private_gradients_reach_adam_as_opacus_computes_them() -> None:
    from opacus import PrivacyEngine

    model, theirs = small(), small()
    images, labels = pairs(1, 6)[0]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    sealed = SealedTraining("dp-sgd:sigma=0,clip=0.05", model, optimizer)
    looped(sealed, optimizer, [(images, labels)] * 3)
    other = torch.optim.Adam(theirs.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(images, labels), batch_size=6)
    private, other, _ = PrivacyEngine().make_private(
        module=theirs, optimizer=other, data_loader=loader, noise_multiplier=0.0, max_grad_norm=0.05,
        poisson_sampling=False,
    )  # fmt: skip
    for _ in range(3):
        other.zero_grad()
        nn.functional.cross_entropy(private(images), labels).backward()
        other.step()
    for mine, its in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, its, atol=2e-6, rtol=1e-4)


def test_the_account_of_a_loop_is_opacus_own() -> None:
    from opacus.accountants import RDPAccountant

    dataset, rate = data(400), 0.02
    loader = poisson_loader(dataset, rate, generator=torch.Generator().manual_seed(3))
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    spec = f"dp-sgd:sigma=1.2,clip=1,sample_rate={rate},batch_size=8,accountant=rdp"
    sealed = SealedTraining(spec, model, optimizer, loader=loader)
    looped(sealed, optimizer, list(loader))
    theirs = RDPAccountant()
    for _ in range(sealed.steps):
        theirs.step(noise_multiplier=1.2, sample_rate=rate)
    assert sealed.steps == 50
    assert sealed.report(sealed.update()).epsilon_accounted == pytest.approx(theirs.get_epsilon(1e-5))
    assert sealed.measured_rate == pytest.approx(rate, rel=0.3)


def test_several_batches_of_one_step_are_clipped_by_sample_and_noised_once() -> None:
    images, labels = pairs(1, 8)[0]
    results = []
    for parts in (1, 4):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        sealed = SealedTraining(
            "dp-sgd:sigma=0.5,clip=0.1", model, optimizer, accumulate=parts, generator=generator(2, "noise")
        )
        for x, y in zip(images.split(8 // parts), labels.split(8 // parts), strict=True):
            x, y = sealed.batch(x, y)
            (nn.functional.cross_entropy(model(x), y) / parts).backward()
        optimizer.step()
        results.append(sealed.update().tensors)
        assert sealed.steps == 1
        assert sealed.defence.releases()[0].steps == 1
    for name, whole in results[0].items():
        torch.testing.assert_close(results[1][name], whole, atol=1e-6, rtol=1e-4)


def test_a_step_that_loss_scaling_skips_costs_no_privacy() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    sealed = SealedTraining("dp-sgd:sigma=1,clip=1", model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for number, (x, y) in enumerate(pairs(3)):
        x, y = sealed.batch(x, y)
        loss = nn.functional.cross_entropy(model(x), y) * (float("inf") if number == 1 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert (sealed.steps, sealed.skipped) == (2, 1)
    assert sealed.defence.releases()[0].steps == 2


def test_defended_gradients_are_not_scaled_by_loss_scaling() -> None:
    updates = []
    for scale in (1.0, 1024.0):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        sealed = SealedTraining("soteria:ratio=0.5", model, optimizer, generator=generator(1, "x"))
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        x, y = sealed.batch(*pairs(1)[0])
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        updates.append(sealed.update().tensors)
    for name, tensor in updates[0].items():
        torch.testing.assert_close(updates[1][name], tensor)


def test_autocast_reaches_the_gradients_of_single_samples() -> None:
    images, labels = pairs(1)[0]
    updates = {}
    for precision in (None, torch.bfloat16):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        sealed = SealedTraining("dp-sgd:sigma=0,clip=100", model, optimizer, autocast=precision)
        x, y = sealed.batch(images, labels)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision is not None):
            loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        loops_own = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        updates[precision] = sealed.update().tensors
        for name, grad in loops_own.items():
            torch.testing.assert_close(updates[precision][name], -RATE * grad, atol=2e-4, rtol=0.05)
    assert any(not torch.equal(updates[None][name], updates[torch.bfloat16][name]) for name in updates[None])


def test_a_defence_sees_the_rate_of_a_schedule() -> None:
    seen: list[float] = []

    class Watching(Defence):
        name = "watching"

        def on_gradient(self, gradient: Any, context: Any) -> Any:
            seen.append(context.learning_rate)
            return gradient

    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    looped(SealedTraining(Watching(), model, optimizer), optimizer, pairs(3), schedule=schedule)
    assert seen == [1.0, 0.5, 0.25]


def test_inputs_the_loader_normalised_reach_a_defence_of_data_as_images_and_return_normalised() -> None:
    seen: list[Tensor] = []

    class Watching(Defence):
        name = "watching"

        def on_batch(self, batch: Batch, context: Any) -> Batch:
            seen.append(batch.images)
            return Batch(1 - batch.images, batch.labels)

    norm = Normalisation((0.5,), (0.25,))
    images, labels = pairs(1)[0]
    model = small()
    sealed = SealedTraining(Watching(), model, torch.optim.SGD(model.parameters(), lr=RATE), normalisation=norm)
    got, _ = sealed.batch(norm(images), labels)
    torch.testing.assert_close(seen[0], images)
    torch.testing.assert_close(got, norm(1 - images))


def test_only_named_parameters_leave() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    sealed = SealedTraining("topk:ratio=0.5", model, optimizer, include=("[35].*",), exclude=("*.bias",))
    looped(sealed, optimizer, pairs(2))
    assert sorted(sealed.update().tensors) == ["3.weight", "5.weight"]


def test_privacy_by_sample_refuses_to_leave_trainable_parameters_out() -> None:
    model = small()
    with pytest.raises(UsageError, match=r"cannot leave out trainable parameters \(0\.weight"):
        SealedTraining("dp-sgd", model, torch.optim.SGD(model.parameters(), lr=RATE), exclude=("0.*",))


def test_frozen_parameters_get_no_noise() -> None:
    model = small()
    model[0].requires_grad_(False)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
    sealed = SealedTraining("dp-sgd:sigma=5,clip=1", model, optimizer)
    looped(sealed, optimizer, pairs(2))
    assert not any(name.startswith("0.") for name in sealed.update().tensors)
    assert torch.equal(model.state_dict()["0.weight"], before["0.weight"])
    assert not torch.equal(model.state_dict()["5.weight"], before["5.weight"])


def test_an_empty_poisson_batch_is_a_step_of_noise_alone() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = poisson_loader(data(100), 0.01, generator=torch.Generator().manual_seed(0))
    sealed = SealedTraining("dp-sgd:sigma=1,clip=1,sample_rate=0.01,batch_size=1", model, optimizer, loader=loader)
    looped(sealed, optimizer, [(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.long))])
    assert all(
        bool(tensor.abs().sum() > 0) and bool(tensor.isfinite().all()) for tensor in sealed.update().tensors.values()
    )
    assert sealed.defence.releases()[0].steps == 1


@pytest.mark.parametrize(
    ("loader", "problem"),
    [
        (None, "believed of nobody"),
        (DataLoader(data(160), batch_size=16, shuffle=True), "no Poisson samples"),
        ("poisson", "the loader draws at 0.1"),
    ],
)
def test_a_sample_rate_is_measured_not_believed(loader: Any, problem: str) -> None:
    model = small()
    given = poisson_loader(data(160), batch_size=16) if loader == "poisson" else loader
    spec = "dp-sgd:sigma=1,clip=1,sample_rate=1e-5,batch_size=16"
    with pytest.raises(UsageError, match=problem):
        SealedTraining(spec, model, torch.optim.SGD(model.parameters(), lr=RATE), loader=given)


def test_batches_from_elsewhere_than_the_loader_are_noticed_before_anything_is_sent() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    spec = "dp-sgd:sigma=1,clip=1,sample_rate=0.01,batch_size=4"
    sealed = SealedTraining(spec, model, optimizer, loader=poisson_loader(data(400), 0.01))
    with pytest.raises(InputError, match="a rate of"):
        looped(sealed, optimizer, pairs(3, 64))


def test_the_poisson_loader_draws_every_record_as_often_as_it_says() -> None:
    dataset = TensorDataset(torch.arange(50), torch.zeros(50))
    loader = poisson_loader(dataset, 0.2, generator=torch.Generator().manual_seed(4))
    drawn = [batch for _ in range(80) for batch, _ in loader]
    counts = torch.bincount(torch.cat(drawn), minlength=50)
    sizes = torch.tensor([len(batch) for batch in drawn], dtype=torch.float)
    assert len(drawn) == 400
    assert abs(float(counts.float().mean()) - 80) < 6
    assert 6 < float(sizes.var()) < 10  # 50 x 0.2 x 0.8 = 8, where equal batches have none


def test_a_step_on_a_batch_that_no_defence_saw_is_refused() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    sealed = SealedTraining("none", model, optimizer)
    with pytest.raises(UsageError, match="no defence has seen"):
        optimizer.step()
    sealed.close()
    optimizer.step()


def test_a_gradient_that_a_closure_computes_is_defended_too() -> None:
    updates = []
    for closed in (False, True):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        sealed = SealedTraining("dp-sgd:sigma=0.5,clip=0.1", model, optimizer, generator=generator(3, "x"))
        x, y = sealed.batch(*pairs(1)[0])

        def closure(model: nn.Module = model, x: Tensor = x, y: Tensor = y, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        if closed:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        updates.append(sealed.update().tensors)
    assert all(torch.equal(updates[0][name], updates[1][name]) for name in updates[0])


def test_lightning_trains_under_the_same_defence() -> None:
    lightning = pytest.importorskip("lightning", reason="Lightning is not installed")
    from fedseal.hooks.lightning import SealedCallback

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = small()

        def forward(self, images: Tensor) -> Tensor:
            return self.net(images)

        def training_step(self, batch: Any, index: int) -> Tensor:
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=RATE)

    spec, dataset = "dp-sgd:sigma=0.5,clip=0.1", data(8)
    module, callback = Module(), SealedCallback(spec, generator=generator(3, "x"))
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[callback], accumulate_grad_batches=2,
    )  # fmt: skip
    trainer.fit(module, DataLoader(dataset, batch_size=2))
    model = Module()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    sealed = SealedTraining(spec, model, optimizer, generator=generator(3, "x"))
    looped(sealed, optimizer, list(DataLoader(dataset, batch_size=4)))
    for name, tensor in sealed.update().tensors.items():
        torch.testing.assert_close(callback.update().tensors[name], tensor, atol=1e-6, rtol=1e-4)


def test_a_loss_without_the_defences_own_term_is_refused() -> None:
    model = sealed_model(build_model("lenet", input_shape=(1, 16, 16), num_classes=4, seed=0), "precode")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    sealed = SealedTraining("precode", model, optimizer)
    x, y = sealed.batch(torch.rand(2, 1, 16, 16), torch.tensor([0, 1]))
    nn.functional.cross_entropy(model(x), y).backward()
    with pytest.raises(UsageError, match=r"sealed\.total\(loss\)"):
        optimizer.step()


def test_a_model_with_batch_normalisation_is_refused_or_replaced_for_privacy_by_sample() -> None:
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 4))
    with pytest.raises(UsageError, match="batch normalisation ties samples together"):
        SealedTraining("dp-sgd", plain, torch.optim.SGD(plain.parameters(), lr=RATE))
    model = sealed_model(plain, "dp-sgd")
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    looped(SealedTraining("dp-sgd", model, optimizer), optimizer, pairs(1))


def test_a_model_that_cannot_be_vectorised_is_read_sample_by_sample() -> None:
    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small()

        def forward(self, images: Tensor) -> Tensor:
            assert float(images.sum()) > 0  # looks at values
            return self.inner(images)

    batch, updates = pairs(1)[0], []
    for model in (small(), Looking()):
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        sealed = SealedTraining("dp-sgd:sigma=0.5,clip=0.1", model, optimizer, generator=generator(3, "x"))
        looped(sealed, optimizer, [batch])
        updates.append(list(sealed.update().tensors.values()))
    for vectorised, by_sample in zip(*updates, strict=True):
        torch.testing.assert_close(by_sample, vectorised, atol=1e-6, rtol=1e-5)


def test_state_and_budget_live_through_rounds_and_restarts() -> None:
    spec = "dp-sgd:sigma=2,clip=1,budget=6"
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    sealed = SealedTraining(spec, model, optimizer)
    looped(sealed, optimizer, pairs(2))
    spent = sealed.report(sealed.update()).epsilon_accounted
    sealed.close()
    again = SealedTraining(spec, model, optimizer)
    again.load_state_dict(sealed.state_dict())
    again.restart(1)
    looped(again, optimizer, pairs(1))
    assert again.report(again.update()).epsilon_accounted > spent
    with pytest.raises(Exception, match="privacy budget"):
        looped(again, optimizer, pairs(40))


def test_inputs_of_any_kind_train_under_privacy_by_sample() -> None:
    model = nn.Sequential(nn.Embedding(50, 6), nn.Flatten(), nn.Linear(30, 3))
    optimizer = torch.optim.Adam(model.parameters())
    sealed = SealedTraining("dp-sgd:sigma=1,clip=1", model, optimizer, modality="tensor")
    looped(sealed, optimizer, [(torch.randint(50, (4, 5)), torch.tensor([0, 1, 2, 0]))])
    assert sealed.steps == 1


def test_a_loop_inside_of_a_flower_client_is_sealed_by_the_mod_around_it(flower: Any) -> None:
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from fedseal.flower import defend, guard, sealed_loop

    spec = "dp-sgd:sigma=0.5,clip=0.1"
    app = ClientApp(mods=[defend(spec, inside=True, seed=4)])
    alone: list[Any] = []

    @app.train()
    def train(message: Message, context: Any) -> Message:
        model = small()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        sealed = sealed_loop(model, optimizer)
        looped(sealed, optimizer, pairs(2))
        weights = sealed.weights()
        alone.append((weights, sealed.defence.releases()))
        metrics = MetricRecord({"num-examples": 8})
        return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message)

    grid = flower.grid(app, 2)
    strategy = guard(FedAvg(fraction_evaluate=0.0))
    result = strategy.start(grid=grid, initial_arrays=ArrayRecord(small().state_dict()), num_rounds=1)
    assert not strategy.dropped
    assert [release.steps for _, (release,) in alone] == [2, 2]
    got = result.arrays.to_torch_state_dict()
    for name, tensor in got.items():
        torch.testing.assert_close(tensor, (alone[0][0][name] + alone[1][0][name]) / 2, atol=1e-5, rtol=1e-4)


def test_every_snippet_of_the_guide_runs() -> None:
    pytest.importorskip("lightning", reason="Lightning is not installed")
    text = (Path(__file__).parents[2] / "docs" / "training-loops.md").read_text()
    *snippets, recipe = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(snippets) == 4
    assert "Trainer" in recipe  # which the page says is not run
    scope: dict[str, Any] = {}
    for snippet in snippets:
        exec(snippet, scope)
    assert scope["weights"].keys() == scope["model"].state_dict().keys()
