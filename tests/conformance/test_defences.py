"""Every registered defence keeps the contract. A new defence is picked up by its name and needs one row below."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES, STAGES, Defence, RoundShape
from fedseal.core.errors import FedsealError, InputError
from fedseal.core.seeds import generator
from fedseal.core.tensors import Tensors, flatten
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import ClientRound, RoundConfig, client_round
from fedseal.federation.server import mean_update
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)


@dataclass(frozen=True)
class Row:
    """What the contract's tests need to know of a defence.

    Attributes:
        zero: its spec at zero strength, if it has one.
        strong: specs that must change the update, one for each way of working.
        random: whether it draws noise, and so sends something else under another seed.
        fixed: strong specs of a random defence that draw nothing.
        rounded: specs whose simulation rounds, and lets derivatives pass straight through.
        exact: specs whose attacker's view must reproduce the upload, up to rounding.
        stateful: specs that keep something between rounds.
    """

    zero: str | None
    strong: tuple[str, ...] = ()
    random: bool = False
    fixed: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    stateful: tuple[str, ...] = ()


ROWS = {
    "adadefense": Row(
        zero="adadefense:variant=none",
        strong=("adadefense", "adadefense:variant=yogi,eps_at=inside", "adadefense:dtype=bfloat16,moments=shared"),
        stateful=("adadefense", "adadefense:variant=yogi,eps_at=inside", "adadefense:dtype=bfloat16,moments=shared"),
    ),
    "adgp": Row(
        zero="adgp:k1=0,k=1",
        strong=("adgp", "adgp:feedback=false"),
        exact=("adgp",),
        stateful=("adgp", "adgp:feedback=false"),
    ),
    "ats": Row(zero="ats:policy=none", strong=("ats",), random=True),
    "blur": Row(zero="blur:sigma=0", strong=("blur",)),
    "dgc": Row(
        zero="dgc:ratio=0,clip=inf",
        strong=("dgc:ratio=0.9", "dgc:ratio=0.9,dense=false"),
        stateful=("dgc:ratio=0.9", "dgc:ratio=0.9,dense=false"),
    ),
    "dgp": Row(
        zero="dgp:k1=0,k2=0",
        strong=("dgp", "dgp:feedback=bottom,mask=gradient", "dgp:k1=0.2,k2=0.6,feedback=none,rounding=nearest"),
        exact=("dgp", "dgp:k1=0.03,k2=0.45"),
        stateful=("dgp", "dgp:feedback=bottom,mask=gradient", "dgp:k1=0.2,k2=0.6,feedback=none,rounding=nearest"),
    ),
    "dp-adaptive": Row(
        zero="dp-adaptive:sigma=0,clip=inf",
        strong=("dp-adaptive",),
        random=True,
        stateful=("dp-adaptive",),
    ),
    "dp-sgd": Row(zero="dp-sgd:sigma=0,clip=inf", strong=("dp-sgd",), random=True, stateful=("dp-sgd",)),
    "fed-cdp": Row(zero="fed-cdp:sigma=0,clip=inf", strong=("fed-cdp",), random=True, stateful=("fed-cdp",)),
    "fedkl": Row(zero="fedkl:key=0", strong=("fedkl:key=16",), random=True, stateful=("fedkl:key=16",)),
    "gaussian": Row(
        zero="gaussian:sigma=0,clip=inf",
        strong=("gaussian", "gaussian:sigma=0.01,clip=inf", "gaussian:sigma=0.1,clip=0.5"),
        random=True,
        exact=("gaussian:sigma=0,clip=0.01", "gaussian:sigma=0,clip=100"),
    ),
    "graddefense": Row(zero="graddefense:scale=0", strong=("graddefense",), random=True, stateful=("graddefense",)),
    "instahide": Row(zero="instahide:k=1,flip=false", strong=("instahide:k=2",), random=True),
    "lids": Row(
        zero="lids:samples=1",
        strong=("lids:samples=3,epochs=2", "lids:samples=2,epochs=2,augment=false"),
        random=True,
    ),
    "laplace": Row(
        zero="laplace:scale=0,clip=inf",
        strong=("laplace", "laplace:scale=0.1,clip=0.5"),
        random=True,
        exact=("laplace:scale=0,clip=0.01",),
    ),
    "minmax": Row(zero="minmax:ratio=0", strong=("minmax", "minmax:scope=tensor"), random=True),
    "mixup": Row(zero="mixup:k=1", strong=("mixup:k=2",), random=True),
    "cancelling-noise": Row(
        zero="cancelling-noise:c=0,view=client",
        strong=("cancelling-noise", "cancelling-noise:view=client"),
        random=True,
    ),
    "large-batch": Row(zero="large-batch:size=1", strong=("large-batch:size=5",)),
    "local-steps": Row(zero="local-steps:steps=1", strong=("local-steps:steps=3",)),
    "pretrained": Row(zero=None),  # its strength is a file; its own tests have one
    "secagg": Row(zero="secagg:clients=1", strong=("secagg",)),
    "selective-encryption": Row(
        zero="selective-encryption:ratio=0",
        strong=("selective-encryption", "selective-encryption:per_tensor=true", "selective-encryption:common=true"),
    ),
    "none": Row(zero="none", exact=("none",)),
    "outpost": Row(zero="outpost:prune=0,noise=0", strong=("outpost:beta=0",), random=True),
    "pixelate": Row(zero="pixelate:block=1", strong=("pixelate",)),
    "precode": Row(zero="precode:k=0", strong=("precode:k=8",), random=True),
    "quantise": Row(
        zero="quantise:bits=32",
        strong=("quantise", "quantise:bits=1", "quantise:bits=4,feedback=true"),
        random=True,
        fixed=("quantise:bits=1",),
        rounded=("quantise:bits=1",),
        stateful=("quantise:bits=4,feedback=true",),
    ),
    "refiner": Row(
        zero="refiner:alpha=0,beta=0",
        strong=("refiner", "refiner:preset=fast", "refiner:preset=paper,scope=sample"),
        random=True,
        stateful=("refiner:preset=fast",),
    ),
    "soteria": Row(zero="soteria:ratio=0", strong=("soteria",), random=True),
    "topk": Row(
        zero="topk:ratio=0",
        strong=("topk", "topk:ratio=0.5", "topk:ratio=0.9,feedback=true"),
        exact=("topk:ratio=0.5", "topk:ratio=0.9"),
        stateful=("topk:ratio=0.9,feedback=true",),
    ),
}

NAMES = DEFENCES.names()
ZERO = [row.zero for row in ROWS.values() if row.zero] + ["topk:ratio=0,feedback=true", "topk:ratio=0+topk:ratio=0"]
STRONG = [spec for row in ROWS.values() for spec in row.strong] + ["gaussian:sigma=0.01+topk:ratio=0.5"]
EXACT = [spec for row in ROWS.values() for spec in row.exact] + ["gaussian:sigma=0,clip=0.01+topk:ratio=0.5"]
ROUNDED = [spec for row in ROWS.values() for spec in row.rounded]
STATEFUL = [spec for row in ROWS.values() for spec in row.stateful] + ["topk:ratio=0,feedback=true"]


@cache
def model() -> nn.Module:
    return build_model("lenet:init=wide-uniform", input_shape=SHAPE, num_classes=4, seed=0)


def wrapped(defence: Defence, of: nn.Module | None = None) -> nn.Module:
    """Return the model the federation trains under a defence, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return defence.wrap_model(copy.deepcopy(model() if of is None else of))


