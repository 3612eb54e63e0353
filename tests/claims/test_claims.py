"""Claims are declared whole and runnable, rules decide as their intervals say, and outcomes are kept and printed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import nn

from fedseal.audit.factors import scenarios_of
from fedseal.claims import claim as claim_module
from fedseal.claims.claim import Check, Claim, declared, find_claims
from fedseal.claims.experiments import METRICS
from fedseal.claims.ledger import load_ledger, load_outcome, save_outcome, shipped_outcome
from fedseal.claims.measures import MEASURES
from fedseal.claims.place import Place
from fedseal.claims.rules import Above, Falls, Flat, Near, Over, Peak, Rises, Rule, Standing, Under
from fedseal.claims.runner import run_claims
from fedseal.claims.samples import Sample, Samples
from fedseal.claims.variants import LayerNoise, PruneBy, Visible
from fedseal.cli import main
from fedseal.core.attack import ATTACKS
from fedseal.core.defence import RoundContext
from fedseal.core.errors import InputError, StorageError, UsageError
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.report.claims import (
    STALE,
    claim_text,
    render_claims_html,
    render_claims_markdown,
    standing_words,
    write_claims,
)
from fedseal.store.records import TrialRecord
from fedseal.training.scenario import validate_training


def samples(**arms: list[float]) -> Samples:
    """Return arms whose values are the groups' only ones."""
    return Samples(Sample(arm, group, 0, value) for arm, values in arms.items() for group, value in enumerate(values))


NOISY = [0.1, -0.2, 0.15, -0.05]
LOW, HIGH = [1 + x for x in NOISY], [5 - x for x in NOISY]
WIDE = [-8.0, 9.0, 3.0, 8.0]


# --- declarations


def test_every_claim_of_the_five_papers_is_declared():
    counts = {"F": 20, "R": 16, "D": 8, "A": 6, "L": 5}
    assert list(declared()) == [f"{paper}{n}" for paper, count in counts.items() for n in range(1, count + 1)]


CHECKS = [
    pytest.param(check, id=f"{name}-{place}")
    for name, one in declared().items()
    for place, check in enumerate(one.checks)
]


def named(given: Any) -> dict[str, str]:
    return (
        {str(k): str(v) for k, v in given.items()} if isinstance(given, dict) else {str(v): str(v) for v in given or []}
    )


@pytest.mark.parametrize("check", CHECKS)
def test_a_declared_check_names_what_exists_and_its_rule_the_arms_it_makes(check: Check):
    arms: set[str]
    if check.audit is not None:
        attacks, defences = named(check.audit["attacks"]), named(check.audit.get("defences") or {"none": "none"})
        scenarios = scenarios_of(
            {**check.audit, "attacks": list(attacks.values()), "defences": list(defences.values())}
        )
        assert all(len(one.weight_seeds) >= 3 for one in scenarios) or "seer" in str(attacks)
        for spec in attacks.values():
            ATTACKS.build(spec)
        for spec in defences.values():
            build_defence(spec)
        axes = {
            "attack": list(attacks),
            "defence": list(defences),
            "level": [" ".join(s.levels.values()) for s in scenarios],
        }
        arms = {""}
        for axis in check.by:
            arms = {f"{arm} / {value}" if arm else value for arm in arms for value in axes[axis]}
    elif check.train is not None:
        defences = named(check.train["defences"])
        scenario = validate_training({**check.train, "defences": list(defences.values())}, source="")
        assert len(scenario.seeds) >= 4  # fewer have no interval
        for spec in defences.values():
            build_defence(spec)
        arms = {"none", *defences}
    else:
        assert check.measure is not None
        assert check.measure["name"] in MEASURES
        return
    assert set(check.rule.arms) <= arms
    assert check.power is None or set(check.power.rule.arms) <= arms


def test_an_identity_is_of_all_that_was_declared():
    one = declared()["F1"]
    assert one.identity == Claim.model_validate(one.model_dump()).identity
    assert one.model_copy(update={"published": "else"}).identity != one.identity
    assert one.model_copy(update={"remark": "said after the run"}).identity == one.identity


