"""The command `fedseal-supernode`: Flower's SuperNode, its options and its ways, under a site's policy."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from typing import NoReturn

from fedseal.core.errors import FedsealError, UsageError
from fedseal.ledger import SiteLedger
from fedseal.site.policy import Policy
from fedseal.site.policy_file import read_policy
from fedseal.site.seal import SiteSeal

_WRITTEN_FOR = "1.41."
_LOG = logging.getLogger("fedseal.site")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a SuperNode under a policy; mistakes become one line and exit code 2."""
    try:
        sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))
    except FedsealError as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)


def _run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="fedseal-supernode",
        add_help=False,
        description="Flower's SuperNode under a site's policy: the site seals what leaves, whatever app arrives.",
        epilog="All other options are those of flower-supernode, which follow. docs/sealing.md describes the policy.",
    )
    parser.add_argument("--policy", metavar="FILE", help="the site's policy.yaml (or FEDSEAL_POLICY)")
    parser.add_argument("--check-policy", action="store_true", help="say in words what the policy does, and exit")
    parser.add_argument("-h", "--help", action="store_true", help="show this help, then that of flower-supernode")
    given, rest = parser.parse_known_args(arguments)
    if given.help:
        parser.print_help()
        sys.argv = ["flower-supernode", "--help"]
        from flwr.supernode.cli import flower_supernode

        flower_supernode()
        return 0
    path = given.policy or os.environ.get("FEDSEAL_POLICY")
    if not path:
        raise UsageError("no policy is given.", hint="Give --policy FILE; without one run flower-supernode itself.")
    policy = read_policy(path)
    if given.check_policy:
        print(describe(policy))  # noqa: T201
        return 0
    _serve(policy, rest)
    return 0


def _serve(policy: Policy, rest: list[str]) -> None:
    from fedseal.flower.supernode.door import guarded
    from fedseal.flower.supernode.gate import Gate
    from fedseal.flower.supernode.hardening import forbid_inspection

    found = version("flwr")
    if not found.startswith(_WRITTEN_FOR):
        raise UsageError(
            f"fedseal-supernode is written for Flower {_WRITTEN_FOR}x, and {found} is installed.",
            hint="Install that version: a door that does not fit is no door.",
        )
    from flwr.supernode.cli import flower_supernode

    client = import_module("flwr.supernode.start_client_internal")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if policy.ledger is None:
        raise UsageError("the policy names no ledger.", hint="Read it from a file.")
    gate = Gate(SiteSeal(policy, SiteLedger(policy.ledger)))
    client.http_request_response = guarded(client.http_request_response, gate)  # type: ignore[attr-defined]
    forbid_inspection()
    _LOG.info("sealed by the site: %s", " ".join(describe(policy).split()))
    if "process" not in rest:
        _LOG.warning("apps run as this process's own user: see `What remains` in docs/sealing.md")
    sys.argv = ["flower-supernode", *rest]
    flower_supernode()


def describe(policy: Policy) -> str:
    """Return a policy in words."""
    leave, budget = policy.leave, policy.budget
    allowed = "; ".join(
        entry.defence + "".join(f", {name} {wanted}" for name, wanted in entry.options.items())
        for entry in policy.seal.allow
    )
    limits = [
        *([] if budget.rounds is None else [f"{budget.rounds} updates"]),
        *([] if budget.replies is None else [f"{budget.replies} answers"]),
        *([] if budget.epsilon is None else [f"epsilon {budget.epsilon:g} at delta {budget.delta:g}"]),
    ]
    lines = [
        f"federation {policy.federation}, site {policy.site}, data {policy.data}; ledger {policy.ledger}",
        f"updates are sealed by {policy.seal.default}" + (f"; a run may ask for: {allowed}" if allowed else ""),
        f"budget: {', '.join(limits) or 'none'}",
        f"received models: {policy.detector.on_alarm} on an alarm",
        f"answered: {', '.join(leave.messages) or 'nothing'}; parameters {', '.join(leave.tensors)}",
        f"numbers beside the update: {', '.join(leave.metrics) or 'none'}, at most {leave.bits:.0f} bits an answer; "
        f"what is more is {leave.surplus}d",
        "no watch: what an update gives away is not measured here, where there are no images; apps do by `monitor`",
    ]
    if policy.risk is not None:
        lines.append(f"risk: {policy.risk.maximum} at most, by {policy.risk.evidence}")
    return "\n".join(lines)
