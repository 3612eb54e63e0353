"""Which defence seals a run's updates: the site's default, or what the run asks for if the site allows that.

Names are compared before anything is built or imported, so that a run cannot bring a defence of its own. Options are
compared after defaults are filled in: an option left out has the value it will have.
"""

from __future__ import annotations

import json

from fedseal.core.defence import DEFENCES
from fedseal.core.errors import CapabilityError, InputError, UsageError
from fedseal.core.specs import parse_spec
from fedseal.defences.pipeline import build_defence, split_pipeline
from fedseal.federation.posthoc import needs_training, refuse_joint
from fedseal.site.policy import AllowedDefence, RiskRules, SealRules

_ORDER = ("low", "medium", "high", "very-high")


def check_rules(seal: SealRules) -> None:
    """Refuse rules that cannot be kept: unknown names and options, and what does not act on a finished update."""
    check_sealable(seal.default)
    for allowed in seal.allow:
        entry = DEFENCES.entry(allowed.defence)
        strange = [option for option in allowed.options if option not in entry.parameters]
        if strange:
            raise UsageError(
                f"the defence {allowed.defence!r} has no option {strange[0]!r}.",
                hint=f"It has {', '.join(entry.parameters) or 'none'}.",
            )


def check_sealable(spec: str) -> None:
    """Refuse a defence that the site cannot apply to what an app has finished."""
    defence = build_defence(spec)
    refuse_joint(defence, "the framework's own secure aggregation")
    early = needs_training(defence)
    if early:
        raise CapabilityError(
            f"{', '.join(early)} acts while an app trains, where the site has no hand.",
            hint="Seal with a defence of the finished update, such as gaussian, topk or dgp.",
        )


def admitted(seal: SealRules, asked: object) -> str:
    """Return the spec that seals, or refuse what the run asks for.

    Args:
        seal: the site's rules.
        asked: what the run's config says, None if nothing.
    """
    if asked is None or asked == "" or asked == seal.default:
        return seal.default
    if not isinstance(asked, str):
        raise UsageError("the run's `defence` is not a text.", hint="Leave it out for the site's own.")
    for part in split_pipeline(asked):
        _check_member(seal, part)
    check_sealable(asked)
    return asked


def _check_member(seal: SealRules, part: str) -> None:
    spec = parse_spec(part)
    rules = [allowed for allowed in seal.allow if allowed.defence == spec.name]
    if not rules or spec.argument is not None:
        names = sorted({allowed.defence for allowed in seal.allow})
        allowed_words = f"It allows {', '.join(names)}." if names else "It allows none but its own."
        raise UsageError(f"the site does not allow the defence {spec.name[:40]!r}.", hint=allowed_words)
    options = DEFENCES.resolve(spec)
    problems = [_problem(rule, options) for rule in rules]
    if all(problems):
        raise UsageError(f"the site allows {spec.name} only with {' or '.join(filter(None, problems))}.")


def _problem(rule: AllowedDefence, options: dict[str, object]) -> str:
    """Return what a rule asks for and does not get, or nothing."""
    wrong = [f"{name} {wanted}" for name, wanted in rule.options.items() if not wanted.admits(options.get(name))]
    return ", ".join(wrong)


def check_risk(risk: RiskRules, spec: str) -> None:
    """Refuse a defence whose risk the site's own audit puts above the maximum, or says nothing of."""
    try:
        report = json.loads(risk.evidence.read_text(encoding="utf-8"))
        rows = [row for row in report["verdict"]["rows"] if row["defence"] == spec]
        found = [row["level"] or row["state"] for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"the audit {risk.evidence} cannot be read.", hint="Give the report.json that `fedseal audit` wrote."
        ) from error
    if not found:
        raise InputError(f"the site's audit says nothing of {spec}.", hint=f"Run `fedseal audit --defence '{spec}'`.")
    worst = max(found, key=lambda word: _ORDER.index(word) if word in _ORDER else len(_ORDER))
    if worst not in _ORDER:
        raise InputError(f"the site's audit has not settled the risk of {spec}: {worst}.")
    if _ORDER.index(worst) > _ORDER.index(risk.maximum):
        raise InputError(f"the risk of {spec} is {worst}, the site takes {risk.maximum} at most.")