def batch(seed: int = 0, size: int = 3, dtype: torch.dtype = torch.float32) -> Batch:
    source = generator(seed, "images")
    images = torch.rand(size, *SHAPE, generator=source).to(dtype)
    return Batch(images, torch.randint(4, (size,), generator=source))


def play(
    defence: Defence,
    *,
    seed: int | None = 0,
    round_number: int = 0,
    steps: int = 1,
    dtype: torch.dtype = torch.float32,
) -> list[ClientRound]:
    """Run one round of as many clients as the defence puts behind an update; noise depends on seed and round."""
    shape = defence.reshape(RoundShape(3, steps, 1))
    federated = wrapped(defence).to(dtype)
    config = RoundConfig(local_steps=shape.local_steps)
    rounds = []
    for client in range(shape.clients):
        first = 100 * round_number + 10 * client
        batches = [batch(first + step, shape.batch_size, dtype) for step in range(shape.local_steps)]
        theirs = defence if client == 0 else copy.deepcopy(defence)
        source = generator(seed, "round", round_number, client)
        name = f"client-0-{client}"
        rounds.append(client_round(federated, batches, config, theirs, source, round_number=round_number, client=name))
    return rounds


def upload(defence: Defence, **values: Any) -> Tensors:
    """Return what the server sees of one round."""
    rounds = play(defence, **values)
    update = rounds[0].update if len(rounds) == 1 else mean_update([done.update for done in rounds])
    return defence.server_view(update.tensors)


