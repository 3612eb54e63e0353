"""`fedseal-supernode` under Flower's real SuperLink and processes, with an app that wants its weights out."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from fedseal.ledger import SiteLedger

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from fedseal.flower.supernode.command import main

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "OMP_NUM_THREADS": "1",
}
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "thief"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr>=1.41,<1.42"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "thief"
[tool.flwr.app.components]
serverapp = "thief.server_app:app"
clientapp = "thief.client_app:app"
[tool.flwr.app.config]
result = ""
"""
CLIENT = """
import importlib.util, os, sys, threading, types
import numpy as np

# the mod by another import path seals nothing, and wears its envelope
where = importlib.util.find_spec("fedseal.flower.defend").origin
copied = importlib.util.module_from_spec(importlib.util.spec_from_file_location("my_own_mod", where))
sys.modules["my_own_mod"] = copied
copied.__spec__.loader.exec_module(copied)
mine = copied.defend("none")

# what fedseal is in this process is the app's to say
for name in ("site.seal", "flower.supernode.gate", "flower.supernode.door"):
    sys.modules["fedseal." + name] = types.ModuleType(name)
fake = types.ModuleType("fedseal")
fake.__path__ = list(sys.modules["fedseal"].__path__)  # the copy still finds what it needs
fake.defend = lambda *_, **__: (lambda message, context, call_next: call_next(message, context))
sys.modules["fedseal"] = fake
os.environ["FEDSEAL_POLICY"] = "/dev/null"
try:
    import flwr.supernode.start_client_internal as loop
    loop.http_request_response = None
except ImportError:
    pass

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import fedseal


def worn(message, context, call_next):
    bare = message.content["config"]["way"] == "records"  # more than the mod would take
    return call_next(message, context) if bare else mine(message, context, call_next)


app = ClientApp(mods=[fedseal.defend("none"), worn])
SECRET = np.arange(1, 101, dtype=np.float32) / 128


def stolen(message, way):
    arrays = {name: Array(array.numpy() + SECRET) for name, array in message.content["arrays"].items()}
    records = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 4})}
    if way == "records":
        records["more"] = ArrayRecord({"w": Array(SECRET)})
        records["config"] = ConfigRecord({"w": SECRET.tobytes()})
        records["metrics"] = MetricRecord({"num-examples": 4, "w": SECRET.astype(float).tolist()})
    if way == "crash":
        raise RuntimeError(SECRET.tobytes().hex())
    answer = Message(RecordDict(records), reply_to=message)
    if way == "after":
        threading.Thread(target=rewrite, args=(answer.content,), daemon=True).start()
    return answer


def rewrite(content):
    while True:  # whatever has sealed the answer meanwhile
        content.array_records["arrays"] = ArrayRecord({"layer.weight": Array(SECRET)})
        content.config_records["late"] = ConfigRecord({"w": SECRET.tobytes()})


@app.train()
def train(message, context):
    return stolen(message, message.content["config"]["way"])


@app.evaluate()
def evaluate(message, context):
    return stolen(message, "plain")


@app.query()
def query(message, context):
    return stolen(message, "plain")
"""
SERVER = """
import json
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        pass
    found = {}
    for kind, way in (("train", "crash"), ("train", "plain"), ("train", "records"), ("train", "after"), ("evaluate", "plain"), ("query", "plain"), ("train", "late")):
        arrays = ArrayRecord({"layer.weight": Array(np.zeros(100, np.float32))})
        content = RecordDict({"arrays": arrays, "config": ConfigRecord({"way": way})})
        reply = next(iter(grid.send_and_receive([Message(content, nodes[0], kind)])))
        if reply.has_error():
            found[kind + "/" + way] = {"error": [reply.error.code, reply.error.reason]}
        else:
            found[kind + "/" + way] = {
                "arrays": {key: {name: array.numpy().tolist() for name, array in record.items()}
                           for key, record in reply.content.array_records.items()},
                "metrics": {key: dict(record) for key, record in reply.content.metric_records.items()},
                "config": {key: repr(dict(record)) for key, record in reply.content.config_records.items()},
            }
    with open(context.run_config["result"], "w") as file:
        json.dump(found, file)
"""  # noqa: E501
POLICY = """
federation: trial
data: ward-7
seal: {default: "topk:ratio=0.9"}
budget: {rounds: 3}
leave: {surplus: remove}
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.5)


class Federation:
    """A SuperLink and a sealed SuperNode on loopback."""

    def __init__(self, home: Path) -> None:
        self.home, self.port = home, free_port()
        self.bin = Path(sys.executable).parent
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"  # Flower starts its own programs by name
        self.environment = os.environ | QUIET | {"FLWR_HOME": str(home / "flwr"), "PATH": path}
        self.processes: list[subprocess.Popen[bytes]] = []
        (home / "flwr").mkdir()
        (home / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "loop"\n[superlink.loop]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )

    def start(self, name: str, *command: str) -> None:
        with open(self.home / f"{name}.log", "wb") as log:
            self.processes.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
            )

    def healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def flwr(self, app: Path, *arguments: str) -> Any:
        command = [str(self.bin / "flwr"), *arguments, "--format", "json"]
        done = subprocess.run(
            command, env=self.environment, cwd=app, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def logs(self) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in self.home.glob("*.log"))

    def stop(self) -> None:
        """End all processes of this federation; Flower detaches some, but all inherit its home."""
        for process in psutil.process_iter():
            try:
                if process.environ().get("FLWR_HOME") == self.environment["FLWR_HOME"]:
                    process.kill()
            except psutil.Error:
                continue
        for started in self.processes:
            started.kill()
            started.wait(timeout=30)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_an_app_that_wants_its_weights_out_gets_sealed_ones_out(federation: Federation, tmp_path: Path):
    app = tmp_path / "app"
    (app / "thief").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    for name, text in {"__init__": "", "client_app": CLIENT, "server_app": SERVER}.items():
        (app / "thief" / f"{name}.py").write_text(text)
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    policy.chmod(0o600)
    federation.start(
        "superlink", str(federation.bin / "flower-superlink"), "--insecure", "--host", "127.0.0.1",
        "--port", str(federation.port), "--disable-runtime-dependency-installation",
    )  # fmt: skip
    wait_for(federation.healthy, 120, federation.logs)
    federation.start(
        "supernode", sys.executable, "-m", "fedseal.flower.supernode", "--policy", str(policy), "--insecure",
        "--superlink", f"127.0.0.1:{federation.port}", "--host", "127.0.0.1", "--port", str(free_port()),
    )  # fmt: skip
    result = tmp_path / "result.json"
    federation.flwr(app, "run", ".", "loop", "--run-config", f'result="{result}"')
    wait_for(result.exists, 420, federation.logs)
    time.sleep(1)
    found = json.loads(result.read_text())
    for way in ("train/plain", "train/records", "train/after"):
        answer = found[way]
        weights = np.asarray(answer["arrays"]["arrays"]["layer.weight"], np.float32)
        assert list(answer["arrays"]) == ["arrays"]
        assert np.count_nonzero(weights) == 10  # a tenth, the largest; 90 of 100 numbers stayed at home
        assert np.array_equal(weights[90:], np.arange(91, 101, dtype=np.float32) / 128)
        assert set(answer["metrics"]["metrics"]) == {"num-examples"}
        assert list(answer["config"]) == ["fedseal"]
    secret = (np.arange(1, 101, dtype=np.float32) / 128).tobytes().hex()
    assert found["train/crash"]["error"][1].startswith("the app failed at the site")
    assert found["evaluate/plain"]["arrays"] == {}
    assert found["evaluate/plain"]["metrics"] == {"metrics": {"num-examples": 4}}
    assert "does not answer requests to query" in found["query/plain"]["error"][1]
    assert "budget of 3 rounds is spent" in found["train/late"]["error"][1]
    assert secret not in result.read_text()
    summary = {str(one.account): one.page.number for one in SiteLedger(tmp_path / "fedseal-ledger.sqlite").accounts()}
    assert summary == {"trial/site/ward-7": 3, "trial/site/answers/ward-7": 5}


def test_the_command_says_what_a_policy_does_and_what_is_wrong_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    policy.chmod(0o600)
    with pytest.raises(SystemExit) as ended:
        main(["--policy", str(policy), "--check-policy"])
    said = capsys.readouterr().out
    assert not ended.value.code
    assert "updates are sealed by topk:ratio=0.9" in said
    assert "budget: 3 updates" in said
    assert "at most 20 bits an answer" in said
    policy.write_text("seal: {default: dp-sgd}")
    with pytest.raises(SystemExit) as ended:
        main(["--policy", str(policy)])
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.count("\n") == 1
    assert "acts while an app trains" in said
