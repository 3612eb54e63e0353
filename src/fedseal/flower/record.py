"""`record`: keep the updates a federation really sends, for `fedseal audit-update`.

One recorder serves on either side: as a client mod in front of all others it keeps what leaves the client; given to
`guard` it keeps what reaches the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable
from pydantic import ValidationError

from fedseal.core.errors import UsageError
from fedseal.core.tensors import Tensors
from fedseal.federation.update_file import RecordedUpdate, UpdateFacts, write_update
from fedseal.flower.envelope import refusal, server_round
from fedseal.flower.records import Upload, only_arrays, read_reply, to_tensors
from fedseal.flower.settings import run_settings

_OF_UPDATES = ("kind", "round", "client", "defence")
"""Facts that every update has of its own."""


class Recorder:
    """Writes updates with what the server knows into a directory.

    Args:
        directory: where to; made if missing. None keeps nothing until a run's config names one (`under`).
        facts: of `UpdateFacts`, the same for all updates.
    """

    def __init__(self, directory: Path | None, facts: dict[str, Any]) -> None:
        try:
            self._facts = UpdateFacts(kind="delta", round=0, client="0", **facts)
        except (ValidationError, TypeError) as error:
            raise UsageError(
                f"these facts cannot be recorded: {error}", hint="See fedseal.federation.update_file.UpdateFacts."
            ) from error
        self._directory, self._given = directory, facts

    def under(self, config: Mapping[str, object]) -> Recorder:
        """Return the recorder with what a run's config says of the rest: `record` is where, `record-...` are facts."""
        told = run_settings(config, "record", [name for name in UpdateFacts.model_fields if name not in _OF_UPDATES])
        where = str(config.get("record", ""))
        if self._directory is not None or not where:
            return self if not told else Recorder(self._directory, {**told, **self._given})
        return Recorder(Path(where), {**told, **self._given})

    def save(self, upload: Upload, before: Tensors, *, round_number: int, client: str) -> Path | None:
        """Write one update and return its path; the same round of the same client is written over."""
        if self._directory is None:
            return None
        changes: dict[str, Any] = {"kind": upload.update.kind, "round": round_number, "client": client}
        if upload.envelope is not None:
            changes["defence"] = upload.envelope.defence
            if self._facts.learning_rate is None:
                changes["learning_rate"] = upload.envelope.learning_rate
        facts = self._facts.model_copy(update=changes)
        return write_update(self._directory, RecordedUpdate(upload.update, before, facts))

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Let a client handle a message and keep the update it replies with."""
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        try:
            recorder = self.under(context.run_config)
        except UsageError as error:
            return refusal(message, error)
        before = to_tensors(only_arrays(message.content, "train message")[1], "train message")
        number = server_round(message, 0)
        reply = call_next(message, context)
        if not reply.has_error():
            upload = read_reply(reply.content, before)
            recorder.save(upload, before, round_number=number, client=str(context.node_id))
        return reply


def record(directory: str | Path | None = None, **facts: Any) -> Recorder:
    """Return a recorder: a client mod, first in the list, or the `recorder` of `guard`.

    Args:
        directory: where `.update.safetensors` files go; None takes the run config's `record`, and keeps nothing where
            that is empty.
        facts: what the server knows of all updates: `learning_rate`, `local_steps`, `batch_size`, `input_shape`,
            `num_classes`, `mean`, `std`, `bn_mode`, `loss_reduction`; the run config's `record-learning-rate` and the
            like count for what is left out.
    """
    return Recorder(None if directory is None else Path(directory), facts)
