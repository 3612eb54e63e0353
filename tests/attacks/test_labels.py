"""Label rules where they are valid, at their edges, and the refinement of labels by a reconstruction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from fedseal.attacks.labels import LABEL_RULES, infer_labels, refine_labels, round_to_sum
from fedseal.attacks.labels.class_means import mean_gradients, with_missing_classes
from fedseal.attacks.labels.clipping import undo_clipping
from fedseal.attacks.labels.identity import bias_equation, counts_given_responses
from fedseal.attacks.labels.last_layer import last_layer
from fedseal.attacks.labels.probes import dummy_inputs, noise_inputs, public_responses, respond
from fedseal.core.batch import Batch, Normalisation
from fedseal.core.defence import Defence
from fedseal.core.errors import CapabilityError, InputError, UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.core.seeds import generator
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.metrics.labels import label_accuracy

SHAPE = (1, 6, 6)
COUNTING = ["llg", "llg-plus", "ilrg", "fedleak-count", "fedleak-count-element", "identity", "identity-noise"]
BATCH_RULES = ["analytic", "yin", *COUNTING]


def network(classes: int = 10, *, bias: bool = True, sharpness: float = 1.0, norm: bool = False) -> nn.Module:
    """A small ReLU network; `sharpness` scales its logits, as training does."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body: list[nn.Module] = [nn.Flatten(), nn.Linear(36, 64)]
        body += [nn.BatchNorm1d(64)] if norm else []
        model = nn.Sequential(*body, nn.ReLU(), nn.Linear(64, classes, bias=bias))
    with torch.no_grad():
        for parameter in model[-1].parameters():
            parameter.mul_(sharpness)
    return model


def batch_of(labels: list[int], seed: int = 0) -> Batch:
    return Batch(torch.rand(len(labels), *SHAPE, generator=generator(seed, "images")), torch.tensor(labels))


def observe(
    labels: list[int],
    model: nn.Module | None = None,
    *,
    classes: int = 10,
    reduction: Literal["mean", "sum"] = "mean",
    steps: int = 1,
    seed: int = 0,
    normalisation: Normalisation | None = None,
    auxiliary: Batch | None = None,
    bn: Literal["eval", "train-nostats"] = "eval",
) -> Observation:
    """What the server sees of a client that trained on images with `labels`, cut into equal steps."""
    model = network(classes) if model is None else model
    batch = batch_of(labels, seed)
    size = len(labels) // steps
    config = RoundConfig(steps, 0.01, bn, False, reduction, normalisation or Normalisation())
    pieces = [Batch(batch.images[i : i + size], batch.labels[i : i + size]) for i in range(0, len(labels), size)]
    result = client_round(model, pieces, config, Defence(), generator(seed, "defence"))
    knowledge = Knowledge(
        SHAPE,
        classes,
        loss_reduction=reduction,
        bn_mode=bn,
        batch_size=size,
        local_steps=steps,
        learning_rate=0.01,
        normalisation=normalisation,
        auxiliary=auxiliary,
    )
    return Observation(set_mode(model, config), result.update, knowledge)


def guess(rule: str, observation: Observation) -> list[int]:
    found = LABEL_RULES.build(rule)(observation, 0)
    assert found.labels.dtype == torch.int64
    assert found.labels.tolist() == sorted(found.labels.tolist())
    return found.labels.tolist()


def notes(rule: str, observation: Observation) -> str:
    return "; ".join(LABEL_RULES.build(rule)(observation, 0).notes)


# Counts


