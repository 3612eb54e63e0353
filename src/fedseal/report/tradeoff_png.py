"""The trade-off chart as a PNG, for slides and papers."""

from __future__ import annotations

import colorsys
import io
import itertools

from PIL import Image, ImageDraw, ImageFont

from fedseal.report.tradeoff_chart import HEIGHT, WIDTH, Dot, Line, TradeoffChart, hue_degrees

_SCALE = 2
_LEFT, _TOP, _BOTTOM, _KEY, _LEADING = 70, 20, 60, 54, 20
_INK, _MUTED, _RULE, _PAPER = (25, 28, 33), (95, 101, 112), (222, 225, 230), (255, 255, 255)


def tradeoff_png(chart: TradeoffChart) -> bytes:
    """Draw the chart with its legend."""
    names = [f"{line.family}, {'aware' if line.aware else 'naive'}" for line in chart.lines]
    font = ImageFont.load_default(size=13 * _SCALE)
    right = _KEY + 20 + max((font.getlength(name) for name in names), default=0) / _SCALE
    below = max(HEIGHT, _LEADING * len(names)) + _BOTTOM
    size = (round((_LEFT + WIDTH + right) * _SCALE), round((_TOP + below) * _SCALE))
    picture = Image.new("RGB", size, _PAPER)
    pen = _Pen(ImageDraw.Draw(picture), font)
    for label, y in chart.y_ticks:
        pen.line([(0, y), (WIDTH, y)], _RULE, 1)
        pen.text((-8, y), label, _MUTED, "rm")
    for label, x in chart.x_ticks:
        pen.line([(x, 0), (x, HEIGHT)], _RULE, 1)
        pen.text((x, HEIGHT + 8), label, _MUTED, "mt")
    pen.text((WIDTH / 2, HEIGHT + 30), "accuracy kept (PMM)", _INK, "mt")
    if chart.chance is not None:
        pen.line([(0, chart.chance), (WIDTH, chart.chance)], _MUTED, 1, dashed=True)
        pen.text((4, chart.chance - 4), "best guess without the update", _MUTED, "lb")
    for line in chart.lines:
        pen.curve(line)
    if chart.undefended is not None:
        pen.dot(chart.undefended, _INK, hollow=False)
        pen.text((chart.undefended.x - 6, chart.undefended.y - 6), "undefended", _INK, "rb")
    for place, (name, line) in enumerate(zip(names, chart.lines, strict=True)):
        y = 10 + _LEADING * place
        pen.line([(WIDTH + 20, y), (WIDTH + 46, y)], _colour(line.hue), 2, dashed=not line.aware)
        pen.text((WIDTH + _KEY, y), name, _INK, "lm")
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()


def _colour(hue: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hls_to_rgb(hue_degrees(hue) / 360, 0.45, 0.55)
    return round(255 * red), round(255 * green), round(255 * blue)


class _Pen:
    """Draws in the chart's units."""

    def __init__(self, draw: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> None:
        self._draw = draw
        self._font = font

    def line(
        self, points: list[tuple[float, float]], colour: tuple[int, int, int], width: int, *, dashed: bool = False
    ) -> None:
        placed = [self._at(point) for point in points]
        for start, end in itertools.pairwise(placed):
            for piece in _dashes(start, end) if dashed else [(start, end)]:
                self._draw.line(piece, fill=colour, width=width * _SCALE)

    def text(self, point: tuple[float, float], text: str, colour: tuple[int, int, int], anchor: str) -> None:
        self._draw.text(self._at(point), text, fill=colour, font=self._font, anchor=anchor)

    def curve(self, line: Line) -> None:
        colour = _colour(line.hue)
        self.line([(dot.x, dot.y) for dot in line.dots], colour, 2, dashed=not line.aware)
        for dot in line.dots:
            self.dot(dot, colour, hollow=not line.aware)

    def dot(self, dot: Dot, colour: tuple[int, int, int], *, hollow: bool) -> None:
        self.line([(dot.left, dot.y), (dot.right, dot.y)], colour, 1)
        self.line([(dot.x, dot.low), (dot.x, dot.high)], colour, 1)
        x, y = self._at((dot.x, dot.y))
        reach = 4 * _SCALE
        box = (x - reach, y - reach, x + reach, y + reach)
        self._draw.ellipse(box, fill=_PAPER if hollow else colour, outline=colour, width=_SCALE)

    def _at(self, point: tuple[float, float]) -> tuple[float, float]:
        return (_LEFT + point[0]) * _SCALE, (_TOP + point[1]) * _SCALE


def _dashes(
    start: tuple[float, float], end: tuple[float, float]
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Cut a stroke into dashes of 6 units with gaps of 4."""
    across, down = end[0] - start[0], end[1] - start[1]
    length = max((across**2 + down**2) ** 0.5, 1e-9)
    dash, period = 6 * _SCALE, 10 * _SCALE
    pieces, place = [], 0.0
    while place < length:
        stop = min(place + dash, length)
        pieces.append(
            (
                (start[0] + across * place / length, start[1] + down * place / length),
                (start[0] + across * stop / length, start[1] + down * stop / length),
            )
        )
        place += period
    return pieces
