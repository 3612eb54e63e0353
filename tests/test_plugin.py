"""The example plug-in, installed into an environment of its own, is listed, keeps the contract and is audited."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import fedseal

PLUGIN = Path(__file__).parents[1] / "examples" / "plugin"
SCENARIO = """
name: plugged
data: faces
model: mlp:width=16
client: {batch_size: 2}
attacker: {labels: "true"}
defences: [none, soft-threshold:amount=0.2]
attacks: [public-pick:tries=6, "fedseal_example_plugin.attack:PublicPick:tries=4"]
metrics: [correlation, edges]
targets: 1
"""
READING = """
import sys, fedseal
for record in fedseal.open_run(sys.argv[1]).records:
    print(record.model_dump_json())
"""


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an environment's interpreter without the paths of ours, so that it sees what is installed and no more."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(python), *arguments], capture_output=True, text=True, env=kept, check=False)
    assert done.returncode in (0, 1), done.stderr[-2000:]
    return done


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the interpreter of a fresh environment that has our dependencies, fedseal and the plug-in."""
    place = tmp_path_factory.mktemp("fresh")
    venv.create(place / "env", with_pip=False, symlinks=True)
    found = place / "env" / "bin" / "python"
    site = Path(run(found, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    borrowed = [Path(fedseal.__file__).parents[1], sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    (site / "borrowed.pth").write_text("\n".join(dict.fromkeys(map(str, borrowed))) + "\n")
    source = shutil.copytree(PLUGIN, place / "plugin")
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", str(source)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--python", str(found), *install], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return found


@pytest.mark.slow
def test_what_is_installed_is_listed(python: Path):
    for kind, name in (("attacks", "public-pick"), ("defences", "soft-threshold"), ("metrics", "edges")):
        listed = json.loads(run(python, "-m", "fedseal", "list", kind, "--json").stdout)
        found = [entry for entry in listed if entry["name"] == name]
        assert [entry["origin"] for entry in found] == ["fedseal_example_plugin"]


@pytest.mark.slow
def test_it_passes_the_suites_in_its_own_tests(python: Path):
    done = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(PLUGIN), str(PLUGIN / "tests"))
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_an_audit_attacks_and_defends_with_it(python: Path, tmp_path: Path):
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    out = tmp_path / "out"
    done = run(python, "-m", "fedseal", "audit", str(tmp_path / "scenario.yaml"), "--out", str(out))
    read = run(python, "-c", READING, str(out))
    records = [json.loads(line) for line in read.stdout.splitlines()]
    assert len(records) == 6, done.stdout[-1000:] + done.stderr[-1000:] + read.stderr[-1000:]
    assert {record["status"] for record in records} == {"ok"}, [record["message"] for record in records]
    assert all(set(record["metrics"]) == {"correlation", "edges"} for record in records)
    assert all(len(values) == 2 for record in records for values in record["metrics"].values())


def test_an_attack_is_one_file_of_under_sixty_lines():
    source = PLUGIN / "src" / "fedseal_example_plugin" / "attack.py"
    assert len(source.read_text(encoding="utf-8").splitlines()) < 60
