"""The viewer: who may look, what it shows, and that it follows an audit; in a real browser."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from threading import Thread
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fedseal
from fedseal.audit.film import FRAMES, Film
from fedseal.audit.run import Run
from fedseal.cli import main
from fedseal.store.database import Store
from fedseal.viewer.server import Viewer

EVIL = "<img src=x onerror=alert(1)>"
LOOKS = [(width, scheme) for width in (390, 768, 1280) for scheme in ("light", "dark")]


def write_store(run: Run) -> Path:
    """Put a run that was made up into a store, as an audit leaves it."""
    with Store(run.directory, writable=True) as store:
        store.save(run.records)
        store.save_readings(run.readings)
        store.set_meta(
            {
                "scenarios": [scenario.model_dump(mode="json") for scenario in run.scenarios],
                "plan": [(record.scenario, record.key) for record in run.records],
                "readings": [(reading.scenario, reading.key) for reading in run.readings],
                "findings": {},
                "environment": run.environment,
                "command": run.command,
                "started": "2026-11-17T10:00:00+00:00",
                "ended": "2026-11-17T10:05:00+00:00",
            }
        )
    return run.directory


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Path:
    """Two runs with films, one of them with a hostile note."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("first", "second"):
        copytree(run.directory, root / name)
        records = [r.model_copy(update={"notes": (EVIL,)}) for r in run.records]
        for record in records[:2]:
            assert record.artefact is not None
            pair = run.images(record)
            assert pair is not None
            originals, rebuilt = pair
            film = torch.stack([torch.zeros_like(rebuilt), rebuilt]).mul(255).byte()
            tensors = {
                "originals": originals,
                "reconstructions": rebuilt,
                "film": film,
                "film.at": torch.tensor([0.0, 1.0]),
            }
            save_file(tensors, root / name / record.artefact)
        write_store(replace(run, directory=root / name, records=tuple(records)))
    return root


@pytest.fixture(scope="module")
def viewer(place: Path) -> Iterator[Viewer]:
    with Viewer(place) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield server
        server.shutdown()


Ask = Callable[..., tuple[int, dict[str, str], bytes]]