def test_claims_are_found_by_name_and_by_paper():
    assert [one.id for one in find_claims(["l2", "A"])] == ["L2", *(f"A{n}" for n in range(1, 7))]
    assert len(find_claims([])) == 55
    with pytest.raises(UsageError, match="no claim 'F99'"):
        find_claims(["F99"])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "says what it needs"),
        ({"checks": [{"rule": {"falls": ["a", "b"]}}]}, "one of audit, train and measure"),
        ({"checks": [{"audit": {}, "rule": {"grows": ["a"]}}]}, "rule"),
    ],
)
def test_a_declaration_that_says_too_little_is_refused(values: dict[str, Any], says: str):
    head = {"id": "F1", "where": "", "claim": "", "published": ""}
    with pytest.raises(ValueError, match=says):
        Claim.model_validate({**head, **values})


# --- rules


@pytest.mark.parametrize(
    ("rule", "arms", "standing"),
    [
        (Above(above="a", than=("b",)), {"a": HIGH, "b": LOW}, Standing.REPRODUCED),
        (Above(above="a", than=("b",)), {"a": LOW, "b": HIGH}, Standing.CONTRADICTED),
        (Above(above="a", than=("b",)), {"a": WIDE, "b": LOW}, Standing.UNDECIDED),
        (Above(above="a", than=("b",), by=10), {"a": HIGH, "b": LOW}, Standing.CONTRADICTED),
        (Above(above="a", than=("b", "c")), {"a": HIGH, "b": LOW, "c": WIDE}, Standing.UNDECIDED),
        (Falls(falls=("a", "b", "c")), {"a": HIGH, "b": [3.0] * 4, "c": LOW}, Standing.REPRODUCED),
        (Rises(rises=("a", "b", "c")), {"a": HIGH, "b": [3.0] * 4, "c": LOW}, Standing.CONTRADICTED),
        (Flat(flat=("a", "b"), within=1), {"a": LOW, "b": [x + 0.2 for x in LOW]}, Standing.REPRODUCED),
        (Flat(flat=("a", "b"), within=1), {"a": LOW, "b": HIGH}, Standing.CONTRADICTED),
        (Flat(flat=("a", "b"), within=1), {"a": LOW, "b": WIDE}, Standing.UNDECIDED),
        (Peak(peak=("a", "b", "c")), {"a": LOW, "b": HIGH, "c": LOW}, Standing.REPRODUCED),
        (Peak(peak=("a", "b", "c")), {"a": HIGH, "b": [3.0] * 4, "c": LOW}, Standing.CONTRADICTED),
        (Peak(peak=("a", "b", "c")), {"a": LOW, "b": WIDE, "c": LOW}, Standing.UNDECIDED),
        (Over(over=4, of=("a",)), {"a": HIGH}, Standing.REPRODUCED),
        (Under(under=4, of=("a",)), {"a": HIGH}, Standing.CONTRADICTED),
        (Near(near={"a": 1.1}, within=1), {"a": LOW}, Standing.REPRODUCED),
        (Near(near={"a": 3}, within=0.5), {"a": LOW}, Standing.CONTRADICTED),
    ],
)
def test_a_rule_decides_by_its_intervals(rule: Rule, arms: dict[str, list[float]], standing: Standing):
    assert rule.decide(samples(**arms)).standing is standing


def test_one_or_two_values_decide_nothing():
    assert Above(above="a", than=("b",)).decide(samples(a=[9.0], b=[1.0])).standing is Standing.UNDECIDED


def test_differences_are_paired_and_slopes_are_least_squares():
    found = samples(a=[1.0, 2.0, 3.0, 4.0], b=[0.5, 1.5, 2.5, 3.5])
    assert found.difference("a", "b").mean == found.difference("a", "b").low == pytest.approx(0.5)
    values = {"p": 1.0, "q": 4.0, "r": 4.5}
    line = stats.linregress(range(3), list(values.values()))
    assert samples(**{arm: [v] * 4 for arm, v in values.items()}).slope(("p", "q", "r")).mean == pytest.approx(
        2 * line.slope
    )


def test_an_unknown_arm_and_groups_that_never_meet_are_named():
    with pytest.raises(InputError, match="nothing was measured for 'c'"):
        samples(a=LOW).mean("c")
    apart = Samples([Sample("a", 0, 0, 1.0), Sample("b", 1, 0, 1.0)])
    with pytest.raises(InputError, match="no group of values has all of a, b"):
        apart.difference("a", "b")


