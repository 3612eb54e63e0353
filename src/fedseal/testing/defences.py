"""What holds of every defence, whoever wrote it.

    from fedseal.testing import DEFENCE_CHECKS, DefenceCase

    @pytest.mark.parametrize("check", DEFENCE_CHECKS)
    def test_my_defence_keeps_the_contract(check):
        check(DefenceCase("mine", zero="mine:strength=0", strong=("mine:strength=1",)))

Rounds are played on a small network, by as many clients as the defence puts behind an update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedseal.core.defence import DEFENCES, STAGES, Defence
from fedseal.core.errors import FedsealError, InputError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten
from fedseal.defences.pipeline import build_defence, split_pipeline
from fedseal.testing.checks import Check, run_checks
from fedseal.testing.rounds import DTYPES, IMAGES, Ground, play, play_on, same_bits, upload, wrapped

_LANES = 3
_DIFFERENCE = 1e-6


@dataclass(frozen=True)
class DefenceCase:
    """What the contract's checks need to know of a defence.

    Attributes:
        name: what it is registered as, `module:attribute`, or words for a case of several.
        zero: its specs at zero strength, where every hook must return its input bit for bit; () if it has none.
        strong: specs that must change the update, one for each way of working; None for its name alone.
        random: whether it draws noise, and so sends something else under another seed.
        fixed: strong specs of a random defence that draw nothing.
        rounded: specs whose simulation rounds, and lets derivatives pass straight through.
        exact: specs whose attacker's view must reproduce the upload, up to rounding.
        stateful: specs that keep something between rounds.
        withholds: beginning of the names of tensors that the strong specs compute no gradient of.
        ground: what rounds are played on: images, or `TEXTS` and `TABLES` of `fedseal.testing.other_grounds`.
    """

    name: str
    zero: str | tuple[str, ...] = ()
    strong: tuple[str, ...] | None = None
    random: bool = False
    fixed: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    stateful: tuple[str, ...] = ()
    withholds: str = ""
    ground: Ground = IMAGES

    def __str__(self) -> str:
        return self.name if self.ground is IMAGES else f"{self.name}-{self.ground}"

    @property
    def zeros(self) -> tuple[str, ...]:
        """The specs at zero strength."""
        return (self.zero,) if isinstance(self.zero, str) else self.zero

    @property
    def strengths(self) -> tuple[str, ...]:
        """The specs that must do something."""
        return (self.name,) if self.strong is None else self.strong

    def upload(self, spec: str, seed: int | None = 0, steps: int = 1, dtype: torch.dtype = torch.float32) -> Tensors:
        """Return what the server sees of a first round under a spec, built anew."""
        return upload(build_defence(spec), seed=seed, steps=steps, dtype=dtype, ground=self.ground)

    @property
    def specs(self) -> tuple[str, ...]:
        """All specs."""
        return (*self.zeros, *self.strengths)


def says_who_it_is(case: DefenceCase) -> str | None:
    """Demand a summary, a stage that exists, and one name in the registry, on the defence and in the view."""
    if not case.specs:
        return "nothing of it can be built without a file"
    for spec in case.specs:
        parts = split_pipeline(spec)
        for part in parts:
            built, entry = build_defence(part), DEFENCES.find(part)
            assert entry.info.summary, f"{part} has no summary: its Info needs one"
            assert built.name == entry.info.name, f"{part} calls itself {built.name!r}, registered: {entry.info.name!r}"
            assert built.attacker_view().name == built.name, f"the attacker's view of {part} has another name"
            assert built.stage in STAGES, f"{part} acts on {built.stage!r}, which is no stage"
        text = build_defence(spec).attacker_view().describe()
        assert DEFENCES.find(parts[0]).info.name in text, f"the view of {spec} does not say whose it is: {text!r}"
    return None


def does_nothing_at_zero_strength(case: DefenceCase) -> str | None:
    """Demand the undefended upload and data, bit for bit, after one local step and after two."""
    if not case.zeros:
        return "it has no zero strength"
    for spec in case.zeros:
        for steps in (1, 2):
            (defended,), (plain,) = (
                play(built, steps=steps, ground=case.ground) for built in (build_defence(spec), Defence())
            )
            assert same_bits(defended.update.tensors, plain.update.tensors), f"{spec} changes the update"
            seen = case.upload(spec, steps=steps)
            assert same_bits(seen, plain.update.tensors), f"{spec} changes what the server sees"
            for fed, was in zip(defended.fed, plain.fed, strict=True):
                assert torch.equal(fed.inputs, was.inputs), f"{spec} changes the data"
    return None


def does_something(case: DefenceCase) -> str | None:
    """Demand that what the server sees differs from the undefended update, and by more than rounding."""
    for spec in case.strengths:
        for steps in (1, 2):
            sent, plain = case.upload(spec, steps=steps), case.upload("none", steps=steps)
            assert not same_bits(sent, plain), f"{spec} changes nothing"
            if list(sent) == list(plain):
                change = float((flatten(sent) - flatten(plain)).norm() / flatten(plain).norm())
                assert change > 1e-4, f"{spec} changes the update by a share of {change:.1e} only"
    return None


def keeps_names_shapes_and_dtypes(case: DefenceCase) -> str | None:
    """Demand uploads that fit the model the federation trains, finite, in every precision."""
    for spec in case.specs:
        for dtype in DTYPES:
            defence = build_defence(spec)
            federated = wrapped(defence, ground=case.ground)
            trained = {name: p for name, p in federated.named_parameters() if p.requires_grad}
            sent = upload(defence, dtype=dtype, ground=case.ground)
            assert list(sent) == list(trained), f"{spec} sends {list(sent)}, the model trains {list(trained)}"
            for name, parameter in trained.items():
                assert sent[name].dtype == dtype, f"{spec} sends {name!r} as {sent[name].dtype}, not {dtype}"
                assert sent[name].shape == parameter.shape, f"{spec} sends {name!r} in another shape"
                assert bool(torch.isfinite(sent[name]).all()), f"{spec} sends {name!r} with non-finite values"
    return None


def leaves_the_model_alone(case: DefenceCase) -> str | None:
    """Demand that a client's round writes to no weight or buffer of the federation's model."""
    for spec in case.specs:
        defence = build_defence(spec)
        federated = wrapped(defence, ground=case.ground)
        before = {name: value.clone() for name, value in federated.state_dict().items()}
        play_on(federated, defence, case.ground)
        for name, value in federated.state_dict().items():
            assert torch.equal(before[name], value), f"{spec} writes to the model's {name!r}"
    return None


def repeats_by_its_seed(case: DefenceCase) -> str | None:
    """Demand the same upload of the same seed."""
    for spec in case.strengths:
        one, same = (case.upload(spec, seed=1) for _ in range(2))
        assert same_bits(one, same), f"{spec} sends something else under the same seed: it draws from elsewhere"
    return None


def draws_fresh_noise(case: DefenceCase) -> str | None:
    """Demand that noise differs by seed and without one, and that what draws none sends the same.

    Without a seed not all of several uploads may be alike: a defence that draws one of few masks may draw one twice.
    """
    for spec in case.strengths:
        draws = case.random and spec not in case.fixed
        for kind, seeds in (("seed", (1, 2)), ("chance", (None,) * 5)):
            first, *others = (case.upload(spec, seed=seed) for seed in seeds)
            differ = not all(same_bits(first, other) for other in others)
            assert differ == draws, f"uploads under {spec} {'differ' if differ else 'do not differ'} by {kind}"
    return None


def resumes_from_its_state(case: DefenceCase) -> str | None:
    """Demand that a defence saved between rounds goes on as if nothing had happened."""
    for spec in case.specs:
        unbroken = build_defence(spec)
        expected = [upload(unbroken, round_number=number, ground=case.ground) for number in range(4)]
        first = build_defence(spec)
        for number in range(2):
            upload(first, round_number=number, ground=case.ground)
        saved = {name: tensor.clone() for name, tensor in first.state_dict().items()}
        upload(first, round_number=2, ground=case.ground)  # what happens after the save must not reach what was saved
        restored = build_defence(spec)
        restored.load_state_dict(saved)
        for number in (2, 3):
            again = upload(restored, round_number=number, ground=case.ground)
            assert same_bits(again, expected[number]), f"{spec}, restored, goes another way in round {number}"
    return None


def shares_no_state(case: DefenceCase) -> str | None:
    """Demand that a client's uploads do not depend on what another's instance does in between."""
    for spec in case.specs:
        alone = build_defence(spec)
        expected = [upload(alone, round_number=number, ground=case.ground) for number in range(2)]
        alice, bob = build_defence(spec), build_defence(spec)
        for number in range(2):
            got = upload(alice, round_number=number, ground=case.ground)
            assert same_bits(got, expected[number]), f"two instances of {spec} share something"
            upload(bob, round_number=number + 5, ground=case.ground)
    return None


def refuses_foreign_state(case: DefenceCase) -> str | None:
    """Demand that a state of something else is refused in words, or changes nothing."""
    for spec in case.strengths:
        defence = build_defence(spec)
        try:
            defence.load_state_dict({"no.such.parameter": torch.ones(3)})
            sent = upload(defence, ground=case.ground)
        except (ValueError, FedsealError):
            continue
        assert same_bits(sent, case.upload(spec)), f"{spec} takes a state that is not its own"
    return None


class _Poisoned(nn.Module):
    """A network whose gradient is not finite before its second layer."""

    def __init__(self, bad: float, ground: Ground) -> None:
        super().__init__()
        self.body, outputs = ground.body()
        self.first, self.second = nn.Linear(outputs, 5), nn.Linear(5, 4)
        self.bad = bad

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(self.body(x).flatten(1))
        hidden.register_hook(lambda gradient: gradient * self.bad)
        output: Tensor = self.second(hidden)
        return output


def refuses_what_is_not_finite(case: DefenceCase) -> str | None:
    """Demand that a NaN or infinite gradient is refused by the tensor's name, and not laundered."""
    for spec in case.specs:
        for bad in (math.nan, math.inf):
            defence = build_defence(spec)
            poisoned = wrapped(defence, _Poisoned(bad, case.ground))
            left_out = case.withholds if spec in case.strengths else ""
            trained = (name for name, value in poisoned.named_parameters() if value.requires_grad)
            first = next(name for name in trained if not (left_out and name.startswith(left_out)))
            said = ""
            try:
                play_on(poisoned, defence, case.ground)
            except InputError as error:
                said = str(error)
            named = f"client gradient: tensor '{first}'" in said
            assert named, f"{spec} lets {bad} of '{first}' pass: {said or 'nothing was said'}"
    return None


