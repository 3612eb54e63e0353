"""What is shipped to run a federation: the image's build steps, the manifests, and logs that machines read."""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from fedseal.cli import app
from fedseal.core.errors import UsageError
from fedseal.core.logs import configure_logs

ROOT = Path(__file__).parents[1]
MANIFESTS = sorted((ROOT / "deploy" / "kubernetes").rglob("*.yaml"))
KINDS = {"Service", "StatefulSet", "NetworkPolicy", "Kustomization"}


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions with their arguments, continued lines joined."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines]


def documents() -> list[dict[str, Any]]:
    found = [part for path in MANIFESTS for part in yaml.safe_load_all(path.read_text()) if path.stem != "policy"]
    return [part for part in found if part]


def workloads() -> dict[str, dict[str, Any]]:
    return {part["metadata"]["name"]: part["spec"] for part in documents() if part["kind"] == "StatefulSet"}


def container(name: str) -> dict[str, Any]:
    (found,) = workloads()[name]["template"]["spec"]["containers"]
    return dict(found)


def test_the_image_copies_what_is_there_and_what_the_ignore_file_lets_in() -> None:
    let_in = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    for name, arguments in instructions():
        if name == "COPY" and not arguments.startswith("--from"):
            for source in arguments.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source in let_in, source


def test_the_image_runs_as_nobody_in_particular_and_keeps_the_ledger_on_its_volume() -> None:
    given = dict(instructions())
    settings = dict(part.split("=", 1) for part in given["ENV"].split())
    assert given["USER"] == "10001:10001"
    assert settings["FEDSEAL_LEDGER"].startswith(given["VOLUME"] + "/")
    assert settings["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


def in_a_tree(step: str, root: Path) -> str:
    """Return a RUN step with the image's directories below `root`, python as this one, and nobody's files our own."""
    for place in ("/wheels", "/opt/fedseal", "/var/lib/fedseal", "/etc/fedseal"):
        step = step.replace(place, f"{root}{place}")
    step = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", step)
    return step.replace("chown 10001:10001", "test -w")


@pytest.mark.slow
def test_every_step_of_the_image_runs_from_the_packages(tmp_path: Path) -> None:
    """No daemon is needed: the steps run in order in a tree of their own, with the files the build would have."""
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / "constraints.txt").write_bytes((ROOT / "constraints.txt").read_bytes())
    extra = (
        {} if "PIP_EXTRA_INDEX_URL" in os.environ else {"PIP_EXTRA_INDEX_URL": "https://download.pytorch.org/whl/cpu"}
    )
    inherited = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH"
    }  # pip takes it for installed
    for name, arguments in instructions():
        if name != "RUN":
            continue
        step = in_a_tree(arguments, tmp_path)
        done = subprocess.run(["sh", "-ec", step], cwd=ROOT, env={**inherited, **extra}, capture_output=True, text=True)
        assert done.returncode == 0, f"{step}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    shown = subprocess.run([tmp_path / "opt/fedseal/bin/fedseal", "list", "defences"], capture_output=True, text=True)
    assert "dp-sgd" in shown.stdout


def test_manifests_are_of_known_kinds_and_mount_what_they_declare() -> None:
    assert {part["kind"] for part in documents()} == KINDS
    for name, spec in workloads().items():
        pod = spec["template"]["spec"]
        declared = {volume["name"] for volume in pod["volumes"]}
        declared |= {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
        assert {mount["name"] for mount in container(name)["volumeMounts"]} == declared
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert container(name)["securityContext"]["readOnlyRootFilesystem"]


def test_the_ledger_lies_on_a_claim_that_one_pod_holds() -> None:
    spec, policy = workloads()["supernode"], yaml.safe_load((ROOT / "deploy/kubernetes/site/policy.yaml").read_text())
    (claim,) = spec["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container("supernode")["volumeMounts"]}
    named = {entry["name"]: entry["value"] for entry in container("supernode")["env"]}
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert policy["ledger"] == named["FEDSEAL_LEDGER"]
    assert named["FEDSEAL_LEDGER"].startswith(mounts[claim["metadata"]["name"]] + "/")
    assert spec["replicas"] == 1


def test_apps_reach_the_supernode_alone_and_hold_nothing_of_the_sites() -> None:
    rules = {part["metadata"]["name"]: part["spec"] for part in documents() if part["kind"] == "NetworkPolicy"}
    (way,) = rules["apps"]["egress"]
    assert rules["apps"]["podSelector"]["matchLabels"] == workloads()["apps"]["selector"]["matchLabels"]
    assert way["to"] == [{"podSelector": {"matchLabels": workloads()["supernode"]["selector"]["matchLabels"]}}]
    assert f"--port={way['ports'][0]['port']}" in container("supernode")["args"]
    assert "--isolation=process" in container("supernode")["args"]
    assert {mount["name"] for mount in container("apps")["volumeMounts"]} == {"runtime", "data", "tmp"}
    users = [workloads()[name]["template"]["spec"]["securityContext"]["runAsUser"] for name in ("apps", "supernode")]
    assert users[0] != users[1]


def test_files_that_arguments_name_are_mounted() -> None:
    for name in workloads():
        mounts = [mount["mountPath"] for mount in container(name)["volumeMounts"]]
        for argument in container(name)["args"]:
            path = argument.partition("=")[2]
            if path.startswith("/"):
                assert any(path.startswith(mount + "/") for mount in mounts), argument


def test_flower_takes_the_arguments_of_the_manifests() -> None:
    from flwr.supercore.cli.flower_superexec import _parse_args
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    _parse_args().parse_args(container("apps")["args"])
    _parse_args_run_superlink().parse_args(container("superlink")["args"])
    rest = [argument for argument in container("supernode")["args"] if not argument.startswith("--policy=")]
    _parse_args_run_supernode().parse_args(rest)


def test_commands_of_the_manifests_are_installed_by_the_package_or_by_flower() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    for name in workloads():
        (command,) = container(name)["command"]
        assert command in scripts or command.startswith("flower-"), command


@pytest.fixture
def logs_as_before() -> Iterator[None]:
    logger = logging.getLogger("fedseal")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    logger.handlers[:], logger.level, logger.propagate = before


@pytest.mark.usefixtures("logs_as_before")
def test_logs_are_one_json_object_per_line_where_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSEAL_LOG_FORMAT", "json")
    assert configure_logs() == "json"
    configure_logs()  # twice is once
    logging.getLogger("fedseal.flower").warning("round %d\nis late", 3, extra={"client": 7})
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("fedseal.flower").exception("failed")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["message"], first["client"]) == ("warning", "round 3\nis late", 7)
    assert first["time"].endswith("+00:00")
    assert "ValueError: no" in second["error"]
    assert configure_logs("text") == "text"
    assert not logging.getLogger("fedseal").handlers


@pytest.mark.usefixtures("logs_as_before")
def test_the_command_line_reports_an_error_as_json_with_its_exit_code(tmp_path: Path) -> None:
    call = [
        sys.executable,
        "-m",
        "fedseal",
        "--log-format",
        "json",
        "verify-dp",
        "--config",
        str(tmp_path / "none.yaml"),
    ]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    line = json.loads(done.stderr)
    assert done.returncode == line["exit_code"] == 2
    assert "there is no configuration" in line["message"]


@pytest.mark.usefixtures("logs_as_before")
def test_an_unknown_log_format_is_refused() -> None:
    with pytest.raises(UsageError, match="no log format 'xml'"):
        configure_logs("xml")
    assert isinstance(CliRunner().invoke(app, ["--log-format", "xml", "list", "models"]).exception, UsageError)
