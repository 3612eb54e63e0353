"""The time an audit of updates will take is told before it begins, in proportion to its steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.models.registry import build_model
from fedseal.updates import estimate
from fedseal.updates.case import UpdateCase, build_case
from fedseal.updates.estimate import estimated_seconds, in_words
from fedseal.updates.source import UpdateSource


@pytest.fixture
def case(tmp_path: Path) -> UpdateCase:
    data = DATASETS.build("faces:size=8")
    net = build_model("mlp:width=8", input_shape=data.shape, num_classes=2, seed=0)
    config = RoundConfig(learning_rate=0.1, upload="gradient")
    sent = client_round(net, [data.batch(torch.tensor([0]))], config, build_defence("none"), generator(0)).update
    save_file(dict(net.state_dict()), tmp_path / "before.safetensors")
    save_file(dict(sent.tensors), tmp_path / "update.safetensors")
    facts = {"kind": "gradient", "input_shape": data.shape, "batch_size": 1, "num_classes": 2}
    return build_case(
        UpdateSource(
            "mlp:width=8", before=tmp_path / "before.safetensors", update=tmp_path / "update.safetensors", facts=facts
        )
    )


def test_the_time_is_that_of_the_steps_and_closed_forms_are_free(
    case: UpdateCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    stub = SimpleNamespace(perf_counter=lambda: float(next(clock)))  # every probe takes a second
    monkeypatch.setattr(estimate, "time", stub)

    def seconds(*attacks: str, iterations: int | None = None, restarts: int = 1) -> float:
        return estimated_seconds(case, attacks, iterations=iterations, restarts=restarts, search=False)

    assert seconds("ig", iterations=40) == pytest.approx(10)
    assert seconds("ig", "fedleak", iterations=40, restarts=3) == pytest.approx(60)
    assert seconds("ig:iterations=400") == pytest.approx(100)
    assert seconds("first-layer") == 0


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.1, "about 1 s"), (89, "about 89 s"), (600, "about 10 min"), (7200, "about 2.0 h")]
)
def test_durations_are_told_as_people_say_them(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