def test_a_true_claim_is_seldom_contradicted_and_a_false_one_seldom_reproduced():
    """Under equal arms each of both errors has 2.5 %."""
    source = torch.Generator().manual_seed(0)
    drawn = torch.randn(400, 2, 5, generator=source).tolist()
    ends = [Above(above="a", than=("b",)).decide(samples(a=a, b=b)).standing for a, b in drawn]
    assert sum(one is Standing.REPRODUCED for one in ends) / 400 < 0.05
    assert sum(one is Standing.CONTRADICTED for one in ends) / 400 < 0.05


# --- defences that only claims ask about


def context() -> RoundContext:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    return RoundContext(model=model, loss=lambda f, b: f(b.images).sum(), generator=generator(0))


def test_pruning_follows_its_criterion():
    around = context()
    weight = torch.tensor([[4.0, 3.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
    around.model[1].weight.data = weight  # type: ignore[index, union-attr]
    gradient = {
        "1.weight": torch.tensor([[1.0, 1.0, 1.0, 9.0], [0.0, 0.0, 0.0, 2.0]]),
        "1.bias": torch.tensor([1.0, 2.0]),
    }
    kept = {
        criterion: PruneBy(criterion, 0.75).on_gradient(gradient, around)["1.weight"].nonzero().tolist()
        for criterion in ("product", "gradient", "weight")
    }
    assert kept == {"product": [[0, 0], [0, 3]], "gradient": [[0, 3], [1, 3]], "weight": [[0, 0], [0, 1]]}


def test_the_ends_of_the_order_are_what_is_sent():
    update = {"w": torch.tensor([3.0, -1.0, 2.0, -5.0, 4.0])}
    assert Visible("top", 0.4).on_update(update, context())["w"].tolist() == [0, 0, 0, -5, 4]
    assert Visible("bottom", 0.4).on_update(update, context())["w"].tolist() == [0, -1, 2, 0, 0]
    assert torch.equal(Visible("bottom", 1.0).on_update(update, context())["w"], update["w"])


def test_noise_falls_on_its_half_alone():
    gradient = {name: torch.ones(50) for name in ("a", "b", "c", "d")}
    changed = LayerNoise("shallow").on_gradient(gradient, context())
    assert [torch.equal(changed[name], gradient[name]) for name in gradient] == [False, False, True, True]


def test_noise_is_in_units_of_the_gradient_or_the_same_for_all():
    gradient = {"a": torch.full((4000,), 100.0), "b": torch.ones(1)}
    spread = [
        float((LayerNoise("shallow", 0.1, relative=relative).on_gradient(gradient, context())["a"] - 100).std())
        for relative in (True, False)
    ]
    assert spread == [pytest.approx(10, rel=0.05), pytest.approx(0.1, rel=0.05)]


# --- running


AUDIT = {
    "data": "faces:size=8",
    "model": "mlp:width=8",
    "attacks": {"exact": "first-layer", "poor": "ig:iterations=1"},
    "targets": 1,
    "readings": 0,
    "weight_seeds": [0, 1, 2, 3],
}


def planted(**values: Any) -> Claim:
    check = {"audit": AUDIT, "rule": {"above": "exact", "than": ["poor"]}} | values
    return Claim.model_validate({"id": "F1", "where": "here", "claim": "c", "published": "p", "checks": [check]})


def test_a_claim_is_decided_kept_and_not_run_again(tmp_path: Path):
    claim = planted(power={"rule": {"over": 0, "of": ["exact"]}})
    (outcome,) = run_claims([claim], Place(tmp_path))
    assert outcome.standing is Standing.REPRODUCED
    assert outcome.declaration == claim.identity
    assert outcome.checks[0].means["exact"].n == 4
    assert load_outcome(tmp_path, claim) == outcome
    (again,) = run_claims([claim], Place(tmp_path))
    assert again.checks == outcome.checks
    assert again.cpu_seconds < outcome.cpu_seconds


def test_what_contradicts_is_said(tmp_path: Path):
    claim = planted(rule={"above": "poor", "than": ["exact"]}).model_copy(update={"remark": "looked at twice"})
    (outcome,) = run_claims([claim], Place(tmp_path))
    assert outcome.standing is Standing.CONTRADICTED
    assert standing_words(claim, outcome).startswith("contradicted: poor - exact: -")
    assert "remark: looked at twice" in claim_text(claim, outcome)


def test_without_power_nothing_is_decided(tmp_path: Path):
    weak = planted(power={"rule": {"over": 0, "of": ["poor"]}})
    (outcome,) = run_claims([weak], Place(tmp_path))
    assert outcome.standing is Standing.UNDECIDED
    assert outcome.reason.startswith("no power: poor: above 0 (gain) does not hold")


def test_trials_that_fail_are_the_reason(tmp_path: Path):
    claim = planted(audit=AUDIT | {"model": "lenet"})
    (outcome,) = run_claims([claim], Place(tmp_path))
    assert outcome.standing is Standing.UNDECIDED
    assert "no value for exact" in outcome.reason
    assert "linear" in outcome.reason


def test_missing_data_and_missing_methods_are_named(tmp_path: Path):
    absent = planted().model_copy(update={"data": ("cifar100",)})
    (outcome,) = run_claims([absent], Place(tmp_path))
    assert outcome.reason.startswith("needs cifar100: ")
    claim = declared()["L5"]
    (outcome,) = run_claims([claim], Place(tmp_path))
    assert (outcome.standing, outcome.reason) == (Standing.UNDECIDED, f"needs {claim.needs}")


def test_trainings_are_compared_by_seed(tmp_path: Path):
    train = {
        "data": "faces:size=8",
        "model": "mlp:width=8",
        "clients": 2,
        "federation": {"rounds": 2, "learning_rate": 0.1},
        "defences": {"drowned": "gaussian:sigma=100"},
        "seeds": [0, 1, 2, 3],
    }
    check = {"train": train, "metric": "bytes up", "by": "defence", "rule": {"near": {"drowned": 1}, "within": 0.2}}
    claim = planted().model_copy(update={"checks": (Check.model_validate(check),)})
    (outcome,) = run_claims([claim], Place(tmp_path))
    assert outcome.checks[0].means["drowned"].n == 4, outcome.reason


def test_an_unknown_metric_is_refused(tmp_path: Path):
    (outcome,) = run_claims([planted(metric="beauty")], Place(tmp_path))
    assert "trials have no 'beauty'" in outcome.reason


def test_measurements_yield_their_arms(tmp_path: Path):
    noise = list(MEASURES["noise-in-images"](Place(tmp_path), data="faces", quantity="psnr", images=4))
    assert {one.arm for one in noise} == {f"{tenth / 10:g}" for tenth in range(1, 10)}
    found = Samples(noise)
    assert Falls(falls=found.arms).decide(found).standing is Standing.REPRODUCED
    cost = Samples(
        MEASURES["step-cost"](
            Place(tmp_path), data="faces:size=8", model="mlp:width=8", defences={"n": "gaussian"}, repeats=2
        )
    )
    assert cost.mean("none").mean == 1
    moved = MEASURES["magnitude-and-sensitivity"](
        Place(tmp_path), data="faces:size=8", model="mlp:width=8", samples=3, draws=4, seeds=(0,)
    )
    assert all(-1 <= one.value <= 1 for one in moved)


# --- the ledger


def test_an_outcome_under_another_declaration_is_out_of_date(tmp_path: Path):
    claim = declared()["L5"]
    (outcome,) = run_claims([claim], Place(tmp_path))
    assert standing_words(claim, outcome) == f"undecided: needs {claim.needs}"
    assert standing_words(claim.model_copy(update={"where": "else"}), outcome) == STALE


def test_a_damaged_outcome_is_refused(tmp_path: Path):
    (tmp_path / "F1").mkdir()
    (tmp_path / "F1" / "outcome.json").write_text("{}")
    with pytest.raises(StorageError, match="no outcome of a claim"):
        load_ledger(tmp_path)


def test_an_outcome_of_ones_own_goes_before_the_shipped_one(tmp_path: Path):
    """A user who decides a claim again sees what came of it here, and elsewhere the one that came with the package."""
    shipped = load_ledger(tmp_path)
    claim = declared()["F1"]
    assert shipped["F1"] == shipped_outcome(claim)
    save_outcome(tmp_path, replace(shipped["F1"], standing=Standing.CONTRADICTED, ended="today"))
    assert load_ledger(tmp_path)["F1"].ended == "today"
    assert load_ledger(tmp_path)["F17"] == shipped["F17"]


def test_the_page_of_the_ledger_is_what_the_shipped_outcomes_say(tmp_path: Path):
    pages = Path(__file__).parents[2] / "docs" / "results"
    outcomes = load_ledger(tmp_path)
    again = "run `fedseal claims write docs/results`"
    assert (pages / "claims.md").read_text(encoding="utf-8") == render_claims_markdown(outcomes), again
    assert (pages / "claims.html").read_text(encoding="utf-8") == render_claims_html(outcomes), again


def test_every_shipped_outcome_is_of_a_claim_as_it_is_declared_now(tmp_path: Path):
    shipped = load_ledger(tmp_path)
    assert [name for name, outcome in shipped.items() if not outcome.is_current] == []
    files = Path(claim_module.__file__).parent / "decided"
    assert {path.stem for path in files.iterdir()} == set(shipped)


def test_pages_have_every_claim_and_escape_what_they_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    claim = planted().model_copy(update={"claim": "<b>bold</b> | claim"})
    monkeypatch.setattr(claim_module, "declared", lambda: {"F1": claim})
    (outcome,) = run_claims([claim], Place(tmp_path))
    for module in ("fedseal.report.claims", "fedseal.claims.ledger"):
        monkeypatch.setattr(f"{module}.declared", lambda: {"F1": claim})
    page, text = render_claims_html({"F1": outcome}), render_claims_markdown({"F1": outcome})
    assert "<b>bold" not in page + text
    assert "exact - poor" in page
    assert "exact - poor" in text
    assert "1 claim: 1 reproduced." in text
    paths = write_claims({"F1": outcome}, tmp_path / "pages")
    assert [path.name for path in paths] == ["claims.md", "claims.html", "claims.json"]
    assert json.loads(paths[2].read_text())["claims"][0]["outcome"]["standing"] == "reproduced"
    assert "exact - poor" in claim_text(claim, outcome)


def test_the_command_prints_runs_shows_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)

    def fedseal(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["fedseal", "claims", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code in {0, None}
        return " ".join("".join(capsys.readouterr()).split())

    assert "0 of these outcomes are of fedseal-claims" in fedseal()
    assert "undecided: needs a judge" in fedseal("run", "L5")
    assert "1 of these outcomes are of fedseal-claims" in fedseal()
    assert "stands: undecided: needs a judge" in fedseal("show", "l5")
    assert "wrote pages/claims.md" in fedseal("write", "pages")


def test_a_gain_is_over_guesses_an_attacker_can_make() -> None:
    guesses = {"mean_image": (12.0,), "class_mean": (13.0,), "nearest": (16.0,), "flat": (17.0,)}
    record = TrialRecord(
        key="k", scenario="s", defence="none", attack="ig", aware=False, target=0, psnr=(15.0,), baselines=guesses
    )
    assert METRICS["gain"](record.model_copy(update={"label_accuracy": 1.0})) == pytest.approx(2.0)
    assert METRICS["gain"](record.model_copy(update={"label_accuracy": 0.0})) == pytest.approx(3.0)


def test_what_is_near_exact_is_counted_by_image() -> None:
    record = TrialRecord(
        key="k", scenario="s", defence="none", attack="dlg", aware=False, target=0, psnr=(40.0, 6.0), mse=(1e-4, 0.25)
    )
    assert METRICS["near exact"](record) == 0.5


def test_a_share_near_one_has_the_interval_of_a_share() -> None:
    found = [Sample("ig", seed, unit, float((seed, unit) != (3, 0))) for seed in range(5) for unit in range(2)]
    assert 0.5 < Samples(found, shares=True).mean("ig").low < 0.9
    assert Samples(found, shares=True).mean("ig").high <= 1
    assert Over(over=0.1, of=("ig",)).decide(Samples(found, shares=True)).standing is Standing.REPRODUCED
