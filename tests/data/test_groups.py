"""Grouped data: whose an image is decides on which side it lies, for every split."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.audit.targets import Targets, images_per_target
from fedseal.core.batch import joined
from fedseal.core.errors import InputError
from fedseal.core.watcher import Severity, Watcher
from fedseal.data.dataset import Dataset, ImageDataset, split_public
from fedseal.data.groups import keep_apart
from fedseal.data.registry import DATASETS
from fedseal.data.stored import StoredImages
from fedseal.defences.pipeline import build_defence
from fedseal.training.run import open_training
from fedseal.training.runner import run_training
from fedseal.training.scenario import TrainingScenario
from fedseal.training.setup import build_federation


def data_of(groups: list[int], *, stored: bool = False, first: int = 0) -> Dataset:
    """Return one-pixel images whose value is their place, in memory or in a file, counted from `first`."""
    images = torch.arange(first, first + len(groups), dtype=torch.uint8).view(-1, 1, 1, 1)
    labels, owners = torch.arange(len(groups)) % 2, torch.tensor(groups)
    if stored:
        places = torch.arange(len(groups))
        return StoredImages("grouped", images, places, labels, ("a", "b"), "content", groups=owners)
    return ImageDataset("grouped", images, labels, ("a", "b"), groups=owners)


def values(images: torch.Tensor) -> list[int]:
    """Return the places that images show."""
    return [int(value) for value in images.mul(255).round().flatten().tolist()]


OWNERS = st.lists(st.integers(0, 12), min_size=24, max_size=120)


@settings(max_examples=60, deadline=None)
@given(
    groups=OWNERS,
    fraction=st.floats(0.1, 0.9),
    seed=st.integers(0, 1 << 30),
    partitioned=st.booleans(),
    stored=st.booleans(),
)
def test_public_private_and_strangers_never_share_a_group(
    groups: list[int], fraction: float, seed: int, partitioned: bool, stored: bool
) -> None:
    dataset = data_of(groups, stored=stored)
    try:
        private, public = split_public(dataset, fraction, seed)
    except InputError:  # a group that holds nearly everything leaves one side empty
        return
    assert private.groups is not None
    assert public.groups is not None
    assert not set(private.groups.tolist()) & set(public.groups.tolist())
    assert sorted(values(private.batch().images) + values(public.batch().images)) == list(range(len(groups)))
    assert len(public) <= round(fraction * len(groups))
    client = {"partition": "iid", "population": 2} if partitioned else {}
    scenario = Scenario(targets=2, seed=seed, client=client)
    targets = Targets(private, scenario, images_per_target(scenario, len(private)))
    try:
        strangers, attacked = private.batch(targets.strangers()), targets.attacked
    except InputError:
        return
    theirs = {groups[place] for place in values(strangers.images)}
    assert not theirs & set(private.groups[attacked].tolist())
    assert not theirs & set(public.groups.tolist())


@settings(max_examples=60, deadline=None)
@given(trained=OWNERS, tested=OWNERS, stored=st.booleans())
def test_training_and_test_never_share_a_group(trained: list[int], tested: list[int], stored: bool) -> None:
    train, test = data_of(trained, stored=stored), data_of(tested, stored=stored, first=len(trained))
    left = [len(trained) + place for place, owner in enumerate(tested) if owner not in trained]
    if not left:
        with pytest.raises(InputError, match="every group of the test set grouped is in the training data"):
            keep_apart(train, test)
        return
    kept, apart = keep_apart(train, test)
    assert values(apart.batch().images) == left
    assert values(kept.batch().images) == list(range(len(trained)))
    gone = len(tested) - len(left)
    note = f"{gone} of {len(tested)} test samples belong to groups of the training data and are left out"
    assert kept.notes == ((note,) if gone else ())


def write(path: Path, owners: list[str], seed: int, **more: Any) -> None:
    """Write an archive of random images; no two files share one."""
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (len(owners), 8, 8), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(len(owners)) % 2, patient=np.array(owners), **more)


def training_on(directory: Path, **changes: Any) -> TrainingScenario:
    """A training whose data and test set are files of patients."""
    plain = {"data": f"npz:{directory}/train.npz?group=patient", "test": f"npz:{directory}/test.npz?group=patient"}
    federation = {
        "algorithm": "fedsgd",
        "rounds": 1,
        "batch_size": 2,
        "learning_rate": 0.1,
        "bn_mode": "eval",
        "train_mode": False,
    }
    few = {"model": "mlp:depth=1,width=4", "clients": 3, "normalise": False, "federation": federation}
    return TrainingScenario.model_validate(plain | few | changes)


PATIENTS = st.lists(st.sampled_from("abcdefgh"), min_size=12, max_size=30)


@settings(max_examples=25, deadline=None)
@given(trained=PATIENTS, tested=PATIENTS, named=st.booleans(), fraction=st.floats(0.2, 0.8), seed=st.integers(0, 99))
def test_a_training_is_measured_on_nobody_it_trains_on(
    trained: list[str], tested: list[str], named: bool, fraction: float, seed: int
) -> None:
    with TemporaryDirectory() as place:
        directory = Path(place)
        write(directory / "train.npz", trained, 0)
        write(directory / "test.npz", tested, 1)
        read = {name: np.load(directory / f"{name}.npz") for name in ("train", "test")}
        owner = {
            image.tobytes(): patient
            for archive in read.values()
            for image, patient in zip(archive["images"], archive["patient"].tolist(), strict=True)
        }
        scenario = training_on(directory, **({} if named else {"test": None, "test_fraction": fraction}))
        try:
            federation = build_federation(scenario, seed)
        except InputError:
            assert (set(tested) <= set(trained)) if named else max(map(trained.count, trained)) > 1
            return
    measured = {owner[image.numpy().tobytes()] for image in federation.test.images.mul(255).round().to(torch.uint8)}
    held = {owner[image.numpy().tobytes()] for client in federation.clients for image in client.inputs}
    assert measured
    assert not measured & held
    if named:
        assert measured == set(tested) - set(trained)


def test_an_attacker_of_a_training_knows_no_patient_of_a_client(tmp_path: Path) -> None:
    write(tmp_path / "train.npz", list("aabbccddeeff"), 0)
    write(tmp_path / "test.npz", list("ffgg"), 1)
    told = Told()
    training = training_on(tmp_path)
    run_training(training, tmp_path / "trained", watcher=told)
    said = "2 of 4 test samples belong to groups of the training data and are left out"
    assert told.said == [("warning", f"data: {said}.")]
    assert open_training(tmp_path / "trained").test_images == 2
    client = {"batch_size": 2, "learning_rate": 0.1, "bn_mode": "eval", "train_mode": False, "normalise": False}
    scenario = Scenario.model_validate(
        {
            "data": training.data,
            "model": training.model,
            "client": client,
            "stage": {"checkpoint": str(tmp_path / "trained")},
            "targets": 1,
            "attacks": "ig:iterations=1",
        }
    )
    setup = build_setup(scenario)
    test = np.load(tmp_path / "test.npz")
    assert torch.equal(setup.public.images.mul(255).round()[:, 0], torch.from_numpy(test["images"][2:]).float())
    assert setup.private.notes == (said,)


class Told(Watcher):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def remarked(self, severity: Severity, text: str) -> None:
        self.said.append((severity, text))


@settings(max_examples=20, deadline=None)
@given(groups=st.lists(st.integers(0, 30), min_size=60, max_size=120), seed=st.integers(0, 99), late=st.booleans())
def test_an_attacked_round_of_a_training_shares_nobody_with_public_images_and_strangers(
    groups: list[int], seed: int, late: bool
) -> None:
    with TemporaryDirectory() as place:
        path = Path(place) / "train.npz"
        write(path, [str(owner) for owner in groups], 0)
        images = np.load(path)["images"]
        owner = {image.tobytes(): whose for image, whose in zip(images, groups, strict=True)}
        scenario = Scenario.model_validate(
            {
                "data": f"npz:{path}?group=patient",
                "model": "mlp:depth=1,width=4",
                "client": {"batch_size": 2, "learning_rate": 0.1},
                "stage": {"round": int(late), "clients": 3},
                "targets": 2,
                "seed": seed,
            }
        )
        try:
            setup = build_setup(scenario)
        except InputError:  # one group holds nearly everything
            return
        targets = [setup.observe(build_defence("none"), target, name="none").originals for target in (0, 1)]

    def whose(pictures: torch.Tensor) -> set[int]:
        return {owner[image.numpy().tobytes()] for image in pictures.mul(255).round().to(torch.uint8)}

    attacked = whose(joined(targets).images)
    assert not attacked & whose(setup.public.images)
    assert not attacked & whose(setup.strangers.images)
    assert not whose(setup.public.images) & whose(setup.strangers.images)


def test_an_official_test_part_is_freed_of_the_training_patients(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (14, 8, 8), dtype=np.uint8)
    arrays = {"labels": np.arange(10) % 2, "patient": np.array(list("aabbccddee"))}
    more = {"labels": np.arange(4) % 2, "patient": np.array(list("xeby"))}
    parts = {f"train_{name}": array for name, array in {"images": images[:10], **arrays}.items()}
    parts |= {f"test_{name}": array for name, array in {"images": images[10:], **more}.items()}
    np.savez(tmp_path / "both.npz", **parts)
    scenario = training_on(tmp_path, data=f"npz:path={tmp_path}/both.npz,group=patient", test=None)
    federation = build_federation(scenario, 0)
    assert torch.equal(federation.test.images.mul(255).round()[:, 0], torch.from_numpy(images[[10, 13]]).float())
    keras = {f"{name[0]}_{part}": parts[f"{part}_{name[1]}"] for part in ("train", "test") for name in KERAS}
    np.savez(tmp_path / "keras.npz", **keras)
    scenario = training_on(tmp_path, data=f"npz:path={tmp_path}/keras.npz,group=patient", test=None)
    assert torch.equal(build_federation(scenario, 0).test.images, federation.test.images)


KERAS = (("x", "images"), ("y", "labels"), ("patient", "patient"))


def test_a_test_set_that_does_not_say_whose_it_is_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "train.npz", list("aabbccddeeff"), 0)
    write(tmp_path / "test.npz", list("ffgg"), 1)
    with pytest.raises(InputError, match="train says whose its samples are and test does not"):
        build_federation(training_on(tmp_path, test=f"npz:{tmp_path}/test.npz"), 0)
    with pytest.raises(InputError, match="test says whose its samples are and train does not"):
        build_federation(training_on(tmp_path, data=f"npz:{tmp_path}/train.npz"), 0)


def test_tables_of_patients_are_kept_apart_too(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(
        "age,sick,who\n" + "".join(f"{30 + i},{'yn'[i % 2]},p{i // 2}\n" for i in range(20))
    )
    (tmp_path / "test.csv").write_text("age,sick,who\n70,y,p3\n71,n,q1\n72,y,q2\n73,n, p9\n")
    specs = {name: f"csv:{tmp_path}/{name}.csv?target=sick&group=who" for name in ("train", "test")}
    train, test = (DATASETS.build(spec) for spec in specs.values())
    kept, apart = keep_apart(train, test.made_like(train))
    assert len(apart) == 2
    assert torch.equal(apart.inputs, test.made_like(train).inputs[1:3])
    assert kept.notes


def test_images_without_groups_are_split_as_ever() -> None:
    alone = data_of([0] * 10)
    private, public = split_public(ImageDataset("plain", alone.inputs, alone.labels, alone.classes), 0.3, 1)
    assert (len(private), len(public)) == (7, 3)
    assert private.groups is None


def test_an_archive_says_whose_images_are(tmp_path: Path) -> None:
    path = tmp_path / "lesions.npz"
    owners = np.array(["b", "a", "b", "c"])
    np.savez(path, images=np.zeros((4, 8, 8), np.uint8), labels=np.arange(4) % 2, lesion=owners, wrong=np.zeros(3, int))
    found = DATASETS.build(f"npz:{path}?group=lesion", data_root=None)
    assert found.groups is not None
    assert found.groups.dtype == torch.int64
    b, a, again, c = found.groups.tolist()
    assert b == again
    assert len({a, b, c}) == 3
    np.savez(path, images=np.zeros((2, 8, 8), np.uint8), labels=np.arange(2), lesion=np.array([b"c", b"b"]))
    other = DATASETS.build(f"npz:{path}?group=lesion", data_root=None)
    assert other.groups is not None
    assert other.groups.tolist() == [c, b]  # in another file, too
    np.savez(path, images=np.zeros((4, 8, 8), np.uint8), labels=np.arange(4) % 2, lesion=owners, wrong=np.zeros(3, int))
    assert DATASETS.build(f"npz:{path}", data_root=None).groups is None
    with pytest.raises(InputError, match="no array 'lesions' of groups"):
        DATASETS.build(f"npz:{path}?group=lesions", data_root=None)
    with pytest.raises(InputError, match="one for each image"):
        DATASETS.build(f"npz:{path}?group=wrong", data_root=None)


def test_one_group_for_all_is_refused_in_words() -> None:
    with pytest.raises(InputError, match="more and smaller groups"):
        split_public(data_of([3] * 10), 0.3, 0)


@pytest.mark.shared
@pytest.mark.parametrize("client", [{}, {"partition": "dirichlet:alpha=0.5", "population": 5}], ids=["random", "dealt"])
def test_lesions_of_ham10000_stay_on_one_side(shared: Path, client: dict[str, Any]) -> None:
    path = shared / "data" / "ham10000_64.npz"
    archive = np.load(path)
    lesion = {image.tobytes(): whose for image, whose in zip(archive["images"], archive["lesion_id"], strict=True)}
    assert len(set(lesion.values())) < len(lesion) == 927  # some lesions have several pictures

    def lesions(pictures: torch.Tensor) -> set[str]:
        bytes_ = pictures.mul(255).round().to(torch.uint8).permute(0, 2, 3, 1)
        return {lesion[image.contiguous().numpy().tobytes()] for image in bytes_}

    asked = {"model": "lenet", "client": {"batch_size": 4, **client}, "targets": 8}
    sides = []
    for spec in (f"npz:{path}?group=lesion_id", f"npz:{path}"):
        setup = build_setup(Scenario.model_validate({**asked, "data": spec}))
        targets = [setup.observe(build_defence("none"), number, name="none").originals for number in range(8)]
        attacked, strangers = lesions(joined(targets).images), lesions(setup.strangers.images)
        private, public = lesions(setup.private.batch().images), lesions(setup.public.images)
        sides.append(len(private & public) + len(attacked & strangers) + len(strangers & public))
        assert len(public) > 200
        assert len(strangers) > 20
    grouped, plain = sides
    assert grouped == 0
    assert plain > 30  # which is what the option prevents


@pytest.mark.shared
def test_a_training_on_ham10000_is_tested_on_other_lesions(shared: Path, tmp_path: Path) -> None:
    archive = np.load(shared / "data" / "ham10000_64.npz")
    order = np.random.default_rng(0).permutation(927)
    for name, places in (("train", order[:700]), ("test", order[700:])):  # image by image, as published splits are
        arrays = {key: archive[key][places] for key in ("images", "labels", "lesion_id")}
        np.savez(tmp_path / f"{name}.npz", class_names=archive["class_names"], **arrays)
    data, test = (f"npz:{tmp_path}/{name}.npz?group=lesion_id" for name in ("train", "test"))
    federation = build_federation(training_on(tmp_path, data=data, test=test), 0)
    trained = set(archive["lesion_id"][order[:700]].tolist())
    left = [place for place in order[700:] if archive["lesion_id"][place] not in trained]
    assert 0 < len(left) < 227
    expected = torch.from_numpy(archive["images"][left]).permute(0, 3, 1, 2).float()
    assert torch.equal(federation.test.images.mul(255).round(), expected)
    assert federation.train.notes == (
        f"{227 - len(left)} of 227 test samples belong to groups of the training data and are left out",
    )