@given(st.lists(st.floats(-5, 20), min_size=1, max_size=4), st.integers(0, 9))
def test_rounding_finds_the_nearest_counts(values: list[float], total: int):
    """Against a search through all ways to share `total` among the classes."""

    def shares(parts: int, left: int) -> list[list[int]]:
        if parts == 1:
            return [[left]]
        return [[n, *rest] for n in range(left + 1) for rest in shares(parts - 1, left - n)]

    def distance(counts: list[int]) -> float:
        return sum((n - v) ** 2 for n, v in zip(counts, values, strict=True))

    found = round_to_sum(torch.tensor(values), total).tolist()
    assert sum(found) == total
    assert min(found) >= 0
    best = min(distance(candidate) for candidate in shares(len(values), total))
    assert distance(found) == pytest.approx(best, abs=1e-4)


@pytest.mark.parametrize(
    ("values", "total", "expected"),
    [([1.6, 1.4, 0.0], 3, [2, 1, 0]), ([0.0, 0.0], 4, [2, 2]), ([-3.0, 5.0], 2, [0, 2]), ([7.0], 3, [3])],
)
def test_rounding_by_hand(values: list[float], total: int, expected: list[int]):
    assert round_to_sum(torch.tensor(values), total).tolist() == expected


# The identity


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("sharpness", [1.0, 30.0])
@pytest.mark.parametrize("labels", [[3] * 9 + [1] * 2 + [0], list(range(10)) * 3, [9] * 16])
def test_the_identity_is_exact_with_the_true_softmax(
    labels: list[int], sharpness: float, reduction: Literal["mean", "sum"]
):
    """However sharp the softmax: given p, the counts are whole numbers to machine precision."""
    observation = observe(labels, network(sharpness=sharpness), reduction=reduction)
    layer = last_layer(observation)
    truth = respond(observation, layer.model, batch_of(labels).images)
    assert layer.bias_gradient is not None
    counts = layer.count * (truth.probabilities.mean(0) - layer.bias_gradient)
    expected = torch.bincount(torch.tensor(labels), minlength=10)
    assert torch.allclose(counts, expected.double(), atol=1e-4)
    assert counts_given_responses(layer, truth).tolist() == expected.tolist()


@pytest.mark.parametrize("rule", ["identity", "identity-noise", "ilrg", "llg-plus"])
def test_repeated_labels_in_a_young_network(rule: str):
    labels = [0, 0, 0, 2, 2, 5, 7, 7, 7, 7, 7, 9]
    assert label_accuracy(torch.tensor(labels), torch.tensor(guess(rule, observe(labels)))) >= 0.9


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_several_local_steps_are_one_large_batch(reduction: Literal["mean", "sum"]):
    labels = [4] * 6 + [1] * 3 + [8] * 2 + [0]
    observation = observe(labels, steps=3, reduction=reduction)
    assert observation.update.kind == "delta"
    assert guess("identity", observation) == sorted(labels)
    assert notes("identity", observation) == ""  # a wrong scale would be noticed, and undone


def test_probes_enter_the_model_as_the_client_s_images_do():
    normalisation = Normalisation((0.4,), (0.2,))
    plain, normalised = observe([0, 1]), observe([0, 1], normalisation=normalisation)
    for probes in (noise_inputs, dummy_inputs):
        assert torch.allclose(probes(normalised, 3), normalisation(probes(plain, 3)))
    public = batch_of([0, 1, 2, 3])
    granted = replace(normalised, knowledge=replace(normalised.knowledge, auxiliary=public))
    responses = public_responses(granted, network(), 0)
    assert responses is not None
    assert responses.labels is not None
    expected = network()(normalisation(public.images)).softmax(1).double()
    assert torch.allclose(responses.probabilities, expected[responses.labels], atol=1e-6)


def striped(labels: Tensor, seed: int) -> Batch:
    """Images whose class shows: a bright row or column, under noise."""
    images = 0.3 * torch.rand(len(labels), *SHAPE, generator=generator(seed, "striped"))
    for index, label in enumerate(labels.tolist()):
        (images[index, 0] if label < 6 else images[index, 0].T)[label % 6] += 0.7
    return Batch(images, labels)


