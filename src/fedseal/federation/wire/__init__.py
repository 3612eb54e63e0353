"""What travels: named tensors as one versioned, checksummed payload; its length is the upload's cost.

`payload` frames and validates, `codecs` codes one tensor in the shortest of several ways, `bits` packs numbers.
"""

from __future__ import annotations

from fedseal.federation.wire.payload import (
    MAX_BYTES,
    MAX_DIMENSIONS,
    MAX_NAME,
    MAX_TENSORS,
    decode,
    encode,
    payload_size,
)

__all__ = ["MAX_BYTES", "MAX_DIMENSIONS", "MAX_NAME", "MAX_TENSORS", "decode", "encode", "payload_size"]
