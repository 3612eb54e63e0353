"""The NVFlare filter: what it does to a result, and a job in NVFlare's own simulator."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason="the extra `nvflare` is not installed")

from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.app_common.app_constant import AppConstants

from fedseal.core.errors import CapabilityError, InputError
from fedseal.defences.pipeline import build_defence
from fedseal.nvflare import COST, DefenceFilter


def send(
    filter_: DefenceFilter, data: dict, *, client: str = "site-1", number: int = 0, kind: str = DataKind.WEIGHT_DIFF
):
    context = FLContext()
    context.set_prop(ReservedKey.IDENTITY_NAME, client, private=False, sticky=False)
    result = Shareable()
    result.set_header(AppConstants.CURRENT_ROUND, number)
    return from_shareable(filter_.process(DXO(kind, data).update_shareable(result), context))


@pytest.mark.parametrize("as_tensor", [True, False])
def test_differences_are_sealed_in_the_clients_own_kind_of_array(as_tensor: bool):
    values = torch.linspace(-1, 1, 100).view(10, 10)
    sent = send(DefenceFilter("topk:ratio=0.9"), {"w": values if as_tensor else values.numpy()})
    assert isinstance(sent.data["w"], torch.Tensor if as_tensor else np.ndarray)
    expected = build_defence("topk:ratio=0.9").on_update({"w": values}, None)["w"]  # type: ignore[arg-type]
    assert torch.equal(torch.as_tensor(sent.data["w"]), expected)
    assert sent.get_meta_prop(COST)["density"] == pytest.approx(0.1)


def test_each_client_has_its_own_state_and_keeps_it():
    filter_ = DefenceFilter("dgp")
    first = {"w": torch.linspace(1, 2, 20)}
    send(filter_, dict(first), client="a")
    again = send(filter_, {"w": torch.zeros(20)}, client="a", number=1)
    other = send(filter_, {"w": torch.zeros(20)}, client="b", number=1)
    assert again.data["w"].any()  # the residual of round 0
    assert not other.data["w"].any()


def test_statistics_of_batch_normalisation_do_not_travel():
    sent = send(
        DefenceFilter("none"),
        {"bn.weight": torch.ones(2), "bn.running_mean": torch.ones(2), "bn.num_batches_tracked": torch.tensor(3)},
    )
    assert torch.equal(sent.data["bn.weight"], torch.ones(2))
    assert not sent.data["bn.running_mean"].any()
    assert not sent.data["bn.num_batches_tracked"].any()


def test_whole_weights_are_refused_and_metrics_pass():
    with pytest.raises(InputError, match="sends whole weights"):
        send(DefenceFilter("topk"), {"w": torch.ones(3)}, kind=DataKind.WEIGHTS)
    assert send(DefenceFilter("topk"), {"accuracy": 0.5}, kind=DataKind.METRICS).data == {"accuracy": 0.5}


@pytest.mark.parametrize(("spec", "words"), [("dp-sgd", "acts while the client trains"), ("secagg", "protocol")])
def test_what_a_filter_cannot_do_is_refused(spec: str, words: str):
    with pytest.raises(CapabilityError, match=words):
        DefenceFilter(spec)


CLIENT = """
import nvflare.client as flare
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
import torch

flare.init()
site = flare.get_site_name()
place = int(site.rsplit("-", 1)[1])
while flare.is_running():
    received = flare.receive()
    change = {name: torch.linspace(-place, 1, torch.as_tensor(value).numel()).view(torch.as_tensor(value).shape)
              for name, value in received.params.items()}
    flare.send(FLModel(params=change, params_type=ParamsType.DIFF, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
"""

JOB = """
import json, sys
import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat, TransferType
from nvflare.recipe.sim_env import SimEnv
from nvflare.apis.dxo import DataKind
from fedseal.nvflare import DefenceFilter
from my_net import Net

recipe = FedAvgRecipe(
    name="sealed", model=Net(), min_clients=2, num_rounds=2, train_script="client.py",
    aggregator_data_kind=DataKind.WEIGHT_DIFF, server_expected_format=ExchangeFormat.PYTORCH,
    params_transfer_type=TransferType.FULL,
)
recipe.add_client_output_filter(DefenceFilter("topk:ratio=0.8"), tasks=["train"])
recipe.execute(SimEnv(num_clients=2, num_threads=2, workspace_root=sys.argv[1]))
"""

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(10, 5, bias=False)
        with torch.no_grad():
            self.layer.weight.zero_()
    def forward(self, x):
        return self.layer(x)
"""


@pytest.mark.slow
def test_a_job_in_nvflares_simulator_averages_sealed_updates(tmp_path: Path):
    for name, text in {"client.py": CLIENT, "job.py": JOB, "my_net.py": NET}.items():
        (tmp_path / name).write_text(text)
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "job.py", str(tmp_path / "work")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    found = list((tmp_path / "work").rglob("FL_global_model.pt"))
    assert found, (done.stdout + done.stderr)[-4000:]
    model = torch.load(found[0], weights_only=True)
    weight = model.get("model", model)["layer.weight"]
    defence = build_defence("topk:ratio=0.8")
    sent = [
        defence.on_update({"w": torch.linspace(-place, 1, 50).view(5, 10)}, None)["w"]  # type: ignore[arg-type]
        for place in (1, 2)
    ]
    assert torch.allclose(torch.as_tensor(weight), 2 * (sent[0] + sent[1]) / 2, atol=1e-5)
    assert 0 < int(torch.as_tensor(weight).count_nonzero()) <= 20  # a fifth of 50 entries, of two clients
