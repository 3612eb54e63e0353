"""A run at a glance, as Markdown: defences down, attacks of all scenarios across, one line for both attackers."""

from __future__ import annotations

from statistics import fmean

from fedseal.audit.cells import Cell
from fedseal.audit.run import Run
from fedseal.metrics.scales import PSNR
from fedseal.report.markdown import escaped
from fedseal.report.matrix import Matrix, Square, matrices


def render_overview(run: Run) -> str:
    """Return one matrix for all scenarios that audit the same defences; columns are `scenario: attack`.

    Each square holds mean PSNR and SSIM of the naive / the aware attacker, once if they agree; where a defence changes
    the data, also the PSNR against what the model was fed.
    """
    names = {scenario.name: scenario.defences for scenario in run.scenarios}
    groups: dict[tuple[str, ...], list[Matrix]] = {}
    for matrix in matrices(run.verdict()):
        groups.setdefault(tuple(names[matrix.scenario]), []).append(matrix)
    return "\n".join(_table(defences, group) for defences, group in groups.items() if len(defences) > 1)


def _table(defences: tuple[str, ...], group: list[Matrix]) -> str:
    columns = [(matrix, attack) for matrix in group for attack in matrix.attacks]
    heads = [escaped(f"{matrix.scenario}: {attack}") for matrix, attack in columns]
    lines = ["| defence | " + " | ".join(heads) + " |", "|---" * (len(columns) + 1) + "|"]
    for defence in defences:
        cells = [_square(_find(matrix, defence, attack)) for matrix, attack in columns]
        lines.append(f"| {escaped(defence)} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _find(matrix: Matrix, defence: str, attack: str) -> Square | None:
    row = next((row for row in matrix.rows if row.defence == defence), None)
    return None if row is None else matrix.square(row, attack)


def _square(square: Square | None) -> str:
    if square is None or not square.cells:
        return "not run"
    return " / ".join(dict.fromkeys(_words(cell) for cell in square.cells))


def _words(cell: Cell) -> str:
    if cell.psnr is not None and cell.scale is not PSNR:
        return f"{cell.psnr.mean:.1f} {cell.scale.unit}"
    if cell.psnr is None or cell.ssim is None:
        return "not applicable" if cell.refused else "failed"
    fed = [value for record in cell.succeeded for value in record.psnr_fed or ()]
    words = f"{cell.psnr.mean:.1f} dB, {cell.ssim.mean:.2f}"
    return f"{words} (fed: {fmean(fed):.1f} dB)" if fed else words
