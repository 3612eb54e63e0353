"""kill -9 of SuperNodes, ClientApps and SuperLinks at random moments of a real deployment with ledgers.

    python -m tests.federation.kill_campaign --kills 30

After every kill each site's ledger must hold: entries without a gap, epsilon that never falls, no budget passed, and a
residual that was used once for every release. Prints one line per kill and the counts at the end; exit code 1 if any
fails.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fedseal.core.errors import FedsealError
from fedseal.defences.accounting import gaussian_epsilon
from fedseal.ledger import Account, Budget, SiteLedger

from .deployment import Deployment, wait_for

APP = Path(__file__).parent / "kill_app"
KINDS = ("clientapp", "supernode", "clientapp", "supernode", "superlink")
MULTIPLIER = 10.0
ALLOWED = 6
"""Releases that the budget of the second site is enough for."""


def account(place: int) -> Account:
    return Account("default", f"partition-{place}", "default")


@dataclass
class Campaign:
    """Kills, and what the ledgers say after each."""

    deployment: Deployment
    draw: random.Random
    seen: dict[int, tuple[int, float]] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def ledger(self, place: int) -> Path:
        return self.deployment.home / f"ledger-{place}.sqlite"

    def set_up(self) -> None:
        limit = gaussian_epsilon(ALLOWED**0.5 / MULTIPLIER, 1e-5) + 1e-9
        SiteLedger(self.ledger(0))
        SiteLedger(self.ledger(1)).set_budget(account(1), Budget(limit))
        self.deployment.superlink()
        for place in (0, 1):
            self.node(place)
        self.begin()

    def node(self, place: int) -> None:
        self.deployment.supernode(place, FEDSEAL_LEDGER=str(self.ledger(place)))

    def begin(self) -> None:
        wait_for(self.has_node, 180, "the registration of a SuperNode")
        self.deployment.run("num-server-rounds=100000 round-timeout=60.0")

    def has_node(self) -> bool:
        try:
            return len(self.deployment.online()) >= 1
        except AssertionError:  # the SuperLink does not answer yet
            return False

    def kill_one(self, kind: str) -> None:
        if kind == "clientapp":
            self.kill_client()
        elif kind == "supernode":
            place = self.draw.randrange(2)
            self.end(f"supernode-{place}")
            self.node(place)
        else:
            for name in ("superlink", "supernode-0", "supernode-1"):
                self.end(name)
            for process in psutil.process_iter():  # what the SuperLink had started, such as the ServerApp
                if self.deployment.owns(process) and process.pid not in self.running():
                    process.kill()
            self.deployment.superlink()
            for place in (0, 1):
                self.node(place)
            self.begin()
        self.kills[kind] = self.kills.get(kind, 0) + 1

    def running(self) -> set[int]:
        return {one.pid for one in self.deployment.processes.values() if one.poll() is None}

    def end(self, name: str) -> None:
        process = self.deployment.processes[name]
        process.kill()
        process.wait()

    def kill_client(self) -> None:
        """Kill a ClientApp at work; one starts for every message."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            for process in psutil.process_iter():
                try:
                    words = " ".join(process.cmdline())
                    if "clientapp" in words and self.deployment.owns(process):
                        time.sleep(self.draw.uniform(0, 6))  # it imports for seconds, then trains, then commits
                        process.kill()
                        return
                except psutil.Error:
                    continue
            time.sleep(0.05)
        self.failures.append("no ClientApp ran for a minute")

    def check(self) -> None:
        for place in (0, 1):
            ledger = SiteLedger(self.ledger(place))
            try:
                entries = [entry for entry in ledger.verify() if entry.body["kind"] == "release"]
                spent = [float(entry.body["epsilon"]) for entry in entries]
                if spent != sorted(spent):
                    self.failures.append(f"site {place}: epsilon fell")
                number, epsilon = self.seen.get(place, (0, 0.0))
                if len(entries) < number or (spent and spent[-1] < epsilon):
                    self.failures.append(f"site {place}: releases or epsilon were forgotten")
                self.seen[place] = (len(entries), spent[-1] if spent else 0.0)
                if place == 1 and len(entries) > ALLOWED:
                    self.failures.append(f"site {place}: {len(entries)} releases pass a budget for {ALLOWED}")
                if entries:
                    with ledger.turn(account(place), entries[-1].body["slot"], wait=90) as turn:
                        counts = turn.state["residual"].unique().tolist()
                        if counts != [turn.number]:
                            self.failures.append(f"site {place}: residual {counts} after {turn.number} releases")
            except FedsealError as error:
                self.failures.append(f"site {place}: {error}")

    def play(self, kills: int) -> None:
        for number in range(kills):
            kind = KINDS[number % len(KINDS)] if number < len(KINDS) else self.draw.choice(KINDS)
            if number % 2:  # every other kill hits a federation that has just released something
                self.wait_for_release(90)
            time.sleep(self.draw.uniform(0.0, 5))
            self.kill_one(kind)
            self.check()
            print(f"{number + 1:3d} {kind:10s} releases {[self.seen[place][0] for place in (0, 1)]}", flush=True)

    def wait_for_release(self, seconds: float) -> None:
        """Let somebody release an update, so that there is something to forget."""
        start, until = self.entries(), time.monotonic() + seconds
        while self.entries() == start and time.monotonic() < until:
            time.sleep(0.1)

    def entries(self) -> int:
        return sum(len(SiteLedger(self.ledger(place), writable=False).entries()) for place in (0, 1))

    def finish(self, seconds: float = 120) -> None:
        """Let both sites go on, so that releases after the last kill are seen too, and the small budget is reached."""
        start = self.seen[0][0]
        until = time.monotonic() + seconds
        while time.monotonic() < until and not (self.seen[0][0] > start and self.seen[1][0] == ALLOWED):
            time.sleep(2)
            self.check()
        if self.seen[0][0] <= start:
            self.failures.append("no release after the last kill")


def run(home: Path, kills: int, seed: int) -> Campaign:
    home.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(Deployment(home, APP), random.Random(seed))
    try:
        campaign.set_up()
        campaign.play(kills)
        campaign.finish()
    finally:
        campaign.deployment.stop()
    return campaign


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kills", type=int, default=30)
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as home:
        done = run(Path(home) / "flwr", given.kills, given.seed)
    print(f"kills {done.kills}, releases {[done.seen[place][0] for place in (0, 1)]}, failures {done.failures}")
    return 1 if done.failures else 0


if __name__ == "__main__":
    sys.exit(main())
