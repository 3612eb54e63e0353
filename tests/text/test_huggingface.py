"""A model of Hugging Face's `transformers`, named as `module:attribute`, is read like one of ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedseal.core.attack import ATTACKS
from fedseal.data.text.dataset import TextDataset
from fedseal.federation.fitting import fitting_model
from fedseal.testing.texts import observed

MODULE = """
import transformers

def network(encoding, num_classes, input_shape):
    return transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=encoding.size, hidden_size=48, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=input_shape[0], num_labels=num_classes, initializer_range=0.15))
"""


@pytest.mark.slow  # importing transformers takes seconds
@pytest.mark.parametrize("attack", ["words", "dager"])
def test_words_of_a_named_bert_come_back(
    attack: str, notes: TextDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "their_bert.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    model = fitting_model("their_bert:network", notes, "cross-entropy", 0).eval()
    texts, seen = observed(model, notes, 1)
    answer = ATTACKS.build(attack).run(seen)
    found, true = (set(notes.tokeniser.content(ids)[0]) for ids in (answer.images, texts.inputs))
    assert found == true
    if attack == "dager":
        assert torch.equal(answer.images, texts.inputs)