@pytest.fixture(scope="module")
def trained() -> nn.Module:
    """A network that tells stripes apart, so that its softmax depends on the class."""
    model = network()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(60):
        batch = striped(torch.randint(0, 10, (64,), generator=generator(step, "train")), step)
        optimiser.zero_grad()
        F.cross_entropy(model(batch.images), batch.labels).backward()
        optimiser.step()
    return model


def observe_striped(model: nn.Module, labels: Tensor, auxiliary: Batch | None) -> Observation:
    result = client_round(model, [striped(labels, 999)], RoundConfig(), Defence(), generator(0, "defence"))
    knowledge = Knowledge(SHAPE, 10, batch_size=len(labels), auxiliary=auxiliary)
    return Observation(set_mode(model, RoundConfig()), result.update, knowledge)


def test_public_data_give_the_softmax_of_each_class(trained: nn.Module):
    labels = torch.tensor([0] * 12 + [1] * 5 + [2] * 2 + [7])
    public = striped(torch.arange(10).repeat_interleave(60), 5)
    seen = observe_striped(trained, labels, public)
    guess = LABEL_RULES.build("identity")(seen, 0)
    with_public = guess.labels
    with_noise = LABEL_RULES.build("identity-noise")(observe_striped(trained, labels, None), 0).labels
    assert "labels were inferred with 600 public images" in guess.notes
    assert seen.knowledge.ledger()["labels"].endswith("which may use the public data")
    assert label_accuracy(labels, with_public) >= 0.8
    assert label_accuracy(labels, with_public) > label_accuracy(labels, with_noise)


@pytest.mark.parametrize("rule", ["identity", "llg-plus"])
def test_classes_missing_from_public_data_can_still_be_named(trained: nn.Module, rule: str):
    labels = torch.tensor([0] * 12 + [1] * 5 + [2] * 2 + [7])
    public = striped(torch.arange(1, 7).repeat_interleave(60), 5)
    found = LABEL_RULES.build(rule)(observe_striped(trained, labels, public), 0)
    assert "4 of 10 classes are missing from the public data" in found.notes
    assert len(found.labels) == len(labels)
    if rule == "identity":
        assert {0, 7} <= set(found.labels.tolist())


@pytest.mark.parametrize("bias", [True, False])
def test_the_equation_holds_exactly_on_the_images_themselves(bias: bool):
    """Mean of (p_i - y_i) z_i over the batch is the gradient the identity is read from, with a bias and without."""
    labels = [0, 0, 2, 5, 5, 9]
    observation = observe(labels, network(bias=bias, sharpness=5.0))
    layer = last_layer(observation)
    truth = respond(observation, layer.model, batch_of(labels).images)
    gradient, readout = bias_equation(layer, truth.features)
    residual = truth.probabilities - F.one_hot(torch.tensor(labels), 10)
    assert torch.allclose((residual * readout[:, None]).mean(0), gradient, atol=1e-6)
    assert float(readout.mean()) == pytest.approx(1.0)


def test_class_means_are_gradients_of_batches_of_one_class():
    """Against automatic differentiation, for the bias and for row sums of the weight."""
    public = batch_of([0, 2, 2, 0, 2])
    model = network(3)
    observation = observe([0, 1], model, classes=3, auxiliary=public)
    responses = public_responses(observation, model, 0)
    assert responses is not None
    classes, in_bias, said = mean_gradients(responses, torch.ones(5).double())
    _, in_rows, _ = mean_gradients(responses, responses.features.sum(1))
    assert classes.tolist() == [0, 2]
    assert said == ("1 of 3 classes are missing from the public data",)
    for row, label in enumerate(classes.tolist()):
        own = public.labels == label
        loss = F.cross_entropy(model(public.images[own]), public.labels[own])
        weight, bias = torch.autograd.grad(loss, [model[-1].weight, model[-1].bias])
        assert torch.allclose(in_bias[row], bias.double(), atol=1e-6)
        assert torch.allclose(in_rows[row], weight.sum(1).double(), atol=1e-5)


