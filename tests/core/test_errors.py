"""Errors: exit codes, hints, and the way across process boundaries."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor

import pytest

from fedseal.core.errors import (
    CapabilityError,
    FedsealError,
    InputError,
    StorageError,
    TrialError,
    UsageError,
)

KINDS = [UsageError, InputError, StorageError, CapabilityError, TrialError]


def fail(kind: type[FedsealError]) -> None:
    raise kind("what is wrong.", hint="What to do.")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hint", [None, "What to do."])
def test_errors_survive_pickling_with_their_hint(kind: type[FedsealError], hint: str | None):
    error = kind("what is wrong.", hint=hint)
    for copied in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301 - our own bytes
        assert type(copied) is kind
        assert (copied.message, copied.hint) == ("what is wrong.", hint)
        assert str(copied) == str(error)


def test_errors_cross_a_process_boundary():
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, mp_context=context) as pool, pytest.raises(StorageError) as caught:
        pool.submit(fail, StorageError).result()
    assert caught.value.hint == "What to do."


def test_the_text_holds_message_and_hint():
    assert str(UsageError("what is wrong.", hint="What to do.")) == "what is wrong. What to do."
    assert str(UsageError("what is wrong.")) == "what is wrong."


@pytest.mark.parametrize("kind", KINDS)
def test_exit_codes(kind: type[FedsealError]):
    assert kind.exit_code == (3 if kind is TrialError else 2)
