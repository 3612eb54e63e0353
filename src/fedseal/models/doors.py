"""Models of other libraries by name: Hugging Face's vision classes (`hf:resnet`) and timm's (`timm:NAME`).

They are built from their configurations with random weights, and nothing is fetched: weights come from a safetensors
file by the option `checkpoint`, as for every model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator
from torch import nn

from fedseal.core.errors import InputError, UsageError
from fedseal.core.files import local_path
from fedseal.core.registry import Info
from fedseal.core.specs import near_matches, plain_value
from fedseal.models.registry import MODELS

Sizes: TypeAlias = Annotated[
    tuple[int, ...], BeforeValidator(lambda value: plain_value(value) if isinstance(value, str) else value)
]
"""Whole numbers, written `[64, 128]`."""

_CLASSES = {
    "resnet": ("ResNetConfig", "ResNetForImageClassification"),
    "mobilenet_v2": ("MobileNetV2Config", "MobileNetV2ForImageClassification"),
    "vit": ("ViTConfig", "ViTForImageClassification"),
}


@MODELS.register("hf", Info("a vision model of Hugging Face by its configuration: hf:resnet, hf:mobilenet_v2, hf:vit"))
def hugging_face(
    kind: Literal["resnet", "mobilenet_v2", "vit"],
    input_shape: tuple[int, int, int],
    num_classes: int,
    config: Path | None = None,
    hidden_sizes: Sizes | None = None,
    depths: Sizes | None = None,
    embedding_size: int | None = None,
    layer_type: Literal["basic", "bottleneck"] | None = None,
    depth_multiplier: float | None = None,
    hidden_size: int | None = None,
    num_hidden_layers: int | None = None,
    num_attention_heads: int | None = None,
    intermediate_size: int | None = None,
    patch_size: int | None = None,
) -> nn.Module:
    """Build a model of transformers for images and classes as the data has them.

    Args:
        kind: of model.
        input_shape: C, H, W of the images.
        num_classes: outputs.
        config: a `config.json` of the library, whose values hold where no option says otherwise.
        hidden_sizes, depths, embedding_size, layer_type: of `resnet`.
        depth_multiplier: of `mobilenet_v2`.
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, patch_size: of `vit`.
    """
    given: dict[str, Any] = {
        "hidden_sizes": None if hidden_sizes is None else list(hidden_sizes),
        "depths": None if depths is None else list(depths),
        "embedding_size": embedding_size,
        "layer_type": layer_type,
        "depth_multiplier": depth_multiplier,
        "hidden_size": hidden_size,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": num_attention_heads,
        "intermediate_size": intermediate_size,
        "patch_size": patch_size,
    }
    try:
        import transformers
    except ImportError as error:
        raise UsageError(f"hf:{kind} needs transformers.", hint="Install it: pip install 'fedseal[hf]'.") from error
    settings, network = (getattr(transformers, name) for name in _CLASSES[kind])
    known = vars(settings())
    options = {key: value for key, value in given.items() if value is not None}
    for key in options:
        if key not in known:
            raise UsageError(
                f"hf:{kind} has no option {key}.", hint=near_matches(key, [k for k in given if k in known])
            )
    fixed = {"num_channels": input_shape[0], "num_labels": num_classes}
    fixed |= {"image_size": input_shape[1]} if "image_size" in known else {}
    model: nn.Module = network(settings(**{**_read(config), **options, **fixed}))
    return model


@MODELS.register("timm", Info("a model of timm by its name there: timm:resnet18; needs timm and torchvision"))
def timm_model(name: str, input_shape: tuple[int, int, int], num_classes: int) -> nn.Module:
    """Build a model of timm with random weights.

    Args:
        name: as `timm.list_models()` has it.
        input_shape: C, H, W of the images.
        num_classes: outputs.
    """
    try:
        import timm
    except Exception as error:  # it imports torchvision, which fails in its own ways
        raise UsageError(
            f"timm:{name} needs timm, which cannot be imported: {error}.", hint="Install timm and torchvision."
        ) from error
    if name not in timm.list_models():
        raise UsageError(f"timm has no model {name!r}.", hint=near_matches(name, timm.list_models()))
    model: nn.Module = timm.create_model(name, pretrained=False, num_classes=num_classes, in_chans=input_shape[0])
    return model


def _read(path: Path | None) -> dict[str, Any]:
    """Return the settings of a `config.json`; what it says of classes, labels and code is left out."""
    if path is None:
        return {}
    try:
        found = json.loads(local_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot read the configuration {path}: {error}.", hint="It must be a JSON file.") from error
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no configuration.", hint="It must be a JSON mapping.")
    left_out = {"architectures", "auto_map", "id2label", "label2id", "model_type", "transformers_version"}
    return {key: value for key, value in found.items() if key not in left_out}
