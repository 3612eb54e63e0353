"""A realistic run without running anything (real faces, noisy copies of them), and a browser to look at its report."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from skimage.data import lfw_subset
from torch import Tensor
from torch.nn.functional import avg_pool2d, cosine_similarity, interpolate

from fedseal.audit.run import Run
from fedseal.audit.scenario import ClientConfig, Scenario
from fedseal.core.files import write_atomically
from fedseal.metrics.image import mse, psnr
from fedseal.store.findings import Finding
from fedseal.store.readings import ReadingRecord
from fedseal.store.records import TrialRecord

DEFENCES = ("none", "topk:ratio=0.8", "gaussian:sigma=0.01+topk:ratio=0.95")
ATTACKS = ("ig", "fedleak")
TARGETS = 6
REFUSAL = "`{}` needs the exact batch statistics, which this scenario does not grant."

_NOISE = (
    (0.05, 0.05),
    (0.3, 0.13),
    (0.75, 0.6),
)  # of the reconstructions: (naive, aware) by place of the defence
_BASELINES = {"mean_image": 11.9, "class_mean": 12.6, "nearest": 13.4, "noise": 7.9, "flat": 10.8}

FINDINGS = (
    Finding(severity="note", topic="labels", text="The attacker infers labels by the rule `identity`."),
    Finding(
        severity="problem",
        topic="batch normalisation",
        text="The client runs in `eval` mode, which no federation trains in.",
        advice="Set `client.bn_mode` to `train-nostats`, or say in your report that the attacker has this gift.",
    ),
    Finding(
        severity="warning",
        topic="targets",
        text="Six targets give wide intervals.",
        advice="Raise `targets` to 20 or more before you decide.",
    ),
)


def build_run(
    directory: Path,
    *,
    scenarios: tuple[str, ...] = ("faces-lenet",),
    defences: tuple[str, ...] = DEFENCES,
    attacks: tuple[str, ...] = ATTACKS,
    targets: int = TARGETS,
    batch: int = 2,
    missing: int = 0,
) -> Run:
    """Return a run with artefacts in `directory`.

    The second attack is refused against the second defence and fails once against the first, naively on target 3;
    the last `missing` trials have not ended.
    """
    plans = tuple(
        Scenario(
            name=name,
            defences=defences,
            attacks=attacks,
            targets=targets,
            seed=7,
            client=ClientConfig(batch_size=batch),
        )
        for name in scenarios
    )
    records = [
        _record(directory, plan.name, (row, defence), (column, attack), aware, target, batch)
        for plan in plans
        for row, defence in enumerate(defences)
        for column, attack in enumerate(attacks)
        for aware in (False, True)
        for target in range(targets)
    ]
    return Run(
        directory=directory,
        scenarios=plans,
        planned=len(records),
        records=tuple(records[: len(records) - missing]),
        findings={plans[0].name: FINDINGS},
        environment={
            "fedseal": "0.1.0",
            "python": "3.12.3",
            "torch": "2.13.0",
            f"{plans[0].name}: seed": "7",
            f"{plans[0].name}: data (SHA-256)": sha256(b"data").hexdigest(),
            f"{plans[0].name}: weights (SHA-256)": sha256(b"weights").hexdigest(),
        },
        command="fedseal audit faces-lenet.yaml",
        readings=tuple(
            _reading(directory, plan.name, row, defence) for plan in plans for row, defence in enumerate(defences)
        ),
    )


def _reading(directory: Path, scenario: str, row: int, defence: str) -> ReadingRecord:
    """Return what the uploads of a defence hold; nobody can say of every fourth."""
    held = (47.9, 33.8, 19.2, None)[row % 4]
    artefact = f"artefacts/map-{row}.safetensors"
    (directory / "artefacts").mkdir(parents=True, exist_ok=True)
    side = torch.linspace(-1, 1, 32)
    radius = (side[:, None] ** 2 + side[None] ** 2).clamp(max=1)
    save_file({"pixel_map": (10 ** (-1.2) * radius).expand(1, 3, 32, 32).contiguous()}, directory / artefact)
    return ReadingRecord(
        key=f"reading-{row}",
        scenario=scenario,
        defence=defence,
        target=0,
        psnr_db=held,
        prior_db=12.1,
        reason="" if held is not None else "`secagg` shows an aggregate of unknown size.",
        method="exact" if held is not None else None,
        dimensions=3072,
        per_layer={} if held is None else {"body.0": held - 3, "body.2": 16.0, "body.4": 14.2, "fc": 12.4},
        artefact=artefact,
    )


def _record(
    directory: Path,
    scenario: str,
    defence: tuple[int, str],
    attack: tuple[int, str],
    aware: bool,
    target: int,
    batch: int,
) -> TrialRecord:
    (row, defence_spec), (column, attack_spec) = defence, attack
    key = sha256(repr((scenario, defence, attack, aware, target)).encode()).hexdigest()[:16]
    common: dict[str, Any] = {
        "key": key,
        "scenario": scenario,
        "defence": defence_spec,
        "attack": attack_spec,
        "aware": aware,
        "target": target,
        "knowledge": _knowledge(defence_spec, aware, batch),
    }
    if (row, column) == (1, 1):
        return TrialRecord(**common, status="refused", message=REFUSAL.format(attack_spec))
    if (row, column, aware, target) == (0, 1, False, 3):
        return TrialRecord(**common, status="failed", message="the objective became NaN at step 412.", seconds=3.1)
    generator = torch.Generator().manual_seed(1000 * row + 100 * column + 10 * aware + target)
    spread = 0.8 + 0.4 * torch.rand(1, generator=generator).item()
    strength = _NOISE[row % 3][aware] * (1.35 if column == 1 else 1.0) * spread
    originals = faces(batch, seed=target)
    rebuilt = degrade(originals, strength, generator)
    artefact = f"artefacts/{key}.safetensors"
    (directory / "artefacts").mkdir(parents=True, exist_ok=True)
    strangers = faces(4, seed=90)
    first = strength < 0.3
    shown = torch.cat([originals[:1], strangers] if first else [strangers, originals[:1]])
    tensors = {"originals": originals, "reconstructions": rebuilt}
    tensors |= {f"line_up.{place}": shown.clone() for place in range(batch)}
    save_file(tensors, directory / artefact)
    jitter = 0.7 * torch.randn(len(_BASELINES), batch, generator=torch.Generator().manual_seed(target))
    scores = tuple(psnr(originals, rebuilt, data_range=1.0).tolist())
    return TrialRecord(
        **common,
        psnr=scores,
        ssim=tuple(_correlation(originals, rebuilt).tolist()),
        mse=tuple(mse(originals, rebuilt).tolist()),
        psnr_best=scores,
        label_accuracy=1.0 if row < 2 else 0.5 * (target % 2),
        label_chance=0.3,
        ranks={
            name: tuple(1 if first else 5 + (37 * target + 11 * i + 5 * aware) % 60 for i in range(batch))
            for name in ("correlation", "mse", "ssim")
        },
        line_up=(70,) * batch,
        twins=(0,) * batch,
        stranger_psnr=(13.5,) * batch,
        top=((-1, 0, 1, 2, 3) if first else (0, 1, 2, 3, -1),) * batch,
        baselines={
            name: tuple((mean + jitter[place]).tolist()) for place, (name, mean) in enumerate(_BASELINES.items())
        },
        objective=strength**2,
        trace=tuple((step, strength**2 + math.exp(-step / 90)) for step in range(0, 600, 5)),
        seconds=4.0 + target,
        cost=_cost(row),
        artefact=artefact,
        notes=("Restarts agreed to within 0.3 dB.",) if column == 0 else (),
    )


def faces(count: int, seed: int = 0) -> Tensor:
    """Return faces [count, 3, 32, 32] in a warm tint."""
    order = torch.randperm(100, generator=torch.Generator().manual_seed(seed))[:count]
    grey = interpolate(_all_faces()[order], size=32, mode="bicubic").clamp(0, 1)
    return torch.cat([grey, grey**1.15, grey**1.35], 1)


@cache
def _all_faces() -> Tensor:
    return torch.tensor(lfw_subset()[:100], dtype=torch.float32)[:, None]


def _correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return a stand-in for SSIM that costs nothing: the correlation of the pixels."""
    return cosine_similarity(*(x.flatten(1) - x.flatten(1).mean(1, keepdim=True) for x in (a, b)))


