"""Trials on a real Ray cluster of two nodes: the figures of the local engine, bit for bit, whoever is killed."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray", reason="the extra `ray` is not installed")

import fedseal
from fedseal.audit.runner import open_run, run_audit
from fedseal.audit.scenario import Scenario
from fedseal.audit.setup import build_setup
from fedseal.audit.work import work_anywhere
from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.data.places import cache_directory
from fedseal.engines.cluster import check_reachable
from fedseal.engines.parcels import Packing
from fedseal.metrics.lpips_weights import weight_files
from fedseal.models.checkpoint import save_checkpoint
from fedseal.models.registry import build_model

SMALL: dict[str, Any] = {"data": "faces:size=8", "attacks": "ig:iterations=20", "targets": 2, "readings": 1}


TIMES: Any = {"seconds": True, "cost": {"seconds"}}


def figures(run: Any) -> list[Any]:
    """Return all that was measured, but for the times it took."""
    kept = [record.model_dump(exclude=TIMES) for record in run.records]
    return kept + [reading.model_dump(exclude=TIMES) for reading in run.readings]


class Cluster:
    """Two nodes of one CPU each, as processes of their own; the head has none."""

    def __init__(self) -> None:
        os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", "120")  # a busy machine is slow to start
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
        from ray.cluster_utils import Cluster as Nodes

        self.nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 0})
        self.address = self.nodes.address
        self.workers = [self.nodes.add_node(num_cpus=1) for _ in range(2)]

    def kill_a_node(self) -> None:
        """Kill the processes of the first worker node, as a power cut does."""
        for found in self.workers[0].all_processes.values():
            for one in found:
                os.kill(one.process.pid, signal.SIGKILL)

    def stop(self) -> None:
        self.nodes.shutdown()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    started = Cluster()
    yield started
    started.stop()


@pytest.mark.slow
def test_a_cluster_gives_the_figures_of_this_process_bit_for_bit(cluster: Cluster, tmp_path: Path) -> None:
    scenarios = [
        Scenario(**SMALL, name="plain", defences=["none", "gaussian:sigma=0.01"]),
        Scenario(**SMALL, name="later", stage={"round": 2, "clients": 4}),
    ]
    here = run_audit(scenarios, tmp_path / "here")
    there = run_audit(scenarios, tmp_path / "there", engine="ray", address=cluster.address)
    assert figures(here) == figures(there)
    assert {record.status for record in there.records} == {"ok"}


LONGER = """
name: longer
data: faces:size=16
attacks: ["ig:iterations=150", "dlg:iterations=40"]
defences: [none, "gaussian:sigma=0.01", "topk:ratio=0.5", "topk:ratio=0.9"]
targets: 4
readings: 0
"""


def longer() -> Scenario:
    return Scenario(**yaml.safe_load(LONGER))


def trials_in(directory: Path) -> int:
    """Return how many trials a run's store holds by now."""
    try:
        return len(open_run(directory).records)
    except FedsealError:
        return 0  # not there yet


def wait_for_trials(directory: Path, ended: Callable[[], bool]) -> None:
    """Return when some trials are stored, and fail if the run ends before."""
    while trials_in(directory) < 4:
        assert not ended(), "the run ended before anybody could be killed"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return figures(run_audit([longer()], tmp_path_factory.mktemp("here")))


@pytest.mark.slow
def test_a_node_killed_in_the_middle_loses_nothing(cluster: Cluster, tmp_path: Path, undisturbed: list[Any]) -> None:
    ended, killed = threading.Event(), threading.Event()

    def kill() -> None:
        wait_for_trials(tmp_path / "there", ended.is_set)
        cluster.kill_a_node()
        killed.set()

    killer = threading.Thread(target=kill)
    killer.start()
    run = run_audit([longer()], tmp_path / "there", engine="ray", address=cluster.address)
    ended.set()
    killer.join()
    assert killed.is_set()
    assert figures(run) == undisturbed


@pytest.mark.slow
def test_a_driver_killed_in_the_middle_resumes(cluster: Cluster, tmp_path: Path, undisturbed: list[Any]) -> None:
    (tmp_path / "longer.yaml").write_text(LONGER)
    command = ["audit", "longer.yaml", "--out", "there", "--engine", "ray", "--address"]
    driver = subprocess.Popen([sys.executable, "-m", "fedseal", *command, cluster.address], cwd=tmp_path)
    wait_for_trials(tmp_path / "there", lambda: driver.poll() is not None)
    driver.kill()
    assert driver.wait() == -signal.SIGKILL
    kept = trials_in(tmp_path / "there")
    before = {record.key: record.seconds for record in open_run(tmp_path / "there").records}
    run = run_audit([longer()], tmp_path / "there", engine="ray", address=cluster.address)
    assert figures(run) == undisturbed
    assert 4 <= kept < len(undisturbed)
    assert before.items() <= {record.key: record.seconds for record in run.records}.items()  # not run again


