"""The libraries' own code, run on one update: what really leaves, or is really released, of it."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedseal.information.claims.mechanism import Rehearsal, Vector

SILENCE = 1e-9
"""An update that says nothing, over the clip bound; not zero, because Flower divides by its norm."""
_NUMBERS = 20_000
"""Numbers of the update SVTPrivacy is rehearsed with; its noise per number does not depend on it."""
_CLIENTS = 100
"""At most so many answer in a rehearsed round."""


def installed(package: str) -> bool:
    """Return whether a library is there, without importing it."""
    return importlib.util.find_spec(package) is not None


def flower_local(clip: float, sensitivity: float, epsilon: float, delta: float) -> Rehearsal | None:
    """Return `LocalDpMod` as a client runs it."""
    if not installed("flwr"):
        return None

    def play(update: Vector, seed: int) -> Vector:
        from flwr.app import ArrayRecord, RecordDict
        from flwr.clientapp.mod import LocalDpMod

        asked = _message(RecordDict({"arrays": ArrayRecord([np.zeros_like(update)])}))
        answer = _message(RecordDict({"arrays": ArrayRecord([clip * update])}))
        with _numpy_seed(seed), _quiet("flwr"):
            mod: Any = LocalDpMod(clip, sensitivity, epsilon, delta)
            sent = mod(asked, None, lambda message, context: answer)
        released: Vector = sent.content["arrays"].to_numpy_ndarrays()[0] / clip
        return released

    return Rehearsal("Flower's LocalDpMod on a client's message", play)


def flower_server(noise: float, clip: float, clients: int) -> Rehearsal | None:
    """Return server-side fixed clipping around FedAvg; the others of the round have next to nothing to say."""
    if not installed("flwr") or clients > _CLIENTS:
        return None

    def play(update: Vector, seed: int) -> Vector:
        from flwr.app import ArrayRecord, MetricRecord, RecordDict
        from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

        def reply(sent: Vector) -> Any:
            metrics = MetricRecord({"num-examples": 1})
            return _message(RecordDict({"arrays": ArrayRecord([sent]), "metrics": metrics}))

        silent = np.full_like(update, SILENCE * clip)
        with _numpy_seed(seed), _quiet("flwr"):
            wrapper: Any = DifferentialPrivacyServerSideFixedClipping(FedAvg(), noise, clip, clients)
            wrapper.current_arrays = ArrayRecord([np.zeros_like(update)])
            mean, _ = wrapper.aggregate_train(1, [reply(clip * update), *(reply(silent) for _ in range(clients - 1))])
        released: Vector = mean.to_numpy_ndarrays()[0] * clients / clip
        return released

    return Rehearsal(f"Flower's server-side fixed clipping around FedAvg with {clients} clients", play)


def _message(content: Any) -> Any:
    """Return a message outside of any run."""
    from flwr.app import Metadata
    from flwr.app.message import make_message

    metadata = Metadata(
        run_id=1,
        message_id="",
        src_node_id=1,
        dst_node_id=1,
        reply_to_message_id="",
        group_id="",
        created_at=0.0,
        ttl=1.0,
        message_type="train",
    )
    return make_message(metadata, content)


def nvflare_svt(values: Mapping[str, float | None], size: int) -> Rehearsal | None:
    """Return `SVTPrivacy` on a small update; the canary fills it."""
    if not installed("nvflare"):
        return None
    count, gamma = min(size, _NUMBERS), float(values["gamma"] or 0.0)

    def play(update: Vector, seed: int) -> Vector:
        from nvflare.app_common.filters.svt_privacy import SVTPrivacy

        return _filtered(SVTPrivacy(**values), update * gamma, seed) / gamma

    return Rehearsal(f"NVFlare's SVTPrivacy on an update of {count:,} numbers", play, size=count, spread=True)


def nvflare_percentile(share: float, gamma: float) -> Rehearsal | None:
    """Return `PercentilePrivacy` on a small update."""
    if not installed("nvflare"):
        return None

    def play(update: Vector, seed: int) -> Vector:
        from nvflare.app_common.filters.percentile_privacy import PercentilePrivacy

        return _filtered(PercentilePrivacy(share, gamma), update * gamma, seed) / gamma

    return Rehearsal("NVFlare's PercentilePrivacy on an update", play, size=100)


def opacus_step(noise: float, rate: float) -> Rehearsal | None:
    """Return one step of Opacus' optimiser on a batch that holds the canary, by chance if batches are samples."""
    if not installed("opacus"):
        return None

    def play(update: Vector, seed: int) -> Vector:
        import torch
        from opacus.optimizers import DPOptimizer

        source = torch.Generator().manual_seed(seed)
        parameter = torch.nn.Parameter(torch.zeros(len(update)))
        inner = torch.optim.SGD([parameter], lr=1.0)
        private = DPOptimizer(inner, noise_multiplier=noise, max_grad_norm=1.0, expected_batch_size=1, generator=source)
        there = float(torch.rand((), generator=source)) < rate
        sample = torch.as_tensor(update * there, dtype=torch.float32)
        parameter.grad_sample = torch.stack([sample, torch.zeros_like(sample)])  # type: ignore[attr-defined]
        private.pre_step()
        return np.asarray(parameter.grad, dtype=np.float64)

    return Rehearsal("one step of Opacus' optimiser", play)


def _filtered(privacy_filter: Any, update: Vector, seed: int) -> Vector:
    """Return what an NVFlare filter makes of an update."""
    from nvflare.apis.dxo import DXO, DataKind
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.shareable import Shareable

    with _numpy_seed(seed), _quiet("nvflare"), _quiet(type(privacy_filter).__name__):
        passed = privacy_filter.process_dxo(DXO(DataKind.WEIGHT_DIFF, {"w": update.copy()}), Shareable(), FLContext())
    return np.asarray(passed.data["w"], dtype=np.float64)


@contextmanager
def _numpy_seed(seed: int) -> Iterator[None]:
    """Seed numpy's global generator, from which these libraries draw their noise, and leave no trace there."""
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
