"""The loss is part of the scenario: clients minimise it, attackers recompute it, and labels are what it compares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.labels import infer_labels
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import Setup, build_setup
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import IDENTITY, Batch
from fedseal.core.defence import Defence
from fedseal.core.errors import CapabilityError, InputError, UsageError
from fedseal.federation.loss import OwnLoss, as_targets, client_loss, training_loss, wanted_outputs
from fedseal.federation.simulation.evaluation import evaluate
from fedseal.information.ideal import ideal_reading
from fedseal.information.prior import fit_prior
from fedseal.information.upload import upload_behind

OUTPUTS = torch.tensor([[0.5, -1.0, 2.0], [0.1, 0.3, -0.2]])


def archive(path: Path, labels: np.ndarray, side: int = 6) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), side, side), dtype=np.uint8)
    np.savez(path, images=pixels, labels=labels)
    return path


def network(outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 12), nn.Sigmoid(), nn.Linear(12, outputs))


def smoothed(outputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(outputs, labels, label_smoothing=0.2, reduction="none")


def counted(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.exp() - labels * outputs).mean()


counted.target = "values"  # type: ignore[attr-defined]


def broken(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_are_pytorchs_own(reduction: str) -> None:
    classes, flags, values = torch.tensor([2, 0]), torch.tensor([[1.0, 0, 1], [0, 0, 1]]), torch.randn(2, 3)
    cases = [
        ("cross-entropy", classes, F.cross_entropy(OUTPUTS, classes, reduction=reduction)),
        ("bce", flags, F.binary_cross_entropy_with_logits(OUTPUTS, flags, reduction=reduction)),
        ("mse", values, F.mse_loss(OUTPUTS, values, reduction=reduction)),
        (f"{__name__}:smoothed", classes, F.cross_entropy(OUTPUTS, classes, label_smoothing=0.2, reduction=reduction)),
    ]
    for name, labels, expected in cases:
        assert torch.allclose(training_loss(name)(OUTPUTS, labels, reduction), expected), name  # type: ignore[arg-type]


def test_one_logit_is_the_logistic_loss_of_two_classes() -> None:
    logit, labels = torch.tensor([[0.3], [-2.0]]), torch.tensor([1, 0])
    expected = F.binary_cross_entropy_with_logits(logit[:, 0], labels.float())
    for name in ("bce", "cross-entropy"):
        assert torch.allclose(training_loss(name)(logit, labels, "mean"), expected)


def test_labels_searched_for_are_found_again() -> None:
    for name, labels, outputs in (
        ("cross-entropy", torch.tensor([2, 0]), 3),
        ("bce", torch.tensor([1, 0]), 1),
        ("bce", torch.tensor([[1.0, 0, 1], [0, 0, 1]]), 3),
        ("mse", torch.tensor([[0.25], [-3.0]]), 1),
    ):
        loss = training_loss(name)
        free = loss.start(labels, outputs)
        assert torch.equal(loss.read(free), labels), name
        relaxed = loss.relaxed(free)
        assert relaxed.shape == (2, outputs)
        assert bool(((relaxed >= 0) & (relaxed <= 1)).all()) or name == "mse"


def test_what_makes_no_sense_under_a_loss_is_refused_in_words() -> None:
    classes, values, flags = torch.tensor([0, 1, 2]), torch.tensor([[0.5], [2.0]]), torch.tensor([[0.0, 1], [1, 1]])
    with pytest.raises(InputError, match=r"3 classes, the model 2 output"):
        as_targets(classes, 3, 2, "cross-entropy")
    with pytest.raises(InputError, match="one class: there is nothing to tell apart"):
        as_targets(torch.zeros(3, dtype=torch.long), 1, 1, "cross-entropy")
    with pytest.raises(InputError, match=r"3 classes, the model 1 output"):
        as_targets(classes, 3, 1, "bce")
    with pytest.raises(InputError, match=r"one class per image, the data has 1 values.*loss: mse"):
        as_targets(values, 1, 1, "cross-entropy")
    with pytest.raises(InputError, match=r"2 flags.*loss: bce"):
        as_targets(flags, 2, 2, "cross-entropy")
    with pytest.raises(InputError, match="the data has values"):
        as_targets(values, 1, 1, "bce")
    with pytest.raises(InputError, match=r"2 flags per image, the model 5"):
        as_targets(flags, 2, 5, "bce")
    with pytest.raises(UsageError, match=r"no loss called 'bec'.*'bce'"):
        training_loss("bec")
    with pytest.raises(InputError, match=r"answers 2 images with \[2, 3\]"):
        OwnLoss("broken", broken)(OUTPUTS, classes, "mean")
    assert as_targets(classes, 3, 7, "cross-entropy") is classes  # a head with more outputs than the data has classes
    assert as_targets(classes, 3, 3, "bce").tolist() == torch.eye(3).tolist()
    assert wanted_outputs(torch.tensor([0, 1]), 2, "bce") == 1


def setup_for(tmp_path: Path, loss: str, labels: np.ndarray, model: str, **settings: object) -> Setup:
    data = archive(tmp_path / "data.npz", labels)
    client = settings.pop("client", {"batch_size": 1})
    return build_setup(Scenario(data=f"npz:{data}", model=model, loss=loss, targets=2, client=client, **settings))  # type: ignore[arg-type]


def own(outputs: int = 1, **_: object) -> nn.Module:
    return network(outputs)


CASES = {
    "one logit": ("bce", np.arange(200) % 2, 1, "unknown"),
    "one logit inferred": ("bce", np.arange(200) % 2, 1, "identity"),
    "flags": ("bce", np.random.default_rng(1).integers(0, 2, (200, 3)), 3, "identity"),
    "regression": ("mse", np.random.default_rng(1).normal(size=200), 1, "unknown"),
    "own": (f"{__name__}:smoothed", np.arange(200) % 3, 3, "unknown"),
    "counts": (f"{__name__}:counted", np.random.default_rng(1).random((200, 2)), 2, "true"),
}


@pytest.mark.parametrize("case", CASES)
def test_matching_rebuilds_images_under_any_loss(case: str, tmp_path: Path) -> None:
    loss, labels, outputs, rule = CASES[case]
    setup = setup_for(tmp_path, loss, labels, f"{__name__}:own?outputs={outputs}", attacker={"labels": rule})
    target = setup.observe(Defence(), 0)
    expected = torch.autograd.grad(
        client_loss(IDENTITY, "mean", loss)(setup.model, target.originals), list(setup.model.parameters())
    )
    assert all(torch.allclose(a, b) for a, b in zip(expected, target.observation.update.tensors.values(), strict=True))
    attack = ATTACKS.build("idlg" if rule != "unknown" else "dlg")
    answer = attack.run(target.observation, Budget(iterations=150, restarts=2), 0)
    assert float((answer.images - target.originals.images).square().mean()) < 1e-3
    assert answer.labels.shape == target.originals.labels.shape
    if training_loss(loss).target != "values":
        assert torch.equal(answer.labels.to(target.originals.labels), target.originals.labels)


def test_the_closed_form_and_the_ideal_reading_take_any_loss(tmp_path: Path) -> None:
    setup = setup_for(
        tmp_path,
        "mse",
        np.random.default_rng(1).normal(size=60),
        f"{__name__}:own?outputs=1",
        attacker={"labels": "unknown"},
    )
    target = setup.observe(Defence(), 0)
    answer = ATTACKS.build("first-layer").run(target.observation)
    assert float((answer.images - target.originals.images).square().mean()) < 1e-6
    upload = upload_behind(target.observation, target.defence, target.config, target.originals, target.fed)
    reading = ideal_reading(upload, fit_prior(setup.public.images))
    assert reading.psnr_db is not None
    assert reading.psnr_db > 30  # twelve neurons on 36 pixels: everything is there


def test_how_many_labels_are_positive_is_read_from_one_logit(tmp_path: Path) -> None:
    setup = setup_for(tmp_path, "bce", np.arange(200) % 2, f"{__name__}:own?outputs=1", client={"batch_size": 8})
    right = 0
    for target in range(2):
        seen = setup.observe(Defence(), target)
        right += torch.equal(infer_labels(seen.observation, 0).labels, seen.originals.labels.sort().values)
    assert right == 2


def test_rules_and_attacks_that_make_no_sense_under_a_loss_are_refused_in_words(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=60)
    inferred = setup_for(tmp_path, "mse", values, f"{__name__}:own?outputs=1").observe(Defence(), 0)
    with pytest.raises(CapabilityError, match=r"label rule identity reads the gradient of a cross-entropy.*mse"):
        infer_labels(inferred.observation, 0)
    with pytest.raises(CapabilityError, match=r"rgap reads the gradient of a cross-entropy.*minimise mse.*`ig`"):
        ATTACKS.build("rgap").check(inferred.observation)
    many = setup_for(
        tmp_path,
        "bce",
        np.random.default_rng(1).integers(0, 2, (60, 3)),
        f"{__name__}:own?outputs=3",
        client={"batch_size": 4},
    ).observe(Defence(), 0)
    with pytest.raises(CapabilityError, match="not which"):
        infer_labels(many.observation, 0)


@pytest.mark.parametrize("case", ["one logit inferred", "flags", "regression"])
def test_an_audit_judges_a_model_with_another_loss(case: str, tmp_path: Path) -> None:
    loss, labels, outputs, rule = CASES[case]
    data = archive(tmp_path / "data.npz", labels)
    scenario = Scenario(
        data=f"npz:{data}",
        model=f"{__name__}:own?outputs={outputs}",
        loss=loss,
        attacker={"labels": rule},  # type: ignore[arg-type]
        attacks=("ig:iterations=20", "first-layer", "seer", "retrieval"),
        defences=("none", "topk:ratio=0.5"),
        targets=1,
        readings=0,
    )
    run = run_audit([scenario], tmp_path / "run")
    states = {(record.attack, record.status) for record in run.records}
    assert not [record.message for record in run.records if record.status == "failed"]
    assert states == {("ig:iterations=20", "ok"), ("first-layer", "ok"), ("seer", "refused"), ("retrieval", "ok")}
    assert all(record.psnr for record in run.records if record.status == "ok")
    accuracies = [record.label_accuracy for record in run.records if record.status == "ok"]
    assert all((accuracy is None) == (loss == "mse") for accuracy in accuracies)
    assert run.verdict().sentence()


def test_accuracy_of_one_logit_counts_its_sign() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(1, 1, bias=False))
    nn.init.ones_(model[1].weight)  # type: ignore[arg-type]
    batch = Batch(torch.tensor([0.5, 0.0, 1.0]).view(3, 1, 1, 1), torch.tensor([1, 0, 0]))
    measured = evaluate(model, batch, IDENTITY, loss="bce")
    assert measured.accuracy == pytest.approx(2 / 3)
