"""FedKL, the key-lock module (Ren et al., 2023): normalisation scales and shifts come from a client's secret.

The affine part of every batch normalisation becomes gamma = relu(W_s key + b_s), beta = relu(W_t key + b_t); the key
(U(0, 1)) and these locks stay with the client, uploaded as zeros and put back before it trains. A model
without batch normalisation gets one, locked, behind its first convolution, as the authors' LeNet has. Threat model:
passive server; gamma and beta are few unknowns, which an aware attacker seeks too. Departures: clients draw their
own locks (the released code starts from the server's), and a copy without a key, the server's, has gamma = 1 and
beta = 0, an attacker's natural guess. `key=0` inserts nothing.

Cost: two small linear maps per locked layer, which the client keeps.

Known breaks: scale and shift are two numbers per channel: optimising them beside the image, or reading layers in front
of the first lock, undoes it. Active servers put their block before any lock.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.core.batch import Batch
from fedseal.core.channel import Channel
from fedseal.core.defence import DEFENCES, AttackerView, CostReport, Defence, RoundContext
from fedseal.core.errors import CapabilityError, UsageError
from fedseal.core.registry import Info
from fedseal.core.tensors import Tensors
from fedseal.models.surgery import called_modules, replace_module

_KEY = "key"


class KeyLock(nn.Module):
    """A normalisation whose scale and shift are locked by a key.

    Args:
        norm: normalises without an affine part of its own.
        channels: width of what it normalises.
        length: of the key.
    """

    def __init__(self, norm: nn.Module, channels: int, length: int) -> None:
        super().__init__()
        self.norm = norm
        self.guessed_scale: Tensor | None
        self.guessed_shift: Tensor | None
        self.scale = nn.Linear(length, channels)
        self.shift = nn.Linear(length, channels)
        self.key: Tensor | None = None
        self.register_buffer("guessed_scale", None, persistent=False)
        self.register_buffer("guessed_shift", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, channels, ...] to gamma norm(x) + beta; without a key, to norm(x), or to what someone guesses."""
        normal: Tensor = self.norm(x)
        if self.key is not None:
            gamma, beta = (locked(self.key.to(self.scale.weight)).relu() for locked in (self.scale, self.shift))
        elif self.guessed_scale is not None and self.guessed_shift is not None:
            gamma, beta = self.guessed_scale, self.guessed_shift
        else:
            return normal
        shape = (1, -1, *[1] * (x.ndim - 2))
        result: Tensor = gamma.view(shape) * normal + beta.view(shape)
        return result