@pytest.fixture
def ask(viewer: Viewer) -> Ask:
    """Ask the server; by default as its owner would."""

    def asked(
        path: str, method: str = "GET", token: str | None = "own", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", viewer.port, timeout=30)
        cookie = viewer.token if token == "own" else token
        sent = {"Host": f"127.0.0.1:{viewer.port}"} | (
            {} if cookie is None else {"Cookie": f"fedseal-{viewer.port}={cookie}"}
        )
        connection.putrequest(method, path, skip_host=True)
        for name, value in (sent | headers).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        found = answer.status, dict(answer.getheaders()), answer.read()
        connection.close()
        return found

    return asked


def until(page: Any, expression: str, seconds: float = 600) -> None:
    """Wait until an expression holds; Playwright's own waiting evaluates strings, which the page's policy forbids."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(100)


class TestWhoMayLook:
    PATHS = ("/", "/app.js", "/style.css", "/api/runs", "/api/run?run=x", "/picture?run=x", "/nothing")

    @pytest.mark.parametrize("path", PATHS)
    @pytest.mark.parametrize("token", [None, "", "wrong", "ü"])
    def test_a_stranger_without_the_token_gets_403(self, ask: Ask, path: str, token: str | None) -> None:
        status, headers, body = ask(path, token=None if token is None else token.encode().decode("latin-1"))
        assert status == 403
        assert b"faces" not in body
        assert "Set-Cookie" not in headers

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example", ""])
    def test_another_host_gets_403_even_with_the_token(self, ask: Ask, viewer: Viewer, host: str) -> None:
        assert ask("/api/runs", Host=host)[0] == 403
        assert ask(f"/?token={viewer.token}", Host=host)[0] == 403

    def test_the_token_is_swapped_for_a_cookie_nobody_else_reads(self, ask: Ask, viewer: Viewer) -> None:
        status, headers, _ = ask(f"/?token={viewer.token}", token=None)
        assert (status, headers["Location"]) == (303, "/")
        for word in ("HttpOnly", "SameSite=Strict", f"fedseal-{viewer.port}="):
            assert word in headers["Set-Cookie"]
        assert ask("/?token=wrong", token=None)[0] == 403

    def test_it_listens_on_loopback_alone_with_a_fresh_token(self, viewer: Viewer, place: Path) -> None:
        assert viewer.server_address[0] == "127.0.0.1"
        with Viewer(place) as other:
            assert other.token != viewer.token
            assert len(other.token) >= 32

    def test_nothing_can_be_written(self, ask: Ask) -> None:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert ask("/api/runs", method=method)[0] == 501

    def test_the_policy_forbids_what_is_not_ours(self, ask: Ask) -> None:
        headers = ask("/")[1]
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
        for path in ("/", "/app.js", "/style.css"):
            text = ask(path)[2].decode()
            assert not [word for word in ("https://", "innerHTML", "eval(", "@import") if word in text]


class TestWhatItShows:
    def test_runs_trials_pictures_and_changes(self, ask: Ask, run: Run) -> None:
        lines = json.loads(ask("/api/runs")[2])
        assert [line["name"] for line in lines] == ["first", "second"]
        assert lines[0]["done"] == lines[0]["planned"] == len(run.records)
        first, second = (line["id"] for line in lines)
        data = json.loads(ask(f"/api/run?run={first}")[2])
        assert len(data["trials"]) == len(run.records)
        key = data["trials"][0]["key"]
        trial = json.loads(ask(f"/api/trial?run={first}&key={key}")[2])
        assert trial["images"] == 2
        assert trial["film"] == [0.0, 1.0]
        pictures = {
            ask(f"/picture?run={first}&key={key}&kind={kind}&index=0")[2] for kind in ("original", "rebuilt", "film")
        }
        assert len(pictures) == 3
        assert all(picture.startswith(b"\x89PNG") for picture in pictures)
        changes = json.loads(ask(f"/api/compare?before={first}&run={second}")[2])
        assert {row["direction"] for row in changes["rows"]} == {"same"}

    @pytest.mark.parametrize(
        "path",
        [
            "/api/run?run=../first",
            "/api/trial?run={run}&key=../../x",
            "/picture?run={run}&key={key}&kind=original&index=99",
            "/picture?run={run}&key={key}&kind=original&index=-1",
            "/picture?run={run}&key={key}&kind=../../store.sqlite&index=0",
            "/picture?run={run}&key={key}&kind=film&index=0&frame=999999999999",
            "/../../etc/passwd",
            "/api/compare?before=x&run={run}",
        ],
    )
    def test_what_is_not_there_is_404_in_words(self, ask: Ask, path: str) -> None:
        line = json.loads(ask("/api/runs")[2])[0]
        key = json.loads(ask(f"/api/run?run={line['id']}")[2])["trials"][0]["key"]
        status, _, body = ask(path.format(run=line["id"], key=key))
        assert status == 404
        assert "there is no" in json.loads(body)["error"]

    def test_a_record_cannot_point_out_of_its_run(self, tmp_path: Path, make_run: Callable[..., Run]) -> None:
        made = make_run(targets=1, defences=("none",), attacks=("ig",))
        save_file({"originals": torch.zeros(1, 3, 4, 4)}, tmp_path.parent / "outside.safetensors")
        records = tuple(r.model_copy(update={"artefact": "../outside.safetensors"}) for r in made.records)
        write_store(replace(made, records=records))
        with Viewer(tmp_path) as server:
            identity = server.library.runs()[0]["id"]
            assert server.library.trial(identity, records[0].key)["images"] == 0


@pytest.mark.browser
class TestInABrowser:
    @pytest.fixture
    def page(self, browser: Any, viewer: Viewer, request: pytest.FixtureRequest) -> Iterator[Any]:
        width, scheme = getattr(request, "param", (1280, "light"))
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.set_default_timeout(60_000)
        yield page
        context.close()

    @pytest.mark.parametrize(
        "page",
        [
            (390, "dark"),
            (1280, "light"),
            *(
                pytest.param(one, marks=pytest.mark.slow)
                for one in LOOKS
                if one not in ((390, "dark"), (1280, "light"))
            ),
        ],
        indirect=True,
    )
    def test_every_view_fits_and_complains_of_nothing(self, page: Any, viewer: Viewer, look: Any, axe: str) -> None:
        problems = look.problems(page)
        page.goto(viewer.url)
        page.wait_for_selector("#runs a")
        assert "token" not in page.url
        assert look.clipped(page) == []
        assert look.serious(page, axe) == []
        page.click("#runs a >> nth=0")
        page.wait_for_selector("#trials a")
        assert look.clipped(page) == []
        assert look.serious(page, axe) == []
        page.click("#trials a >> nth=0")
        page.wait_for_selector(".player button")
        until(page, "[...document.images].every(image => image.complete && image.naturalWidth)")
        assert EVIL in page.inner_text("main")
        assert "null" not in page.inner_text("main")
        assert look.clipped(page) == []
        assert look.serious(page, axe) == []
        page.goto(f"http://127.0.0.1:{viewer.port}/#/nowhere/else")
        page.wait_for_selector("#runs a")
        assert problems == []

    def test_everything_is_reached_by_keyboard_alone(self, page: Any, viewer: Viewer) -> None:
        page.goto(viewer.url)
        page.wait_for_selector("#runs a")

        def walk_to(wanted: str) -> None:
            for _ in range(60):
                page.keyboard.press("Tab")
                if page.evaluate(f"document.activeElement.matches({wanted!r})"):
                    return
            raise AssertionError(f"{wanted} is not reached")

        walk_to("#seek")
        page.keyboard.type("second")
        until(page, "document.querySelectorAll('#runs tr').length === 1")
        page.keyboard.press("Control+A")
        page.keyboard.press("Delete")
        for _ in range(2):
            walk_to("input[type=checkbox]")
            page.keyboard.press("Space")
        page.focus("#seek")
        walk_to("#compare")
        page.keyboard.press("Enter")
        page.wait_for_selector("text=Nothing changed beyond noise")
        page.goto(f"http://127.0.0.1:{viewer.port}/#/")
        page.wait_for_selector("#runs a")
        walk_to("#runs a")
        page.keyboard.press("Enter")
        page.wait_for_selector("#trials a")
        assert page.evaluate("document.activeElement.id") == "main"
        walk_to("#by-defence")
        page.select_option("#by-defence", "none")
        walk_to("#trials a")
        page.keyboard.press("Enter")
        page.wait_for_selector(".player button")
        walk_to(".player input")
        page.keyboard.press("Home")
        until(page, "document.querySelector('.rebuilt').src.includes('frame=0')")
        assert page.inner_text(".player output") == "0 %"

    @pytest.mark.slow
    def test_it_follows_a_running_audit(self, browser: Any, tmp_path: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(Path(fedseal.__file__).parent.parent)}
        scenario = tmp_path / "live.yaml"
        attacks = "[first-layer, 'ig:iterations=1500']"
        scenario.write_text(f"{{data: 'faces:size=8', model: 'mlp:width=8', attacks: {attacks}, readings: 0}}")
        (tmp_path / "runs").mkdir()
        with Viewer(tmp_path / "runs") as server:
            Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
            page = browser.new_page()
            page.set_default_timeout(600_000)  # on a busy machine the audit takes minutes to begin
            page.goto(server.url)
            page.wait_for_selector("text=No run here yet")
            out = str(tmp_path / "runs" / "live")
            command = [sys.executable, "-m", "fedseal", "audit", str(scenario), "--workers", "1", "--out", out]
            audit = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                page.wait_for_selector("#runs a")
                page.wait_for_selector("#runs .live")
                page.click("#runs a")
                page.wait_for_selector("#trials a")
                seen = page.locator("#trials a").count()
                assert audit.wait(timeout=1200) == 0, audit.stderr.read().decode() if audit.stderr else ""
                until(page, "!document.querySelector('.live')")
                assert 0 < seen <= page.locator("#trials a").count()
                page.locator("#trials a", has_text="no defence").last.click()
                page.wait_for_selector(".victim img")
                assert "null" not in page.inner_text("main")  # what a trial has none of is left out
                until(page, "[...document.images].every(image => image.complete && image.naturalWidth)")
            finally:
                audit.kill()
                audit.wait()
                page.close()
                server.shutdown()


class TestFilms:
    def test_a_film_has_few_frames_and_ends_with_what_was_rebuilt(self) -> None:
        film = Film()
        final = torch.rand(2, 3, 1, 4, 4)
        for step in range(101):
            film.take(step / 100, final * step / 100)
        order = [2, 0, 1]
        kept = film.of(1, final[1], final[1][order])
        assert 2 <= len(kept["film"]) <= FRAMES + 1
        assert kept["film.at"][-1] == 1.0
        assert kept["film.at"].tolist() == sorted(kept["film.at"].tolist())
        assert torch.equal(kept["film"][-1], final[1][order].mul(255).round().byte())

    @pytest.mark.parametrize(("side", "frames"), [(32, 13), (128, 2), (256, 0)])
    def test_large_images_have_shorter_films(self, side: int, frames: int) -> None:
        film, final = Film(), torch.rand(1, 4, 3, side, side)
        for step in range(13):
            film.take(step / 12, final)
        assert len(film.of(0, final[0], final[0]).get("film", ())) == frames

    def test_an_answer_without_a_way_has_no_film(self) -> None:
        film, final = Film(), torch.rand(1, 1, 1, 4, 4)
        film.take(1.0, final)
        assert film.of(0, final[0], final[0]) == {}

    def test_audits_keep_films(self, tmp_path: Path) -> None:
        run = fedseal.audit(
            data="faces:size=8", model="mlp:width=8", attacks="ig:iterations=60", targets=1, readings=0, out=tmp_path
        )
        record = run.records[0]
        assert record.artefact is not None
        tensors = load_file(tmp_path / record.artefact)
        assert tensors["film"].dtype == torch.uint8
        last, rebuilt = tensors["film"][-1].float() / 255, tensors["reconstructions"]
        assert (last - rebuilt).abs().max() < 0.1
        assert run.images(record) is not None


def test_the_command_prints_an_address_and_ends_on_interrupt(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(fedseal.__file__).parent.parent), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "fedseal", "view", str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as shown:
        assert shown.stdout is not None
        line = shown.stdout.readline()
        assert "http://127.0.0.1:" in line
        assert "token=" in line
        time.sleep(0.3)
        shown.send_signal(signal.SIGINT)
        assert shown.wait(timeout=180) == 0


def test_a_directory_that_is_not_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fedseal", "view", str(tmp_path / "x")])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == 2
    assert "there is no directory" in capsys.readouterr().err
