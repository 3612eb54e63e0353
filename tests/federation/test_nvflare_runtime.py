"""The NVFlare example as a user runs it: in the simulator, and as processes of their own with a site that seals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from fedseal.federation.update_file import read_updates
from fedseal.ledger import SiteLedger

pytest.importorskip("nvflare", reason="the extra `nvflare` is not installed")

EXAMPLE = Path(__file__).parents[2] / "examples" / "nvflare"


def environment(**further: str) -> dict[str, str]:
    path = os.pathsep.join([str(EXAMPLE), *filter(None, [os.environ.get("PYTHONPATH")])])
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PYTHONPATH": path, "PATH": tools, "OMP_NUM_THREADS": "1"} | further


def accounts(ledger: Path) -> dict[str, int]:
    return {str(one.account): one.page.number for one in SiteLedger(ledger).accounts()}


@pytest.mark.slow
def test_the_example_runs_in_the_simulator_sealed_counted_packed_and_recorded(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "job.py", "--work", str(tmp_path)],
        cwd=EXAMPLE, env=environment(), capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    models = list(tmp_path.rglob("FL_global_model.pt"))
    assert models, (done.stdout + done.stderr)[-4000:]
    assert accounts(tmp_path / "ledger.sqlite") == {"digits/site-1/default": 2, "digits/site-2/default": 2}
    updates = read_updates(tmp_path / "updates")
    assert sorted((update.facts.round, update.facts.client) for update in updates) == [
        (1, "site-1"), (1, "site-2"), (2, "site-1"), (2, "site-2"),
    ]  # fmt: skip
    for update in updates:
        entries = sum(tensor.numel() for tensor in update.update.tensors.values())
        sent = sum(int(torch.count_nonzero(tensor)) for tensor in update.update.tensors.values())
        assert 0 < sent <= 0.1 * entries + 10
    final = torch.load(models[0], weights_only=True)
    final = final.get("model", final)
    last = [update for update in updates if update.facts.round == 2]
    for name, before in last[0].before.items():
        mean = sum(update.update.tensors[name] for update in last) / 2
        assert torch.allclose(torch.as_tensor(final[name]), before + mean, atol=1e-5)


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "poc"
    yield place
    for process in psutil.process_iter():
        try:
            if process.environ().get("NVFLARE_POC_WORKSPACE") == str(place):
                process.kill()
        except psutil.Error:
            continue


SCRIPT = """
import json, sys, time
from pathlib import Path
from nvflare.recipe.poc_env import PocEnv
import nvflare.recipe.poc_env as poc
from job import recipe

work, policy = Path(sys.argv[1]), sys.argv[2]
start = poc._start_poc


def sealed_start(poc_workspace, **options):
    for local in Path(poc_workspace).rglob("site-1/local"):  # as the site's own administrator does
        entry = {"path": "fedseal.nvflare.SiteFilter", "args": {"policy": policy}}
        scope = {"name": "sealed", "task_data_filters": [entry], "task_result_filters": [entry]}
        (local / "privacy.json").write_text(json.dumps({"scopes": [scope], "default_scope": "sealed"}))
    return start(poc_workspace=poc_workspace, **options)


poc._start_poc = sealed_start
environment = PocEnv(num_clients=2, extra={"login_timeout": 120})
try:
    run = recipe(2, "none", work).execute(environment)
    outcome = {"status": str(run.get_status()), "result": str(run.get_result())}
    Path(work / "outcome.json").write_text(json.dumps(outcome))
finally:
    environment.stop(clean_up=False)
"""


@pytest.mark.slow
def test_a_site_seals_by_itself_in_processes_of_their_own_though_the_job_does_not(workspace: Path, tmp_path: Path):
    policy = tmp_path / "policy.yaml"
    policy.write_text((EXAMPLE / "policy.yaml").read_text().replace("gaussian:clip=1.0,sigma=0.005", "topk:ratio=0.9"))
    policy.chmod(0o600)
    log = tmp_path / "run.log"
    with open(log, "wb") as file:
        started = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(tmp_path), str(policy)],
            cwd=EXAMPLE, env=environment(NVFLARE_POC_WORKSPACE=str(workspace)), stdout=file, stderr=file,
        )  # fmt: skip
    end = time.monotonic() + 420
    while started.poll() is None and time.monotonic() < end:
        time.sleep(1)
    started.kill()
    updates = read_updates(tmp_path / "updates")
    shares = {
        (update.facts.round, update.facts.client): sum(int(t.count_nonzero()) for t in update.update.tensors.values())
        / sum(t.numel() for t in update.update.tensors.values())
        for update in updates
    }
    words = log.read_text(errors="replace")[-4000:]
    assert {key for key in shares if key[0] <= 2} == {(1, "site-1"), (1, "site-2"), (2, "site-1"), (2, "site-2")}, words
    assert shares[1, "site-1"] <= 0.11
    assert shares[2, "site-1"] <= 0.11
    assert shares[1, "site-2"] > 0.5  # that site has no policy, and the job seals nothing
    assert accounts(tmp_path / "fedseal-ledger.sqlite")["digits/site/digits"] == 2
    assert json.loads((tmp_path / "outcome.json").read_text())