@pytest.mark.parametrize("rule", ["llg-plus", "ilrg", "identity", "identity-noise"])
def test_classes_the_network_prefers(rule: str):
    """Unequal last biases make the softmax unequal, which LLG ignores and the better rules take into account."""
    model = network()
    with torch.no_grad():
        model[-1].bias.add_(torch.linspace(-1.5, 1.5, 10))
    labels = [9] * 8 + [8] * 6 + [0] * 2
    better, plain = (LABEL_RULES.build(name)(observe(labels, model), 0).labels for name in (rule, "llg"))
    assert label_accuracy(torch.tensor(labels), better) >= 0.9
    assert label_accuracy(torch.tensor(labels), better) > label_accuracy(torch.tensor(labels), plain)


def test_rows_of_missing_classes_are_modelled_on_the_known():
    known = torch.tensor([[-0.6, 0.4, 0.2], [0.3, -0.4, 0.1]])
    full = with_missing_classes(torch.tensor([0, 1]), known)
    assert torch.equal(full[:2], known)
    assert full[2].tolist() == pytest.approx([0.3, 0.4, -0.5])


def test_a_confident_network_is_not_judged_by_noise():
    observation = observe([1, 1, 4, 6], network(sharpness=60.0))
    assert "confident even on noise" in notes("identity", observation)
    assert guess("identity", observation) == guess("llg", observation)
    many = observe(list(range(10)) * 2, network(sharpness=60.0))
    assert guess("identity", many) == guess("yin", many)


# One image


@pytest.mark.parametrize("label", [0, 4, 9])
@pytest.mark.parametrize("sharpness", [1.0, 20.0])
@pytest.mark.parametrize("rule", ["idlg", "analytic", "yin", "llg", "identity", "identity-noise", "fedleak-count"])
def test_one_image(rule: str, sharpness: float, label: int):
    assert guess(rule, observe([label], network(sharpness=sharpness))) == [label]


@pytest.mark.parametrize("rule", ["idlg", "identity", "analytic"])
def test_one_image_without_a_bias(rule: str):
    observation = observe([3], network(bias=False))
    assert guess(rule, observation) == [3]
    assert "no last bias" in notes(rule, observation)


def test_idlg_refuses_a_batch():
    with pytest.raises(CapabilityError, match="identity"):
        LABEL_RULES.build("idlg")(observe([1, 2]), 0)


# Distinct labels


@pytest.mark.parametrize("rule", ["analytic", "yin", "llg", "identity", "ilrg", "fedleak-count"])
def test_distinct_labels(rule: str):
    labels = [1, 2, 5, 8]
    observation = observe(labels)
    assert guess(rule, observation) == labels
    if rule == "analytic":
        assert notes(rule, observation) == ""


@pytest.mark.parametrize(("labels", "word"), [([1, 1, 1, 2], "filled to 4"), ([0, 0, 0, 1, 1, 5, 7], "filled to 7")])
def test_the_analytic_rule_says_when_labels_repeat(labels: list[int], word: str):
    observation = observe(labels)
    assert set(labels) <= set(guess("analytic", observation))
    assert word in notes("analytic", observation)


def with_bias_gradient(observation: Observation, bias: list[float]) -> Observation:
    tensors = {**observation.update.tensors, "3.bias": torch.tensor(bias)}
    return replace(observation, update=Update(tensors))


def test_the_analytic_rule_cuts_to_the_most_negative():
    observation = with_bias_gradient(observe([0, 1], classes=4), [-0.1, -0.3, -0.2, 0.6])
    assert guess("analytic", observation) == [1, 2]
    assert "cut to 2" in notes("analytic", observation)


