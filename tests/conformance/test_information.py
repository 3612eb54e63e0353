"""Every registered defence has an ideal reading, or says why not. A new defence needs one row below."""

from __future__ import annotations

import copy
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F

from fedseal.core.batch import Batch
from fedseal.core.defence import DEFENCES, RoundShape
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.core.seeds import generator
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.federation.server import mean_update
from fedseal.information.ideal import Options, ideal_reading
from fedseal.information.prior import ImagePrior, fit_prior
from fedseal.information.reading import IdealReading
from fedseal.information.upload import upload_behind
from fedseal.models.registry import build_model

SHAPE = (1, 12, 12)
ROWS: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "adadefense": ("adadefense:variant=none", ("adadefense", "adadefense:dtype=bfloat16")),
    "adgp": ("adgp:k1=0,k=1", ("adgp:k=0.5", "adgp", "adgp:k=0.06")),
    "ats": ("ats:policy=none", ("ats",)),
    "blur": ("blur:sigma=0", ("blur:sigma=0.5", "blur:sigma=1", "blur:sigma=3")),
    "cancelling-noise": (
        "cancelling-noise:c=0",
        ("cancelling-noise:c=0.1,view=client", "cancelling-noise:view=client"),
    ),
    "censor": ("censor:trials=0", ("censor:trials=3", "censor:trials=1")),
    "dgc": ("dgc:ratio=0,clip=inf", ("dgc:ratio=0.5", "dgc:ratio=0.99")),
    "dgp": ("dgp:k1=0,k2=0", ("dgp:k1=0.01,k2=0.3", "dgp", "dgp:k1=0.05,k2=0.93")),
    "dp-adaptive": ("dp-adaptive:sigma=0,clip=inf", ("dp-adaptive:sigma=0.01", "dp-adaptive")),
    "dp-sgd": ("dp-sgd:sigma=0,clip=inf", ("dp-sgd:sigma=0.001", "dp-sgd:sigma=0.1", "dp-sgd")),
    "fed-cdp": ("fed-cdp:sigma=0,clip=inf", ("fed-cdp:sigma=0.001", "fed-cdp")),
    "fedkl": ("fedkl:key=0", ("fedkl:key=16",)),
    "gaussian": ("gaussian:sigma=0,clip=inf", ("gaussian:sigma=0.0001", "gaussian:sigma=0.01", "gaussian:sigma=1")),
    "graddefense": (
        "graddefense:scale=0",
        ("graddefense:scale=0.001,perturbed=10", "graddefense:scale=1,perturbed=10"),
    ),
    "instahide": ("instahide:k=1,flip=false", ("instahide:k=2",)),
    "laplace": ("laplace:scale=0,clip=inf", ("laplace:scale=0.0001", "laplace:scale=0.01", "laplace:scale=1")),
    "large-batch": ("large-batch:size=1", ("large-batch:size=4",)),
    "lids": ("lids:samples=1", ("lids:samples=2,epochs=1,cache=false",)),
    "local-steps": ("local-steps:steps=1", ("local-steps:steps=2",)),
    "minmax": ("minmax:ratio=0", ("minmax:ratio=0.5", "minmax:ratio=0.99")),
    "mixup": ("mixup:k=1", ("mixup:k=2",)),
    "none": ("none", ()),
    "optimal-noise": (
        "optimal-noise:sigma=0,clip=inf",
        ("optimal-noise:sigma=0.0001", "optimal-noise:sigma=0.01", "optimal-noise:sigma=1"),
    ),
    "outpost": ("outpost:prune=0,noise=0", ("outpost:beta=0,noise=0.01", "outpost:beta=0,noise=100")),
    "pixelate": ("pixelate:block=1", ("pixelate:block=2", "pixelate:block=6")),
    "precode": ("precode:k=0", ("precode:k=16",)),
    "pretrained": (None, ()),
    "quantise": ("quantise:bits=32", ("quantise:bits=16", "quantise:bits=8", "quantise:bits=4", "quantise:bits=1")),
    "refiner": ("refiner:epsilon=0", ("refiner:epsilon=0.001,t=2", "refiner:epsilon=1,t=2")),
    "secagg": ("secagg:clients=1", ("secagg:clients=2",)),
    "selective": (
        "selective",
        (
            "selective:prune=*,ratio=0.9",
            "selective:noise=*,sigma=0.01",
            "selective:noise=*,sigma=1",
            "selective:encrypt=*",
        ),
    ),
    "selective-encryption": (
        "selective-encryption:ratio=0",
        ("selective-encryption:ratio=0.5", "selective-encryption:ratio=0.99", "selective-encryption:ratio=1"),
    ),
    "soteria": ("soteria:ratio=0", ("soteria:ratio=0.3", "soteria:ratio=0.9")),
    "svdefense": ("svdefense:energy=1", ("svdefense:energy=0.9", "svdefense:energy=0.3")),
    "topk": ("topk:ratio=0", ("topk:ratio=0.5", "topk:ratio=0.9", "topk:ratio=0.99")),
}
"""By name: the spec at zero strength, and specs of growing strength."""
EXACTLY = Options(layers=False)