def is_simulated_exactly(case: DefenceCase) -> str | None:
    """Demand that the attacker's view maps the true gradient to the upload."""
    if not case.exact:
        return "no spec is declared exact"
    for spec in case.exact:
        defence = build_defence(spec)
        sent, plain = upload(defence, ground=case.ground), case.upload("none")
        simulated = defence.attacker_view().simulate(plain, sent)
        assert list(simulated) == list(sent), f"the simulation of {spec} has other tensors"
        for name in sent:
            torch.testing.assert_close(simulated[name], sent[name], rtol=1e-6, atol=0)
            assert torch.equal(simulated[name] == 0, sent[name] == 0), f"{spec}: {name!r} is zero elsewhere"
    return None


def simulates_differentiably(case: DefenceCase) -> str | None:
    """Demand a simulation with true derivatives that vectorises: lanes together are lanes alone."""
    for spec in dict.fromkeys((*case.specs, *case.exact)):
        defence = build_defence(spec)
        observed = {name: tensor.double() for name, tensor in upload(defence, ground=case.ground).items()}
        lanes = {
            name: torch.randn(_LANES, *t.shape, generator=generator(1, name)).double() for name, t in observed.items()
        }
        objective = partial(_matched, defence, observed)
        slopes = vmap(grad(objective))(lanes)
        for lane in range(_LANES):
            alone = grad(objective)({name: values[lane] for name, values in lanes.items()})
            assert list(alone) == list(observed), f"the simulation of {spec} has other tensors"
            for name in observed:
                torch.testing.assert_close(slopes[name][lane], alone[name])
                assert bool(torch.isfinite(alone[name]).all()), f"{spec}: the slope of {name!r} is not finite"
        if spec not in case.rounded:
            _check_slope(spec, objective, lanes, slopes)
    return None


