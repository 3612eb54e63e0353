"""The command line. Commands only: each imports what it needs when it runs, so that help answers at once."""

from fedseal.cli import (
    apply,
    audit,
    claims,
    data,
    detect,
    infer,
    ledger,
    listing,
    prepare,
    protocol,
    starting,
    table,
    train,
    tuning,
    updates,
    verify_dp,
    view,
)
from fedseal.cli.app import app, main

__all__ = [
    "app",
    "apply",
    "audit",
    "claims",
    "data",
    "detect",
    "infer",
    "ledger",
    "listing",
    "main",
    "prepare",
    "protocol",
    "starting",
    "table",
    "train",
    "tuning",
    "updates",
    "verify_dp",
    "view",
]
