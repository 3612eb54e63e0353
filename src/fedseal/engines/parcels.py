"""Objects on their way to other machines: large tensors travel by content, once each, whoever holds them.

A pickle of ours names every large tensor by the hash of what is in it and keeps it beside; two set-ups on one data set
share its images. A `Parcel` is a part that is opened only where it is needed. Both ends are fedseal of one version:
nothing here reads what comes from outside.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fedseal.core.hashing import hash_tensors

T = TypeVar("T")

LARGE = 1 << 16
"""Bytes from which a tensor travels by itself."""


class Parcel(Generic[T]):
    """Something that is opened when it is needed; here it is open already.

    Args:
        value: what is in it.
    """

    def __init__(self, value: T) -> None:
        self._value = value

    def open(self) -> T:
        """Return what is in it."""
        return self._value


@dataclass
class Packing:
    """Packs objects for one journey.

    Args:
        send: takes a piece, a numpy array or bytes, and the name it is asked for by, later and elsewhere.
    """

    send: Callable[[str, Any], None]
    _sent: set[str] = field(default_factory=set)
    _parcels: dict[int, tuple[Parcel[Any], str]] = field(default_factory=dict)
    _hashes: dict[int, tuple[Tensor, str]] = field(default_factory=dict)

    def pack(self, value: Any) -> bytes:
        """Return an object as bytes that name its large tensors and its parcels, which are sent."""
        import cloudpickle

        packing, target = self, io.BytesIO()

        class _Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
            def persistent_id(self, item: Any) -> Any:
                return packing._elsewhere(item)

        _Pickler(target, protocol=5).dump(value)
        return target.getvalue()

    def _elsewhere(self, item: Any) -> Any:
        if isinstance(item, Parcel):
            return "parcel", self._parcel(item)
        if type(item) is Tensor and _travels_alone(item):
            name = self._hash(item)
            self._once(name, item.contiguous().numpy())
            return "tensor", name
        return None

    def _hash(self, tensor: Tensor) -> str:
        if id(tensor) not in self._hashes:
            self._hashes[id(tensor)] = tensor, hash_tensors({"": tensor})
        return self._hashes[id(tensor)][1]

    def _parcel(self, parcel: Parcel[Any]) -> str:
        if id(parcel) not in self._parcels:
            content = self.pack(parcel.open())
            self._parcels[id(parcel)] = parcel, hashlib.sha256(content).hexdigest()
            self._once(self._parcels[id(parcel)][1], content)
        return self._parcels[id(parcel)][1]

    def _once(self, name: str, piece: Any) -> None:
        if name not in self._sent:
            self._sent.add(name)
            self.send(name, piece)


def unpack(content: bytes, fetch: Callable[[str], Any]) -> Any:
    """Return the object that was packed.

    Args:
        content: from `Packing.pack`.
        fetch: returns a piece by its name.
    """

    class _Unpickler(pickle.Unpickler):
        def persistent_load(self, named: Any) -> Any:
            kind, name = named
            return _Sent(name, fetch) if kind == "parcel" else _tensor(fetch(name))

    return _Unpickler(io.BytesIO(content)).load()


def _travels_alone(tensor: Tensor) -> bool:
    plain = tensor.device.type == "cpu" and tensor.layout is torch.strided and not tensor.requires_grad
    return plain and tensor.dtype != torch.bfloat16 and tensor.numel() * tensor.element_size() >= LARGE


class _Sent(Parcel[Any]):
    """A parcel that arrived; it is fetched when it is opened."""

    def __init__(self, name: str, fetch: Callable[[str], Any]) -> None:
        self._name, self._fetch = name, fetch

    def open(self) -> Any:
        """Fetch and unpack."""
        return unpack(self._fetch(self._name), self._fetch)


def _tensor(array: Any) -> Tensor:
    """Return an array as a tensor: images share the memory of all processes of a node, anything else is its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it cannot be written to, and nobody writes into data
        tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == torch.uint8 else tensor.clone()