@DEFENCES.register(
    "fedkl",
    Info("scales and shifts of normalisation locked by a client's key", paper="Ren et al., 2023", threat="passive"),
)
class FedKL(Defence):
    """Locks the affine part of normalisation.

    Args:
        key: length of the key; 0 locks nothing.
    """

    stage = "model"

    def __init__(self, key: int = 1024) -> None:
        if key < 0:
            raise UsageError(f"fedkl needs a key length >= 0, got {key}.", hint="0 locks nothing.")
        self.length = key
        self._state: dict[str, Tensor] = {}

    def wrap_model(self, model: nn.Module) -> nn.Module:
        """Lock every batch normalisation with an affine part, or insert a locked one behind the first convolution."""
        if self.length == 0:
            return model
        like = next(model.parameters())
        norms = [(n, m) for n, m in model.named_modules() if isinstance(m, _BatchNorm) and m.affine]
        for name, norm in norms:
            lock = KeyLock(_without_affine(norm), norm.num_features, self.length).to(like)
            model = replace_module(model, name, lock.train(norm.training))
        if norms:
            return model
        convolutions = [n for n in called_modules(model) if isinstance(model.get_submodule(n), nn.Conv2d)]
        if not convolutions:
            raise CapabilityError(
                "fedkl locks batch normalisation or a first convolution, and the model has neither.",
                hint="Choose a convolutional model, or another defence.",
            )
        first = model.get_submodule(convolutions[0])
        assert isinstance(first, nn.Conv2d)
        channels = first.out_channels
        lock = KeyLock(nn.BatchNorm2d(channels, affine=False), channels, self.length).to(like).train(first.training)
        return replace_module(model, convolutions[0], nn.Sequential(first, lock))

    def on_batch(self, batch: Batch, context: RoundContext) -> Batch:
        """Put the client's key and locks into the model it received; the batch stays as it is."""
        if context.step == 0 and _locks(context.model):
            if not self._state:
                self._state = _drawn(context.model, self.length, context.generator)
            self._install(context.model)
        return batch

    def on_update(self, update: Tensors, context: RoundContext) -> Tensors:
        """Keep the trained locks, and upload zeros in their place."""
        trained = dict(context.model.named_parameters())
        for name in self._state.keys() & update.keys():
            if context.kind == "gradient":  # which no one has applied yet
                self._state[name] = self._state[name] - context.learning_rate * update[name]
            else:
                self._state[name] = trained[name].detach().clone()
        return {name: torch.zeros_like(t) if name in self._state else t for name, t in update.items()}

    def own_model(self, model: nn.Module) -> nn.Module:
        """Return a copy of a global model with this client's key and locks, as the client would evaluate it."""
        own = copy.deepcopy(model)
        self._install(own)
        return own

    def _install(self, model: nn.Module) -> None:
        if _KEY not in self._state:
            return
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, value in self._state.items():
                if name in parameters:
                    parameters[name].copy_(value)
        for lock in _locks(model).values():
            lock.key = self._state[_KEY].to(lock.scale.weight)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the key and the locks."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the key and the locks."""
        if state and (_KEY not in state or state[_KEY].shape != (self.length,)):
            raise UsageError(
                f"fedkl needs a state with a key of length {self.length}.", hint="Load what the same fedkl saved."
            )
        self._state = dict(state)

    def report(self) -> CostReport:
        """Say how many parameters are locked."""
        held = super().report().state_bytes
        locked = sum(t.numel() for name, t in self._state.items() if name != _KEY)
        return CostReport(
            state_bytes=held,
            remarks=(f"fedkl keeps {locked:,} lock parameters on the client; uploaded as zeros",) if locked else (),
        )

    def attacker_view(self) -> AttackerView:
        """Publish the length of the key; gamma and beta are few, and sought together with the images."""
        locked = frozenset(self._state)

        def unlocked(update: Tensors, observed: Tensors) -> Tensors:
            return {name: torch.zeros_like(t) if name in locked else t for name, t in update.items()}

        known = "scales and shifts, few unknowns that an attacker can optimise too, are taken as known"
        channel = Channel(unlocked, remarks=(known,)) if locked else Channel()
        unknowns = _unknown_affine if self.length else None
        return AttackerView(self.name, {"key": self.length}, unknowns=unknowns, channel=channel)


def _unknown_affine(model: nn.Module, images: int) -> dict[str, Tensor]:
    """Return what an attacker seeks, scale and shift of each locked channel, starting where nothing is locked."""
    found: dict[str, Tensor] = {}
    for name, lock in _locks(model).items():
        prefix, bias = f"{name}." if name else "", lock.scale.bias
        found |= {f"{prefix}guessed_scale": torch.ones_like(bias), f"{prefix}guessed_shift": torch.zeros_like(bias)}
    return found


def _locks(model: nn.Module) -> dict[str, KeyLock]:
    return {name: module for name, module in model.named_modules() if isinstance(module, KeyLock)}


def _without_affine(norm: _BatchNorm) -> _BatchNorm:
    """Return a copy of a batch normalisation that keeps its statistics and loses scale and shift."""
    plain = copy.deepcopy(norm)
    plain.affine = False
    plain.register_parameter("weight", None)
    plain.register_parameter("bias", None)
    return plain


def _drawn(model: nn.Module, length: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Draw a key from U(0, 1) and, by PyTorch's law for linear layers, the locks of every locked layer."""
    state = {_KEY: torch.rand(length, generator=generator, device=generator.device)}
    for name, lock in _locks(model).items():
        for part, parameter in lock.named_parameters():
            if not part.startswith("norm."):
                draw = torch.rand(parameter.shape, generator=generator, device=generator.device).to(parameter)
                state[f"{name}.{part}" if name else part] = (2 * draw - 1) / math.sqrt(length)
    return state
