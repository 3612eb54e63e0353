"""What no inference exceeds, where the defence is differentially private.

Yes and no are two sets of data, and the update tells them apart no better than its privacy allows: a test with a share
`a` of false alarms finds at most f(a) of the yeses, f being the trade-off of one unit added or taken away (Dong, Roth
and Su 2022). One record put in another's place is two such changes, so f is applied twice; k records, 2 k times. Where
the unit is the client's whole update, it is replaced as a whole.
"""

from __future__ import annotations

from fedseal.audit.setup import Setup
from fedseal.defences.pipeline import build_defence
from fedseal.inference.outcome import RATES
from fedseal.information.proven import SAYS_SOMETHING, success_bound


def proven_rate(setup: Setup, spec: str, records: int) -> float | None:
    """Return the most any attacker finds at one false alarm in a hundred; None where nothing is proven.

    Args:
        setup: data and model; one round is played, as what is released may depend on it.
        spec: of the defence.
        records: that a yes and a no differ in.
    """
    defence = build_defence(spec)
    if not defence.traits.accounts_epsilon:
        return None
    releases = setup.observe(defence, 0, name=spec).defence.releases()
    if not releases:
        return None
    bound = RATES[0]
    for _ in range(2 * (records if releases[0].unit == "sample" else 1)):
        bound = success_bound(bound, releases, accountant="rdp")
        if bound >= SAYS_SOMETHING:
            return None
    return bound
