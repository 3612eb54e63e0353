"""Open doors: what other packages offer is listed, what a reference names is built, what is wrong is said in a line."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from fedseal.attacks.labels import LABEL_RULES, LabelGuess, infer_labels, is_rule
from fedseal.core import plugins
from fedseal.core.attack import ATTACKS
from fedseal.core.defence import DEFENCES, Defence
from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.core.knowledge import Knowledge
from fedseal.core.observation import Observation, Update
from fedseal.core.registry import FunctionRegistry, Info, Registry, parse_spec
from fedseal.data.registry import DATASETS
from fedseal.metrics.registry import METRICS, measure
from fedseal.models.registry import MODELS

SOURCE = '''
import torch
from fedseal.attacks.labels import LabelGuess
from fedseal.core.attack import Attack
from fedseal.core.defence import Defence
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.registry import Info
from fedseal.data.dataset import ImageDataset


class Grey(Attack):
    """Guess grey."""

    info = Info("guess grey", needs=("auxiliary",))

    def __init__(self, level: float = 0.5):
        self.level = level

    def run_many(self, observations, budget, seeds, listener=None):
        return []


class Sign(Defence):
    """Send signs only.

    And nothing else.
    """


number = 3
ready = Sign()


def not_an_attack():
    return 3


def explodes():
    raise RuntimeError("no fuse")


def distance(originals, reconstructions, power: float = 1.0):
    return (originals - reconstructions).abs().pow(power).mean(dim=(1, 2, 3))


def wrong_shape(originals, reconstructions):
    return torch.zeros(3)


def one_argument(originals):
    return originals


def zeros(observation, seed):
    return LabelGuess(torch.zeros(observation.knowledge.batch_size, dtype=torch.long))


def no_guess(observation, seed):
    return [0]


def images(count: int = 4):
    pixels = torch.zeros(count, 1, 4, 4, dtype=torch.uint8)
    return ImageDataset("own", pixels, torch.zeros(count, dtype=torch.long), ("a",))
'''


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("theirs")
    (place / "their_methods.py").write_text(SOURCE)
    (place / "their_broken.py").write_text("1 / 0\n")
    sys.path.insert(0, str(place))
    yield "their_methods"
    sys.path.remove(str(place))


def offer(monkeypatch: pytest.MonkeyPatch, *points: tuple[str, str]) -> None:
    """Let installed packages offer names for references, in any group."""
    made = [EntryPoint(name, value, "any") for name, value in points]
    monkeypatch.setattr(plugins.metadata, "entry_points", lambda group: made)


def registry() -> Registry[Defence]:
    made: Registry[Defence] = Registry("thing", "fedseal.engines", group="fedseal.things", product=Defence)
    made.register("own", Info("ours"))(Defence)
    return made


def test_a_reference_is_built_with_options_and_knows_its_declaration(theirs: str):
    attack = ATTACKS.build(f"{theirs}:Grey:level=0.25")
    assert attack.level == 0.25
    assert attack.name == f"{theirs}:Grey"
    assert attack.needs == {"auxiliary"}
    with pytest.raises(FedsealError, match=f"{theirs}:Grey needs auxiliary, which the threat model"):
        attack.check_knowledge(Knowledge((1, 4, 4), 2))


def test_what_declares_nothing_is_described_by_its_docstring(theirs: str):
    assert DEFENCES.find(f"{theirs}:Sign").info.summary == "Send signs only"


def test_an_instance_is_copied_for_every_client(theirs: str):
    first, second = (DEFENCES.build(f"{theirs}:ready") for _ in range(2))
    assert first is not second


@pytest.mark.parametrize(
    ("registry", "spec", "says"),
    [
        (ATTACKS, "their_methods:not_an_attack", ("returned int", "fedseal.Attack")),
        (ATTACKS, "their_methods:number", ("is int", "or a function that returns one")),
        (ATTACKS, "their_methods:explodes", ("building the attack", "RuntimeError: no fuse")),
        (ATTACKS, "their_methods:Gray", ("no attribute 'Gray'", "'Grey'")),
        (ATTACKS, "their_methods:Grey:levle=1", ("no option 'levle'", "'level'")),
        (ATTACKS, "their_methods:Grey:level=high", ("'level'", "'high'", "number")),
        (ATTACKS, "their_methods:Sign", ("returned Sign", "not a fedseal.Attack")),
        (DEFENCES, "their_broken:Anything", ("importing 'their_broken' failed", "ZeroDivisionError")),
        (DEFENCES, "nowhere.at_all:Sign", ("cannot import 'nowhere.at_all'", "PYTHONPATH")),
        (DEFENCES, "topc:ratio", ("cannot import 'topc'", "Did you mean 'topk'")),
        (DEFENCES, "topc", ("no defence called 'topc'", "Did you mean 'topk'", "package.module:attribute")),
        (METRICS, "their_methods:one_argument", ("must take 2 arguments",)),
        (MODELS, "their_methods:images", ("returned ImageDataset", "torch.nn.Module")),
    ],
)
def test_what_is_wrong_with_a_reference_is_said_in_one_line(
    theirs: str, registry: Registry[object], spec: str, says: tuple[str, ...]
):
    with pytest.raises((UsageError, InputError)) as caught:
        registry.build(spec)
    message = str(caught.value)
    assert "\n" not in message
    for part in says:
        assert part in message


def test_data_sets_of_ones_own(theirs: str):
    assert len(DATASETS.build(f"{theirs}:images:count=6")) == 6


def test_registered_names_win_over_modules(theirs: str):
    """`npz:their_methods` is a path, whatever can be imported."""
    assert DATASETS.find("npz:their_methods").name == "npz"


def test_metrics_of_ones_own_are_held_to_one_number_per_image(theirs: str):
    one, other = torch.zeros(2, 1, 4, 4), torch.full((2, 1, 4, 4), 0.5)
    assert measure(f"{theirs}:distance", one, other) == (0.5, 0.5)
    assert measure(f"{theirs}:distance:power=2", one, other) == (0.25, 0.25)
    assert measure("mae", one, other) == (0.5, 0.5)
    with pytest.raises(InputError, match=r"answers 2 images with \[3\]"):
        measure(f"{theirs}:wrong_shape", one, other)


def test_label_rules_of_ones_own(theirs: str):
    assert is_rule(f"{theirs}:zeros")
    assert not is_rule("true")
    assert not is_rule("unknown")
    model = torch.nn.Linear(1, 2)
    update = Update({name: torch.zeros_like(value) for name, value in model.named_parameters()})
    seen = Knowledge((1, 4, 4), 2, label_rule=f"{theirs}:zeros", batch_size=3)
    assert infer_labels(Observation(model, update, seen), 0).labels.tolist() == [0, 0, 0]
    wrong = Knowledge((1, 4, 4), 2, label_rule=f"{theirs}:no_guess", batch_size=3)
    with pytest.raises(InputError, match="returned list"):
        infer_labels(Observation(model, update, wrong), 0)


def test_options_of_a_function_are_bound_and_its_arguments_are_none():
    rules: FunctionRegistry[object] = FunctionRegistry("rule", "fedseal.engines", supplied=2)

    @rules.register("counted", Info("a rule with an option"))
    def counted(observation: object, seed: int, times: int = 1) -> int:
        return seed * times

    assert rules.entry("counted").describe()["options"] == {"times": 1}
    assert rules.build("counted:times=3")(None, 2) == 6
    with pytest.raises(UsageError, match="no option 'seed'"):
        rules.build("counted:seed=1")


def test_every_label_rule_is_listed_with_a_summary():
    assert "identity" in LABEL_RULES
    assert all(LABEL_RULES.entry(name).info.summary for name in LABEL_RULES)
    assert LabelGuess(torch.zeros(1)).notes == ()


def test_what_a_package_offers_is_listed_and_built(theirs: str, monkeypatch: pytest.MonkeyPatch):
    offer(monkeypatch, ("sign", f"{theirs}:Sign"))
    things = registry()
    assert things.names() == ["own", "sign"]
    assert things.build("sign").name == "sign"
    assert things.entry("sign").origin == theirs
    assert things.problems() == {}


def test_nothing_offered_is_imported_before_it_is_named(monkeypatch: pytest.MonkeyPatch):
    offer(monkeypatch, ("bomb", "no_such_module_anywhere"))
    things = registry()
    things.build("own")
    with pytest.warns(UserWarning, match="'bomb', refused: cannot import"):
        assert "bomb" not in things
    with pytest.raises(UsageError, match="cannot import 'no_such_module_anywhere'"):
        things.build("bomb")


@pytest.mark.parametrize(
    ("points", "name", "says"),
    [
        ((("own", "their_methods:Sign"),), "own", "has the name of one that is there already"),
        ((("two", "their_methods:Sign"), ("two", "their_methods:ready")), "two", "is offered by"),
        ((("none", "their_methods"),), "none", "registers no thing called 'none'"),
        ((("broken", "their_broken:X"),), "broken", "importing 'their_broken' failed"),
        ((("three", "their_methods:number"),), "three", "is int"),
    ],
)
def test_an_offer_that_cannot_be_used_is_a_problem_and_no_other_name_suffers(
    theirs: str, monkeypatch: pytest.MonkeyPatch, points: tuple[tuple[str, str], ...], name: str, says: str
):
    offer(monkeypatch, ("sign", f"{theirs}:Sign"), *points)
    things = registry()
    with pytest.warns(UserWarning, match="refused"):
        listed = things.names()
    assert listed == ["own", "sign"]
    assert says in things.problems()[name]
    assert things.build("own").name == "own"


@pytest.mark.parametrize(
    ("text", "name", "options", "argument"),
    [
        ("pkg.mod:thing", "pkg.mod", {}, "thing"),
        ("pkg.mod:thing:a=1,b=2", "pkg.mod:thing", {"a": "1", "b": "2"}, None),
        ("topk:ratio=0.5", "topk", {"ratio": "0.5"}, None),
        ("npz:C:/images.npz", "npz", {}, "C:/images.npz"),
    ],
)
def test_references_with_options_are_parsed(text: str, name: str, options: dict[str, str], argument: str | None):
    spec = parse_spec(text)
    assert (spec.name, spec.options, spec.argument) == (name, options, argument)
    assert str(spec) == text


def test_what_packages_really_offer_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Not by our stand-in but from metadata on disk, as pip leaves it."""
    info = tmp_path / "stranger-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedseal.things]\nodd = stranger.odd:Odd [extra]\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert plugins.offers("fedseal.things") == [plugins.Offer("odd", "stranger.odd:Odd", "stranger")]
    assert plugins.offers("fedseal.others") == []
