"""Page one: without jargon, complete, and honest about what is not known."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

import fedseal
from fedseal.audit.run import Run
from fedseal.audit.scenario import AboutConfig, Scenario
from fedseal.report.decision import ROWS_SHOWN, decide
from fedseal.report.html import render_html
from fedseal.report.identifiers import IDENTIFIERS, TAGS
from fedseal.report.servers import CURIOUS, MALICIOUS
from fedseal.report.terminal import render_terminal
from fedseal.report.write import training_beside

MakeRun = Callable[..., Run]
JARGON = r"\b(dB|PSNR|SSIM|MSE|LPIPS|epsilon|prior|objective|tensor|bootstrap|posterior|Jacobian|cell)\b"


def page_one(run: Run) -> str:
    """Return the text of the first section."""
    html = render_html(run).split('<section id="verdict"')[1].split("</section>")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def told(run: Run, **about: str) -> Run:
    return replace(run, scenarios=tuple(s.model_copy(update={"about": AboutConfig(**about)}) for s in run.scenarios))


def altered(run: Run, attack: str) -> Run:
    """Return the run with an attack by a server that changed the model."""
    ledger = {"model": "architecture, weights and loss; the server altered the model: an imprint module"}
    records = [
        r.model_copy(update={"knowledge": r.knowledge | ledger}) if r.attack == attack else r for r in run.records
    ]
    return replace(run, records=tuple(records))


def proven(run: Run, defence: str) -> Run:
    """Return the run with a defence whose uploads hold nothing and whose attacks found nothing."""
    records = []
    for r in run.records:
        if r.defence == defence and r.status == "ok":
            guess = r.baselines["mean_image"]
            r = r.model_copy(
                update={
                    "psnr": tuple(v - 0.2 for v in guess),
                    "psnr_best": guess,
                    "label_accuracy": 0.0,
                    "ranks": {n: tuple(3 + (7 * r.target + 5 * i) % 60 for i in range(len(guess))) for n in r.ranks},
                }
            )
        records.append(r)
    readings = [r.model_copy(update={"psnr_db": 12.3}) if r.defence == defence else r for r in run.readings]
    return replace(run, records=tuple(records), readings=tuple(readings))


def test_page_one_has_no_jargon_and_every_part(run: Run) -> None:
    text = page_one(run)
    assert not re.findall(JARGON, text)
    headings = ["What was tested", "Who could see what", "What came back", "How sure we are", "What to do, and what"]
    assert [text.index(part) for part in headings] == sorted(text.index(part) for part in headings)


def test_page_one_says_what_a_defence_does_without_its_authors_words(run: Run) -> None:
    measures = decide(run, run.verdict()).measures
    assert measures
    assert all(words in page_one(run) for _, words in measures)
    assert not any(re.findall(JARGON, words) for _, words in measures)
    strange = replace(run, records=tuple(r.model_copy(update={"defence": "none"}) for r in run.records))
    assert decide(strange, strange.verdict()).measures == ()


def test_who_answers_for_what_is_said_or_said_to_be_missing(run: Run) -> None:
    text = page_one(told(run, system="Ward triage", version="2.1", scope="one ward", responsible="J. Doe"))
    for words in ("System Ward triage", "Version 2.1", "Scope one ward", "Responsible J. Doe", "Signed off not stated"):
        assert words in text
    dated = page_one(replace(run, started="2026-11-17T10:00:00+00:00", ended="2026-11-17T10:05:00+00:00"))
    assert "Date 2026-11-17" in dated
    assert "begun 2026-11-17 10:00 UTC, ended 2026-11-17 10:05 UTC" in dated


def test_numbers_and_dates_in_a_scenarios_about_are_text() -> None:
    assert Scenario.model_validate({"about": {"version": 2.1, "sign_off": "x"}}).about.version == "2.1"


def test_the_two_servers_are_separate_findings(run: Run) -> None:
    curious, malicious = decide(run, run.verdict()).exposures
    assert (curious.server, malicious.server) == (CURIOUS, MALICIOUS)
    assert not malicious.lines
    assert "Not tested in this audit." in page_one(run)
    both = altered(run, "fedleak")
    curious, malicious = decide(both, both.verdict()).exposures
    assert {cell.attack for line in curious.lines for cell in line.finding.cells} == {"ig"}
    assert {cell.attack for line in malicious.lines for cell in line.finding.cells} == {"fedleak"}


def test_an_active_attack_is_known_by_what_it_declares(make_run: MakeRun) -> None:
    run = make_run(attacks=("ig", "imprint:bins=64"), targets=4)
    assert decide(run, run.verdict()).exposures[1].lines


def test_labels_persons_and_the_worst_victim_are_told(run: Run) -> None:
    bare, topk, noisy = decide(run, run.verdict()).exposures[0].lines
    assert bare.control
    assert bare.images == "clearly recognisable"
    assert bare.persons == "12 of 12 picked out of 70"
    assert bare.labels == "100 % read, a guess 30 %"
    assert "12 of 12 images beyond chance" in bare.victim
    assert topk.images == "recognisable"
    assert noisy.images == "not recognised by the attacks tried"
    assert noisy.labels == "not shown to beat a guess (25 % read, a guess 30 %)"


def test_an_image_that_came_back_among_too_few_is_not_called_unrecognised(make_run: MakeRun) -> None:
    run = make_run(targets=1)
    for line in decide(run, run.verdict()).exposures[0].lines:
        assert line.images == "too few to tell"


def test_what_is_not_shown_is_never_recommended(run: Run) -> None:
    decision = decide(run, run.verdict())
    assert decision.advice.defence is None
    assert "cannot" not in decision.advice.sentence
    assert "None of the defences audited can be recommended yet" in decision.advice.sentence
    assert decision.headline.startswith("It is not shown that gaussian")
    assert any("A leak that strikes fewer than" in sentence for sentence in decision.certainty)
    assert any("batch normalisation" in sentence for sentence in decision.certainty)
    (named,) = (step for step in decision.advice.steps if "Take a stronger setting" in step)
    assert "Do not rely on" in named  # it stands below the recommendation of another defence
    unread = replace(run, readings=())
    steps = decide(unread, unread.verdict()).advice.steps
    assert any("Have what updates hold computed" in step for step in steps)
    assert not any("Take a stronger setting" in step for step in steps)


def test_what_holds_is_recommended_with_its_costs(run: Run) -> None:
    sound = proven(run, "gaussian:sigma=0.01+topk:ratio=0.95")
    decision = decide(sound, sound.verdict())
    assert decision.advice.defence == "gaussian:sigma=0.01+topk:ratio=0.95"
    assert dict(decision.advice.costs)["Upload of a client per round"] == "4.4 kB instead of 61.3 kB"
    assert "nothing private was found" in decision.headline


def test_of_two_that_hold_the_one_that_distorts_less_is_recommended(run: Run) -> None:
    both = proven(proven(run, "topk:ratio=0.8"), "gaussian:sigma=0.01+topk:ratio=0.95")
    decision = decide(both, both.verdict())
    assert decision.advice.defence == "topk:ratio=0.8"
    assert not any("stronger settings" in step for step in decision.advice.steps)
    assert "Recommended: topk" in page_one(both).replace(": <wbr>", ": ")


def test_many_defences_are_cut_and_counted(make_run: MakeRun) -> None:
    names = ("none", *(f"topk:ratio=0.{i}" for i in range(1, 10)))
    run = make_run(defences=names, attacks=("ig",), targets=4, batch=1)
    exposure = decide(run, run.verdict()).exposures[0]
    assert len(exposure.lines) == ROWS_SHOWN
    assert exposure.hidden == len(names) - ROWS_SHOWN
    assert exposure.lines[0].defence == "none"


def test_accuracy_stands_beside_the_risk_where_a_training_exists(run: Run, tmp_path: Path) -> None:
    training = fedseal.train(
        data="faces:size=8",
        model="mlp",
        clients=2,
        defences=["none", "topk:ratio=0.8"],
        federation={"rounds": 1},
        out=tmp_path / "training",
    )
    lines = decide(run, run.verdict(), training).exposures[0].lines
    assert [line.accuracy is not None for line in lines] == [True, True, False]
    assert "Accuracy kept" in render_html(run, training=training)
    assert training_beside(replace(run, directory=tmp_path / "audit")) == training
    assert training_beside(run) is None


@pytest.mark.parametrize(("sigma", "learns"), [(1e-3, True), (30.0, False)])
def test_what_leaves_nothing_to_learn_from_is_not_recommended(
    make_run: MakeRun, tmp_path: Path, sigma: float, learns: bool
) -> None:
    defence = f"gaussian:sigma={sigma:g}"
    run = proven(make_run(defences=("none", defence), attacks=("ig",), targets=8, batch=1), defence)
    federation = {"rounds": 6, "local_steps": 5, "learning_rate": 0.1}
    training = fedseal.train(
        data="digits", model="mlp", clients=2, defences=["none", defence], federation=federation, out=tmp_path
    )
    page = decide(run, run.verdict(), training)
    assert decide(run, run.verdict()).advice.defence == defence
    assert page.advice.defence == (defence if learns else None)
    assert ("learns nothing" in page.headline) is not learns
    assert ("stays at chance" in page.advice.sentence) is not learns
    assert ("(chance)" in str(page.exposures[0].lines[1].accuracy)) is not learns


def test_an_empty_run_decides_nothing(run: Run) -> None:
    empty = replace(run, records=(), readings=())
    decision = decide(empty, empty.verdict())
    assert decision.headline == "Nothing could be judged."
    assert decision.advice.defence is None


def test_names_of_others_are_written_as_they_write_them() -> None:
    """Numbers of taxonomies follow their publishers' patterns, and what no list knows is called nearest."""
    numbers = " ".join(one.entry for one in IDENTIFIERS)
    assert re.findall(r"NISTAML\.\d{3}", numbers)
    for one in IDENTIFIERS:
        assert one.fit == "nearest" or not one.framework.startswith(("MITRE", "OWASP"))
    tags = {tag for group in TAGS.values() for tag in group if tag[0].isupper() and "." in tag}
    assert all(tag in numbers for tag in tags)


