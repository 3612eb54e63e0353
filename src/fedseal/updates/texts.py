"""The audit of one real update of a client who trains on text: what is read off it, with or without the originals.

An exact reading knows by itself whether it succeeded: rows of an embedding that are zero, a span that has an end. So
nothing is started several times here, and without originals the attacker's own certainty is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch
from torch import nn

from fedseal.audit.levels import RiskLevel, level_of
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.batch import Batch
from fedseal.core.errors import CapabilityError, InputError, UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.core.seeds import derive_seed
from fedseal.core.tensors import Tensors, check_like
from fedseal.core.tokeniser import Tokeniser
from fedseal.data.text.dataset import TextDataset
from fedseal.data.text.files import read_texts
from fedseal.defences.pipeline import build_defence
from fedseal.federation.fitting import fitting_model
from fedseal.federation.tensor_file import read_tensors
from fedseal.federation.update_file import RecordedUpdate, UpdateFacts, weight_change
from fedseal.metrics.scales import TOKENS
from fedseal.modalities.measures import Case
from fedseal.modalities.text import TextMeasures
from fedseal.updates.source import UpdateSource, facts_of, recorded_in, weights_of

READERS = ("words", "lora", "dager")
"""What is tried unless attacks are named: what reads exactly, cheapest first."""


@dataclass(frozen=True)
class TextReading:
    """What one attack read.

    Attributes:
        attack: its spec.
        texts: claimed, one per text behind the update; empty where nothing was read.
        certain: whether the attack knows by itself that these are the words.
        notes: of the attack.
        refused: why it could not be tried; "" if it was.
        scores: F1 of the words of every original in per cent; None without originals.
        guesses: what the most frequent public words score, likewise.
    """

    attack: str
    texts: tuple[str, ...] = ()
    certain: bool = False
    notes: tuple[str, ...] = ()
    refused: str = ""
    scores: tuple[float, ...] | None = None
    guesses: tuple[float, ...] | None = None

    @property
    def level(self) -> RiskLevel | None:
        """The risk; None without a leak: what is certain is as bad as can be, what is scored must beat guesses."""
        if self.scores is not None and self.guesses is not None:
            found = level_of(fmean(self.scores), TOKENS)
            return found if found is not RiskLevel.LOW and fmean(self.scores) > fmean(self.guesses) else None
        return RiskLevel.VERY_HIGH if self.certain and any(self.texts) else None


@dataclass(frozen=True)
class TextAudit:
    """All readings of one update.

    Attributes:
        title: which update this is.
        readings: in the order they were tried.
        originals: the private texts, where they were given.
        ledger: what the attacker is taken to know.
        command: that was given.
    """

    title: str
    readings: tuple[TextReading, ...]
    originals: tuple[str, ...]
    ledger: dict[str, str]
    command: str = ""

    @property
    def level(self) -> RiskLevel | None:
        """The worst risk; None where nothing was read."""
        return max((one.level for one in self.readings if one.level is not None), default=None)

    @property
    def worst(self) -> TextReading:
        """The reading to show first."""
        return max(self.readings, key=lambda one: (one.level is not None, fmean(one.scores or (0.0,)), one.certain))

    def reaches(self, limit: RiskLevel) -> bool:
        """Whether the risk is at a limit or above."""
        return limit is RiskLevel.LOW or (self.level is not None and self.level >= limit)

    def sentence(self) -> str:
        """Return the result in a sentence."""
        worst = self.worst
        if worst.level is None:
            return "No attack read the texts behind this update; that is no proof that nobody can."
        how = "exactly, and knows that it did" if worst.certain else "in part"
        scored = "" if worst.scores is None else f": {fmean(worst.scores):.0f} % of the words"
        return f"{worst.attack} reads the words behind this update {how}{scored}; the risk is {worst.level.words}."


def audit_text_update(
    source: UpdateSource, data: TextDataset, attacks: Sequence[str] | None = None, *, seed: int = 0, command: str = ""
) -> TextAudit:
    """Read an update with every attack that applies to it.

    Args:
        source: of the update; `originals` is one file of texts (`fedseal.data.text.files`).
        data: public texts with the tokeniser of the federation.
        attacks: specs; None for `READERS`. Those that are named are refused in words if they do not apply.
        seed: of what attacks draw.
        command: that was given, for the report.
    """
    recorded, title = recorded_in(source)
    facts = facts_of(source, recorded)
    originals = _originals(source.originals, data)
    observation = _observation(source, recorded, facts, data, None if originals is None else len(originals))
    readings = tuple(
        _read(spec, observation, data, originals, derive_seed(seed, "attack", spec), named=attacks is not None)
        for spec in attacks or READERS
    )
    shown = () if originals is None else tuple(data.tokeniser.show(originals.inputs))
    return TextAudit(title, readings, shown, observation.knowledge.ledger(), command)


def _read(
    spec: str, observation: Observation, data: TextDataset, originals: Batch | None, seed: int, *, named: bool
) -> TextReading:
    attack = ATTACKS.build(spec)
    try:
        attack.check(observation)
        answer = attack.run_many([observation], Budget(), [seed])[0]
    except CapabilityError as error:
        if named:
            raise
        return TextReading(spec, refused=str(error.args[0]))
    texts = tuple(text for text in data.tokeniser.show(answer.images.cpu()))
    reading = TextReading(spec, texts, certain=answer.objective == 0, notes=answer.notes)
    if originals is None:
        return reading
    public = data.batch(torch.arange(min(len(data), 500)))
    case = Case(originals, originals, public, public, encoding=data.encoding)
    fields = TextMeasures().measure(case, answer).fields
    return replace(reading, scores=fields["psnr"], guesses=fields["baselines"]["frequent"])


def _observation(
    source: UpdateSource, recorded: RecordedUpdate | None, facts: UpdateFacts, data: TextDataset, texts: int | None
) -> Observation:
    model = fitting_model(source.model, data, facts.loss, 0)
    if source.defence is not None:
        model = build_defence(source.defence).wrap_model(model)
    _load(model, weights_of(source, recorded))
    steps = facts.local_steps or 1
    size = facts.batch_size or max(1, (texts or 1) // steps)
    knowledge = Knowledge(
        input_shape=data.shape,
        num_classes=len(data.classes),
        loss=facts.loss,
        loss_reduction=facts.loss_reduction,
        label_rule="true" if source.labels is not None else "identity",
        batch_size=size,
        labels=None if source.labels is None else torch.tensor(source.labels),
        clients=1,
        local_steps=steps,
        learning_rate=facts.learning_rate,
        auxiliary=data.batch(torch.arange(min(len(data), 2000))),
        modality=data.modality,
        encoding=data.encoding,
        defence=None if source.defence is None else build_defence(source.defence).attacker_view(),
    )
    if facts.kind == "delta" and facts.learning_rate is None:
        knowledge = replace(knowledge, learning_rate=1.0)  # exact readings do not depend on the size of a gradient
    return Observation(model.eval(), _update(source, recorded, model, facts), knowledge)


def _load(model: nn.Module, state: Tensors | None) -> None:
    """Give the model the weights that were sent: all, or adapters alone, whose base is the model's own."""
    if state is None:
        return
    own = model.state_dict()
    foreign = [name for name in state if name not in own]
    if foreign:
        raise InputError(
            f"the weights hold {foreign[0]!r}, which the model has not.", hint="Check --model, and --public's length."
        )
    check_like(state, {name: own[name] for name in own if name in state}, "weights")
    model.load_state_dict(dict(state), strict=False)


