"""Geometry of the two pictures of a training: accuracy curves, and who holds which classes; templates draw them as SVG.

Curves live in a box of `WIDTH` x `HEIGHT` units; bars of the partition in per cent of the width, as in `charts`.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedseal.training.run import TrainingRun, Utility

WIDTH, HEIGHT = 720.0, 260.0
HUES = 8
"""Different strokes there are; further curves repeat them with another dash."""
MOST_CLIENTS = 40
"""Bars drawn; a federation of more shows the first."""
MOST_CLASSES = 12
"""Classes told apart by colour; further ones repeat."""


@dataclass(frozen=True)
class CurveLine:
    """One defence's mean accuracy over the rounds.

    Attributes:
        utility: whose.
        path: SVG path data.
        hue, dash: indices of its stroke, so that two curves of one hue differ by their dash.
        end: height of its last point in the box.
    """

    utility: Utility
    path: str
    hue: int
    dash: int
    end: float


@dataclass(frozen=True)
class CurveChart:
    """Accuracy curves on shared axes.

    Attributes:
        lines: one per trained defence.
        rounds: last round of the axis.
        top: accuracy at the upper edge.
        ticks: (label, height) of the vertical axis.
        chance: height of the chance level.
        target: height of the target accuracy, or None.
    """

    lines: tuple[CurveLine, ...]
    rounds: int
    top: float
    ticks: tuple[tuple[str, float], ...]
    chance: float
    target: float | None


def curve_chart(run: TrainingRun) -> CurveChart:
    """Place the curves of all trained defences."""
    trained = [utility for utility in run.utilities if len(utility.curve) > 1]
    rounds = max((utility.curve[-1][0] for utility in trained), default=1)
    highest = max((accuracy for utility in trained for _, accuracy in utility.curve), default=1.0)
    top = min(1.0, 0.1 * (int(highest * 10) + 1))

    def height(accuracy: float) -> float:
        return round(HEIGHT * (1 - min(accuracy / top, 1.0)), 1)

    lines = []
    for place, utility in enumerate(trained):
        steps = [f"{WIDTH * number / rounds:.1f} {height(accuracy)}" for number, accuracy in utility.curve]
        end = height(utility.curve[-1][1])
        lines.append(CurveLine(utility, "M" + " L".join(steps), place % HUES, place // HUES % 3, end))
    count = round(top * 10)
    stride = 1 if count <= 5 else 2
    ticks = tuple((f"{10 * tick} %", height(tick / 10)) for tick in range(0, count + 1, stride))
    target = None if run.target is None or run.target > top else height(run.target)
    return CurveChart(tuple(lines), rounds, top, ticks, height(run.chance), target)


@dataclass(frozen=True)
class Segment:
    """A class within a client's bar: its name, images, hue, and place in per cent of the width."""

    name: str
    images: int
    hue: int
    start: float
    width: float


@dataclass(frozen=True)
class ClientBar:
    """One client's images as a stacked bar."""

    client: str
    images: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class PartitionChart:
    """Who holds how many images of which class.

    Attributes:
        bars: one per client, the widest filling the width.
        clients: how many there are; more than bars if some are left out.
        classes: (name, hue) of the legend; empty if there are too many to tell apart.
        note: on the partition.
    """

    bars: tuple[ClientBar, ...]
    clients: int
    classes: tuple[tuple[str, int], ...]
    note: str


def partition_chart(run: TrainingRun) -> PartitionChart:
    """Place the stacked bars of the first seed's partition."""
    largest = max((sum(row) for row in run.counts), default=1)
    bars = []
    for client, row in enumerate(run.counts[:MOST_CLIENTS]):
        start, segments = 0.0, []
        for place, images in enumerate(row):
            width = 100 * images / largest
            if images:
                name, hue = run.classes[place], place % MOST_CLASSES
                segments.append(Segment(name, images, hue, round(start, 3), round(width, 3)))
            start += width
        bars.append(ClientBar(f"client-{client}", sum(row), tuple(segments)))
    few = len(run.classes) <= MOST_CLASSES
    classes = tuple((name, place) for place, name in enumerate(run.classes)) if few else ()
    return PartitionChart(tuple(bars), len(run.counts), classes, run.note)
