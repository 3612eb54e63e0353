"""Leaderboards of kept runs: defences by their readings at equal utility, attacks by what they find at equal time.

Every entry names the scenario it comes from. Entries of different federations are never ranked against each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedseal._version import VERSION
from fedseal.advice.outcome import Advice, holds_advice, open_advice
from fedseal.advice.screening import UNKNOWN_DB
from fedseal.audit.levels import RiskLevel, State
from fedseal.audit.run import Run
from fedseal.audit.runner import open_run
from fedseal.audit.scenario import Scenario
from fedseal.core.errors import InputError
from fedseal.core.files import write_atomically
from fedseal.report import words
from fedseal.report.html import template_environment
from fedseal.report.markdown import escaped
from fedseal.tradeoff.curves import Tradeoff, holds_tradeoff, open_tradeoff
from fedseal.tradeoff.scenario import TradeoffScenario

KEPT = (98.0, 95.0, 90.0, 80.0)
"""Classes of utility: a defence competes with those that keep as much of the accuracy, in per cent."""
BUDGETS = (1.0, 10.0, 60.0, 600.0)
"""Classes of time: an attack competes with all that take no longer, in processor seconds per batch."""
_LEVELS = [level.words for level in RiskLevel]
_KINDS = "Give runs of `fedseal advise`, `fedseal tradeoff` or `fedseal audit`."
_UNSETTLED = [state.words for state in State if not state.settled]


@dataclass(frozen=True)
class Ranked:
    """A line of a board.

    Attributes:
        name: spec of the defence or attack.
        figures: in words, in the order of the board's columns.
    """

    name: str
    figures: tuple[str, ...]


@dataclass(frozen=True)
class Board:
    """A ranking within one federation and one class.

    Attributes:
        title: the class.
        setting: the federation.
        columns: of the figures.
        lines: the best first.
    """

    title: str
    setting: str
    columns: tuple[str, ...]
    lines: tuple[Ranked, ...]


@dataclass(frozen=True)
class Leaderboard:
    """All boards."""

    defences: tuple[Board, ...]
    attacks: tuple[Board, ...]


@dataclass(frozen=True)
class Entered:
    """A defence as a board ranks it.

    Attributes:
        defence: its spec.
        standing: what an audit says of it.
        gain_db: what its update holds over a guess; None where nobody can say.
        kept: accuracy kept, in per cent.
        upload: bytes sent, in those of an update without a defence; None where it was not measured.
    """

    defence: str
    standing: str
    gain_db: float | None
    kept: float
    upload: float | None


def leaderboard(directories: Sequence[Path]) -> Leaderboard:
    """Rank what advice, trade-offs and audits in some directories hold."""
    defences: list[Board] = []
    attacks: list[Board] = []
    for directory in directories:
        if holds_advice(directory):
            defences += rank_defences(open_advice(directory))
            attacks += rank_attacks(open_run(directory / "audit"))
        elif holds_tradeoff(directory):
            measured = open_tradeoff(directory)
            defences += rank_tradeoff(measured)
            attacks += rank_attacks(measured.audit, only="none")
        else:
            attacks += rank_attacks(open_run(directory))
    if not defences and not attacks:
        raise InputError("these runs hold nothing to rank.", hint=_KINDS)
    return Leaderboard(tuple(defences), tuple(attacks))


def rank_defences(advice: Advice) -> Iterator[Board]:
    """Yield a board for every class of utility of what an advisor attacked and trained."""
    scenario = advice.scenario
    entered = [
        Entered(one.defence, one.attacked.standing, one.screened.gain_db, one.kept, one.upload)
        for one in advice.candidates
        if one.attacked is not None and one.kept is not None
    ]
    return _by_utility(_setting(scenario), entered)


def rank_tradeoff(tradeoff: Tradeoff) -> Iterator[Board]:
    """Yield a board for every class of utility of what a trade-off attacked and trained."""
    plain = tradeoff.undefended.utility.bytes_up
    entered = [
        Entered(
            point.defence,
            "" if point.row.standing is None else point.row.standing.words,
            None if point.row.ideal is None else point.row.ideal.gain_db,
            point.pmm.mean,
            point.utility.bytes_up / plain if point.utility.bytes_up is not None and plain else None,
        )
        for point in tradeoff.points
        if point.row is not None and point.pmm is not None and point.utility.learnt
    ]
    trained = f"{_setting(tradeoff.scenario)}, {words.plural(tradeoff.scenario.seeds, 'seed')} of training"
    return _by_utility(trained, entered)


def _setting(scenario: TradeoffScenario) -> str:
    size = f"{words.plural(scenario.clients, 'client')}, {words.plural(scenario.federation.rounds, 'round')}"
    attacked = f"; attacked as {scenario.attacked_model}" if scenario.attacked_model else ""
    batch = words.plural(scenario.client.batch_size, "image")
    return f"{scenario.name}: {scenario.model} on {scenario.data}, {size}{attacked}, {batch} a step"


def _by_utility(setting: str, entered: Sequence[Entered]) -> Iterator[Board]:
    """Yield boards: settled and low first, then by what an update holds over a guess."""
    for least, most in zip((*KEPT, 0.0), (float("inf"), *KEPT), strict=True):
        own = [one for one in entered if least <= one.kept < most]
        own.sort(key=lambda one: (_gravity(one.standing), UNKNOWN_DB if one.gain_db is None else one.gain_db))
        if own:
            lines = [
                Ranked(
                    one.defence,
                    (
                        one.standing or words.ABSENT,
                        words.ABSENT if one.gain_db is None else f"{one.gain_db:+.1f} dB",
                        f"{one.kept:.1f} %",
                        words.ABSENT if one.upload is None else f"{one.upload:.2f}x",
                    ),
                )
                for one in own
            ]
            title = f"keeps {least:g} % or more" if least else f"keeps less than {KEPT[-1]:g} %"
            yield Board(title, setting, ("risk", "update holds", "accuracy kept", "upload"), tuple(lines))


def _gravity(standing: str) -> tuple[int, int]:
    """Return the place of a standing from good to bad: low, what is not known, then leaks by level."""
    if standing in _UNSETTLED:
        return 1, 0
    return (0, 0) if standing == "low" else (2, _LEVELS.index(standing) if standing in _LEVELS else len(_LEVELS))


def rank_attacks(run: Run, only: str = "") -> Iterator[Board]:
    """Yield a board for every scenario, defence (or one of them) and class of time: by the gain over the best guess."""
    cells = [cell for cell in run.verdict().cells if cell.psnr is not None and cell.excess is not None]
    scenarios = {scenario.name: scenario for scenario in run.scenarios}
    for name, defence in dict.fromkeys((cell.scenario, cell.defence) for cell in cells):
        if only and defence != only:
            continue
        own = [cell for cell in cells if (cell.scenario, cell.defence) == (name, defence)]
        setting = f"{name}: {_federation(scenarios[name])}, {'undefended' if defence == 'none' else defence}"
        before = 0
        for budget in BUDGETS:
            able = [cell for cell in own if cell.seconds / max(1, len(cell.succeeded)) <= budget]
            if len(able) == before:
                continue
            before = len(able)
            able.sort(key=lambda cell: -(cell.excess.mean if cell.excess else 0.0))
            lines = [
                Ranked(
                    f"{cell.attack}{' (aware)' if cell.aware else ''}",
                    (
                        f"{cell.psnr.mean:.1f} {cell.scale.unit}" if cell.psnr else words.ABSENT,
                        words.number(cell.excess.mean if cell.excess else None, sign=True)
                        + f" ({words.span(cell.excess, sign=True)})",
                        words.picked_share(cell.picked),
                        words.duration(cell.seconds / max(1, len(cell.succeeded))),
                        str(len(cell.succeeded)),
                    ),
                )
                for cell in able
            ]
            columns = ("found", "over the best guess", "singled out", "time per batch", "n")
            yield Board(f"within {words.duration(budget)} per batch", setting, columns, tuple(lines))


def _federation(scenario: Scenario) -> str:
    client = scenario.client
    steps = "" if client.local_steps == 1 else f", {client.local_steps} local steps"
    return f"{scenario.model} on {scenario.data}, {words.plural(client.batch_size, 'image')} a step{steps}"


def render_leaderboard(boards: Leaderboard) -> str:
    """Return the boards as Markdown."""
    parts = [
        "# Leaderboard\n",
        "Defences by their readings among those that keep as much of the accuracy, attacks by what they find among "
        "those that take no longer. Boards of different federations are not comparable; every entry can be run again "
        "from its scenario. What is *not shown* or has *no power* ranks behind low and before leaks: it is not known. "
        "How to enter one's own is in CONTRIBUTING.md.\n",
    ]
    for title, some in (("Defences", boards.defences), ("Attacks", boards.attacks)):
        parts.append(f"## {title}\n")
        parts += list(_boards(some)) or ["No run of this kind has been entered yet.\n"]
    return "\n".join(parts)


def _boards(boards: Iterable[Board]) -> Iterator[str]:
    setting = ""
    for board in boards:
        if board.setting != setting:
            setting = board.setting
            yield f"### {escaped(setting)}\n"
        head = ["", board.title, *board.columns]
        rows = [[str(place), f"`{line.name}`", *line.figures] for place, line in enumerate(board.lines, 1)]
        yield (
            "\n".join(
                ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
                + ["| " + " | ".join(escaped(cell) for cell in row) + " |" for row in rows]
            )
            + "\n"
        )


def write_leaderboard(boards: Leaderboard, directory: Path) -> tuple[Path, ...]:
    """Write `leaderboard.md` and `leaderboard.html`; return their paths."""
    page = template_environment().get_template("leaderboard.html")
    kinds = (("Defences", boards.defences), ("Attacks", boards.attacks))
    contents = {
        "leaderboard.md": render_leaderboard(boards),
        "leaderboard.html": words.printable(page.render(kinds=kinds, version=VERSION)),
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        write_atomically(directory / name, text)
    return tuple(directory / name for name in contents)
