"""Bring your own update: every way in, what comes back with and without originals, and a word for every mistake."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fedseal.audit.levels import RiskLevel, State
from fedseal.cli import main
from fedseal.core.batch import Batch
from fedseal.core.errors import FedsealError, InputError, UsageError
from fedseal.core.observation import Update
from fedseal.core.reconstruction import Reconstruction
from fedseal.core.seeds import generator
from fedseal.data.registry import DATASETS
from fedseal.defences.pipeline import build_defence
from fedseal.federation.client import RoundConfig, client_round
from fedseal.federation.update_file import RecordedUpdate, UpdateFacts, write_update
from fedseal.metrics.image import psnr
from fedseal.models.registry import build_model
from fedseal.report.png import encode_png
from fedseal.report.update import render_update_html, render_update_json
from fedseal.updates.audit import AGREE_DB, Attempt, _agreement, _residual, audit_update
from fedseal.updates.case import build_case
from fedseal.updates.source import UpdateSource

SHAPE = (1, 32, 32)
RATE = 0.1


@dataclass(frozen=True)
class Client:
    """A client that sent an update: what it was sent, what it holds, what it sent back."""

    model: nn.Module
    batch: Batch
    update: Update

    @property
    def before(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    @property
    def after(self) -> dict[str, Tensor]:
        change = self.update.tensors
        return {n: t + change[n] if n in change else t for n, t in self.before.items()}

    def recorded(self, **facts: Any) -> RecordedUpdate:
        known = {"round": 4, "client": "7", "learning_rate": RATE, "local_steps": 1, "batch_size": len(self.batch)}
        known |= {"input_shape": SHAPE, "num_classes": 2} | facts
        return RecordedUpdate(self.update, self.before, UpdateFacts(kind=self.update.kind, **known))


def client(model: str = "mlp", size: int = 1, defence: str = "none", upload: Any = "delta") -> Client:
    net = build_model(model, input_shape=SHAPE, num_classes=2, seed=0)
    batch = DATASETS.build("faces").batch(torch.arange(3, 3 + size) * 30 % 100)
    config = RoundConfig(learning_rate=RATE, upload=upload)
    return Client(net, batch, client_round(net, [batch], config, build_defence(defence), generator(1)).update)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Run the command line; return exit code, output and the report."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: Any) -> tuple[int, str, dict[str, Any] | None]:
        if "--attack" not in arguments:
            arguments = (*arguments, "--attack", "ig")
        monkeypatch.setattr(
            sys, "argv", ["fedseal", "audit-update", "--no-search", *map(str, arguments), "-o", str(tmp_path / "out")]
        )
        path = list(sys.path)
        with pytest.raises(SystemExit) as end:
            main()
        sys.path[:] = path
        text = "".join(capsys.readouterr())
        report = tmp_path / "out" / "update.json"
        code = end.value.code
        return (code if isinstance(code, int) else 0), text, json.loads(report.read_text()) if report.exists() else None

    return run


def originals(directory: Path, batch: Batch) -> Path:
    path = directory / "originals.safetensors"
    save_file({"images": batch.images.contiguous(), "labels": batch.labels}, path)
    return path


class TestWaysIn:
    """A linear first layer gives its input away in closed form, so every way in must end in the very image."""

    def check(self, report: dict[str, Any] | None, sender: Client) -> None:
        assert report is not None
        (attempt,) = report["attempts"]
        assert attempt["scores"]["mean_psnr"] > 40
        assert report["level"] == "very-high"
        assert attempt["labels"] == sender.batch.labels.tolist()

    def test_a_recorded_update(self, cli: Any, tmp_path: Path):
        sender = client()
        path = write_update(tmp_path, sender.recorded())
        code, text, report = cli(
            "--model",
            "mlp",
            "--update",
            path,
            "--attack",
            "first-layer",
            "--original",
            originals(tmp_path, sender.batch),
        )
        assert code == 0
        assert "round 4 of client 7" in text
        self.check(report, sender)

    def test_a_recorded_gradient(self, cli: Any, tmp_path: Path):
        sender = client(upload="gradient")
        path = write_update(tmp_path, sender.recorded(learning_rate=None))
        *_, report = cli(
            "--model",
            "mlp",
            "--update",
            path,
            "--attack",
            "first-layer",
            "--original",
            originals(tmp_path, sender.batch),
        )
        assert report is not None
        assert report["kind"] == "gradient"
        self.check(report, sender)

    def test_weights_before_and_after(self, cli: Any, tmp_path: Path):
        sender = client()
        save_file(sender.before, tmp_path / "a.safetensors")
        save_file(sender.after, tmp_path / "b.safetensors")
        common = ["--model", "mlp", "--before", "a.safetensors", "--after", "b.safetensors", "--input-shape", "1,32,32"]
        *_, report = cli(
            *common, "--learning-rate", RATE, "--attack", "first-layer", "--original", originals(tmp_path, sender.batch)
        )
        self.check(report, sender)
        assert any(finding["topic"] == "local steps" for finding in report["findings"])

    def test_plain_tensors_with_weights(self, cli: Any, tmp_path: Path):
        sender = client(upload="gradient")
        save_file(dict(sender.update.tensors), tmp_path / "g.safetensors")
        save_file(sender.before, tmp_path / "a.safetensors")
        *_, report = cli(
            "--model", "mlp", "--before", "a.safetensors", "--update", "g.safetensors", "--kind", "gradient",
            "--input-shape", "1,32,32", "--attack", "first-layer", "--original", originals(tmp_path, sender.batch),
        )  # fmt: skip
        self.check(report, sender)

    def test_a_module_of_ones_own_and_pictures_as_originals(self, cli: Any, tmp_path: Path):
        (tmp_path / "my_nets.py").write_text(
            "from torch import nn\n"
            "class Net(nn.Sequential):\n"
            "    def __init__(self):\n"
            "        super().__init__(nn.Flatten(), nn.Linear(1024, 20), nn.ReLU(), nn.Linear(20, 2))\n"
        )
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(1024, 20), nn.ReLU(), nn.Linear(20, 2))
        batch = client().batch
        update = client_round(net, [batch], RoundConfig(), build_defence("none"), generator(0)).update
        save_file(dict(update.tensors), tmp_path / "g.safetensors")
        save_file(net.state_dict(), tmp_path / "a.safetensors")
        (tmp_path / "face.png").write_bytes(encode_png(batch.images[0]))
        *_, report = cli(
            "--model", "my_nets:Net", "--before", "a.safetensors", "--update", "g.safetensors", "--kind", "gradient",
            "--input-shape", "1,32,32", "--attack", "first-layer", "--original", "face.png",
            "--labels", int(batch.labels[0]),
        )  # fmt: skip
        assert report is not None
        assert report["attempts"][0]["scores"]["mean_psnr"] > 40
        assert report["knowledge"]["labels"] == "given"

    def test_a_checkpoint_that_fits_one_model_names_it(self, cli: Any, tmp_path: Path):
        sender = client("convnet:width=64")
        save_file(sender.before, tmp_path / "weights.safetensors")
        save_file(dict(sender.update.tensors), tmp_path / "u.safetensors")
        case = build_case(
            UpdateSource(
                str(tmp_path / "weights.safetensors"),
                update=tmp_path / "u.safetensors",
                facts={"kind": "delta", "input_shape": SHAPE, "learning_rate": RATE},
            )
        )
        state = case.observation.model.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in sender.before.items())

    def test_a_checkpoint_that_fits_several_asks_which(self, cli: Any, tmp_path: Path):
        sender = client("lenet")
        save_file(sender.before, tmp_path / "weights.safetensors")
        save_file(dict(sender.update.tensors), tmp_path / "u.safetensors")
        code, text, _ = cli(
            "--model", "weights.safetensors", "--update", "u.safetensors", "--kind", "delta", "--input-shape", "1,32,32"
        )
        assert code == 2
        assert "fits lenet and lenet-relu" in text

    def test_one_of_a_directory(self, cli: Any, tmp_path: Path):
        sender = client()
        for name in ("7", "8"):
            write_update(tmp_path / "updates", sender.recorded(client=name))
        code, text, _ = cli("--model", "mlp", "--update", "updates", "--client", "8", "--attack", "first-layer")
        assert (code, "round 4 of client 8" in text) == (0, True)
        code, text, _ = cli("--model", "mlp", "--update", "updates", "--attack", "first-layer")
        assert "round 4 of client 7, the first of 2" in text
        code, text, _ = cli("--model", "mlp", "--update", "updates", "--round", "9", "--attack", "first-layer")
        assert code == 2
        assert "Rounds: 4; clients: 7, 8" in text


class TestWithoutOriginals:
    @pytest.mark.slow
    def test_an_undefended_lenet_gives_a_face_away_and_the_attacker_knows_it(self, cli: Any, tmp_path: Path):
        sender = client("lenet:init=wide-uniform")
        path = write_update(tmp_path, sender.recorded())
        code, text, report = cli("--model", "lenet", "--update", path, "--attack", "idlg", "--iterations", "300")
        assert code == 0
        assert report is not None
        (attempt,) = report["attempts"]
        assert attempt["confidence"] == "high"
        assert attempt["agreement_db"] > AGREE_DB
        assert attempt["residual"] < 0.05 * attempt["noise_residual"]
        assert attempt["scores"] is None
        assert "can be sure of it without the original" in " ".join(text.split())
        assert (tmp_path / "out" / "reconstruction-000.png").exists()

    @pytest.mark.slow
    def test_a_drowned_update_leaves_the_attacker_unsure(self, cli: Any, tmp_path: Path):
        sender = client("lenet:init=wide-uniform", defence="gaussian:sigma=1.0")
        path = write_update(tmp_path, sender.recorded(defence="gaussian:sigma=1.0"))
        _, text, report = cli("--model", "lenet", "--update", path, "--attack", "idlg", "--iterations", "30")
        assert report is not None
        assert report["attempts"][0]["confidence"] == "low"
        assert "did not rebuild" in text
        assert any("gaussian:sigma=1.0" in finding["text"] for finding in report["findings"])

    def test_the_least_residual_leads(self, tmp_path: Path):
        path = write_update(tmp_path, client().recorded())
        audit = audit_update(
            build_case(UpdateSource("mlp", update=path)), ["ig", "first-layer"], iterations=2, restarts=2, search=False
        )
        assert audit.worst.attack == "first-layer"
        assert audit.level is None


class TestJudging:
    def case(self, tmp_path: Path, sender: Client, **options: Any) -> Any:
        return build_case(UpdateSource("mlp", update=write_update(tmp_path, sender.recorded()), **options))

    def test_the_true_images_leave_nothing_unexplained(self, tmp_path: Path):
        sender = client(size=2)
        case = self.case(tmp_path, sender)
        assert _residual(case, sender.batch.images, sender.batch.labels) == pytest.approx(0, abs=1e-5)
        wrong = _residual(case, torch.rand(2, *SHAPE, generator=generator(0)), sender.batch.labels)
        assert wrong is not None
        assert wrong > 0.05

    def test_an_aware_attackers_residual_is_of_what_the_defence_would_send(self, tmp_path: Path):
        sender = client(defence="topk:ratio=0.9")
        naive = _residual(self.case(tmp_path, sender), sender.batch.images, sender.batch.labels)
        aware = _residual(
            self.case(tmp_path, sender, defence="topk:ratio=0.9"), sender.batch.images, sender.batch.labels
        )
        assert naive is not None
        assert naive > 0.01
        assert aware == pytest.approx(0, abs=1e-5)

    def test_agreement_is_the_mean_psnr_between_starts_in_any_order(self):
        a = torch.rand(2, 1, 4, 4, generator=generator(0))
        b, c = (a + 0.1).flip(0), a + 0.2
        expected = [psnr(x, y, data_range=1.0).mean() for x, y in ((a, a + 0.1), (a, c), (a + 0.1, c))]
        assert _agreement([a, b, c]) == pytest.approx(float(torch.stack(expected).mean()), abs=1e-4)
        assert _agreement([a]) is None

    @pytest.mark.parametrize(
        ("residual", "agreement", "confidence"),
        [
            (0.01, 30.0, "high"),
            (0.01, 12.0, "medium"),
            (0.01, None, "medium"),
            (0.5, 30.0, "medium"),
            (0.5, 9.0, "low"),
        ],
    )
    def test_confidence_takes_both(self, residual: float, agreement: float | None, confidence: str):
        best = Reconstruction(torch.zeros(1, 1, 4, 4), torch.zeros(1), 0.0)
        assert Attempt("x", best, 3, residual, 1.0, agreement).confidence == confidence
        assert Attempt("x", best, 3, None, None, None).confidence == "low"

    def test_a_reconstruction_no_better_than_a_guess_is_no_leak(self, tmp_path: Path):
        sender = client()
        flat = Batch(torch.full_like(sender.batch.images, 0.5), sender.batch.labels)
        case = self.case(tmp_path, sender, originals=(originals(tmp_path, flat),))
        audit = audit_update(case, ["first-layer"], search=False)
        assert audit.worst.baselines is not None
        assert audit.worst.baselines["flat"][0] > audit.worst.scores.mean_psnr  # type: ignore[union-attr]
        assert audit.level is None
        assert audit.standing is State.NOT_SHOWN
        assert "no leak is shown, nor that there is none" in audit.sentence()

    def test_public_data_gives_all_baselines(self, tmp_path: Path):
        sender = client()
        case = self.case(tmp_path, sender, originals=(originals(tmp_path, sender.batch),))
        audit = audit_update(
            case, ["first-layer"], search=False, public=DATASETS.build("faces").batch()
        )  # the original among them
        assert audit.worst.baselines is not None
        assert audit.worst.baselines.keys() == {"mean_image", "class_mean", "nearest", "noise", "flat"}
        assert audit.worst.baselines["nearest"][0] < 30
        assert audit.level is RiskLevel.VERY_HIGH
        with pytest.raises(InputError, match="the originals themselves"):
            audit_update(case, ["first-layer"], search=False, public=sender.batch)

    def test_the_same_seed_gives_the_same_images(self, tmp_path: Path):
        case = self.case(tmp_path, client())
        one, two, other = (
            audit_update(case, ["ig"], iterations=3, seed=seed, search=False).worst.best.images for seed in (1, 1, 2)
        )
        assert torch.equal(one, two)
        assert not torch.equal(one, other)


class TestExitCodesAndReports:
    def test_fail_on(self, cli: Any, tmp_path: Path):
        sender = client()
        path = write_update(tmp_path, sender.recorded())
        common = ["--model", "mlp", "--update", path, "--attack", "first-layer", "--fail-on", "high"]
        assert cli(*common, "--original", originals(tmp_path, sender.batch))[0] == 1
        assert cli(*common)[0] == 1  # the attacker is sure without the original

    def test_nothing_breaks_out_of_the_page_and_it_needs_nothing_but_itself(self, tmp_path: Path):
        sender = client()
        nasty = tmp_path / "<script>alert(1)</script>.safetensors"
        nasty.parent.mkdir(parents=True, exist_ok=True)
        save_file(dict(sender.update.tensors), nasty)
        save_file(sender.before, tmp_path / "a.safetensors")
        source = UpdateSource(
            "mlp",
            update=nasty,
            before=tmp_path / "a.safetensors",
            facts={"kind": "delta", "input_shape": SHAPE, "learning_rate": RATE},
        )
        audit = audit_update(build_case(source), ["first-layer"], command="fedseal <b>", search=False)
        html = render_update_html(audit)
        assert "<script" not in html
        assert "&lt;script&gt;" in html
        assert "<b>fedseal" not in html
        assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", html)
        assert html.count("data:image/png") == 1
        assert json.loads(render_update_json(audit))["update"] == str(nasty)

    def test_redaction_leaves_no_label_and_no_image_of_an_earlier_call(self, cli: Any, tmp_path: Path):
        sender = client()
        path = write_update(tmp_path, sender.recorded())
        common = ("--model", "mlp", "--update", path, "--attack", "first-layer", "--labels", "1")
        cli(*common)
        out = tmp_path / "out"
        assert {file.stat().st_mode & 0o777 for file in out.iterdir()} == {0o600}
        plain = json.loads((out / "update.json").read_text())
        assert plain["attempts"][0]["labels"] == [1]
        assert "label 1" in (out / "update.html").read_text()
        cli(*common, "--redact")
        told = json.loads((out / "update.json").read_text())
        assert told["redacted"] is True
        assert told["attempts"][0]["labels"] is None
        assert told["attempts"][0]["notes"] == []
        page = (out / "update.html").read_text()
        assert not re.search(r"label(s)? 1\b", page + told["command"])
        assert "withheld" in page
        assert not list(out.glob("*.png"))

    def test_redaction_leaves_no_image(self, cli: Any, tmp_path: Path):
        sender = client()
        path = write_update(tmp_path, sender.recorded())
        cli(
            "--model", "mlp", "--update", path, "--attack", "first-layer", "--redact",
            "--original", originals(tmp_path, sender.batch),
        )  # fmt: skip
        assert "data:image/png" not in (tmp_path / "out" / "update.html").read_text()
        assert not list((tmp_path / "out").glob("*.png"))


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "which update is to be audited?"),
            (("--update", "u", "--after", "b"), "which update is to be audited?"),
            (("--after", "weights.safetensors"), "--after needs --before"),
            (("--update", "nowhere.safetensors"), "there is no update nowhere.safetensors"),
            (("--update", "plain.safetensors"), "is the update a gradient or a weight change?"),
            (("--update", "plain.safetensors", "--kind", "delta"), "the images' shape is not known"),
            (("--update", "r", "--kind", "gradient"), "the file says that it holds a delta"),
            (("--update", "r", "--batch-size", "2", "--labels", "1"), "1 label(s) for 2 image(s)"),
            (("--update", "r", "--labels", "7"), "labels must be from 0 to 1"),
            (("--update", "r", "--labels", "cat"), "--labels cannot be 'cat'"),
            (("--update", "r", "--input-shape", "32,32"), "--input-shape cannot be"),
            (("--update", "r", "--input-shape", "3,32,32"), "weights: tensor"),
            (
                ("--before", "weights.safetensors", "--after", "weights.safetensors", "--input-shape", "3,32,32"),
                "are not those of mlp",
            ),
            (("--update", "r", "--original", "missing.png"), "missing.png is not a file"),
            (("--update", "r", "--original", "plain.safetensors"), "hold no float tensor `images`"),
            (("--update", "r", "--attack", "magic"), "no attack called 'magic'"),
            (("--update", "r", "--defence", "magic"), "no defence called 'magic'"),
            (("--update", "r", "--bn-mode", "magic"), "--bn-mode cannot be 'magic'"),
            (("--update", "norate", "--iterations", "2"), "only with the learning rate"),
        ],
    )
    def test_each_is_one_line(self, cli: Any, tmp_path: Path, arguments: tuple[str, ...], message: str):
        sender = client()
        recorded = write_update(tmp_path, sender.recorded())
        norate = write_update(tmp_path / "norate", sender.recorded(learning_rate=None))
        save_file(dict(sender.update.tensors), tmp_path / "plain.safetensors")
        save_file(sender.before, tmp_path / "weights.safetensors")
        places = {"r": recorded, "norate": norate}
        code, text, report = cli("--model", "mlp", *(places.get(word, word) for word in arguments))
        assert code == 2
        assert message in text
        assert text.count("error: ") == 1
        assert "Traceback" not in text
        assert report is None

    def test_another_models_update_is_refused(self, tmp_path: Path):
        path = write_update(tmp_path, client("lenet").recorded())
        with pytest.raises(InputError, match="weights: tensor"):
            build_case(UpdateSource("mlp", update=path))

    def test_an_update_that_lacks_a_layer_is_refused(self, tmp_path: Path):
        sender = client()
        tensors = dict(sender.update.tensors)
        tensors.popitem()
        path = write_update(tmp_path, RecordedUpdate(Update(tensors, "delta"), sender.before, sender.recorded().facts))
        with pytest.raises(FedsealError, match="is missing"):
            build_case(UpdateSource("mlp", update=path))

    def test_too_few_originals_are_refused(self, tmp_path: Path):
        sender = client(size=2)
        few = Batch(sender.batch.images[:1], sender.batch.labels[:1])
        with pytest.raises(UsageError, match=r"1 original\(s\) were given, 2 image"):
            build_case(
                UpdateSource(
                    "mlp", update=write_update(tmp_path, sender.recorded()), originals=(originals(tmp_path, few),)
                )
            )
