"""Files that defences load are part of what determines a trial."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from fedseal.audit.plan import plan_jobs
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.models.registry import build_model
from fedseal.store.identity import file_hashes


def test_a_file_counts_by_content_and_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"

    def key() -> str:
        scenario = Scenario(data="digits", model="mlp:width=4", defences=(f"pretrained:{path}",), targets=1)
        return plan_jobs(build_setup(scenario))[0].trials[0].key

    model = build_model("mlp:width=4", input_shape=(1, 28, 28), num_classes=10, seed=1)
    save_file(model.state_dict(), path)
    first = key()
    assert key() == first
    save_file({name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}, path)
    assert key() != first


def test_which_files_a_spec_names(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"one")
    for spec in (f"pretrained:{path}", f"topk:ratio=0.5+pretrained:checkpoint={path}", f"refiner:evaluator={path}"):
        assert list(file_hashes(spec)) == [str(path)]
    assert file_hashes("topk:ratio=0.5+gaussian:sigma=1e+2") == {}
    assert file_hashes("pretrained:checkpoint=none") == {}