def same_bits(one: Tensors, other: Tensors) -> bool:
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and one[name].numpy().tobytes() == other[name].numpy().tobytes()
        for name in one
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_defence_has_a_row(name: str):
    assert name in ROWS, f"add a row for {name!r} to ROWS"
    assert ROWS[name].strong or name in {"none", "pretrained"}, f"{name!r} needs a spec that does something"


@pytest.mark.parametrize("name", NAMES)
def test_a_defence_says_who_it_is(name: str):
    entry = DEFENCES.entry(name)
    if not ROWS[name].strong and name != "none":
        assert DEFENCES.entry(name).info.summary
        return
    built = build_defence(ROWS[name].strong[0] if ROWS[name].strong else name)
    assert built.name == built.attacker_view().name == name
    assert built.stage in STAGES
    assert entry.info.summary
    assert entry.info.paper or name == "none"


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("spec", ZERO)
def test_at_zero_strength_the_upload_is_untouched(spec: str, steps: int):
    assert same_bits(upload(build_defence(spec), steps=steps), upload(Defence(), steps=steps))
    (defended,), (plain,) = play(build_defence(spec), steps=steps), play(Defence(), steps=steps)
    assert same_bits(defended.update.tensors, plain.update.tensors)
    assert all(torch.equal(fed.images, was.images) for fed, was in zip(defended.fed, plain.fed, strict=True))


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("spec", STRONG)
def test_at_any_strength_something_changes(spec: str, steps: int):
    sent, plain = upload(build_defence(spec), steps=steps), upload(Defence(), steps=steps)
    assert not same_bits(sent, plain)
    if list(sent) == list(plain):
        assert float((flatten(sent) - flatten(plain)).norm() / flatten(plain).norm()) > 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("spec", [*ZERO, *STRONG])
def test_names_shapes_and_dtypes_are_those_of_the_model(spec: str, dtype: torch.dtype):
    defence = build_defence(spec)
    trained = {name: p for name, p in wrapped(defence).named_parameters() if p.requires_grad}
    sent = upload(defence, dtype=dtype)
    assert list(sent) == list(trained)
    for name, parameter in trained.items():
        assert sent[name].dtype == dtype
        assert sent[name].shape == parameter.shape
        assert bool(torch.isfinite(sent[name]).all())


@pytest.mark.parametrize("spec", [*ZERO, *STRONG])
def test_the_federations_model_is_not_written_to(spec: str):
    defence = build_defence(spec)
    federated = wrapped(defence)
    before = {name: value.clone() for name, value in federated.state_dict().items()}
    client_round(federated, [batch()], RoundConfig(), defence, generator(0), client="client-0-0")
    assert all(torch.equal(before[name], value) for name, value in federated.state_dict().items())


@pytest.mark.parametrize("spec", STRONG)
def test_a_seed_repeats_the_upload(spec: str):
    assert same_bits(upload(build_defence(spec), seed=1), upload(build_defence(spec), seed=1))


@pytest.mark.parametrize("name", NAMES)
def test_noise_is_fresh_by_seed_and_without_one(name: str):
    for spec in ROWS[name].strong:
        uploads = [upload(build_defence(spec), seed=seed) for seed in (1, 2, None, None)]
        distinct = sum(not same_bits(one, other) for i, one in enumerate(uploads) for other in uploads[:i])
        assert distinct == (6 if ROWS[name].random and spec not in ROWS[name].fixed else 0)


@pytest.mark.parametrize("spec", [*ZERO, *STRONG])
def test_a_defence_saved_between_rounds_goes_on_as_if_nothing_had_happened(spec: str):
    unbroken = build_defence(spec)
    expected = [upload(unbroken, round_number=number) for number in range(4)]
    first = build_defence(spec)
    for number in range(2):
        upload(first, round_number=number)
    saved = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    upload(first, round_number=2)  # what happens after the save must not reach what was saved
    restored = build_defence(spec)
    restored.load_state_dict(saved)
    for number in (2, 3):
        assert same_bits(upload(restored, round_number=number), expected[number])