def _matched(defence: Defence, observed: Tensors, gradient: Tensors) -> Tensor:
    return flatten(defence.attacker_view().simulate(gradient, observed)).square().sum()


def _check_slope(spec: str, objective: partial[Tensor], lanes: Tensors, slopes: Tensors) -> None:
    """Compare the derivative along a direction with a central difference."""
    start, direction = ({name: values[lane] for name, values in lanes.items()} for lane in (0, 1))
    ahead, behind = ({n: start[n] + sign * _DIFFERENCE * direction[n] for n in start} for sign in (1, -1))
    measured = float((objective(ahead) - objective(behind)) / (2 * _DIFFERENCE))
    expected = sum(float((slopes[name][0] * direction[name]).sum()) for name in start)
    close = math.isclose(measured, expected, rel_tol=1e-4, abs_tol=1e-6)
    assert close, f"the simulation of {spec} has slope {measured:g} where its derivative says {expected:g}"


def reports_its_state(case: DefenceCase) -> str | None:
    """Demand that the bytes kept between rounds are reported, and are there where the case says so."""
    for spec in case.specs:
        defence = build_defence(spec)
        upload(defence, ground=case.ground)
        held = sum(tensor.numel() * tensor.element_size() for tensor in defence.state_dict().values())
        reported = defence.report().state_bytes
        assert reported == held, f"{spec} holds {held} bytes between rounds and reports {reported}"
        assert (held > 0) == (spec in case.stateful), f"{spec} holds {held} bytes between rounds: is it stateful?"
    return None


DEFENCE_CHECKS: tuple[Check[DefenceCase], ...] = (
    says_who_it_is,
    does_nothing_at_zero_strength,
    does_something,
    keeps_names_shapes_and_dtypes,
    leaves_the_model_alone,
    repeats_by_its_seed,
    draws_fresh_noise,
    resumes_from_its_state,
    shares_no_state,
    refuses_foreign_state,
    refuses_what_is_not_finite,
    is_simulated_exactly,
    simulates_differentiably,
    reports_its_state,
)


def check_defence(case: DefenceCase | str) -> dict[str, str]:
    """Hold one defence to the whole contract; return the checks that do not apply, with reasons."""
    return run_checks(DefenceCase(case) if isinstance(case, str) else case, DEFENCE_CHECKS)
