"""Convolutions of single small images as products of their patches, where PyTorch's own way is slow.

With one thread PyTorch gives small inputs to a convolution that multiplies by MKL, which leaves half of an AMD
processor idle and passes over the weights once more to clear their gradient. There a product by oneDNN is two to four
times as fast. In the last stages of a ResNet, a few pixels with millions of weights, most of an attack's time goes
there.

And there the gradient of the weights is best never formed: it is a product of two small matrices, the slopes of the
outputs and the patches (`Factors`), from which follow its norm, its inner products and what a step along it does.
First-order only: what is computed here cannot be differentiated twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Pair: TypeAlias = tuple[int, int]

_SLOW_UP_TO = 20_480
"""Numbers in an input, at the places a convolution looks at, above which oneDNN's own convolution is as fast."""
_WORTHWHILE = 30_000
"""Weights below which there is nothing to gain."""
_MULTIPLY: Callable[..., Any] | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
"""oneDNN's product with the transpose of the second matrix, in builds that have it."""


@dataclass(frozen=True)
class Factors:
    """A gradient of convolution weights [O, K] that is not formed: slopes [O, P] times patches [P, K]."""

    slopes: Tensor
    patches: Tensor

    @classmethod
    def together(cls, parts: Sequence[Factors]) -> Factors:
        """Return the sum of gradients: weights may be used more than once."""
        if len(parts) == 1:
            return parts[0]
        return cls(torch.cat([one.slopes for one in parts], 1), torch.cat([one.patches for one in parts]))

    def square(self) -> Tensor:
        """Return the squared norm."""
        return (_product(self.slopes.t(), self.slopes.t()) * _product(self.patches, self.patches)).sum()

    def dot(self, other: Tensor) -> Tensor:
        """Return the inner product with weights [O, K]."""
        return (_product(other, self.patches) * self.slopes).sum()

    def dense(self) -> Tensor:
        """Return the gradient [O, K]."""
        return self.slopes @ self.patches


@dataclass(frozen=True)
class Convolution:
    """A plain convolution of a few small images that is better unfolded.

    Attributes:
        x: images [B, C, H, W].
        weight: [O, C, h, w].
        stride: of rows and columns.
        padding: with zeros, of rows and columns.
    """

    x: Tensor
    weight: Tensor
    stride: Pair
    padding: Pair

    @classmethod
    def of(cls, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Convolution | None:
        """Return what a call computes, if it is such a convolution; None elsewhere."""
        if function is not torch.conv2d or kwargs or len(args) != 7 or not _has_products():
            return None
        x, weight, bias, stride, padding, dilation, groups = args
        if bias is not None or groups != 1 or _pair(dilation) != (1, 1) or isinstance(padding, str) or x.dim() != 4:
            return None
        down = _pair(stride)
        small = x.numel() // (down[0] * down[1]) <= _SLOW_UP_TO and weight.numel() >= _WORTHWHILE
        plain = x.device.type == "cpu" and x.dtype == weight.dtype == torch.float32 and torch.get_num_threads() == 1
        return cls(x, weight, down, _pair(padding)) if small and plain else None

    def without_weight(self) -> Convolution:
        """Return the same convolution, in whose weights nothing is differentiated."""
        return replace(self, weight=self.weight.detach())

    def patches(self) -> Tensor:
        """Return what the kernel sees at every place, [P, K], with P places of all images."""
        rows, columns = self.weight.shape[2:]
        seen = F.unfold(self.x.detach(), (rows, columns), padding=self.padding, stride=self.stride)
        return seen.transpose(1, 2).flatten(0, 1)

    def output(self, patches: Tensor, along: Factors | None = None, step: Tensor | float = 1.0) -> Tensor:
        """Return the convolution by its weights, or by weights moved a step along a gradient."""
        left = None if along is None else along.slopes * step
        right = None if along is None else along.patches
        found: Tensor = _Unfolded.apply(self.x, self.weight, patches, left, right, self)  # type: ignore[no-untyped-call]
        return found


class _Unfolded(torch.autograd.Function):
    """y[o, p] = sum_k (w + left right)[o, k] patches[p, k], and its gradients in the images and w."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, patches: Tensor, left: Tensor | None, right: Tensor | None, of: Convolution
    ) -> Tensor:
        out = _product(weight.flatten(1), patches)
        if left is not None and right is not None:
            out.addmm_(left, _product(right, patches))
        ctx.save_for_backward(weight, patches, left, right)
        ctx.shape, ctx.stride, ctx.padding = x.shape, of.stride, of.padding
        kernel = weight.shape[2:]
        height, width = ((x.shape[2 + i] + 2 * of.padding[i] - kernel[i]) // of.stride[i] + 1 for i in range(2))
        return out.view(len(weight), len(x), height, width).transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor | None, ...]:
        weight, patches, left, right = ctx.saved_tensors
        into = places(slopes)
        of_input = of_weight = None
        if ctx.needs_input_grad[0]:
            spread = _product(into.t(), weight.flatten(1).t())  # [P, K]
            if left is not None:
                spread.addmm_(into.t() @ left, right)
            of_patches = spread.view(len(slopes), -1, spread.shape[1]).transpose(1, 2)
            of_input = F.fold(of_patches, ctx.shape[2:], weight.shape[2:], padding=ctx.padding, stride=ctx.stride)
        if ctx.needs_input_grad[1]:
            of_weight = _product(into, patches.t()).view(weight.shape)
        return of_input, of_weight, None, None, None, None


def places(outputs: Tensor) -> Tensor:
    """Return outputs [B, O, H, W] as [O, P], with P places of all images."""
    return outputs.transpose(0, 1).flatten(1)


def _pair(value: Any) -> Pair:
    first, second = (value, value) if isinstance(value, int) else value
    return first, second


def _has_products() -> bool:
    """Return whether oneDNN's products are there, on a processor they are faster on."""
    return _MULTIPLY is not None and torch.backends.cpu.get_cpu_capability() == "AVX512"


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return left [m, k] times the transpose of right [n, k]."""
    if _MULTIPLY is None:
        return left @ right.t()
    result: Tensor = _MULTIPLY(left, right, None, "none", [], "")
    return result