@cache
def pictures() -> tuple[Batch, ImagePrior]:
    """Return private images, and the prior of public ones of the same kind: smooth, as photographs are."""
    coarse = torch.rand(400, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    images = F.interpolate(coarse, SHAPE[1:], mode="bilinear")
    fine = 0.1 * (torch.rand(400, *SHAPE, generator=torch.Generator().manual_seed(1)) - 0.5)
    images = (images + fine).clamp(0, 1)
    return Batch(images[:16], torch.arange(16) % 4), fit_prior(images[16:])


@cache
def reading(spec: str, model: str = "lenet-relu", steps: int = 1) -> IdealReading:
    data, prior = pictures()
    defence = build_defence(spec)
    shape = defence.reshape(RoundShape(2, steps, 1))
    config = RoundConfig(local_steps=shape.local_steps)
    private = Batch(data.images[: shape.images], data.labels[: shape.images])
    batches = [
        Batch(*part)
        for part in zip(*(t.split(shape.batch_size) for t in (private.images, private.labels)), strict=True)
    ]
    torch.manual_seed(1)
    net = set_mode(defence.wrap_model(build_model(model, input_shape=SHAPE, num_classes=4, seed=0)), config)
    rounds = []
    for client, own in enumerate([defence, *(copy.deepcopy(defence) for _ in range(shape.clients - 1))]):
        mine = batches[client * shape.local_steps :][: shape.local_steps]
        whole = Batch(torch.cat([b.images for b in mine]), torch.cat([b.labels for b in mine]))
        if own.uses("prepare"):
            own.prepare(whole, generator(0, "prepare"))
        rounds.append(client_round(net, mine, config, own, generator(0, spec, client), client=f"client-{client}"))
    fed = [batch for done in rounds for batch in done.fed]
    update = mean_update([done.update for done in rounds])
    seen = Update(defence.server_view(update.tensors), update.kind)
    observation = Observation(net, seen, Knowledge(SHAPE, 4))
    joined = Batch(torch.cat([b.images for b in fed]), torch.cat([b.labels for b in fed]))
    return ideal_reading(upload_behind(observation, defence, config, private, joined, shape.clients), prior, EXACTLY)


def test_every_registered_defence_has_a_row():
    assert set(ROWS) == set(DEFENCES.names())


@pytest.mark.parametrize("name", sorted(ROWS))
def test_a_defence_has_a_reading_or_a_reason(name: str):
    for spec in ROWS[name][1]:
        found = reading(spec)
        assert found.prior_db is not None
        if found.psnr_db is None:
            assert found.reason.endswith(".")
        else:
            assert found.prior_db - 1e-6 <= found.psnr_db < 300


@pytest.mark.parametrize("name", sorted(name for name, (zero, _) in ROWS.items() if zero))
def test_at_zero_strength_it_is_the_undefended_reading(name: str):
    zero = ROWS[name][0]
    assert zero is not None
    assert reading(zero).psnr_db == pytest.approx(reading("none").psnr_db, abs=0.05)


ORDERED = sorted(
    set(ROWS)
    - {
        "large-batch",
        "local-steps",
        "secagg",
        "adadefense",
        "ats",
        "fedkl",
        "instahide",
        "lids",
        "mixup",
        "none",
        "precode",
        "pretrained",
    }
)


@pytest.mark.parametrize("name", ORDERED)
def test_more_strength_never_raises_it(name: str):
    values = [reading(spec).psnr_db or 0.0 for spec in ("none", *ROWS[name][1])]
    assert all(later <= earlier + 0.05 for earlier, later in pairwise(values)), values


@pytest.mark.parametrize("spread", ["large-batch:size=4", "local-steps:steps=2", "secagg:clients=2"])
def test_more_images_behind_the_same_noise_lower_it(spread: str):
    noisy = "gaussian:sigma=0.003,clip=inf"
    more = f"{noisy}+{spread}" if spread.startswith("secagg") else f"{spread}+{noisy}"
    assert (reading(more).psnr_db or 0.0) < (reading(noisy).psnr_db or 0.0)
