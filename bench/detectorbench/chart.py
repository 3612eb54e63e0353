"""The detection curves as an SVG file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, MARGIN, GAP = 300, 170, 40, 24
Curve = Sequence[tuple[float, float, float]]


def draw(curves: Mapping[str, Curve]) -> str:
    """Return one panel per attack: share detected (solid) and share leaked (dashed) over the noise, evenly spaced.

    Args:
        curves: by attack, points (noise, detected, leaked).
    """
    columns = 2
    rows = -(-len(curves) // columns)
    width, height = columns * (WIDTH + GAP) + MARGIN, rows * (HEIGHT + 3 * GAP) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11" role="img" aria-label="Detection and leakage of weakened attacks">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for index, (name, points) in enumerate(curves.items()):
        left = MARGIN + (index % columns) * (WIDTH + GAP)
        top = 2 * GAP + (index // columns) * (HEIGHT + 3 * GAP)
        parts += _panel(name, points, left, top)
    return "\n".join([*parts, "</svg>\n"])


def _panel(name: str, points: Curve, left: int, top: int) -> list[str]:
    step = WIDTH / (len(points) - 1)
    parts = [
        f'<text x="{left}" y="{top - 10}" font-weight="bold">{name}</text>',
        f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999999"/>',
    ]
    for share in (0.0, 0.5, 1.0):
        y = top + HEIGHT * (1 - share)
        parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{share:.0%}</text>')
        parts.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.0f}" y2="{y:.0f}" stroke="#e5e5e5"/>')
    for index, (noise, _, _) in enumerate(points):
        x = left + index * step
        parts.append(f'<text x="{x:.0f}" y="{top + HEIGHT + 14}" text-anchor="middle">{noise:g}</text>')
    for column, colour, dash in ((1, "#0b6e4f", ""), (2, "#b3261e", ' stroke-dasharray="5 4"')):
        path = " L".join(f"{left + i * step:.1f} {top + HEIGHT * (1 - p[column]):.1f}" for i, p in enumerate(points))
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
    parts.append(f'<text x="{left + WIDTH - 4}" y="{top + 14}" text-anchor="end" fill="#0b6e4f">detected</text>')
    parts.append(f'<text x="{left + WIDTH - 4}" y="{top + 28}" text-anchor="end" fill="#b3261e">leaked (dashed)</text>')
    return parts
