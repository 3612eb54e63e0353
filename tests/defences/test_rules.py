"""What may be composed with what: every rule refuses its pair with a reason, and allows the pair written right."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import pairwise, product

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES, STAGES, CostReport, Defence
from fedseal.core.errors import UsageError
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.core.traits import Traits
from fedseal.defences.pipeline import Pipeline, build_defence
from fedseal.defences.rules import RULES, check, remarks
from fedseal.federation.client import RoundConfig, client_round
from fedseal.federation.wire import decode, encode
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)
TRAITS = [one.name for one in fields(Traits)]

BY_NAME_ALONE = [name for name in DEFENCES.names() if name != "pretrained"]
"""Every defence but the one that needs a file."""


def member(name: str, stage: str = "update", needs_sample_grads: bool = False, **traits: bool) -> Defence:
    """Return a defence that does nothing and declares something."""
    declared = {"info": Info("", name=name), "stage": stage, "needs_sample_grads": needs_sample_grads}
    return type("Declares", (Defence,), {**declared, "traits": Traits(**traits)})()


NOISE = member("noise", accounts_epsilon=True)
SAMPLES = member("samples", "sample", accounts_epsilon=True, needs_sample_grads=True)
PRUNE = member("prune", data_dependent_mask=True)
MASKS = member("masks", "aggregate", masks_upload=True)


@dataclass(frozen=True)
class Case:
    """A pair that breaks a rule, the reason it is given, and pairs that are allowed."""

    rule: str
    refused: tuple[Defence, Defence]
    reason: str
    allowed: tuple[tuple[Defence, ...], ...] = field(default=())


CASES = (
    Case(
        "stage order",
        (member("late", "update"), member("early", "data")),
        "early acts on the data and cannot come after late",
        ((member("early", "data"), member("late", "update")),),
    ),
    Case("one reducer", (SAMPLES, SAMPLES), "both reduce", ((SAMPLES, NOISE),)),
    Case(
        "residual of the noised vector",
        (member("feedback", keeps_residual=True), NOISE),
        "feedback keeps what it does not send, before noise adds noise",
        ((NOISE, member("feedback", keeps_residual=True)), (member("feedback", keeps_residual=True), PRUNE)),
    ),
    Case(
        "mask before noise",
        (PRUNE, NOISE),
        "prune chooses coordinates by the private values before noise",
        ((NOISE, PRUNE), (PRUNE, member("jitter")), (SAMPLES, PRUNE)),
    ),
    Case(
        "private batch after noise",
        (NOISE, member("reader", reads_batch=True)),
        "reader looks at the private batch again after noise",
        ((member("reader", reads_batch=True), NOISE),),
    ),
    Case(
        "plain gradient and per-sample gradients",
        (member("refine", "data", reads_batch=True), SAMPLES),
        "refine and samples cannot share a pass",
        ((member("refine", "data"), SAMPLES),),
    ),
    Case(
        "mixed samples and per-sample accounting",
        (member("mix", "data", mixes_samples=True), SAMPLES),
        "group accounting",
        ((member("mix", "data", mixes_samples=True), NOISE),),
    ),
    Case(
        "prune before rescaling",
        (member("adaptive", rescales=True), PRUNE),
        "adaptive makes all magnitudes alike, so prune would choose by nothing",
        ((PRUNE, member("adaptive", rescales=True)),),
    ),
    Case(
        "linear aggregation",
        (member("per client", linear=False), MASKS),
        "per client needs the server to treat every upload by itself",
        ((member("per client", linear=False), PRUNE),),
    ),
    Case(
        "one quantiser",
        (member("levels", "encoding"), MASKS),
        "masks adds up numbers on its own grid",
        ((PRUNE, member("levels", "encoding")),),
    ),
    Case(
        "one common set",
        (member("encrypt", "aggregate", data_dependent_mask=True), MASKS),
        "every client would encrypt another set",
        ((member("encrypt", "aggregate", common_support=True), MASKS),),
    ),
    Case("one mask", (MASKS, member("more", "aggregate", masks_upload=True)), "both mask whole uploads"),
)


def test_every_rule_that_refuses_has_a_case():
    assert [case.rule for case in CASES] == [rule.name for rule in RULES if rule.refuses]
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_a_rule_refuses_its_pair_wherever_it_stands_and_says_why(case: Case):
    rule = next(rule for rule in RULES if rule.name == case.rule)
    assert rule.broken(*case.refused)
    early, late = case.refused
    between = member("between", early.stage)
    for members in ((early, late), (early, between, late)):
        with pytest.raises(UsageError, match=case.reason) as caught:
            Pipeline(members)
        assert caught.value.hint
        assert "{" not in str(caught.value)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.rule)
def test_what_is_right_is_allowed(case: Case):
    for members in case.allowed:
        check(members)


@pytest.mark.parametrize("spec", ["soteria+gaussian", "gaussian+soteria", "soteria+dp-sgd", "dp-sgd+soteria"])
def test_no_order_is_recommended_that_is_refused_as_well(spec: str):
    with pytest.raises(UsageError) as caught:
        build_defence(spec)
    assert "Write" not in str(caught.value)
    assert "leave one of them out" in str(caught.value).lower()


def test_every_order_that_is_recommended_is_allowed():
    names = [name for name in BY_NAME_ALONE if name != "none"]
    hints = {pair: hint for pair in product(names, names) if (hint := refusal(*pair)) is not None}
    assert len(hints) > 50
    assert all(hints.values())
    for (one, other), hint in hints.items():
        if hint.startswith("Write"):
            assert hint.startswith(f"Write {other}+{one}")
            assert (other, one) not in hints


def refusal(one: str, other: str) -> str | None:
    """Return the hint two defences are refused with, or None if they are allowed."""
    try:
        build_defence(f"{one}+{other}")
    except UsageError as error:
        return error.hint or ""
    return None


def test_masked_sums_of_sparse_uploads_are_allowed_with_a_remark():
    pipeline = Pipeline([PRUNE, MASKS])
    assert any("dense" in remark for remark in pipeline.report().remarks)
    assert remarks([member("adgp", data_dependent_mask=True, common_support=True), MASKS]) == ()
    assert remarks([NOISE, PRUNE]) == ()


def test_an_epsilon_that_is_reported_counts_even_if_it_was_not_declared():
    class Quiet(Defence):
        name = "quiet"

        def report(self) -> CostReport:
            return CostReport(epsilon_nominal=3.0)

    with pytest.raises(UsageError, match="prune chooses"):
        Pipeline([PRUNE, Quiet()])


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("topk+gaussian", "topk chooses coordinates.*Write gaussian[+]topk"),
        ("topk:feedback=true+gaussian", "topk keeps what it does not send"),
        ("quantise+topk", "topk acts on the update and cannot come after quantise"),
        ("secagg+topk", "cannot come after secagg"),
        ("secagg+quantise", "cannot come after secagg"),
        ("quantise+secagg", "on its own grid"),
        ("quantise+cancelling-noise", "on its own grid"),
        ("secagg+cancelling-noise", "both mask whole uploads"),
        ("selective-encryption+secagg", "common=true"),
        ("secagg+selective-encryption", "common=true"),
    ],
)
def test_pipelines_that_are_refused(spec: str, reason: str):
    with pytest.raises(UsageError, match=reason):
        build_defence(spec)


@pytest.mark.parametrize(
    "spec",
    [
        "gaussian+topk",
        "gaussian+topk:feedback=true",
        "topk+gaussian:clip=inf",  # states no epsilon
        "topk+gaussian:sigma=0",
        "topk:ratio=0+gaussian",
        "gaussian+topk+quantise",
        "topk+secagg",
        "gaussian+secagg",
        "quantise+secagg:clients=1",
        "selective-encryption:common=true+secagg",
        "local-steps+large-batch+gaussian+topk+quantise+selective-encryption",
    ],
)
def test_pipelines_that_are_allowed(spec: str):
    assert isinstance(build_defence(spec), Pipeline)


def test_the_order_of_stages_is_the_documents():
    assert STAGES == ("data", "model", "sample", "gradient", "update", "encoding", "aggregate")
    for early, late in pairwise(STAGES):
        check([member("one", early), member("two", late)])
        with pytest.raises(UsageError, match=r"Write one\+two"):
            check([member("two", late), member("one", early)])


def test_a_pipeline_has_the_traits_of_its_members():
    for trait in TRAITS:
        default = getattr(Traits(), trait)
        if trait == "common_support":
            continue
        odd = member("odd", **{trait: not default})
        assert getattr(Pipeline([Defence(), odd]).traits, trait) is not default, trait
        assert getattr(Pipeline([Defence(), Defence()]).traits, trait) is default, trait
    common = member("common", data_dependent_mask=True, common_support=True)
    assert Pipeline([Defence(), common]).traits.common_support
    assert not Pipeline([common, PRUNE]).traits.common_support


def test_the_plain_defence_claims_nothing():
    assert Defence().traits.named() == ()
    assert {trait: getattr(Traits(), trait) for trait in TRAITS} == {trait: trait == "linear" for trait in TRAITS}


# Rule 8: buffers of batch normalisation never travel


def noted() -> tuple[nn.Module, Batch]:
    model = build_model("resnet10:width=4", input_shape=SHAPE, num_classes=4, seed=0)
    source = generator(0, "images")
    return model, Batch(torch.rand(4, *SHAPE, generator=source), torch.randint(4, (4,), generator=source))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "lids" else []) for name in BY_NAME_ALONE]
)
def test_batch_statistics_never_travel(name: str, steps: int):
    model, batch = noted()
    defence = build_defence(name)
    with torch.random.fork_rng(devices=[]):
        wrapped = defence.wrap_model(model)
        config = RoundConfig(local_steps=steps, bn_mode="train-exact-stats")
        done = client_round(wrapped, [batch] * steps, config, defence, generator(0))
    buffers = {key for key, _ in wrapped.named_buffers()}
    assert buffers or not any(isinstance(module, _BatchNorm) for module in wrapped.modules())  # replaced under DP
    assert buffers or name != "none"
    trainable = {key for key, p in wrapped.named_parameters() if p.requires_grad}
    sent = decode(encode(done.update.tensors))
    assert set(sent) <= trainable
    assert not set(sent) & buffers
    statistics = [value for pair in done.bn_statistics.values() for value in pair]
    for tensor in sent.values():
        assert not any(same_values(tensor, value) for value in statistics)


def same_values(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(torch.equal(one, other))
