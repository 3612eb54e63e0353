"""breaching's side of the benchmark: a process of its own that answers requests, one JSON object per line.

Runs in breaching's virtualenv with fedseal's sources on the path, so that both attack instances of one `nn.Module`
class. breaching is used as its notebooks use it (`prepare_attack`, `reconstruct`), with two favours: its configuration
is a plain dictionary instead of OmegaConf's slower one, and total variation is made to accept grey images. One run
per victim, not timed, drops the border that breaching's total variation adds, to tell whether the attacks are equal.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attackbench.clock import now

_LIBRARIES: list[torch.library.Library] = []


def import_breaching() -> Any:
    """Import breaching, past a torchvision wheel that was built for another torch.

    Beside a CPU torch the wheel's compiled operators do not load, and registering their shape functions then fails
    because nobody has declared the operators. breaching uses none of them: declare them and import again. The library
    object must live on, or the declarations go with it.
    """
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
    import breaching

    return breaching


class Settings(dict[str, Any]):
    """A dictionary whose entries are also attributes, as breaching reads its configuration."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    @classmethod
    def of(cls, values: Any) -> Any:
        """Convert nested dictionaries."""
        if isinstance(values, dict):
            return cls({key: cls.of(value) for key, value in values.items()})
        return values


@dataclass(frozen=True)
class Case:
    """A case as read from its directory."""

    model: nn.Module
    gradient: list[Tensor]
    images: Tensor
    labels: Tensor
    starts: Tensor
    mean: list[float]
    std: list[float]
    num_classes: int

    def to_images(self, inputs: Tensor) -> Tensor:
        """Return the images in [0, 1] that model inputs stand for."""
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return (inputs.detach() * std + mean).clamp(0, 1)

    def psnr(self, inputs: Tensor) -> float:
        """Return the PSNR in dB of a candidate, its images in the order of the truth."""
        errors = (self.to_images(inputs).double() - self.images.double()).square().mean(dim=(1, 2, 3))
        return float((-10 * errors.clamp(min=1e-10).log10()).mean())


def load_case(directory: Path) -> Case:
    """Read what `attackbench.cases.Case.save` wrote."""
    from fedseal.models.registry import build_model

    about = json.loads((directory / "case.json").read_text(encoding="utf-8"))
    tensors = load_file(directory / "case.st")
    images = tensors["images"]
    channels, height, width = images.shape[1:]
    model = build_model(about["model"], input_shape=(channels, height, width), num_classes=about["num_classes"], seed=0)
    model.load_state_dict({name[6:]: value for name, value in tensors.items() if name.startswith("model/")})
    return Case(
        model.eval(),
        [tensors[f"gradient/{name}"] for name, _ in model.named_parameters()],
        images,
        tensors["labels"],
        tensors["starts"],
        about["mean"],
        about["std"],
        about["num_classes"],
    )


class Borderless(nn.Module):
    """Total variation of Inverting Gradients, which breaching pads with a border of zeros: mean |dx| + mean |dy|."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self._scale = scale

    def initialize(self, *arguments: Any) -> None:
        """Do nothing; breaching calls it."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the weighted total variation of [B, C, H, W]."""
        return self._scale * (inputs.diff(dim=-1).abs().mean() + inputs.diff(dim=-2).abs().mean())


class Stopped(Exception):
    """Raised from inside an attack to end it."""


