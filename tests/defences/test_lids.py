"""LIDS: neighbours, interpolation, edits and groups are the paper's, and what is built is kept and found again."""

from __future__ import annotations

import colorsys
import stat
from pathlib import Path

import pytest
import torch

from fedseal.attacks.active.seer.batches import Auxiliary
from fedseal.attacks.active.seer.fitting import Trainee
from fedseal.attacks.active.seer.plan import SeerPlan
from fedseal.core.batch import IDENTITY, Batch
from fedseal.core.errors import InputError, UsageError
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.defences.lids import augmentation
from fedseal.defences.lids.augmentation import EDITS, augment
from fedseal.defences.lids.autoencoder import Autoencoder, AutoencoderTraining, stage_filters
from fedseal.defences.lids.construction import Recipe, construct
from fedseal.defences.lids.defence import Lids
from fedseal.defences.lids.groups import form_batches
from fedseal.defences.lids.synthesis import ALPHAS, interpolate, nearest_of_class, synthesise
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round, set_mode
from fedseal.federation.cohort import Held
from fedseal.federation.simulation import FederationConfig, simulate
from fedseal.models.registry import build_model
from fedseal.preparation import Library, items

SHAPE = (1, 16, 16)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path))
    return tmp_path


def digits(count: int = 60, classes: int = 3) -> Batch:
    whole = DATASETS.build("digits:size=16")
    chosen = torch.cat([(whole.labels == label).nonzero().flatten()[: count // classes] for label in range(classes)])
    order = torch.randperm(len(chosen), generator=generator(0, "order"))
    return whole.batch(chosen[order])


@pytest.mark.parametrize(
    ("shape", "filters", "latent"),
    [
        ((3, 32, 32), (64, 128, 256, 64), (64, 2, 2)),
        ((3, 16, 16), (64, 128, 64), (64, 2, 2)),
        ((1, 8, 8), (64, 64), (64, 2, 2)),
        ((1, 28, 28), (64, 128, 64), (64, 3, 3)),
        ((3, 64, 64), (64, 128, 256, 64), (64, 4, 4)),
        ((1, 13, 18), (64, 64), (64, 3, 4)),
    ],
)
def test_the_autoencoder_has_the_papers_shapes(shape: tuple[int, int, int], filters: object, latent: object):
    network = Autoencoder(shape)
    assert stage_filters(*shape[1:]) == filters
    latents = network.encode(torch.rand(2, *shape))
    assert tuple(latents.shape[1:]) == latent
    assert network.decode(latents).shape == (2, *shape)
    kinds = [type(layer).__name__ for layer in network.encoder]
    assert kinds == (["Conv2d", "ReLU"] * len(stage_filters(*shape[1:])))[:-1]
    assert type(network.decoder[-1]).__name__ == "ConvTranspose2d"
    first = network.encoder[0]
    assert (first.kernel_size, first.stride, first.padding) == ((4, 4), (2, 2), (1, 1))


def test_images_too_small_are_refused():
    with pytest.raises(InputError, match="cannot halve images of 3 x 8"):
        Autoencoder((1, 3, 8))


@pytest.mark.slow
def test_the_autoencoder_learns():
    training = AutoencoderTraining(digits().images, seed=0)
    errors = [training.advance() for _ in range(20)]
    assert errors[-1] < 0.8 * errors[0]


def test_neighbours_are_the_nearest_of_the_class():
    data = digits(30)
    found = nearest_of_class(data, 3)
    for place in range(len(data)):
        others = [j for j in range(len(data)) if j != place and data.labels[j] == data.labels[place]]
        distances = {j: float((data.images[j] - data.images[place]).square().mean()) for j in others}
        assert found[place].tolist() == sorted(others, key=lambda j: distances[j])[:3]


def test_small_classes_reuse_their_neighbours():
    data = digits(6)
    lonely = Batch(data.images[:4], torch.tensor([0, 0, 0, 1]))
    found = nearest_of_class(lonely, 5)
    assert found[3].tolist() == [3] * 5
    assert sorted(set(found[0].tolist())) == [1, 2]
    assert found[0, 0] == found[0, 2] == found[0, 4]


def test_alphas_are_the_papers():
    assert len(ALPHAS) == 17
    assert (ALPHAS[0], ALPHAS[1], ALPHAS[-1]) == (0.5, 0.525, pytest.approx(0.9))


class Identity(Autoencoder):
    """Latents are the pixels, so that interpolation has a closed form."""

    def encode(self, images: torch.Tensor) -> torch.Tensor:
        return images

    def decode(self, latents: torch.Tensor) -> torch.Tensor:
        return latents


def test_alpha_is_the_first_that_reaches_the_threshold():
    images = torch.zeros(3, *SHAPE)
    images[1], images[2] = 0.3, 1.0
    data, neighbours = Batch(images, torch.zeros(3, dtype=torch.long)), torch.tensor([1, 0, 0])
    made, alphas, quality = interpolate(Identity(SHAPE), data, neighbours, 18.0)
    # the error is ((1 - alpha) d)^2: 18 dB need (1 - alpha) d <= 0.1259
    assert alphas[0] == alphas[1] == pytest.approx(0.6)
    assert alphas[2] == pytest.approx(0.875)
    torch.testing.assert_close(made[0], torch.full(SHAPE, 0.4 * 0.3))
    assert bool((quality > 18).all())
    _, kept, low = interpolate(Identity(SHAPE), data, neighbours, 60.0)
    torch.testing.assert_close(kept, torch.full((3,), 0.9))
    assert bool((low <= 60).all())


@pytest.mark.parametrize("augmented", [True, False])
def test_every_group_keeps_the_contract(augmented: bool):
    data, size = digits(), 4
    training = AutoencoderTraining(data.images, seed=0)
    for _ in range(12):
        training.advance()
    groups = synthesise(training.network, data, size, 18.0, augmented, generator(0))
    assert groups.synthetic.shape == (len(data), size - 1, *SHAPE)
    assert bool(((groups.psnr > 18) | torch.isclose(groups.alphas, torch.tensor(0.9))).all())
    assert bool(((groups.synthetic >= 0) & (groups.synthetic <= 1)).all())
    measured = -10 * (groups.synthetic - data.images[:, None]).square().mean((2, 3, 4)).log10()
    if augmented:
        assert bool((measured - groups.psnr).abs().max() > 1)
    else:
        torch.testing.assert_close(measured, groups.psnr, rtol=1e-4, atol=1e-3)
    formed = form_batches(len(data), 2, generator(1))
    assert sorted(formed.flatten().tolist()) == list(range(len(data)))
    batch = groups.batch(formed[0])
    assert len(batch) == 2 * size
    for place in range(2):
        part = slice(place * size, (place + 1) * size)
        base = int(formed[0, place])
        assert torch.equal(batch.images[part][0], data.images[base])
        assert batch.labels[part].tolist() == [int(data.labels[base])] * size
        assert not any(torch.equal(image, data.images[base]) for image in batch.images[part][1:])


def test_the_last_batch_is_completed():
    formed = form_batches(7, 3, generator(0))
    assert formed.shape == (3, 3)
    assert sorted(formed.flatten()[:7].tolist()) == list(range(7))
    assert form_batches(1, 3, generator(0)).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("edit", range(7))
def test_every_edit_changes_colour_images_and_cycles(edit: int):
    images = 0.2 + 0.5 * torch.rand(5, 3, 8, 8, generator=generator(0, "images"))
    edited = augment(images, edit, generator(1))
    assert bool(((edited >= 0) & (edited <= 1)).all())
    assert float((edited - images).abs().amax((1, 2, 3)).min()) > 1e-3
    assert torch.equal(edited, augment(images, edit + 7, generator(1)))
    assert not torch.equal(edited, augment(images, edit, generator(2)))


def test_edits_are_the_authors():
    assert [tuple(operation for operation, _, _ in edit) for edit in EDITS] == [
        ("contrast",),
        ("brightness", "contrast"),
        ("contrast", "saturation", "brightness"),
        ("hue", "contrast"),
        ("blur", "saturation"),
        ("blur", "sharpness"),
        ("contrast", "hue"),
    ]


def test_operations_have_their_closed_forms():
    images = torch.rand(4, 3, 6, 6, generator=generator(0, "images"))
    two = torch.full((4, 1, 1, 1), 2.0)
    luma = (images * torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)).sum(1, keepdim=True)
    torch.testing.assert_close(augmentation.saturation(images, two), 2 * images - luma)
    middle = luma.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(augmentation.contrast(images, two), 2 * images - middle)
    flat = torch.full((1, 3, 6, 6), 0.4)
    torch.testing.assert_close(augmentation.blur(flat, two[:1]), flat)
    torch.testing.assert_close(augmentation.sharpness(flat, two[:1]), flat)
    turned = augmentation.hue(images, torch.full((4, 1, 1, 1), 0.07))
    for row, column in ((0, 0), (3, 5)):
        h, s, v = colorsys.rgb_to_hsv(*images[1, :, row, column].tolist())
        expected = colorsys.hsv_to_rgb((h + 0.07) % 1, s, v)
        assert turned[1, :, row, column].tolist() == pytest.approx(expected, abs=1e-5)


def test_the_last_edit_turns_the_hue_at_least_a_little(monkeypatch: pytest.MonkeyPatch):
    seen: list[torch.Tensor] = []
    monkeypatch.setitem(augmentation.OPERATIONS, "hue", lambda images, shifts: seen.append(shifts) or images)
    augment(torch.rand(500, 3, 4, 4), 6, generator(0))
    sizes = seen[0].abs()
    assert float(sizes.min()) >= 0.03 - 1e-6
    assert float(sizes.max()) <= 0.07 + 1e-6
    assert 0.4 < float((seen[0] > 0).float().mean()) < 0.6


@pytest.mark.slow
def test_a_construction_is_found_again_and_resumes(tmp_path: Path):
    data, recipe, books = digits(30), Recipe(3, 18.0, True, 4, 0), Library(tmp_path)
    whole = construct(data, recipe, Library(None))
    first = construct(data, recipe, books)
    again = construct(data, recipe, books)
    assert again.seconds == 0 < first.seconds
    assert first.stored_bytes == again.stored_bytes > data.images.numel() * 4 * 2
    for other in (first, again):
        torch.testing.assert_close(other.groups.synthetic, whole.groups.synthetic)
    plain = construct(data, Recipe(3, 18.0, False, 4, 0), books)
    assert not torch.equal(plain.groups.synthetic, first.groups.synthetic)
    kinds = [item.kind for item in items(tmp_path)]
    assert kinds == ["lids-autoencoder", "lids-groups", "lids-groups"]
    assert {stat.S_IMODE(item.path.stat().st_mode) for item in items(tmp_path)} == {0o600}  # made of private images
    half = AutoencoderTraining(data.images, 0)
    for _ in range(2):
        half.advance()
    rest = AutoencoderTraining(data.images, 0)
    rest.restore(half.state())
    errors = [[one.advance() for _ in range(2)] for one in (half, rest)]
    assert errors[0] == pytest.approx(errors[1])


def test_a_client_feeds_one_of_its_batches(cache: Path):
    data = digits(40)
    defence = Lids(samples=4, epochs=3)
    assert torch.equal(defence.prepare(data, generator(0)).images, data.images)
    config = RoundConfig(bn_mode="train-nostats")
    net = set_mode(build_model("convbn:width=8", input_shape=SHAPE, num_classes=10, seed=0), config)
    given = Batch(data.images[:8], data.labels[:8])
    seen = []
    for number in range(12):
        done = client_round(net, [given], config, defence, generator(number, "round"))
        fed = done.fed[0]
        assert len(fed) == 8
        real = [place for place in range(8) if any(torch.equal(fed.images[place], one) for one in data.images)]
        assert real == [0, 4]
        assert fed.labels[:4].unique().numel() == fed.labels[4:].unique().numel() == 1
        seen.append(fed.images)
    distinct = {one.numpy().tobytes() for one in seen}
    assert 1 < len(distinct) <= 20  # formed once, 40 / 2 of them, and re-used
    assert any("MB of synthetic images" in remark for remark in defence.report().remarks)
    assert [item.kind for item in items(cache / "prepared")] == ["lids-autoencoder", "lids-groups"]


def test_lids_trains_a_federation():
    data = digits(48)
    halves = [Held(Batch(data.images[part], data.labels[part])) for part in (slice(24), slice(24, None))]
    net = build_model("convbn:width=8", input_shape=SHAPE, num_classes=10, seed=0)
    config = FederationConfig(rounds=2, local_steps=2, batch_size=8)
    result = simulate(config, net, halves, data, build_defence("lids:samples=4,epochs=2"))
    assert len(result.history.rounds[-1].clients) == 2


def test_wrong_options_are_refused():
    with pytest.raises(UsageError, match="samples >= 1"):
        Lids(samples=0)


@pytest.mark.slow
def test_the_adaptive_attacker_trains_on_groups():
    data = digits(120)
    groups = construct(data, Recipe(4, 18.0, True, 2, 0), Library(None)).groups
    plan = SeerPlan(lids=4, steps=3, accumulate=2, augment=False)
    drawn = Auxiliary(data, plan, groups).draw(5, generator(0))
    assert drawn.images.shape == (5, 1, 8, *SHAPE)
    assert bool((drawn.labels[:, 0, :4] == drawn.labels[:, 0, :1]).all())
    net = build_model("convbn:width=8", input_shape=SHAPE, num_classes=10, seed=0)
    attacker = Library(None).get(Trainee(net, data, 10, IDENTITY, plan, groups))
    assert attacker.decode_batches(*groups.assembled(torch.tensor([[0, 1]]))).shape == (1, *SHAPE)
    with pytest.raises(InputError, match="needs the auxiliary images' mini-groups"):
        Auxiliary(data, plan)
