"""The small vision transformer: shapes, structure, and that gradients can be matched through it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.func import functional_call, grad, vmap

from fedseal.core.errors import UsageError
from fedseal.core.seeds import generator
from fedseal.models.checkpoint import save_checkpoint
from fedseal.models.registry import build_model
from fedseal.models.structure import executed_layers, output_layer

SHAPE = (3, 16, 16)
SMALL = "vit-tiny:width=24,depth=2"


def images(count: int = 2) -> torch.Tensor:
    return torch.rand(count, *SHAPE, generator=generator(0))


@pytest.mark.parametrize("pool", ["token", "mean"])
def test_the_head_is_the_last_layer_and_the_patches_the_first(pool: str):
    model = build_model(f"{SMALL},pool={pool}", input_shape=SHAPE, num_classes=5, seed=0)
    assert model(images()).shape == (2, 5)
    last = output_layer(model, images(), 5)
    assert last is not None
    assert last.name == "head"
    assert executed_layers(model, images())[0].name == "tokens.project"


def test_the_number_of_parameters_is_that_of_the_formula():
    width, depth, tokens, classes = 96, 4, 64 + 1, 10
    model = build_model("vit-tiny", input_shape=(3, 32, 32), num_classes=classes, seed=0)
    block = 4 * width + (3 * width * width + 3 * width) + (width * width + width) + (8 * width * width + 5 * width)
    embedding = (3 * 16 * width + width) + tokens * width + width
    expected = embedding + depth * block + 2 * width + (width * classes + classes)
    assert sum(p.numel() for p in model.parameters()) == expected


def test_attention_is_that_of_pytorch():
    model = build_model(SMALL, input_shape=SHAPE, num_classes=5, seed=0)
    attention = model.blocks[0].attention
    reference = torch.nn.MultiheadAttention(24, 3, batch_first=True)
    with torch.no_grad():
        reference.in_proj_weight.copy_(attention.qkv.weight)
        reference.in_proj_bias.copy_(attention.qkv.bias)
        reference.out_proj.weight.copy_(attention.out.weight)
        reference.out_proj.bias.copy_(attention.out.bias)
    x = torch.randn(2, 7, 24, generator=generator(0))
    torch.testing.assert_close(attention(x), reference(x, x, x)[0], rtol=1e-4, atol=1e-6)


def test_without_positions_the_mean_does_not_see_the_order_of_patches():
    model = build_model(f"{SMALL},pool=mean", input_shape=SHAPE, num_classes=5, seed=0)
    halves = torch.cat([images()[..., 8:], images()[..., :8]], 3)
    assert not torch.allclose(model(images()), model(halves), atol=1e-6)
    with torch.no_grad():
        model.tokens.position.zero_()
    torch.testing.assert_close(model(images()), model(halves), rtol=1e-4, atol=1e-5)


def test_it_can_be_differentiated_twice_and_vectorised():
    model = build_model(SMALL, input_shape=SHAPE, num_classes=5, seed=0)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def matching(x: torch.Tensor) -> torch.Tensor:
        inner = grad(lambda p: functional_call(model, p, (x[None],)).square().sum())(parameters)
        return torch.stack([g.square().sum() for g in inner.values()]).sum()

    slopes = vmap(grad(matching))(images(3))
    assert slopes.shape == (3, *SHAPE)
    assert bool(torch.isfinite(slopes).all())
    torch.testing.assert_close(slopes[1], grad(matching)(images(3)[1]), rtol=1e-3, atol=1e-4)


def test_wide_uniform_redraws_everything():
    model = build_model(f"{SMALL},init=wide-uniform", input_shape=SHAPE, num_classes=5, seed=0)
    assert all(0.3 < float(p.detach().abs().max()) <= 0.5 for p in model.parameters() if p.numel() > 20)


def test_it_loads_a_checkpoint(tmp_path: Path):
    model = build_model(SMALL, input_shape=SHAPE, num_classes=5, seed=1)
    save_checkpoint(model, tmp_path / "vit.safetensors")
    again = build_model(f"{SMALL},checkpoint={tmp_path}/vit.safetensors", input_shape=SHAPE, num_classes=5, seed=2)
    assert torch.equal(model(images()), again(images()))


@pytest.mark.parametrize("option", ["patch=5", "patch=0", "heads=5", "heads=0"])
def test_sizes_that_do_not_fit_are_refused(option: str):
    with pytest.raises(UsageError, match="cannot be"):
        build_model(f"vit-tiny:{option}", input_shape=SHAPE, num_classes=5, seed=0)