class Elsewhere:
    """A cluster of one working node, whose processes see other sources, files or directories than this one."""

    def __init__(self) -> None:
        os.environ.setdefault("RAY_gcs_server_request_timeout_seconds", "120")
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
        from ray.cluster_utils import Cluster as Nodes

        self.nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 0})
        self.address = self.nodes.address

    @contextmanager
    def node(self, cpus: int = 1, **variables: str) -> Iterator[Any]:
        """Add a node with these environment variables, and remove it."""
        added = self.nodes.add_node(num_cpus=cpus, env_vars={"PYTHONPATH": str(SOURCES), **variables})
        try:
            yield added
        finally:
            self.nodes.remove_node(added)

    def audit(self, scenarios: list[Scenario], directory: Path) -> Any:
        return run_audit(scenarios, directory, engine="ray", address=self.address)


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    started = Elsewhere()
    yield started
    started.nodes.shutdown()


SOURCES = Path(fedseal.__file__).parents[1]


def copied(directory: Path, changed: str, old: str, new: str) -> str:
    """Return where a copy of fedseal lies in which one file says something else."""
    shutil.copytree(SOURCES / "fedseal", directory / "fedseal", ignore=shutil.ignore_patterns("__pycache__"))
    path = directory / "fedseal" / changed
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    return str(directory)


OTHER = "this machine would run other trials than those planned: "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "old", "new", "says"),
    [
        ("attacks/inverting.py", "tv: Weight = 1e-4", "tv: Weight = 2e-4", f"{OTHER}attack ig:iterations=20 differs"),
        (
            "federation/client.py",
            "import torch\n",
            "import torch\n\nNEWER = True\n",
            f"{OTHER}the code of fedseal differs",
        ),
        ("audit/work.py", "def _opened(", "def _renamed(", "node {} cannot load the work: "),
        ("audit/plan.py", "class Job:", "class Renamed:", "a node of the cluster cannot load fedseal: "),
    ],
    ids=["attack", "client", "work", "job"],
)
def test_a_node_with_other_code_is_refused_in_a_sentence(
    changed: str, old: str, new: str, says: str, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    other, node = copied(tmp_path / "other", changed, old, new), socket.gethostname()
    with elsewhere.node(PYTHONPATH=other), pytest.raises(InputError) as refused:
        elsewhere.audit([Scenario(**SMALL)], tmp_path / "run")
    assert refused.value.message.startswith(says.format(node))
    assert not says.startswith(OTHER) or refused.value.message.endswith(f"differs (on node {node}).")
    assert "\n" not in refused.value.message
    assert "Install the same fedseal" in str(refused.value.hint)
    assert trials_in(tmp_path / "run") == 0


@pytest.mark.slow
def test_a_node_whose_sources_differ_in_words_only_is_taken(elsewhere: Elsewhere, tmp_path: Path) -> None:
    same = copied(tmp_path / "other", "attacks/inverting.py", "import annotations\n", "import annotations  # so\n")
    with elsewhere.node(PYTHONPATH=same):
        run = elsewhere.audit([Scenario(**SMALL)], tmp_path / "run")
    assert {record.status for record in run.records} == {"ok"}


@pytest.mark.slow
def test_a_node_without_fedseal_is_refused_in_a_sentence(elsewhere: Elsewhere, tmp_path: Path) -> None:
    hidden = tmp_path / "fedseal" / "__init__.py"
    hidden.parent.mkdir()
    hidden.write_text("raise ModuleNotFoundError(\"No module named 'fedseal'\")\n")  # as where it is not installed
    says = "a node of the cluster cannot load fedseal: No module named 'fedseal'"
    with elsewhere.node(PYTHONPATH=str(tmp_path)), pytest.raises(InputError, match=says):
        elsewhere.audit([Scenario(**SMALL)], tmp_path / "run")


@pytest.mark.slow
def test_a_node_without_the_files_a_scenario_names_says_which(
    elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.setenv("HOME", str(here))
    save_checkpoint(build_model("mlp", input_shape=(1, 8, 8), num_classes=2, seed=3), here / "net.safetensors")
    scenario = Scenario(**{**SMALL, "model": "mlp:checkpoint=~/net.safetensors", "readings": 0})
    with elsewhere.node(HOME=str(there), FEDSEAL_CACHE=str(there / "cache")):
        with pytest.raises(InputError) as refused:
            elsewhere.audit([scenario], tmp_path / "run")
        assert refused.value.message == (
            f"this machine has no file ~/net.safetensors, which the scenario names (on node {socket.gethostname()})."
        )
        assert "at the same paths on every node" in str(refused.value.hint)
        shutil.copy(here / "net.safetensors", there)
        run = elsewhere.audit([scenario], tmp_path / "run")
    assert {record.status for record in run.records} == {"ok"}
    monkeypatch.undo()


BIG: dict[str, Any] = {
    "data": "digits",
    "model": "mlp:width=256",
    "attacks": "ig:iterations=2",
    "targets": 4,
    "readings": 0,
    "defences": ["topk:ratio=0.5", "quantise"],
}


def sizes_of(scenarios: list[Scenario]) -> dict[str, int]:
    """Return the pieces that travel with some scenarios, and their bytes."""
    pieces: dict[str, int] = {}

    def send(name: str, piece: Any) -> None:
        assert name not in pieces
        pieces[name] = len(piece) if isinstance(piece, bytes) else piece.nbytes

    Packing(send).pack(work_anywhere([build_setup(scenario) for scenario in scenarios]))
    return pieces


def test_what_set_ups_share_travels_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSEAL_CACHE", str(tmp_path))
    for number, path in enumerate(weight_files(cache_directory(), "alex")):
        assert path.is_relative_to(tmp_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number]) * 1_000_000)
    one = Scenario(**BIG, name="one")
    two = Scenario(**{**BIG, "attacks": "ig:iterations=3"}, name="two")
    alone, both = sizes_of([one]), sizes_of([one, two])
    assert sum(alone.values()) > 4_000_000
    assert len(both) == len(alone) + 2  # the other set-up, and what determines its trials
    assert sum(both.values()) < sum(alone.values()) + 200_000