def degrade(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Return copies that are the more blurred and noisy the stronger."""
    blurred = avg_pool2d(images, 5, stride=1, padding=2, count_include_pad=False)
    mixed = torch.lerp(images, blurred, min(1.0, 1.6 * strength))
    return (mixed + strength * torch.randn(images.shape, generator=generator)).clamp(0, 1)


def _cost(row: int) -> dict[str, object]:
    place = row % 3
    return {
        "bytes_up": (61_320, 13_220, 4_410)[place],
        "bytes_down": None,
        "seconds": (0.0, 0.0042, 0.0117)[place],
        "extra_passes": 0.0,
        "state_bytes": (0, 61_320, 61_320)[place],
        "epsilon_nominal": (None, None, 12.4)[place],
        "epsilon_accounted": (None, None, math.inf)[place],
        "density": (1.0, 0.2, 0.05)[place],
        "gradient_distance": (0.0, 0.31, 0.84)[place],
        "remarks": ((), (), ("The noise is not calibrated to a clipping norm, so `epsilon` is infinite.",))[place],
    }


def _knowledge(defence: str, aware: bool, batch: int) -> dict[str, str]:
    return {
        "model": "architecture, weights and loss, as any server has them",
        "image shape": "3x32x32",
        "classes": "10",
        "loss reduction": "mean",
        "batch size": str(batch),
        "labels": "not given; inferred from the update by the rule `identity`",
        "batch normalisation": "the client uses running statistics, which the server has",
        "local steps": "1",
        "learning rate": "0.1",
        "normalisation": "none, images enter the model in [0, 1]",
        "public data": "400 images no client holds",
        "defence": f"`{defence}`, simulated inside the attack" if aware and defence != "none" else "not known",
    }


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """Build runs as `build_run` does, in a temporary directory."""
    return lambda **options: build_run(tmp_path, **options)


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The usual run: 3 defences, 2 attacks, naive and aware, 6 targets, one refused square and one failed trial."""
    return build_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def hostile(make_run: Callable[..., Run]) -> Run:
    """A run whose every name and text tries to break out of its file."""
    evil = "<script>alert(1)</script>\"'&]]>\x00\x1b\ud800"
    base = make_run(defences=(f"none{evil}", f"topk{evil}"), attacks=(f"ig{evil}", f"dlg{evil}"), targets=1, batch=1)
    records = tuple(
        record.model_copy(
            update={
                "scenario": f"s{evil}",
                "key": record.key + evil,
                "message": record.message + evil,
                "notes": (evil,),
                "knowledge": {**record.knowledge, evil: evil},
                "cost": {**record.cost, "remarks": (evil,)},
                "baselines": {evil: record.baselines["flat"]} if record.baselines else {},
            }
        )
        for record in base.records
    )
    scenario = Scenario.model_construct(**{**dict(base.scenarios[0]), "name": f"s{evil}", "data": evil})
    finding = Finding(severity="warning", topic=evil, text=evil, advice=evil)
    return Run(
        directory=base.directory,
        scenarios=(scenario,),
        planned=len(records),
        records=records,
        findings={f"s{evil}": (finding,), f"other{evil}": (finding,)},
        environment={evil: evil},
        command=evil,
    )


def _find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((found for name in names if (found := shutil.which(name))), None)


AXE = "axe-core@4.10.3"

CLIPPED = """
[...document.querySelectorAll('body *')].filter(element => {
  const style = getComputedStyle(element);
  const hidden = element.closest('.hidden, .skip, thead, [aria-hidden=true]') || element.clientWidth < 3;
  return style.overflowX !== 'visible' && element.scrollWidth > element.clientWidth + 1 && !hidden;
}).map(element => `${element.tagName}.${element.className}`)
"""
"""Elements that show a part of their content only."""


class Look:
    """What every page is held to in a browser: nothing clipped, no problem told, no serious finding of axe."""

    @staticmethod
    def clipped(page: Any) -> list[str]:
        """Return what of a page cannot be seen without scrolling sideways."""
        scroll, inner = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        found: list[str] = page.evaluate(CLIPPED)
        return found + ([f"page: {scroll} in {inner}"] if scroll > inner else [])

    @staticmethod
    def problems(page: Any) -> list[str]:
        """Return a list that fills with what a page's console and network complain of."""
        problems: list[str] = []
        page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("requestfailed", lambda request: problems.append(request.url))
        return problems

    @staticmethod
    def serious(page: Any, axe: str) -> list[str]:
        """Return what axe finds serious or critical, with the elements."""
        page.evaluate(axe)  # the page's own policy allows no foreign script; the browser's console is above it
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{one['id']}: {one['help']}: {[node['html'][:120] for node in one['nodes']][:3]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]


@pytest.fixture(scope="session")
def look() -> type[Look]:
    """The checks of pages."""
    return Look


@pytest.fixture(scope="session")
def wide_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Eight attacks on eight defences."""
    attacks = ("ig", "fedleak", "idlg:iterations=500", "bayes:iterations=400", "dlg", "retrieval", "learned", "imprint")
    defences = (*DEFENCES, "dgp:ratio=0.75", "soteria", "outpost", "minmax", "ats")
    return build_run(tmp_path_factory.mktemp("wide"), attacks=attacks, defences=defences, targets=4, batch=1)


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, from npm once and then from a cache; skips where neither has it."""
    cached = Path(tempfile.gettempdir()) / f"fedseal-tests-{os.getuid()}" / f"{AXE}.js"
    if not cached.is_file():
        if shutil.which("npm") is None:
            pytest.skip("axe-core is not cached and there is no npm to fetch it with")
        with tempfile.TemporaryDirectory() as place:
            done = subprocess.run(["npm", "pack", AXE], cwd=place, capture_output=True, timeout=120, check=False)
            packages = list(Path(place).glob("*.tgz"))
            if done.returncode or not packages:
                pytest.skip("axe-core is not cached and npm does not reach its registry")
            with tarfile.open(packages[0]) as package:
                member = package.extractfile("package/axe.min.js")
                assert member is not None
                cached.parent.mkdir(mode=0o700, exist_ok=True)
                write_atomically(cached, member.read())
    return cached.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium; installs Debian's where it is missing and this is root, else skips."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    if _find_chromium() is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(["apt-get", *command], check=False, capture_output=True, timeout=600)
    executable = _find_chromium()
    if executable is None:
        pytest.skip("there is no Chromium: install Debian's with `apt-get install chromium`")
    arguments = [
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-sync",
    ]
    with playwright.sync_playwright() as driver:
        instance = driver.chromium.launch(executable_path=executable, args=arguments)
        yield instance
        instance.close()
