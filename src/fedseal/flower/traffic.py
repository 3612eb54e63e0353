"""What a reply takes on its way from a SuperNode to the SuperLink: its content, and what Flower sends around it.

Flower 1.41 announces a reply by the tree of its objects and then sends every object in a request of its own: each part
of an array, each array, each record, the message. So a small update is mostly envelope. The sizes of objects follow
from Flower's format; the constants of requests were read at a proxy (tests/federation/test_flower_bytes.py). What is
sent twice because a connection broke is not counted, nor is an array that the SuperLink happens to hold already.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import Array, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as PART

_REQUEST = 973
"""Head of an HTTP request with the node's signature (839 bytes), and the ids beside an object."""
_ANNOUNCEMENT = 1069
"""Head of the request that announces a reply, and the message without its content."""
_LEAF = 68
"""An object's id in the tree that is announced."""
_ID = 65
"""An object's id in the list of its parent, with a comma."""
_PART_HEAD, _ARRAY_HEAD, _RECORD_HEAD, _MESSAGE = 18, 93, 20, 180
_ENVELOPE = 280
"""fedseal's own record, which is written when everything else is known."""


@dataclass(frozen=True)
class Traffic:
    """What a reply takes.

    Attributes:
        payload: bytes of the arrays themselves.
        objects: Flower sends, each by a request of its own.
        envelope: bytes of everything around the arrays.
    """

    payload: int
    objects: int
    envelope: int

    @property
    def bytes(self) -> int:
        """All that leaves."""
        return self.payload + self.envelope


def traffic_of(content: RecordDict) -> Traffic:
    """Return what a reply takes whose arrays are final and whose envelope is still to come."""
    payload, objects, envelope = 0, 0, 0
    for name, record in content.array_records.items():
        arrays = dict(record)
        parts = {key: -(-len(array.data) // PART) or 1 for key, array in arrays.items()}
        payload += sum(len(array.data) for array in arrays.values())
        objects += 1 + len(arrays) + sum(parts.values())
        envelope += _RECORD_HEAD + sum(2 * _ID + len(key) + 6 for key in arrays)
        envelope += sum(_around(array, parts[key]) for key, array in arrays.items())
        envelope += len(name)
    others = [*content.metric_records.values(), *content.config_records.values()]
    objects += len(others) + 3  # the envelope, the dictionary of records, the message
    envelope += sum(len(record.deflate()) for record in others) + _ENVELOPE
    envelope += _RECORD_HEAD + (len(others) + 2) * 2 * _ID + _MESSAGE
    envelope += _ANNOUNCEMENT + objects * (_LEAF + _REQUEST)
    return Traffic(payload, objects, envelope)


def _around(array: Array, parts: int) -> int:
    """Return the bytes of an array's own object and of the heads of its parts."""
    return _ARRAY_HEAD + parts * (_PART_HEAD + _ID) + len(str(array.shape)) + len(array.dtype)