@dataclass
class Clock:
    """Time since its making, without the time spent in `paused` blocks."""

    started: float
    excluded: float = 0.0

    def seconds(self) -> float:
        """Return the time that counts."""
        return now() - self.started - self.excluded

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count this block."""
        before = now()
        yield
        self.excluded += now() - before


class Server:
    """Answers requests; remembers the case it last read."""

    def __init__(self) -> None:
        self._breaching = import_breaching()
        self._case: tuple[str, Case] | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what `request["do"]` names."""
        torch.set_num_threads(int(request.get("threads", 1)))
        doing: Callable[[dict[str, Any]], dict[str, Any]] = getattr(self, f"do_{request['do']}")
        return doing(request)

    def do_versions(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the versions of what matters here."""
        names = ("breaching", "torch", "torchvision", "numpy", "hydra-core")
        return {name: importlib.metadata.version(name) for name in names}

    def do_total_variation(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return breaching's total variation of the true inputs at scale 1, to compare conventions."""
        from breaching.attacks.auxiliaries.regularizers import TotalVariation

        case = self._load(request["case"])
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (case.mean, case.std))
        prior = TotalVariation(_TENSORS, scale=1.0, inner_exp=1, outer_exp=1)
        _accept_channels(prior, case.images.shape[1])
        return {"value": float(prior((case.images - mean) / std))}

    def do_reconstruct(self, request: dict[str, Any]) -> dict[str, Any]:
        """Attack the first start with a number of iterations, timed as a whole; write the images to a file."""
        case = self._load(request["case"])
        attacker = self._attacker(case, request, iterations=request["iterations"])
        payload, shared = self._payload(case, request)
        start = case.starts[0].clone()
        before = now()
        result, stats = attacker.reconstruct(payload, shared, {}, initial_data=start)
        seconds = now() - before
        save_file({"images": case.to_images(result["data"]).contiguous()}, request["out"])
        return {"seconds": seconds, "iterations": len(stats["Trial_0_Val"])}

    def do_reach(self, request: dict[str, Any]) -> dict[str, Any]:
        """Attack from one start after the other until a PSNR is reached or time is up; scoring is not timed."""
        case = self._load(request["case"])
        goal, cap, every = float(request["goal"]), float(request["cap"]), int(request["every"])
        best, reached, used = -100.0, False, 0
        clock = Clock(now())

        def watch(iteration: int, candidate: Tensor) -> None:
            nonlocal best, reached
            if iteration % every:
                return
            with clock.paused():
                quality = case.psnr(candidate)
                best = max(best, quality)
                reached = quality >= goal
            if reached or clock.seconds() > cap:
                raise Stopped

        for used in range(1, len(case.starts) + 1):
            attacker = self._attacker(case, request)
            _watch(attacker, watch)
            payload, shared = self._payload(case, request)
            try:
                result, _ = attacker.reconstruct(payload, shared, {}, initial_data=case.starts[used - 1].clone())
                watch(0, result["data"])
            except Stopped:
                break
        return {"reached": reached, "seconds": clock.seconds(), "best_db": best, "starts": used}

    def _load(self, directory: str) -> Case:
        if self._case is None or self._case[0] != directory:
            self._case = (directory, load_case(Path(directory)))
        return self._case[1]

    def _attacker(self, case: Case, request: dict[str, Any], iterations: int | None = None) -> Any:
        overrides = dict(request.get("overrides", {}))
        if iterations is not None:
            overrides["optim.max_iterations"] = iterations
        from omegaconf import OmegaConf

        config = self._breaching.get_attack_config(request["config"])
        for key, value in overrides.items():
            OmegaConf.update(config, key, value, force_add=True)
        settings = Settings.of(OmegaConf.to_container(config, resolve=True))
        attacker = self._breaching.attacks.prepare_attack(case.model, nn.CrossEntropyLoss(), settings, _TENSORS)
        for prior in attacker.regularizers:
            _accept_channels(prior, case.images.shape[1])
        if request.get("borderless"):
            attacker.regularizers = [Borderless(prior.scale) for prior in attacker.regularizers]
        return attacker

    def _payload(self, case: Case, request: dict[str, Any]) -> tuple[list[Any], list[Any]]:
        metadata = Settings(
            shape=list(case.images.shape[1:]),
            mean=case.mean,
            std=case.std,
            classes=case.num_classes,
            modality="vision",
            task="classification",
        )
        payload = {"parameters": list(case.model.parameters()), "buffers": list(case.model.buffers())}
        labels = case.labels if request.get("labels", True) else None
        about = {"num_data_points": len(case.images), "labels": labels, "local_hyperparams": None}
        shared = {"gradients": [tensor.clone() for tensor in case.gradient], "buffers": None, "metadata": about}
        return [{**payload, "metadata": metadata}], [shared]


_TENSORS = {"dtype": torch.float, "device": torch.device("cpu")}


def _accept_channels(prior: Any, channels: int) -> None:
    """Let breaching's total variation, written for three channels, take any number."""
    if hasattr(prior, "groups") and not prior.double_opponents and prior.groups != channels:
        prior.weight = prior.weight[:2].repeat(channels, 1, 1, 1)
        prior.groups = channels


def _watch(attacker: Any, watch: Callable[[int, Tensor], None]) -> None:
    """Call `watch(iteration, candidate)` before every iteration, when the candidate is that of the last one."""
    compute = attacker._compute_objective

    def wrapped(candidate: Tensor, *arguments: Any) -> Any:
        watch(arguments[-1], candidate)
        return compute(candidate, *arguments)

    attacker._compute_objective = wrapped


def main() -> None:
    """Answer every line of standard input on standard output; all else that is printed goes to standard error."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    server = Server()
    for line in sys.stdin:
        print(json.dumps(server.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
