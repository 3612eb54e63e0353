"""Reports of texts and tables speak of words and cells: nothing in them is an image, a pixel or a decibel."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedseal.audit.comparison import compare_runs
from fedseal.audit.run import Run
from fedseal.audit.runner import run_audit
from fedseal.audit.scenario import Scenario
from fedseal.federation.simulation.config import FederationConfig
from fedseal.report.comparison import render_comparison
from fedseal.report.html import render_html
from fedseal.report.markdown import render_markdown
from fedseal.report.terminal import render_terminal
from fedseal.report.tradeoff import render_tradeoff, render_tradeoff_html
from fedseal.report.tradeoff_chart import tradeoff_chart
from fedseal.tradeoff.curves import run_tradeoff
from fedseal.tradeoff.scenario import TradeoffScenario

WRONG = re.compile(r"[^.]{0,60}\b(?:dB|PSNR|SSIM|LPIPS|decibels?|images?|pixels?|pictures?)\b[^.]{0,60}", re.IGNORECASE)
SETTINGS: dict[str, dict[str, Any]] = {
    "text": {"data": "text:notes?length=12&limit=200", "model": "text-encoder:width=16,layers=1", "attacks": ["words"]},
    "table": {"data": "census", "model": "mlp:width=16", "attacks": ["first-layer"]},
}


def shown(page: str) -> str:
    """Return what a reader sees of a page."""
    without = re.sub(r"<(script|style|head|pre)\b.*?</\1>", "", page, flags=re.DOTALL)
    return re.sub(r"<[^>]+>", " ", without).replace("&nbsp;", " ")


def audited(kind: str, out: Path, seed: int) -> Run:
    settings = SETTINGS[kind] | {"defences": ["gaussian:sigma=0.01"], "targets": 4, "readings": 1, "seed": seed}
    return run_audit([Scenario(name=kind, **settings)], out)


@pytest.mark.parametrize("kind", SETTINGS)
def test_an_audit_and_its_comparison_speak_of_what_clients_hold(kind: str, tmp_path: Path) -> None:
    runs = [audited(kind, tmp_path / str(seed), seed) for seed in (0, 1)]
    comparison = compare_runs(*runs)
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(render_terminal(runs[1]), render_comparison(comparison))
    page = shown(render_html(runs[1], comparison=comparison))
    said = {"page": page, "terminal": console.export_text(), "table": render_markdown(runs[1])}
    assert not {where: WRONG.findall(text) for where, text in said.items() if WRONG.search(text)}
    noun = {"text": "words recovered", "table": "cells recovered"}[kind]
    assert all(noun in text for text in said.values())


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_trade_off_speaks_of_what_clients_hold(kind: str, tmp_path: Path) -> None:
    scenario = TradeoffScenario(
        name=kind,
        clients=2,
        federation=FederationConfig(algorithm="fedsgd", rounds=1, learning_rate=0.1, batch_size=8),
        defences=("gaussian:sigma=0.01",),
        targets=1,
        **SETTINGS[kind],
    )
    tradeoff = run_tradeoff(scenario, tmp_path)
    page = shown(render_tradeoff_html(tradeoff, tradeoff_chart(tradeoff)))
    said = {"page": page, "table": render_tradeoff(tradeoff)}
    assert not {where: WRONG.findall(text) for where, text in said.items() if WRONG.search(text)}
    assert all({"text": "words", "table": "cells"}[kind] in text for text in said.values())
