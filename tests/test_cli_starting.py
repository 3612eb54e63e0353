"""From nothing to a verdict: `init` looks at a model and at pictures, `check` at a scenario."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedseal.audit.scenario import load_scenario
from fedseal.cli import main

NETS = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.BatchNorm2d(4), nn.Sigmoid(), nn.Flatten())
        self.head = nn.Linear(4 * 8 * 8, num_classes)
    def forward(self, x):
        return {"logits": self.head(self.body(x)), "seen": x}
"""
PARTS = """
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.last = nn.Linear(width, width)
"""
TWO = NETS + "\nclass Other(Net):\n    pass\n"


@pytest.fixture
def fedseal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("starting_nets", "starting_two"):
        sys.modules.pop(name, None)
    (tmp_path / "starting_nets.py").write_text(NETS + PARTS)
    (tmp_path / "starting_two.py").write_text(TWO)
    source = np.random.default_rng(0)
    for label in ("cats", "dogs"):
        (tmp_path / "pictures, mine" / label).mkdir(parents=True)
        for number in range(20):
            pixels = source.integers(0, 256, (26, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures, mine" / label / f"{number}.png")

    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedseal", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return run


def test_init_writes_a_scenario_that_check_and_audit_accept(fedseal: Callable[..., tuple], tmp_path: Path) -> None:
    code, out, err = fedseal("init", "starting_nets", "pictures, mine")
    assert code == 0, err
    assert "3x32x32" in out  # 26 pixels do not fit the head, 32 do
    assert "fedseal audit scenario.yaml" in out
    assert "Pictures of 26 pixels on the shorter side are cropped and resized to 32x32" in out
    scenario = load_scenario(tmp_path / "scenario.yaml")
    assert scenario.model == "starting_nets:Net"
    assert scenario.data == "folder:pictures, mine?size=32&channels=3"
    assert scenario.client.bn_mode == "eval"  # forty pictures: batches of one
    text = (tmp_path / "scenario.yaml").read_text()
    assert "# assumed" in text
    code, out, err = fedseal("check", "scenario.yaml")
    assert (code, "nothing stands in the way" in out) == (0, True), (out, err)
    assert "an audit takes about" in out
    code, _, err = fedseal("init", "starting_nets", "pictures, mine")
    assert (code, "exists" in err) == (2, True)


def test_init_names_what_it_cannot_decide(fedseal: Callable[..., tuple]) -> None:
    code, _, err = fedseal("init", "starting_two", "pictures, mine")
    assert (code, "Net, Other" in err, "starting_two:Other" in err) == (2, True, True)
    code, _, err = fedseal("init", "json", "pictures, mine")
    assert (code, "defines no torch.nn.Module" in err) == (2, True)
    code, _, err = fedseal("init", "starting_nets.py", "pictures, mine", "--out", "other.yaml")
    assert code == 0, err
    code, _, err = fedseal("init", "nowhere.py", "pictures, mine", "--out", "more.yaml")
    assert (code, "no file nowhere.py" in err) == (2, True)


def test_check_ends_with_2_on_a_problem_and_says_that_pictures_are_resized(
    fedseal: Callable[..., tuple], tmp_path: Path
) -> None:
    (tmp_path / "s.yaml").write_text(
        'data: "folder:pictures, mine"\nmodel: starting_nets:Net\nclient: {loss_reduction: sum}\n'
        "attacker: {loss_reduction: mean}\ntargets: 1\n"
    )
    code, out, err = fedseal("check", "s.yaml")
    assert code == 2
    assert "30x26 -> 32x32" in out
    assert "?size=26" in out
    assert "loss reduction" in out
    assert err.strip().splitlines()[-1].startswith("error: 1 problem(s)")
