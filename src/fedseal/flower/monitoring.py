"""`monitor`: a Flower client mod that reads updates about to leave, and acts by rules on what it finds.

First in the list, it sees what the server would see, and knows the truth behind it. Every k rounds, by the client's own
count, it reads (`fedseal.watch`), tells its sinks and, in the reply's envelope, a guarded server, and lets the update
leave, adds noise, or refuses. `guard` reports means over the clients that were read, as `fedseal-ideal` and the like.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.config_file import Source, configure
from fedseal.core.errors import UsageError
from fedseal.core.observation import Update
from fedseal.core.seeds import generator
from fedseal.core.yaml_text import read_yaml
from fedseal.data.registry import DATASETS
from fedseal.federation.client import RoundConfig
from fedseal.federation.posthoc import travelling
from fedseal.federation.wire import encode
from fedseal.flower.defend import Mod
from fedseal.flower.envelope import ENVELOPE, REFUSED, Envelope, refusal, server_round
from fedseal.flower.records import only_arrays, payload_record, read_reply, to_record, to_tensors
from fedseal.flower.settings import run_settings
from fedseal.watch.export import Sink
from fedseal.watch.noise import noisier, raised
from fedseal.watch.readings import Watched
from fedseal.watch.rules import WatchRules
from fedseal.watch.watch import Pace, Report, Watch

STATE = "fedseal.watch"


@dataclass(frozen=True)
class _Monitor:
    model: Callable[[], nn.Module]
    batches: Callable[[Message, Context], Sequence[Batch]]
    public: Batch
    config: RoundConfig
    defence: str | None
    agrees: Callable[[Context], bool]
    rules: WatchRules | None
    sinks: Sequence[Sink]
    seed: int | None

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if not message.metadata.message_type.startswith(MessageType.TRAIN):
            return call_next(message, context)
        try:
            rules = self.rules or rules_of_run(context.run_config)
        except UsageError as error:
            return refusal(message, error)
        _, sent = only_arrays(message.content, "train message")
        before = to_tensors(sent, "train message")
        start = time.perf_counter()
        reply = call_next(message, context)
        if reply.has_error() or not self.agrees(context):
            return reply
        pace = _kept(context).worked(time.perf_counter() - start)
        number = pace.round
        watch = Watch(
            rules, self.sinks, federation=str(context.run_config.get("federation", "default")),
            client=str(context.node_id), source=None if self.seed is None else generator(self.seed, "watch", number),
        )  # fmt: skip
        report: Report | None = None
        upload = read_reply(reply.content, before)
        spec = self.defence or (upload.envelope.defence if upload.envelope is not None else "none")
        change = {name: upload.weights[name] - before[name] for name in travelling(before)}
        if watch.is_due(pace):
            start = time.perf_counter()
            report = watch.look(self._watched(message, context, before, change, spec), number)
            pace = pace.read(time.perf_counter() - start)
            if report.action == "raise sigma" and report.rule is not None:
                pace = replace(pace, extra=raised(spec, change, pace.extra, report.rule.by))
        context.state.config_records[STATE] = ConfigRecord(asdict(pace))
        if report is not None and report.action == "refuse":
            return Message(Error(REFUSED, "the client's own watch refused to let this update leave."), reply_to=message)
        if pace.extra > 0:
            source = generator(None) if self.seed is None else generator(self.seed, "watch noise", number)
            _replace(reply, before, noisier(change, pace.extra, source))
        if rules.tell and report is not None:
            _write(message, reply, report.figures)
        return reply

    def _watched(
        self, message: Message, context: Context, before: dict[str, Tensor], change: dict[str, Tensor], spec: str
    ) -> Watched:
        model = self.model()
        own = model.state_dict()
        model.load_state_dict({name: tensor.to(own[name].dtype) for name, tensor in before.items() if name in own})
        trainable = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
        update = Update({name: change[name] for name in trainable}, "delta")
        return Watched(model, update, list(self.batches(message, context)), self.config, spec, self.public)


def monitor(
    model: Callable[[], nn.Module],
    batches: Callable[[Message, Context], Sequence[Batch]],
    public: Batch | str,
    *,
    config: RoundConfig | None = None,
    defence: str | None = None,
    agrees: bool | Callable[[Context], bool] = True,
    rules: Source | None = None,
    sinks: Sequence[Sink] = (),
    seed: int | None = None,
) -> Mod:
    """Return a client mod that reads updates about to leave; put it first among the mods.

    Args:
        model: builds the architecture, as the client trains it.
        batches: returns the private batches behind the reply, one per local step, images in [0, 1].
        public: images of the same kind that no client holds, or the spec of a data set of them.
        config: how the client trains; the learning rate and the normalisation matter.
        defence: spec of what seals the update; what the reply's envelope says if it is left out.
        agrees: whether this client takes part.
        rules: `WatchRules`, or a mapping, a YAML file or its text; None takes the run config's `watch-every`,
            `watch-share` and so on, else every ten rounds and a warning.
        sinks: of `fedseal.watch.export`, who are told.
        seed: makes draws reproducible, for experiments only.
    """
    chosen = None if rules is None else configure(rules, WatchRules, {}, command="watch")
    if isinstance(public, str):
        data = DATASETS.build(public)
        public = data.batch()
    return _Monitor(
        model, batches, public, config or RoundConfig(), defence,
        agrees if callable(agrees) else lambda context: bool(agrees), chosen, tuple(sinks), seed,
    )  # fmt: skip


def rules_of_run(config: Mapping[str, object]) -> WatchRules:
    """Return the rules a run's config gives: `watch-every`, `watch-readings` (`ideal,labels`), `watch-rules` (YAML)."""
    told = run_settings(config, "watch", list(WatchRules.model_fields))
    if isinstance(told.get("readings"), str):
        told["readings"] = [name.strip() for name in str(told["readings"]).split(",")]
    if isinstance(told.get("rules"), str):
        told["rules"] = read_yaml(str(told["rules"]), "the run config's watch-rules")[1]
    return configure(told, WatchRules, {}, command="watch")


def _kept(context: Context) -> Pace:
    found = context.state.config_records.get(STATE)
    record: dict[str, Any] = {} if found is None else dict(found)
    return Pace(**{name: record[name] for name in asdict(Pace()) if name in record})


def _replace(reply: Message, before: dict[str, Tensor], change: dict[str, Tensor]) -> None:
    """Put another weight change into a reply, in the encoding it has."""
    upload = read_reply(reply.content, before)
    key, record = only_arrays(reply.content, "reply")
    if upload.envelope is not None and upload.envelope.encoding == "wire":
        reply.content.array_records[key] = payload_record(
            encode({name: change[name] for name in upload.update.tensors})
        )
        return
    state = {name: before[name] + change[name] if name in change else tensor for name, tensor in before.items()}
    reply.content.array_records[key] = to_record(state, record)


def _write(message: Message, reply: Message, figures: Mapping[str, float]) -> None:
    """Put figures among the costs of the reply's envelope, where `guard` takes means of them over who states them."""
    envelope = Envelope.from_content(reply.content) or Envelope(server_round(message, 0), "weights", "none")
    costs = {**envelope.costs, **{name.removeprefix("fedseal-"): value for name, value in figures.items()}}
    reply.content.config_records[ENVELOPE] = replace(envelope, costs=costs).to_record()
