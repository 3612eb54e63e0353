"""Composition: several defences run as one, in the order of the stages they act on.

Written `gaussian+topk` or `gaussian:sigma=0.01+topk:ratio=0.9`. A later stage never comes before an earlier one, and
pairs that would void a guarantee are refused (`rules`); within a stage the written order is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedseal.core.batch import Batch
from fedseal.core.caveat import Caveat
from fedseal.core.channel import chained
from fedseal.core.defence import (
    DEFENCES,
    AttackerView,
    CostReport,
    Defence,
    RoundContext,
    RoundShape,
    Unknowns,
    merge_reports,
    sum_of_noise,
)
from fedseal.core.privacy import PrivateRelease
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.core.trainable import Trainable
from fedseal.core.traits import Traits
from fedseal.defences import rules


class Pipeline(Defence):
    """Defences applied one after the other.

    Args:
        members: in the order they act.
    """

    info = Info("several defences, one after the other", name="pipeline")

    def __init__(self, members: Sequence[Defence]) -> None:
        rules.check(members)
        self.members = tuple(members)
        self._reducer = next((member for member in members if member.needs_sample_grads), None)
        self.traits = Traits.combine([member.traits for member in members])

    @property
    def needs_sample_grads(self) -> bool:  # type: ignore[override]
        """Whether a member reduces per-sample gradients itself."""
        return self._reducer is not None

    def uses(self, hook: str) -> bool:
        """Return whether any member does anything in the hook."""
        return any(member.uses(hook) for member in self.members)

    def reshape(self, shape: RoundShape) -> RoundShape:
        """Reshape by each member in turn."""
        for member in self.members:
            shape = member.reshape(shape)
        return shape

    def prepare(self, dataset: Batch, generator: torch.Generator) -> Batch:
        """Prepare by each member in turn."""
        for member in self.members:
            dataset = member.prepare(dataset, generator)
        return dataset

    def trainables(self, dataset: Batch, generator: torch.Generator) -> Iterator[Trainable[Any]]:
        """Yield what each member trains, on what the members before it make of the data."""
        for member in self.members:
            ahead = torch.Generator(generator.device)
            ahead.set_state(generator.get_state())
            yield from member.trainables(dataset, ahead)
            dataset = member.prepare(dataset, generator)

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        """Pass the batch through each member."""
        for member in self.members:
            batch = member.on_batch(batch, context)
        return batch

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Wrap by each member in turn."""
        for member in self.members:
            model = member.wrap_model(model)
        return model

    def extra_loss(self, model: nn.Module) -> Tensor | None:
        """Add up the members' terms."""
        terms = [term for member in self.members if (term := member.extra_loss(model)) is not None]
        return torch.stack(terms).sum() if terms else None

    def on_sample_grads(self, grads: Tensors, context: RoundContext) -> Tensors:
        """Reduce by the one member that does."""
        if self._reducer is None:
            return super().on_sample_grads(grads, context)
        return self._reducer.on_sample_grads(grads, context)

    def on_gradient(self, gradient: Tensors, context: RoundContext) -> Tensors:
        """Pass the gradient through each member."""
        for member in self.members:
            gradient = member.on_gradient(gradient, context)
        return gradient

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Pass the update through each member."""
        for member in self.members:
            update = member.on_update(update, context)
        return update

    def broadcast(self) -> Tensors | None:
        """Gather the members' messages, names prefixed by position."""
        told = {
            f"{index}.{key}": value
            for index, member in enumerate(self.members)
            for key, value in (member.broadcast() or {}).items()
        }
        return told or None

    def receive(self, message: Tensors, round_number: int) -> None:
        """Hand each member its own part of a message."""
        for index, member in enumerate(self.members):
            if own := _part(message, index):
                member.receive(own, round_number)

    def server_view(self, update: Tensors) -> Tensors:
        """Hide what any member hides."""
        for member in self.members:
            update = member.server_view(update)
        return update

    def protocol_bytes(self, update: Tensors) -> int:
        """Add up what the members' protocols add."""
        return sum(member.protocol_bytes(update) for member in self.members)

    def on_aggregate(self, update: Tensors) -> Tensors:
        """Undo in reverse order what members undo on the server."""
        for member in reversed(self.members):
            update = member.on_aggregate(update)
        return update

    def own_model(self, model: nn.Module) -> nn.Module:
        """Let each member put in what it keeps."""
        for member in self.members:
            model = member.own_model(model)
        return model

    def state_dict(self) -> dict[str, Tensor]:
        """Return all members' states, keys prefixed by position."""
        return {
            f"{index}.{key}": value
            for index, member in enumerate(self.members)
            for key, value in member.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore all members' states."""
        for index, member in enumerate(self.members):
            member.load_state_dict(_part(state, index))

    def report(self) -> CostReport:
        """Add up the members' reports, and remark on what their composition means."""
        merged = merge_reports([member.report() for member in self.members])
        return replace(merged, remarks=merged.remarks + rules.remarks(self.members))

    def releases(self) -> tuple[PrivateRelease, ...]:
        """Gather what members release; what is not covered by their claims voids them.

        That is a member which looks at the private batch again beside its input, and one that mixes samples where the
        claim is about single ones.
        """
        gathered = tuple(release for member in self.members for release in member.releases())
        mixed = self.traits.mixes_samples
        if self.traits.reads_batch or (mixed and any(r.unit == "sample" for r in gathered)):
            return ()
        return gathered

    def origins(self) -> Batch | None:
        """Return what the first member that changed it took instead of the batch."""
        return next((found for member in self.members if (found := member.origins()) is not None), None)

    def caveats(self) -> tuple[Caveat, ...]:
        """Gather the members' remarks."""
        return tuple(caveat for member in self.members for caveat in member.caveats())

    def attacker_view(self) -> AttackerView:
        """Chain the members' simulations, undo in reverse, and add up their noise, penalties and priors."""
        views = [member.attacker_view() for member in self.members]

        def simulate(gradient: Tensors, observed: Tensors) -> Tensors:
            for view in views:
                gradient = view.simulate(gradient, observed)
            return gradient

        def read(observed: Tensors) -> Tensors:
            for view in reversed(views):
                observed = view.read(observed)
            return observed

        parameters = {f"{view.name}.{key}": value for view in views for key, value in view.parameters.items()}
        noise, left_out = sum_of_noise([view.noise for view in views if view.noise])
        return AttackerView(
            "+".join(view.name for view in views),
            parameters,
            simulate,
            noise,
            read,
            _added([view.penalty for view in views if view.penalty]),
            _added([view.image_prior for view in views if view.image_prior]),
            _gathered([view.unknowns for view in views if view.unknowns]),
            next((view.extra_loss for view in views if view.extra_loss), None),
            any(view.personal for view in views),
            chained([view.carried() for view in views]),
            (*(word for view in views for word in view.unused), *(str(law) for law in left_out)),
            views[-1].rounding,
            views[-1].mask,
            views[-1].variances,
        )


def _added(terms: Sequence[Callable[..., Tensor]]) -> Callable[..., Tensor] | None:
    """Return the sum of several terms of the same arguments, or None where there is none."""
    if len(terms) <= 1:
        return terms[0] if terms else None
    return lambda *arguments: torch.stack([term(*arguments) for term in terms]).sum(0)


def _gathered(unknowns: Sequence[Unknowns]) -> Unknowns | None:
    """Return what any member hides, or None where none hides anything."""
    if not unknowns:
        return None
    return lambda model, images: {name: start for one in unknowns for name, start in one(model, images).items()}


def _part(tensors: Tensors, index: int) -> dict[str, Tensor]:
    """Return what is prefixed by a member's position, without the prefix."""
    prefix = f"{index}."
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def split_pipeline(text: str) -> list[str]:
    """Return the specs of a pipeline's members; a `+` within a number is none."""
    return re.split(r"\+(?=[A-Za-z])", text)


def build_defence(text: str) -> Defence:
    """Build a defence or a pipeline from its spec; `+` between names composes."""
    members = [DEFENCES.build(part) for part in split_pipeline(text)]
    return members[0] if len(members) == 1 else Pipeline(members)