@pytest.mark.parametrize("rule", ["analytic", "yin"])
def test_more_images_than_classes_repeat_by_size(rule: str):
    observation = observe([0] * 20 + [1] * 4 + [2], classes=3)
    found = guess(rule, observation)
    assert "distinct labels" in notes(rule, observation)
    assert set(found) == {0, 1, 2}
    assert found.count(0) > 15


# LLG and FedLeak, by hand


def linear_observation(gradient: list[list[float]], batch_size: int) -> Observation:
    """An observation of a bias-free linear model whose weight gradient is given, [C, 36] from column 0 on."""
    full = torch.zeros(len(gradient), 36)
    full[:, : len(gradient[0])] = torch.tensor(gradient)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, len(gradient), bias=False))
    return Observation(model, Update({"1.weight": full}), Knowledge(SHAPE, len(gradient), batch_size=batch_size))


def test_yin_reads_minima_not_sums():
    assert guess("yin", linear_observation([[-5.0, 6.0], [-1.0, 0.0], [3.0, -4.0]], 2)) == [0, 2]


def test_llg_by_hand():
    """Row sums -3, -1, 2, 2: m = 5/4 * -4 / 4 = -1.25; after one label each -1.75 and .25; then 0, and 0 again."""
    assert guess("llg", linear_observation([[-2.0, -1.0], [-1.0, 0.0], [1.0, 1.0], [2.0, 0.0]], 4)) == [0, 0, 0, 1]


def test_llg_gives_every_label_away_again():
    """breaching's port pays for the wrong class and repeats one label for ever: the argmin must move."""
    assert guess("llg", linear_observation([[-3.0], [-2.9], [3.0], [2.9]], 6)) == [0, 0, 0, 1, 1, 1]


def test_both_readings_of_fedleaks_rule_by_hand():
    """Sums -6, -2, 1, 2 over 36 features, largest element 2. Column reading: -8, -4, -1, 0 of -13, times 5."""
    observation = linear_observation([[-6.0], [-2.0], [1.0], [2.0]], 5)
    assert guess("fedleak-count", observation) == [0, 0, 0, 0, 1]
    assert guess("fedleak-count-element", observation) == [0, 0, 1, 2, 3]  # -78, -74, -71, -70 of -293: all 1
    assert "largest column" in notes("fedleak-count", observation)


def test_fedleaks_rule_for_small_batches_takes_the_smallest_columns():
    assert guess("fedleak-count", linear_observation([[-1.0], [3.0], [-4.0], [0.5]], 2)) == [0, 2]


# Edges


SETTINGS: dict[str, Callable[[], Observation]] = {
    "more images than classes": lambda: observe(list(range(3)) * 9, classes=3),
    "fewer images than classes": lambda: observe([1, 1, 2]),
    "no bias": lambda: observe([1, 1, 2, 0], network(3, bias=False), classes=3),
    "two classes": lambda: observe([0, 1, 1, 0], classes=2),
    "batch statistics": lambda: observe([1, 1, 2, 0], network(norm=True), bn="train-nostats"),
    "steps of batch statistics": lambda: observe([1, 1, 2, 0, 4, 4], network(norm=True), bn="train-nostats", steps=3),
}


@pytest.mark.parametrize("rule", BATCH_RULES)
@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
def test_no_rule_fails(rule: str, public: bool, setting: str):
    observation = SETTINGS[setting]()
    knowledge = observation.knowledge
    if public:
        labels = [label % max(knowledge.num_classes - 1, 1) for label in range(31)]
        observation = replace(observation, knowledge=replace(knowledge, auxiliary=batch_of(labels, 3)))
    found = guess(rule, observation)
    assert len(found) == (knowledge.batch_size or 0) * (knowledge.local_steps or 1)
    assert 0 <= min(found) <= max(found) < knowledge.num_classes


