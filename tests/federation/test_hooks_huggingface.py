"""Hooks in Hugging Face's Trainer, and LoRA adapters by peft: the libraries themselves, on a tiny BERT."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedseal.hooks import SealedTraining

transformers = pytest.importorskip("transformers", reason="peft and transformers are not installed")
peft = pytest.importorskip("peft", reason="peft and transformers are not installed")
pytestmark = pytest.mark.slow


def bert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model: nn.Module = transformers.BertForSequenceClassification(config)
    return model


def adapted() -> nn.Module:
    torch.manual_seed(0)
    settings = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    model: nn.Module = peft.get_peft_model(bert(), settings)
    return model


RECORDS = [
    {"input_ids": row, "labels": int(row.sum()) % 2}
    for row in torch.randint(1, 50, (16, 8), generator=torch.Generator().manual_seed(1))
]


class SealedTrainer(transformers.Trainer):  # type: ignore[misc, name-defined]
    """The recipe of docs/training-loops.md."""

    defence = "none"

    def training_step(self, model: nn.Module, inputs: dict[str, Tensor], num_items_in_batch: Any = None) -> Tensor:
        if not hasattr(self, "sealed"):
            self.sealed = SealedTraining(
                self.defence, model, self.optimizer.optimizer,
                lambda answer, labels: cross_entropy(answer.logits, labels),
                modality="tensor", accumulate=self.args.gradient_accumulation_steps,
            )  # fmt: skip
        inputs["input_ids"], inputs["labels"] = self.sealed.batch(inputs["input_ids"], inputs["labels"])
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        return loss


def trained(tmp_path: Path, model: nn.Module, defence: str | None, accumulate: int = 1, size: int = 4) -> Any:
    settings = transformers.TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=size, gradient_accumulation_steps=accumulate,
        optim="sgd", learning_rate=0.1, report_to=[], save_strategy="no", use_cpu=True,
        disable_tqdm=True, max_grad_norm=0.0,
    )  # fmt: skip
    kind = transformers.Trainer if defence is None else type("Sealed", (SealedTrainer,), {"defence": defence})
    trainer = kind(model=model, args=settings, train_dataset=RECORDS)
    trainer.train()
    return trainer


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("defence", ["none", "dp-sgd:sigma=0,clip=1000000"])
def test_trainer_learns_the_same_under_a_defence_that_does_nothing(tmp_path: Path, defence: str, accumulate: int):
    plain, sealed = bert(), bert()
    if defence == "none":
        trained(tmp_path, plain, None, accumulate)
    else:  # Trainer adds up the means of batches; a step's gradient by samples is their mean, as of one large batch
        trained(tmp_path, plain, None, size=4 * accumulate)
    trainer = trained(tmp_path, sealed, defence, accumulate)
    start = bert().state_dict()
    assert trainer.sealed.steps == 3
    for name, tensor in plain.state_dict().items():
        torch.testing.assert_close(sealed.state_dict()[name], tensor, atol=1e-5, rtol=1e-3)
    change = trainer.sealed.update().tensors
    assert set(change) == {name for name, _ in plain.named_parameters()}
    torch.testing.assert_close(
        change["classifier.weight"], sealed.get_parameter("classifier.weight") - start["classifier.weight"]
    )


def test_adapters_train_under_dp_sgd_and_nothing_else_moves(tmp_path: Path):
    model = adapted()
    before = copy.deepcopy(model.state_dict())
    trainer = trained(tmp_path, model, "dp-sgd:sigma=1,clip=1")
    change = trainer.sealed.update().tensors
    assert change
    assert all("lora_" in name or "modules_to_save" in name for name in change)
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == set(change)


def test_patterns_choose_adapters_alone(tmp_path: Path):
    model = adapted()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    sealed = SealedTraining(
        "topk:ratio=0.5", model, optimizer, lambda answer, labels: cross_entropy(answer.logits, labels),
        modality="tensor", include=("*lora_*",),
    )  # fmt: skip
    tokens, labels = sealed.batch(torch.stack([one["input_ids"] for one in RECORDS[:4]]), torch.tensor([0, 1, 1, 0]))
    cross_entropy(model(input_ids=tokens).logits, labels).backward()
    optimizer.step()
    change = sealed.update().tensors
    assert change
    assert all("lora_" in name for name in change)
    assert any("modules_to_save" in name for name, p in model.named_parameters() if p.requires_grad)


@pytest.mark.parametrize("adapters_only", [True, False])
def test_flower_clients_send_sealed_adapters_and_their_backbones_back_as_they_came(flower: Any, adapters_only: bool):
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

    from fedseal.flower import defend

    model = adapted()
    state = peft.get_peft_model_state_dict(model) if adapters_only else model.state_dict()
    state = {name: tensor.clone() for name, tensor in state.items()}
    content = RecordDict({"arrays": ArrayRecord(state), "config": ConfigRecord({"server-round": 1})})

    def train(message: Message, context: Context) -> Message:
        moved = {name: tensor + 0.1 if "lora_" in name else tensor for name, tensor in state.items()}
        metrics = MetricRecord({"num-examples": 4})
        return Message(RecordDict({"arrays": ArrayRecord(moved), "metrics": metrics}), reply_to=message)

    mod = defend("gaussian:sigma=1", include=["*lora_*"], encoding="weights")
    reply = mod(Message(content, 2, "train"), Context(2, 2, {}, RecordDict(), {}), train)
    assert not reply.has_error(), reply.error.reason
    for name, tensor in reply.content["arrays"].to_torch_state_dict().items():
        if "lora_" in name:
            assert float((tensor - state[name] - 0.1).abs().max()) > 0.1
        else:
            assert torch.equal(tensor, state[name])
