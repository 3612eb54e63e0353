"""What happened in a federation, round by round."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DroppedClient(_Record):
    """A client that was sampled and is not part of the round's mean, and why."""

    client: str
    reason: str


class RoundRecord(_Record):
    """One round.

    Attributes:
        round: its number, from 0.
        clients: those whose uploads were averaged.
        dropped: those that did not answer, or were refused.
        bytes_up, bytes_down: of all uploads that arrived and all models that were sent.
        seconds: of training, coding and averaging; measuring the model is not part of it.
        hook_seconds: of that, in hooks of the defence.
        accuracy, loss: of the global model after the round, on the test set; None where it was not measured.
        auc: area under the ROC curve, mean of one class against the rest, as `accuracy`.
        class_accuracy: for each class, None where the test set has none of it; empty where it was not measured.
        epsilon: the largest the accountants of the round's clients state, where the model was measured.
        remarks: what the defences of the round's clients say of themselves, where the model was measured.
    """

    round: int
    clients: tuple[str, ...]
    dropped: tuple[DroppedClient, ...] = ()
    bytes_up: int
    bytes_down: int
    seconds: float
    hook_seconds: float = 0.0
    accuracy: float | None = None
    loss: float | None = None
    auc: float | None = None
    class_accuracy: tuple[float | None, ...] = ()
    epsilon: float | None = None
    remarks: tuple[str, ...] = ()


class History(_Record):
    """A federation's course.

    Attributes:
        initial_accuracy, initial_loss: of the model before the first round.
        rounds: in order.
        vectorised: whether clients were trained as one `vmap`.
    """

    initial_accuracy: float
    initial_loss: float
    rounds: tuple[RoundRecord, ...] = ()
    vectorised: bool = False

    @property
    def curve(self) -> tuple[tuple[int, float], ...]:
        """Accuracy after so many rounds, the untrained model's first."""
        measured = [(record.round + 1, record.accuracy) for record in self.rounds if record.accuracy is not None]
        return ((0, self.initial_accuracy), *measured)

    @property
    def accuracy(self) -> float:
        """The last measured accuracy."""
        return self.curve[-1][1]

    @property
    def auc(self) -> float | None:
        """The last one measured."""
        return next((record.auc for record in reversed(self.rounds) if record.accuracy is not None), None)

    @property
    def class_accuracy(self) -> tuple[float | None, ...]:
        """The last ones measured; empty if none were."""
        return next((record.class_accuracy for record in reversed(self.rounds) if record.class_accuracy), ())

    @property
    def bytes_up(self) -> int:
        """Of all rounds."""
        return sum(record.bytes_up for record in self.rounds)

    @property
    def bytes_down(self) -> int:
        """Of all rounds."""
        return sum(record.bytes_down for record in self.rounds)

    @property
    def seconds(self) -> float:
        """Of all rounds, without measuring the model."""
        return sum(record.seconds for record in self.rounds)

    @property
    def epsilon(self) -> float | None:
        """The last one stated."""
        return next((record.epsilon for record in reversed(self.rounds) if record.epsilon is not None), None)

    @property
    def remarks(self) -> tuple[str, ...]:
        """The last ones made."""
        return next((record.remarks for record in reversed(self.rounds) if record.remarks), ())

    @property
    def dropped(self) -> tuple[tuple[int, DroppedClient], ...]:
        """Everyone who was dropped, with the round."""
        return tuple((record.round, dropped) for record in self.rounds for dropped in record.dropped)

    def after(self, record: RoundRecord) -> History:
        """Return the history with one more round."""
        return self.model_copy(update={"rounds": (*self.rounds, record)})
