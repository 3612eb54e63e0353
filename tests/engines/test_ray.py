"""Trials on a real Ray cluster of two nodes: the figures of the local engine, bit for bit, whoever is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray", reason="the extra `ray` is not installed")

from fedseal.audit.runner import open_run, run_audit
from fedseal.audit.scenario import Scenario
from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.engines.cluster import check_reachable

SMALL: dict[str, Any] = {"data": "faces:size=8", "attacks": "ig:iterations=20", "targets": 2, "readings": 1}


def figures(run: Any) -> list[Any]:
    """Return all that was measured, but for the times it took."""
    kept = [record.model_dump(exclude={"seconds", "cost"}) for record in run.records]
    return kept + [reading.model_dump(exclude={"seconds"}) for reading in run.readings]


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