@pytest.mark.slow
def test_big_things_travel_once_to_a_node_however_many_processes_and_tasks_need_them(
    elsewhere: Elsewhere, tmp_path: Path
) -> None:
    import ray
    from ray._private.internal_api import node_stats

    scenarios = [Scenario(**BIG, name="one"), Scenario(**{**BIG, "attacks": "ig:iterations=3"}, name="two")]
    sent = sum(sizes_of(scenarios).values())
    assert sent > 2_000_000
    processes: set[int] = set()
    with elsewhere.node(cpus=2, FEDSEAL_CACHE=str(tmp_path / "empty")) as node:
        ray.init(address=elsewhere.address, log_to_driver=False, logging_level="error")  # which the engine takes

        def arrived() -> int:
            found = node_stats(node.node_ip_address, node.node_manager_port, include_memory_info=False)
            processes.update(worker.pid for worker in found.core_workers_stats)
            return int(found.store_stats.cumulative_created_bytes)

        try:
            before = arrived()
            run = elsewhere.audit(scenarios, tmp_path / "run")
            came = arrived() - before
        finally:
            ray.shutdown()
    assert {record.status for record in run.records} == {"ok"}
    assert len(run.records) == 40
    assert len(processes) > 1
    assert 0.9 * sent < came < 1.2 * sent


@pytest.mark.parametrize("address", ["nowhere", "ray://", "host:", "host:99999999", ":6379"])
def test_what_is_no_address_is_refused_at_once(address: str) -> None:
    with pytest.raises(UsageError, match="no address of a Ray cluster"):
        check_reachable(address)


def test_an_address_where_nothing_listens_is_said_within_seconds() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # taken, and nobody listens
        with pytest.raises(InputError, match="no Ray cluster to be reached at ray://127"):
            check_reachable(f"ray://127.0.0.1:{taken.getsockname()[1]}")


def test_an_address_without_an_engine_and_an_unknown_engine_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Add --engine ray"):
        run_audit([Scenario(**SMALL)], tmp_path, address="auto")
    with pytest.raises(UsageError, match="local, ray"):
        run_audit([Scenario(**SMALL)], tmp_path, engine="slurm")  # type: ignore[arg-type]
