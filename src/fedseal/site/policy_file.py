"""The policy as a file: whose it must be, and from where its paths are read."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from fedseal.core.config_file import read_config
from fedseal.core.errors import FedsealError, StorageError, UsageError
from fedseal.core.files import PathText
from fedseal.site.admission import check_rules
from fedseal.site.policy import Policy


def read_policy(path: PathText) -> Policy:
    """Read a policy file; one that others could change is no policy, and is refused.

    Paths in it are read from the policy's own directory.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot read the policy {path}: {reason}.", hint="Give it with --policy FILE.") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StorageError(
            f"the policy {path} can be changed by others than its owner.", hint=f"Run `chmod go-w {path}`."
        )
    policy = read_config(path, Policy, command="supernode")
    try:
        check_rules(policy.seal)
    except FedsealError as error:
        raise UsageError(f"{path}, seal: {error}") from error
    here = path.resolve().parent
    changes: dict[str, Any] = {"ledger": here / (policy.ledger or "fedseal-ledger.sqlite")}
    if policy.risk is not None:
        changes["risk"] = policy.risk.model_copy(update={"evidence": here / policy.risk.evidence})
    return policy.model_copy(update=changes)