def _update(source: UpdateSource, recorded: RecordedUpdate | None, model: nn.Module, facts: UpdateFacts) -> Update:
    trained = {name: value.detach() for name, value in model.named_parameters() if value.requires_grad}
    if source.after is not None and source.before is not None:
        after = read_tensors(source.after, "weights").tensors
        return weight_change(read_tensors(source.before, "weights").tensors, after, trained, "weights")
    if recorded is not None:
        found = recorded.update.tensors
    else:
        assert source.update is not None
        found = read_tensors(source.update, "update").tensors
    kept = {name: found[name] for name in trained if name in found}
    if not kept:
        raise InputError("the update holds no parameter that the model trains.", hint="Check --model.")
    check_like(kept, {name: trained[name] for name in kept}, "update")
    return Update(kept, facts.kind)


def _originals(paths: tuple[Path, ...], data: TextDataset) -> Batch | None:
    if not paths:
        return None
    if len(paths) > 1:
        raise UsageError(
            "original texts come in one file.", hint="Give a .txt, .tsv, .csv or .jsonl with one per line."
        )
    assert isinstance(data.tokeniser, Tokeniser)
    ids = data.tokeniser.encode(read_texts(paths[0]).texts, cut=True)
    return Batch(ids, torch.zeros(len(ids), dtype=torch.long), data.modality)
