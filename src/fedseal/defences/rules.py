"""What may be composed with what, as a table.

A rule looks at two members of a pipeline, the earlier and the later, through the traits they declare (`core.defence`).
Most refuse the pair, because a guarantee would be void or a member would do nothing; some only add a remark to the
cost report. Order is a matter of stages first; the other rules are about pairs whose stages allow them. That
buffers of batch normalisation never travel needs no row: an update holds trainable parameters only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from fedseal.core.defence import STAGES, Defence
from fedseal.core.errors import UsageError


@dataclass(frozen=True)
class Rule:
    """One row of the table.

    Attributes:
        name: short, for tests and documents.
        broken: whether the earlier and the later of two members break it.
        because: why, with `{earlier}`, `{later}` and their stages to be filled in.
        hint: what to do instead, likewise; where `swap` is true, why the other order is right.
        swap: the other order is the answer, if no rule stands against that.
        refuses: false if the pair is allowed and the reason becomes a remark.
    """

    name: str
    broken: Callable[[Defence, Defence], bool]
    because: str
    hint: str = ""
    swap: bool = False
    refuses: bool = True

    def explain(self, earlier: Defence, later: Defence) -> str:
        """Return the reason for two members."""
        return self._fill(self.because, earlier, later)

    def advise(self, earlier: Defence, later: Defence) -> str | None:
        """Return what to write instead, never an order that is refused as well."""
        hint = self._fill(self.hint, earlier, later)
        if not self.swap:
            return hint or None
        if _first_broken(later, earlier):
            return "They cannot be composed in either order: leave one of them out."
        return f"Write {later.name}+{earlier.name}{hint}."

    @staticmethod
    def _fill(text: str, earlier: Defence, later: Defence) -> str:
        return text.format(earlier=earlier.name, later=later.name, earlier_stage=earlier.stage, later_stage=later.stage)


def _claims_epsilon(member: Defence) -> bool:
    """Tell whether a member states an epsilon; what it reports counts even if it did not declare it."""
    return member.traits.accounts_epsilon or member.report().epsilon_nominal is not None


def _either(one: Defence, other: Defence, holds: Callable[[Defence, Defence], bool]) -> bool:
    """Tell whether something holds of two members in one order or the other."""
    return holds(one, other) or holds(other, one)


def _one_reads_batch_other_needs_samples(one: Defence, other: Defence) -> bool:
    return _either(one, other, lambda a, b: a.traits.reads_batch and b.needs_sample_grads)


def _own_set_beside_masks(one: Defence, other: Defence) -> bool:
    return one.stage == other.stage == "aggregate" and _either(
        one, other, lambda a, b: a.traits.data_dependent_mask and b.traits.masks_upload
    )


RULES: tuple[Rule, ...] = (
    Rule(
        "stage order",
        lambda earlier, later: STAGES.index(earlier.stage) > STAGES.index(later.stage),
        "{later} acts on the {later_stage} and cannot come after {earlier}, which acts on the {earlier_stage}.",
        swap=True,
    ),
    Rule(
        "one reducer",
        lambda earlier, later: earlier.needs_sample_grads and later.needs_sample_grads,
        "{earlier} and {later} both reduce per-sample gradients, and there is one reduction.",
        "Keep one of them.",
    ),
    Rule(
        "residual of the noised vector",
        lambda earlier, later: earlier.traits.keeps_residual and _claims_epsilon(later),
        "{earlier} keeps what it does not send, before {later} adds noise: a later round sends it again, and no "
        "epsilon of {later} covers that.",
        ", so that the residual is of the noised vector",
        swap=True,
    ),
    Rule(
        "mask before noise",
        lambda earlier, later: earlier.traits.data_dependent_mask and _claims_epsilon(later),
        "{earlier} chooses coordinates by the private values before {later} adds noise: where that choice shows, no "
        "epsilon of {later} covers it, and where the noise fills the gaps, nothing is saved.",
        ": after the noise, pruning is free post-processing",
        swap=True,
    ),
    Rule(
        "private batch after noise",
        lambda earlier, later: _claims_epsilon(earlier) and later.traits.reads_batch,
        "{later} looks at the private batch again after {earlier} has added noise: that is no post-processing, and "
        "the epsilon of {earlier} is void.",
        swap=True,
    ),
    Rule(
        "plain gradient and per-sample gradients",
        _one_reads_batch_other_needs_samples,
        "{earlier} and {later} cannot share a pass: one needs the plain model and the true batch gradient, the other "
        "reduces per-sample gradients.",
        "Leave one of them out.",
    ),
    Rule(
        "mixed samples and per-sample accounting",
        lambda earlier, later: earlier.traits.mixes_samples and later.needs_sample_grads and _claims_epsilon(later),
        "{earlier} puts a person's image into several of the samples that {later} clips one by one: the epsilon it "
        "states for one sample does not hold for one person, that would need group accounting.",
        "Clip and noise the whole upload instead, for example {earlier}+gaussian.",
    ),
    Rule(
        "prune before rescaling",
        lambda earlier, later: earlier.traits.rescales and later.traits.data_dependent_mask,
        "{earlier} makes all magnitudes alike, so {later} would choose by nothing.",
        swap=True,
    ),
    Rule(
        "linear aggregation",
        lambda earlier, later: later.stage == "aggregate" and not earlier.traits.linear,
        "{later} lets the server see sums only, and {earlier} needs the server to treat every upload by itself.",
        "Leave one of them out.",
    ),
    Rule(
        "one quantiser",
        lambda earlier, later: earlier.stage == "encoding" and later.traits.masks_upload,
        "{later} adds up numbers on its own grid, and {earlier} puts every client on another: the sum is on neither, "
        "and no byte is saved.",
        "Leave {earlier} out: masked sums are quantised already.",
    ),
    Rule(
        "one common set",
        _own_set_beside_masks,
        "{earlier} and {later} add up uploads of several clients, but every client would encrypt another set.",
        "Give selective-encryption the option common=true.",
    ),
    Rule(
        "one mask",
        lambda earlier, later: earlier.traits.masks_upload and later.traits.masks_upload,
        "{earlier} and {later} both mask whole uploads: the second hides nothing more, and partners of the one need "
        "not be in the sum of the other.",
        "Keep one of them.",
    ),
    Rule(
        "masked sums are dense",
        lambda earlier, later: (
            earlier.traits.data_dependent_mask
            and not earlier.traits.common_support
            and earlier.stage != "aggregate"
            and later.traits.masks_upload
        ),
        "{earlier} leaves out other entries for every client, and under {later} they travel as masked zeros: the "
        "upload is dense, its bytes are not those counted",
        refuses=False,
    ),
)
"""All rules; the first that is broken is the one that is explained."""


def _first_broken(earlier: Defence, later: Defence) -> Rule | None:
    return next((rule for rule in RULES if rule.refuses and rule.broken(earlier, later)), None)


def check(members: Sequence[Defence]) -> None:
    """Refuse members that must not be composed in this order, with the reason and what to write instead."""
    for rule in RULES:
        for earlier, later in combinations(members, 2):
            if rule.refuses and rule.broken(earlier, later):
                raise UsageError(rule.explain(earlier, later), hint=rule.advise(earlier, later))


def remarks(members: Sequence[Defence]) -> tuple[str, ...]:
    """Return what a reader of the costs must know of a pipeline that is allowed."""
    return tuple(
        rule.explain(earlier, later)
        for rule in RULES
        for earlier, later in combinations(members, 2)
        if not rule.refuses and rule.broken(earlier, later)
    )
