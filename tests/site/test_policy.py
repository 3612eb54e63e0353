"""A site's policy file: what it says, what it refuses, and that its limits hold."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedseal.core.errors import FedsealError, StorageError, UsageError
from fedseal.site.admission import admitted, check_risk
from fedseal.site.policy import MetricRule, Policy, RiskRules
from fedseal.site.policy_file import read_policy

POLICY = """
federation: heart-study
data: ward-7
seal:
  default: gaussian:clip=1.0,sigma=0.05
  allow:
    - {defence: gaussian, options: {clip: {max: 1.0}, sigma: {min: 0.05}}}
    - {defence: topk, options: {ratio: {min: 0.9}}}
budget: {rounds: 100, epsilon: 800}
leave:
  metrics:
    num-examples: {min: 1, max: 1000, step: 1}
    train-loss: {min: 0, max: 10, step: 0.1}
"""


def written(path: Path, text: str = POLICY) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_a_policy_says_what_seals_and_keeps_its_ledger_beside_itself(tmp_path: Path):
    policy = read_policy(written(tmp_path / "policy.yaml"))
    assert policy.seal.default == "gaussian:clip=1.0,sigma=0.05"
    assert policy.ledger == tmp_path / "fedseal-ledger.sqlite"
    assert policy.leave.surplus == "refuse"
    assert policy.detector.on_alarm == "refuse"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seal: {default: dp-sgd}", "acts while an app trains"),
        ("seal: {default: secagg}", "protocol between several parties"),
        ("seal: {default: topkk}", "Did you mean 'topk'"),
        ("seal: {default: none, allow: [{defence: topk, options: {ration: {min: 1}}}]}", "has no option 'ration'"),
        ("budget: {rounds: 3}\nseal: {defualt: topk}", "'seal.defualt'"),
        ("federation: x", "seal"),
        ("seal: {default: none}\nleave: {metrics: {a: {min: 2, max: 1, step: 1}}}", "min is above max"),
        ("seal: {default: none}\nleave: {messages: [gossip]}", "messages"),
        ("seal: {default: none}\nleave: {metrics: {a: {min: 0, max: .inf, step: 1}}}", "finite"),
    ],
)
def test_what_cannot_be_kept_is_refused_at_the_start(text: str, words: str, tmp_path: Path):
    with pytest.raises(UsageError) as refused:
        read_policy(written(tmp_path / "policy.yaml", text))
    assert words in str(refused.value)


def test_a_policy_that_others_can_change_is_none(tmp_path: Path):
    path = written(tmp_path / "policy.yaml")
    path.chmod(0o666)
    with pytest.raises(StorageError, match="can be changed by others"):
        read_policy(path)
    with pytest.raises(UsageError, match="cannot read the policy"):
        read_policy(tmp_path / "missing.yaml")


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    return read_policy(written(tmp_path / "policy.yaml"))


@pytest.mark.parametrize(
    "asked",
    [
        None,
        "",
        "gaussian:clip=1.0,sigma=0.05",
        "gaussian:clip=0.5,sigma=0.1",
        "topk:ratio=0.95",
        "gaussian:clip=1,sigma=0.05+topk:ratio=0.9",
    ],
)
def test_a_run_may_ask_for_what_is_strong_enough(policy: Policy, asked: str | None):
    assert admitted(policy.seal, asked) == (asked or policy.seal.default)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ("none", "does not allow the defence 'none'"),
        ("gaussian:clip=1,sigma=0.01", "sigma at least 0.05"),
        ("gaussian:sigma=0.05,clip=inf", "clip at most 1"),
        ("topk:ratio=0.5", "ratio at least 0.9"),
        ("topk+none", "ratio"),
        ("topk:ratio=0.9+none", "does not allow the defence 'none'"),
        ("os:abort", "does not allow the defence 'os'"),
        ("topk:ratio=nan", "cannot be 'nan'"),
        (7, "not a text"),
        (True, "not a text"),
    ],
)
def test_a_run_may_not_ask_for_less(policy: Policy, asked: object, words: str):
    with pytest.raises(FedsealError) as refused:
        admitted(policy.seal, asked)
    assert words in str(refused.value)


def test_a_runs_own_module_is_never_imported(policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "weak_seal.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for asked in ("weak_seal:Weak", "weak_seal:Weak:strength=1", "topk:ratio=0.9+weak_seal:Weak"):
        with pytest.raises(UsageError):
            admitted(policy.seal, asked)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("value", "left"), [(0.31, 0.3), (-5, 0.0), (1e30, 10.0), (9.99, 10.0), (0.3000000000001, 0.3)]
)
def test_a_metric_is_clamped_and_rounded(value: float, left: float):
    rule = MetricRule(min=0, max=10, step=0.1)
    assert rule.rounded(value) == pytest.approx(left, abs=1e-12)


def test_a_metric_takes_no_more_values_than_its_bits_say():
    rule = MetricRule(min=-1, max=1, step=0.25)
    values = {rule.rounded(-2 + 4 * step / 9999) for step in range(10_000)}
    assert len(values) == 9
    assert rule.bits == pytest.approx(math.log2(9))


def report(path: Path, **levels: str | None) -> RiskRules:
    rows = [{"defence": name, "level": level, "state": level or "not-shown"} for name, level in levels.items()]
    path.write_text(json.dumps({"verdict": {"rows": rows}}))
    return RiskRules(maximum="medium", evidence=path)


def test_risk_is_what_the_sites_own_audit_says(tmp_path: Path):
    risk = report(tmp_path / "report.json", topk="medium", dgp="very-high", adgp=None)
    check_risk(risk, "topk")
    for spec, words in {"dgp": "is very-high", "adgp": "has not settled", "none": "says nothing"}.items():
        with pytest.raises(FedsealError, match=words):
            check_risk(risk, spec)
    (tmp_path / "report.json").write_text("[]")
    with pytest.raises(FedsealError, match="cannot be read"):
        check_risk(risk, "topk")
