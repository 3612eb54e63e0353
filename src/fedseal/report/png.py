"""Image tensors as PNG data URIs."""

from __future__ import annotations

import base64
import io

from PIL import Image
from torch import Tensor, uint8

LARGEST_SIDE = 128
"""Images with a longer side are shrunk to it, so that a report stays small."""


def data_uri(image: Tensor) -> str:
    """Return an image [C, H, W] in [0, 1] as a PNG data URI; channels other than 1 or 3 are averaged to grey."""
    return "data:image/png;base64," + base64.b64encode(encode_png(image)).decode("ascii")


def encode_png(image: Tensor) -> bytes:
    """Return an image [C, H, W] in [0, 1] as PNG bytes; what is not finite or out of range is clipped."""
    values = image.detach().cpu().float().nan_to_num(0.0, 1.0, 0.0).clamp(0, 1)
    if values.shape[0] not in (1, 3):
        values = values.mean(0, keepdim=True)
    pixels = (values * 255).round().to(uint8).permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    longest = max(picture.size)
    if longest > LARGEST_SIDE:
        width, height = (max(1, side * LARGEST_SIDE // longest) for side in picture.size)
        picture = picture.resize((width, height), Image.Resampling.BOX)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
