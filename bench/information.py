"""Processor time of ideal readings: what it costs to say what an update holds.

    python bench/information.py [--quick] [--cases lenet,lenet-probes,resnet18]

Every case reads the gradient of one 32x32 colour image, under Gaussian noise and undefended, on one thread. The images
and the prior are smooth random ones, so that nothing has to be downloaded; the cost does not depend on them. `exact`
forms the Jacobian, `probes` uses products only, and the ratio says what that saves; ResNet-18 (width 64, running
statistics) can be read by products only. Seconds are of the processor, which other programs do not change. Results go
to bench/out/information.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from fedseal.core.batch import Batch
from fedseal.core.channel import Channel, constant_variance
from fedseal.federation.client import RoundConfig, set_mode
from fedseal.information.ideal import Options, ideal_reading
from fedseal.information.matrix_free import Effort
from fedseal.information.prior import ImagePrior, fit_prior
from fedseal.information.upload import Upload, UploadMap
from fedseal.models.registry import build_model

SHAPE = (3, 32, 32)
CASES = {
    "lenet": ("lenet-relu", Options("exact")),
    "lenet-alone": ("lenet-relu", Options("exact", layers=False)),
    "lenet-probes": ("lenet-relu", Options("matrix-free", layers=False)),
    "resnet18": ("resnet18", Options("matrix-free", effort=Effort(probes=8, rank=32, iterations=15), layers=False)),
}


@dataclass(frozen=True)
class Timing:
    """One reading: what was read, what it said and what it cost."""

    case: str
    noise: float
    seconds: float
    psnr_db: float | None
    error_db: float
    remarks: tuple[str, ...]


def images(count: int, seed: int) -> torch.Tensor:
    """Return smooth random images with a little texture, [count, 3, 32, 32]."""
    source = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 6, 6, generator=source)
    fine = 0.1 * torch.rand(count, *SHAPE, generator=source)
    return (F.interpolate(coarse, SHAPE[1:], mode="bicubic") + fine).clamp(0, 1)


def upload_of(model: str) -> Upload:
    """Return the undefended gradient of one image."""
    config = RoundConfig()
    net = set_mode(build_model(model, input_shape=SHAPE, num_classes=10, seed=0), config)
    batch = Batch(images(1, 1), torch.zeros(1, dtype=torch.long))
    upload = Upload(net, batch, batch, {name: p.detach() for name, p in net.named_parameters()}, config)
    mapped = UploadMap(upload, torch.float32)
    return replace(upload, observed={name: t.detach() for name, t in mapped(mapped.point).items()})


def timed(case: str, prior: ImagePrior, noise: float) -> Timing:
    """Read one upload under noise of a deviation."""
    model, options = CASES[case]
    upload = upload_of(model)
    if noise:
        upload = replace(upload, channel=Channel(variance=constant_variance(noise**2)))
    start = time.process_time()
    reading = ideal_reading(upload, prior, options)
    seconds = time.process_time() - start
    return Timing(case, noise, seconds, reading.psnr_db, reading.error_db, reading.remarks)


def main() -> None:
    """Run the cases, print a table and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--quick", action="store_true", help="LeNet by probes only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    prior = fit_prior(images(400, 0))
    prior.axes  # noqa: B018 - computed once for all readings
    chosen = ["lenet-probes"] if arguments.quick else arguments.cases.split(",")
    timings = [timed(case, prior, noise) for case in chosen for noise in (0.01, 0.0)]
    table = Table("case", "noise", "CPU seconds", "reading (dB)", "error (dB)", "remarks")
    for t in timings:
        found = "none" if t.psnr_db is None else f"{t.psnr_db:.1f}"
        table.add_row(t.case, f"{t.noise:g}", f"{t.seconds:.1f}", found, f"{t.error_db:.2f}", "; ".join(t.remarks))
    Console(width=160).print(table)
    whole = {(t.case, t.noise): t.seconds for t in timings}
    for noise in (0.01, 0.0):
        if {("lenet-alone", noise), ("lenet-probes", noise)} <= whole.keys():
            ratio = whole["lenet-alone", noise] / whole["lenet-probes", noise]
            Console().print(f"LeNet, noise {noise:g}: exact takes {ratio:.1f} times as long as probes")
    out = Path(__file__).parent / "out" / "information.json"
    out.parent.mkdir(exist_ok=True)
    out.write_text(json.dumps([asdict(t) for t in timings], indent=1))


if __name__ == "__main__":
    main()
