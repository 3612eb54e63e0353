"""The site ledger: what a client has released, spent and kept, so that no process, node or run can forget it.

Everything that seals an update (the Flower mod, the NVFlare filter, a site's policy) takes its *turn* at an account:

    ledger = SiteLedger(path)
    with ledger.turn(Account("trial-7", "hospital-a", "xrays"), slot_of(spec, weights), budget=Budget(8.0)) as turn:
        defence.load_state_dict(turn.state)          # residuals and moments, as the last release left them
        turn.check(defence.releases())               # halts before a round that would pass the budget
        ...                                          # train and seal; `turn.number` counts this client's releases
        turn.commit(defence.releases(), defence.state_dict(), facts={"defence": spec})
        send(...)                                    # only now may anything leave

`commit` is write-ahead: it returns after releases, epsilon and the new state are on disk in one transaction, and raises
`BudgetSpentError`, with nothing recorded, if they would pass the budget. A kill at any moment therefore leaves either
the account as it was and nothing sent, or the release counted; never a lower epsilon, never a state used twice. A turn
is exclusive: a second process that asks for the same account waits, then is refused. `memory_turn` is the same without
a file.

Entries are chained by hashes and the newest hash is kept in a file beside the ledger, so that edits, deletions and a
removed ledger show (`fedseal ledger verify`).
"""

from fedseal.ledger.chain import Entry
from fedseal.ledger.ledger import SiteLedger, Summary
from fedseal.ledger.spending import Budget, Epsilon, Page, Spent
from fedseal.ledger.turn import Account, Turn, memory_turn, slot_of

__all__ = [
    "Account",
    "Budget",
    "Entry",
    "Epsilon",
    "Page",
    "SiteLedger",
    "Spent",
    "Summary",
    "Turn",
    "memory_turn",
    "slot_of",
]