@pytest.mark.parametrize("rule", BATCH_RULES)
@pytest.mark.parametrize("bias", [True, False])
def test_a_vanished_gradient_is_reported(rule: str, bias: bool):
    observation = observe([1, 1, 2, 0], network(bias=bias))
    for scale in (0.0, 1e-9):
        tensors = {name: scale * tensor for name, tensor in observation.update.tensors.items()}
        faded = replace(observation, update=Update(tensors))
        assert len(guess(rule, faded)) == 4
        assert "almost zero" in notes(rule, faded)


@pytest.mark.parametrize("rule", BATCH_RULES)
def test_altered_gradients_are_reported(rule: str):
    observation = observe([1, 1, 2, 0])
    pruned = {n: t * (t.abs() > t.abs().quantile(0.7)) for n, t in observation.update.tensors.items()}
    assert "does not sum to zero" in notes(rule, replace(observation, update=Update(pruned)))
    enlarged = {name: 50 * tensor for name, tensor in observation.update.tensors.items()}
    assert "scale is unknown" in notes(rule, replace(observation, update=Update(enlarged)))
    assert "does not sum to zero" not in notes(rule, observation)
    assert "scale is unknown" not in notes(rule, observation)


@pytest.mark.parametrize("rule", ["identity", "identity-noise"])
def test_counts_that_do_not_come_out_whole_are_reported(rule: str):
    observation = with_bias_gradient(observe([0] * 8), [0.3, -0.2] + [-0.0125] * 8)
    assert "far from whole" in notes(rule, observation)
    assert "far from whole" not in notes(rule, observe([0] * 8))


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0.02, 0.6))
def test_clipping_is_undone_to_the_right_factor(seed: int, shrink: float):
    random = generator(seed, "clipping")
    probability = (0.1 * torch.randn(12, generator=random)).double().softmax(0)
    counts = torch.bincount(torch.randint(0, 8, (24,), generator=random), minlength=12).double()
    gradient = probability - counts / 24
    restored, said = undo_clipping(probability, shrink * gradient, 24)
    if said:
        assert torch.equal(round_to_sum(24 * (probability - restored), 24), counts.long())
    unclipped, silent = undo_clipping(probability, gradient, 24)
    assert torch.equal(unclipped, gradient)
    assert not silent


def test_a_convolutional_end_is_refused():
    model = nn.Sequential(nn.Conv2d(1, 10, 6), nn.Flatten())
    zero = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    with pytest.raises(CapabilityError, match="linear"):
        LABEL_RULES.build("identity")(Observation(model, Update(zero), Knowledge(SHAPE, 10, batch_size=2)), 0)


def test_a_frozen_last_layer_is_refused():
    model = network()
    model[-1].requires_grad_(False)
    zero = {name: torch.zeros_like(p) for name, p in model.named_parameters() if p.requires_grad}
    with pytest.raises(CapabilityError, match="trained"):
        LABEL_RULES.build("identity")(Observation(model, Update(zero), Knowledge(SHAPE, 10, batch_size=2)), 0)


def test_half_precision_updates():
    observation = observe([1, 1, 2, 0])
    half = {name: tensor.half() for name, tensor in observation.update.tensors.items()}
    received = Observation(network().half(), Update(half), observation.knowledge)
    assert guess("identity", received) == [0, 1, 1, 2]


def test_given_labels_come_first_and_unknown_rules_are_refused():
    observation = observe([1, 2])
    given_labels = replace(observation, knowledge=replace(observation.knowledge, labels=torch.tensor([7, 3])))
    assert infer_labels(given_labels, 0).labels.tolist() == [7, 3]
    assert infer_labels(observation, 0).labels.tolist() == [1, 2]
    misspelt = replace(observation, knowledge=replace(observation.knowledge, label_rule="identiti"))
    with pytest.raises(UsageError, match="identity"):
        infer_labels(misspelt, 0)


@pytest.mark.parametrize("rule", BATCH_RULES)
def test_a_guess_depends_on_its_seed_alone(rule: str):
    observation = observe([1, 1, 2, 0, 5, 5], network(sharpness=3.0))
    torch.manual_seed(1)
    first = guess(rule, observation)
    torch.manual_seed(2)
    assert guess(rule, observation) == first


