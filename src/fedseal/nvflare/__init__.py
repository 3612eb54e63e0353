"""NVFlare: fedseal as filters, for a job, for the server, and for a site that trusts no job. Needs the extra `nvflare`.

    recipe.add_client_output_filter(DefenceFilter("topk:ratio=0.9", ledger="ledger.sqlite"), tasks=["train"])
    recipe.add_client_output_filter(WireEncoder(), tasks=["train"])
    recipe.add_server_output_filter(SentModel(), tasks=["train"])
    recipe.add_server_input_filter(GuardFilter(max_norm=10.0, record="updates"), tasks=["train"])

A site puts `SiteFilter` into its own `local/privacy.json`. Clients must send weight differences (`TransferType.DIFF` or
`ParamsType.DIFF`): of whole weights no defence can tell the update, and they are refused. docs/nvflare.md.
"""

from __future__ import annotations

try:
    import nvflare  # noqa: F401
except ImportError as error:
    raise ImportError("fedseal.nvflare needs NVFlare: pip install 'fedseal[nvflare]'") from error

from fedseal.nvflare.defend import COST, DefenceFilter
from fedseal.nvflare.detect import DetectFilter
from fedseal.nvflare.guard import GuardFilter, SentModel
from fedseal.nvflare.site import SiteFilter
from fedseal.nvflare.watching import WatchFilter
from fedseal.nvflare.wire import WireDecoder, WireEncoder

__all__ = [
    "COST",
    "DefenceFilter",
    "DetectFilter",
    "GuardFilter",
    "SentModel",
    "SiteFilter",
    "WatchFilter",
    "WireDecoder",
    "WireEncoder",
]
