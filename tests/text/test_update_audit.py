"""`audit-update` on text: what a recorded update gives away, with and without the originals."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from fedseal.audit.levels import RiskLevel
from fedseal.cli.app import app
from fedseal.core.errors import InputError
from fedseal.core.observation import Update
from fedseal.data.text.dataset import TextDataset
from fedseal.federation.client import RoundConfig
from fedseal.federation.fitting import fitting_model
from fedseal.federation.update_file import RecordedUpdate, UpdateFacts, write_update
from fedseal.flower import train_round
from fedseal.testing.texts import observed
from fedseal.updates.source import UpdateSource
from fedseal.updates.texts import audit_text_update

MODEL = "text-encoder:width=16,layers=1"
PUBLIC = "text:notes?length=16&limit=200"


@pytest.fixture(scope="module")
def recorded(notes: TextDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An update of two texts, as a Flower server records it: the change of weights after one step."""
    model = fitting_model(MODEL, notes, "cross-entropy", 0)
    _, seen = observed(model, notes, 2)
    change = {name: -0.1 * value for name, value in seen.update.tensors.items()}
    facts = UpdateFacts(kind="delta", round=1, client="a", learning_rate=0.1, local_steps=1, batch_size=2)
    before = {name: value.detach() for name, value in model.state_dict().items()}
    directory = tmp_path_factory.mktemp("recorded")
    write_update(directory, RecordedUpdate(Update(change, "delta"), before, facts))
    return directory


@pytest.fixture(scope="module")
def original(notes: TextDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "texts.txt"
    path.write_text("\n".join(notes.tokeniser.show(notes.inputs[:2])) + "\n", encoding="utf-8")
    return path


def test_words_are_read_and_known_to_be_right_without_the_originals(notes: TextDataset, recorded: Path) -> None:
    audit = audit_text_update(UpdateSource(MODEL, update=recorded), notes)
    words = next(one for one in audit.readings if one.attack == "words")
    wanted = {token for text in notes.tokeniser.content(notes.inputs[:2]) for token in text}
    assert words.texts[0] == notes.tokeniser.show(torch.tensor([sorted(wanted)]))[0]
    assert words.certain
    assert audit.level is RiskLevel.VERY_HIGH
    assert "exactly, and knows that it did" in audit.sentence()
    assert next(one for one in audit.readings if one.attack == "lora").refused


def test_the_command_scores_reports_and_fails_a_build(recorded: Path, original: Path, tmp_path: Path) -> None:
    call = ["audit-update", "--update", str(recorded), "--model", MODEL, "--public", PUBLIC, "--attack", "words"]
    done = CliRunner().invoke(app, [*call, "--original", str(original), "--out", str(tmp_path), "--fail-on", "medium"])
    assert done.exit_code == 1, done.output
    found = json.loads((tmp_path / "update.json").read_text())
    (attempt,) = found["attempts"]
    assert min(attempt["words_percent"]) > max(attempt["guess_percent"])
    assert attempt["texts"][0].split()[0] in (tmp_path / "update.md").read_text()
    CliRunner().invoke(app, [*call, "--out", str(tmp_path), "--redact"])
    hidden = (tmp_path / "update.json").read_text() + (tmp_path / "update.md").read_text()
    assert not any(text in hidden for text in attempt["texts"])


@pytest.mark.slow
def test_adapters_of_the_flower_example_tell_their_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="adapters are peft's")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "examples" / "flower-text"))
    task = importlib.import_module("text_app.task")
    model, batch = task.adapters(), task.client_batch(0, 1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    after = train_round(model, [batch], RoundConfig(learning_rate=0.1)).weights
    trained = [name for name, value in model.named_parameters() if value.requires_grad]
    assert all("lora_" in name or "head" in name for name in trained)
    facts = UpdateFacts(kind="delta", round=1, client="a", learning_rate=0.1, local_steps=1, batch_size=1)
    change = Update({name: after[name] - before[name] for name in trained}, "delta")
    write_update(tmp_path, RecordedUpdate(change, before, facts))
    data = task.notes()
    audit = audit_text_update(UpdateSource("text_app.task:adapters", update=tmp_path), data, ["lora"])
    (reading,) = audit.readings
    wanted = set(data.tokeniser.content(batch.inputs)[0])
    assert reading.certain
    assert reading.texts[0] == data.tokeniser.show(torch.tensor([sorted(wanted)]))[0]


def test_weights_of_another_model_are_refused_by_name(notes: TextDataset, recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"weights"):
        audit_text_update(UpdateSource("text-encoder:width=32,layers=1", update=recorded), notes)
    save_file({"nobody.knows": torch.ones(2)}, tmp_path / "alien.safetensors")
    source = UpdateSource(MODEL, update=tmp_path / "alien.safetensors", facts={"kind": "gradient"})
    with pytest.raises(InputError, match="holds no parameter that the model trains"):
        audit_text_update(source, notes)