# Refinement


SHARP = 30.0


@pytest.mark.parametrize("bias", [True, False])
def test_refinement_with_the_true_images_recovers_the_counts(bias: bool):
    """p from the images themselves makes the identity exact, whatever the labels were, in a confident network too."""
    labels = [0, 0, 0, 2, 2, 5, 7, 7, 7, 7, 7, 9]
    observation = observe(labels, network(sharpness=SHARP if bias else 1.0, bias=bias))
    wrong = torch.tensor([3] * 12)
    refined = refine_labels(observation, batch_of(labels).images, wrong)
    assert label_accuracy(torch.tensor(labels), refined) >= (1.0 if bias else 0.8)


def test_refinement_changes_as_few_labels_as_possible():
    labels = [0, 0, 0, 2, 2, 5, 7, 7]
    observation = observe(labels, network(sharpness=SHARP))
    images = batch_of(labels).images.requires_grad_()
    order = torch.tensor([7, 2, 0, 7, 5, 0, 2, 2])
    refined = refine_labels(observation, images, order)
    changed = refined != order
    assert sorted(refined.tolist()) == labels
    assert int(changed.sum()) == 1
    softmax = network(sharpness=SHARP)(images.detach()).softmax(1).detach()[:, 2]
    assert int(changed.nonzero()) == min([1, 6, 7], key=lambda index: float(softmax[index]))
    assert refined[changed].tolist() == [0]
    assert order.tolist() == [7, 2, 0, 7, 5, 0, 2, 2]


def test_refinement_leaves_right_labels_alone():
    labels = [3, 1, 4, 1, 5, 9, 2, 6]
    observation = observe(labels, network(sharpness=SHARP))
    assert refine_labels(observation, batch_of(labels).images, torch.tensor(labels)).tolist() == labels


def test_moved_images_go_where_their_softmax_is_highest():
    """Two labels 0 are given up, for one 1 and one 2: each image must get the class it looks like."""
    labels = [1, 2, 0]
    observation = observe(labels, network(3, sharpness=SHARP), classes=3)
    images = batch_of(labels).images
    softmax = network(3, sharpness=SHARP)(images).softmax(1).detach()
    refined = refine_labels(observation, images, torch.tensor([0, 0, 0]))
    kept = int((refined == 0).nonzero())
    assert kept == int(softmax[:, 0].argmax())
    first, second = (index for index in range(3) if index != kept)
    straight = float(softmax[first, 1] + softmax[second, 2])
    crossed = float(softmax[first, 2] + softmax[second, 1])
    assert refined[[first, second]].tolist() == ([1, 2] if straight >= crossed else [2, 1])


def test_refinement_improves_as_the_reconstruction_converges():
    """From noise to the images: accuracy rises to one."""
    labels = [0] * 9 + [3] * 4 + [8] * 3
    observation = observe(labels, network(sharpness=SHARP))
    target, noise = batch_of(labels).images, batch_of(labels, 77).images
    start = LABEL_RULES.build("identity")(observation, 0).labels

    def accuracy(share: float) -> float:
        images = share * target + (1 - share) * noise
        return label_accuracy(torch.tensor(labels), refine_labels(observation, images, start))

    assert accuracy(1.0) == 1.0
    assert accuracy(0.9) >= accuracy(0.0)


def test_refinement_over_local_steps_and_wrong_sizes():
    labels = [0, 0, 4, 4, 4, 7]
    observation = observe(labels, steps=3)
    assert sorted(refine_labels(observation, batch_of(labels).images, torch.tensor([1] * 6)).tolist()) == labels
    with pytest.raises(InputError, match="2 inputs"):
        refine_labels(observation, batch_of([1, 2]).images, torch.tensor([1] * 6))