@pytest.mark.parametrize("spec", [*ZERO, *STRONG])
def test_clients_do_not_share_state(spec: str):
    alone = build_defence(spec)
    expected = [upload(alone, round_number=number) for number in range(2)]
    alice, bob = build_defence(spec), build_defence(spec)
    got = []
    for number in range(2):
        got.append(upload(alice, round_number=number))
        upload(bob, round_number=number + 5)
    assert all(same_bits(one, other) for one, other in zip(got, expected, strict=True))


@pytest.mark.parametrize("spec", STRONG)
def test_foreign_state_is_refused_in_words_or_harmless(spec: str):
    defence = build_defence(spec)
    try:
        defence.load_state_dict({"no.such.parameter": torch.ones(3)})
        sent = upload(defence)
    except (ValueError, FedsealError):
        return
    assert same_bits(sent, upload(build_defence(spec)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("spec", [*ZERO, *STRONG])
def test_updates_that_are_not_finite_are_refused_by_name(spec: str, bad: float):
    class Poisoned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Conv2d(1, 1, 3, padding=1)
            self.first, self.second = nn.Linear(144, 5), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(self.body(x).flatten(1))
            hidden.register_hook(lambda gradient: gradient * bad)
            output: Tensor = self.second(hidden)
            return output

    defence = build_defence(spec)
    with pytest.raises(InputError, match=r"client gradient: tensor 'body[.\w]*weight' holds"):
        client_round(wrapped(defence, Poisoned()), [batch()], RoundConfig(), defence, generator(0), client="client-0-0")


@pytest.mark.parametrize("spec", EXACT)
def test_the_attackers_simulation_is_the_defence(spec: str):
    defence = build_defence(spec)
    sent, plain = upload(defence), upload(Defence())
    simulated = defence.attacker_view().simulate(plain, sent)
    assert list(simulated) == list(sent)
    for name in sent:
        torch.testing.assert_close(simulated[name], sent[name], rtol=1e-6, atol=0)
        assert torch.equal(simulated[name] == 0, sent[name] == 0)


@pytest.mark.parametrize("spec", [*ZERO, *STRONG, *EXACT])
def test_the_attackers_simulation_is_differentiable_and_vectorises(spec: str):
    defence = build_defence(spec)
    observed = {name: tensor.double() for name, tensor in upload(defence).items()}
    view = defence.attacker_view()
    lanes = {name: torch.randn(3, *t.shape, generator=generator(1, name)).double() for name, t in observed.items()}

    def objective(gradient: Tensors) -> Tensor:
        return flatten(view.simulate(gradient, observed)).square().sum()

    slopes = vmap(grad(objective))(lanes)
    for lane in range(3):
        one = {name: values[lane] for name, values in lanes.items()}
        alone = grad(objective)(one)
        assert list(alone) == list(observed)
        for name in observed:
            torch.testing.assert_close(slopes[name][lane], alone[name])
            assert bool(torch.isfinite(alone[name]).all())
    if spec in ROUNDED:
        return
    step = 1e-6
    direction = {name: values[1] for name, values in lanes.items()}
    start = {name: values[0] for name, values in lanes.items()}
    ahead, behind = ({n: start[n] + sign * step * direction[n] for n in start} for sign in (1, -1))
    measured = (objective(ahead) - objective(behind)) / (2 * step)
    expected = sum(float((slopes[n][0] * direction[n]).sum()) for n in start)
    assert float(measured) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("spec", [*ZERO, *STRONG])
def test_the_view_is_described_in_words(spec: str):
    text = build_defence(spec).attacker_view().describe()
    assert spec.split(":")[0].split("+")[0] in text


@pytest.mark.parametrize("spec", [*ZERO, *STRONG])
def test_state_bytes_are_reported(spec: str):
    defence = build_defence(spec)
    upload(defence)
    held = sum(tensor.numel() * tensor.element_size() for tensor in defence.state_dict().values())
    assert defence.report().state_bytes == held
    assert (held > 0) == (spec in STATEFUL)
