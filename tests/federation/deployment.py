"""A real Flower deployment on loopback: a SuperLink and SuperNodes, each a process group of its own."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen in {seconds:.0f} s"
        time.sleep(0.5)


class Deployment:
    """A SuperLink with SuperNodes on loopback, over TLS if a directory has certificates made for it.

    Args:
        home: Flower's, for this deployment alone.
        app: directory of the app that is run.
        certificates: the script that makes them; None for a deployment in clear.
    """

    def __init__(self, home: Path, app: Path, certificates: Path | None = None) -> None:
        self.home, self.app, self.port = home, app, free_port()
        self.certificates = certificates
        self.bin = Path(sys.executable).parent
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"  # Flower starts its own programs by name
        self.environment = os.environ | QUIET | {"FLWR_HOME": str(home), "PATH": path}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        trust = "insecure = true"
        if certificates is not None:
            subprocess.run([certificates, home / "tls", "127.0.0.1"], check=True, capture_output=True)
            trust = f'root-certificates = "{home}/tls/ca.pem"'
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "loopback"\n[superlink.loopback]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )

    def start(self, name: str, *command: Any, **environment: str) -> None:
        with open(self.home / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(self.bin / str(command[0])), *map(str, command[1:])],
                env=self.environment | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def superlink(self) -> None:
        tls = self.home / "tls"
        secure = (
            [
                "--ssl-ca-certfile",
                tls / "ca.pem",
                "--ssl-certfile",
                tls / "server.pem",
                "--ssl-keyfile",
                tls / "server.key",
            ]
            if self.certificates
            else ["--insecure"]
        )
        self.start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", self.port,
            "--disable-runtime-dependency-installation", *secure,
        )  # fmt: skip
        wait_for(self.healthy, 90, "the SuperLink's answer")

    def healthy(self) -> bool:
        try:
            if not self.certificates:
                with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                    return True
            trust = ssl.create_default_context(cafile=str(self.home / "tls" / "ca.pem"))
            with urllib.request.urlopen(f"https://127.0.0.1:{self.port}/health", context=trust, timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def supernode(self, place: int, *, port: int | None = None, config: str = "", **environment: str) -> None:
        secure = ["--root-certificates", self.home / "tls" / "ca.pem"] if self.certificates else ["--insecure"]
        self.start(
            f"supernode-{place}", "flower-supernode", "--superlink", f"127.0.0.1:{port or self.port}",
            *secure, "--host", "127.0.0.1", "--port", free_port(),
            "--node-config", f"partition-id={place} num-partitions=2 {config}".strip(), **environment,
        )  # fmt: skip

    def flwr(self, *arguments: Any) -> dict[str, Any]:
        command = [str(self.bin / "flwr"), *map(str, arguments), "--format", "json"]
        done = subprocess.run(
            command, env=self.environment, cwd=self.app, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def run(self, settings: str) -> Any:
        return self.flwr("run", ".", "loopback", "--run-config", settings)["run-id"]

    def online(self) -> list[Any]:
        nodes = self.flwr("supernode", "list", "loopback").get("nodes", [])  # absent while a SuperLink starts
        return [node for node in nodes if node["status"] == "online"]

    def status(self, run: Any) -> str:
        return str(self.flwr("list", "--run-id", run)["runs"][0]["status"])

    def log(self, run: Any) -> str:
        """Return what a user sees of a run."""
        command = [str(self.bin / "flwr"), "log", str(run), "loopback", "--show"]
        done = subprocess.run(
            command, env=self.environment, cwd=self.app, capture_output=True, text=True, timeout=300, check=False
        )
        return " ".join((done.stdout + done.stderr).split())

    def logs(self) -> str:
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in self.home.glob("*.log"))

    def stop(self) -> None:
        """End all processes of this deployment; Flower detaches some, but all inherit its home."""
        for process in [process for process in psutil.process_iter() if self.owns(process)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self.processes.values():
            started.wait(timeout=30)

    def owns(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("FLWR_HOME") == str(self.home)
        except psutil.Error:
            return False