@pytest.mark.parametrize("heading", ["(a)", "(b)", "(c)", "(d)"])
def test_every_heading_of_an_impact_assessment_is_there(run: Run, heading: str) -> None:
    assert f">{heading} " in render_html(run)


def test_every_place_tells_the_best_reading_of_labels_and_line_ups(make_run: MakeRun) -> None:
    """One who knows the defence may read labels better and point worse: each figure is the best of them, everywhere."""
    run = make_run()
    defence = next(row.defence for row in run.verdict().rows if len({cell.aware for cell in row.cells}) == 2)
    records = [
        r.model_copy(update={"label_accuracy": 1.0 if r.aware else 0.0, "label_chance": 0.1})
        if r.defence == defence and r.status == "ok"
        else r
        for r in run.records
    ]
    run = replace(run, records=tuple(records))
    row = next(row for row in run.verdict().rows if row.defence == defence)
    assert row.labels is not None
    assert row.labels.accuracy.mean == 1.0
    assert row.picked is not None
    assert row.picked.count == max(cell.picked.count for cell in row.cells if cell.picked is not None)
    html = render_html(run)
    said = re.findall(r'data-label="Labels">([^<]*)<', html)
    mine = [text for text in said if "100 %" in text]
    assert "100 % read, a guess 10 %" in mine
    assert "100 % (guess 10 %)" in mine
    console = Console(file=io.StringIO(), width=200)
    console.print(render_terminal(run))
    assert isinstance(console.file, io.StringIO)
    (line,) = [line for line in console.file.getvalue().splitlines() if line.strip().startswith(f"{defence}: ")]
    assert "labels 100 % (guess 10 %)" in line
