"""Whether clients received the same model: hashes they exchange among themselves, past the server.

LOKI and gradient suppression send clients different parameters, so a single comparison ends both (Pasquini et al., CCS
2022, Sec. 6). It does not see tampering that is the same for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from torch import nn

from fedseal.core.errors import InputError
from fedseal.core.hashing import hash_tensors


def fingerprint(model: nn.Module) -> str:
    """Return the SHA-256 over names, shapes and values of all parameters and buffers."""
    return hash_tensors(model.state_dict())


def odd_ones_out(fingerprints: Mapping[str, str]) -> tuple[str, ...]:
    """Return the clients whose fingerprint is not the most common one; all of them if none is common.

    Args:
        fingerprints: by client, of the model each received in the same round.
    """
    if not fingerprints:
        raise InputError("there are no fingerprints to compare.", hint="Collect them from at least two clients.")
    counts = Counter(fingerprints.values()).most_common()
    if len(counts) == 1:
        return ()
    usual = counts[0][0] if counts[0][1] > counts[1][1] else None
    return tuple(client for client, value in fingerprints.items() if value != usual)
