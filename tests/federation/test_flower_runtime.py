"""Flower's own runtimes: Ray simulation of ten clients; SuperLink with two SuperNodes over TLS, one of them killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedseal.federation.update_file import SUFFIX, read_updates

from .deployment import QUIET, Deployment, wait_for

SPECS = ("dgp", "adadefense", "refiner:t=2")

SIMULATION = """
import json, sys
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from fedseal.federation.client import RoundConfig
from fedseal.flower import defend, guard, train_round
from sealed_app.task import accuracy, client_batches, client_data, load_model, test_data

SPECS, RESULT = json.loads(sys.argv[1]), sys.argv[2]
MODS = [defend(spec, encoding="wire", inside=True) for spec in SPECS]


def by_partition(message, context, call_next):
    return MODS[int(context.node_config["partition-id"]) % len(MODS)](message, context, call_next)


client = ClientApp(mods=[by_partition])


@client.train()
def train(message: Message, context: Context) -> Message:
    import torch
    torch.set_num_threads(1)
    partition = int(context.node_config["partition-id"])
    data = client_data(partition, 10)
    model = load_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    batches = client_batches(data, partition, int(message.content["config"]["server-round"]), 1, 4)
    trained = train_round(model, batches, RoundConfig(learning_rate=0.1), dataset=data)
    kept = sorted(context.state.array_records.get("fedseal.state", {}))
    metrics = MetricRecord({"num-examples": len(data), "state-before": len(kept)})
    return Message(RecordDict({"arrays": ArrayRecord(trained.weights), "metrics": metrics}), reply_to=message)


server = ServerApp()


@server.main()
def main(grid, context: Context) -> None:
    class Seen(FedAvg):
        counts = []

        def aggregate_train(self, number, replies):
            replies = list(replies)
            states = [int(reply.content["metrics"]["state-before"]) for reply in replies if not reply.has_error()]
            self.counts.append([len(states), sum(count > 0 for count in states)])
            return super().aggregate_train(number, replies)

    inner = Seen(fraction_evaluate=0.0, min_train_nodes=10, min_available_nodes=10)
    strategy = guard(inner)
    outcome = strategy.start(grid=grid, initial_arrays=ArrayRecord(load_model().state_dict()), num_rounds=3)
    model = load_model()
    model.load_state_dict(outcome.arrays.to_torch_state_dict())
    with open(RESULT, "w") as file:
        json.dump(
            {
                "counts": inner.counts,
                "dropped": [str(drop) for drop in strategy.dropped],
                "accuracy": accuracy(model, test_data()),
                "costs": {number: dict(metrics) for number, metrics in outcome.train_metrics_clientapp.items()},
            },
            file,
        )


if __name__ == "__main__":
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    ray = {"num_cpus": 2, "include_dashboard": False, "logging_level": 40}
    run_simulation(server, client, 10, backend_config={**resources, "init_args": ray})
"""


@pytest.mark.slow
def test_ten_clients_train_three_rounds_in_flowers_simulation(examples: Path, tmp_path: Path):
    script, result = tmp_path / "simulation.py", tmp_path / "result.json"
    script.write_text(SIMULATION)
    path = os.pathsep.join([str(examples / "flower"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | QUIET | {"PYTHONPATH": path, "FLWR_HOME": str(tmp_path / "flwr")}
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(SPECS), str(result)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.exists(), done.stderr[-4000:]
    outcome = json.loads(result.read_text())
    assert outcome["dropped"] == []
    assert [answered for answered, _ in outcome["counts"]] == [10, 10, 10]
    assert outcome["counts"][0][1] == 0
    assert outcome["counts"][1][1] > 0  # state came back from Flower's context, in another process
    assert outcome["counts"][2][1] == outcome["counts"][1][1]
    assert all(costs["fedseal-bytes-up"] > 0 for costs in outcome["costs"].values())
    assert 0 <= outcome["accuracy"] <= 1


@pytest.fixture
def deployment(tmp_path: Path, examples: Path) -> Iterator[Deployment]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificates, is not installed")
    home = tmp_path / "flwr"
    home.mkdir()
    deployed = Deployment(home, examples / "flower", examples / "flower" / "certificates.sh")
    yield deployed
    deployed.stop()


@pytest.mark.slow
def test_a_federation_over_tls_survives_the_kill_of_a_client_in_mid_round(deployment: Deployment, tmp_path: Path):
    deployment.superlink()
    for place in (0, 1):
        deployment.supernode(place)
    wait_for(lambda: len(deployment.online()) == 2, 90, "the registration of two SuperNodes")
    start = time.monotonic()
    deployment.online()
    patience = max(30.0, 12 * (time.monotonic() - start))  # a client app takes a few times as long as this to start
    updates, result = tmp_path / "updates", tmp_path / "result.json"
    settings = (
        f'defence="topk:ratio=0.9" encoding="wire" num-server-rounds=2 min-clients=1 round-timeout={patience:.1f} '
        f'local-steps=1 batch-size=4 record="{updates}" result="{result}"'
    )
    run = deployment.run(settings)
    wait_for(lambda: len(recorded(updates)) >= 2, 30 + patience, "round 1")
    assert not result.exists()
    os.kill(deployment.processes["supernode-1"].pid, signal.SIGKILL)  # round 2 is under way
    wait_for(result.exists, 30 + patience, "round 2")
    wait_for(lambda: deployment.status(run).startswith("finished"), 60, "the end of the run")
    assert deployment.status(run) == "finished:completed", deployment.logs()
    outcome = json.loads(result.read_text())
    assert list(outcome["accuracy"]) == ["0", "1", "2"]
    assert outcome["dropped"] == []
    senders = [{update.facts.client for update in read_updates(updates) if update.facts.round == n} for n in (1, 2)]
    assert [len(clients) for clients in senders] == [2, 1]
    assert senders[1] < senders[0]
    refused = deployment.run('defence="secagg" num-server-rounds=1 min-clients=1')  # which no client applies alone
    wait_for(lambda: deployment.status(refused).startswith("finished"), 60 + patience, "the end of the refused run")
    assert deployment.status(refused) == "finished:failed"
    said = deployment.log(refused)
    assert "every client refused in round 1: secagg is a protocol" in said, said


def recorded(updates: Path) -> list[Path]:
    return list(updates.glob(f"*{SUFFIX}")) if updates.is_dir() else []


@pytest.mark.slow
def test_kills_at_random_moments_leave_every_ledger_whole(examples: Path):
    """`python -m tests.federation.kill_campaign --kills 30` is the whole campaign."""
    command = [sys.executable, "-m", "tests.federation.kill_campaign", "--kills", "5"]
    done = subprocess.run(command, cwd=examples.parent, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
