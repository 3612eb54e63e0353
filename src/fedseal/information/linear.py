"""An upload linearised at the truth: o = F(z) + noise, unknowns z = W w with w standard normal.

Whitened, the upload is y = B w + noise of variance 1, B = Sigma^-1/2 J W: all there is to know is in B. Columns belong
to directions of the prior, image by image, then to what clients drew; rows to entries of the upload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from fedseal.core.errors import CapabilityError
from fedseal.core.tensors import flatten
from fedseal.information.prior import ImagePrior
from fedseal.information.upload import Upload, UploadMap

_TINY = 1e-30
_LANE_BYTES = 1 << 28
_SMALL = 1_000_000
"""Entries of an upload up to which a second derivative is quicker than the forward mode."""


class LinearUpload:
    """Products with B and its transpose.

    Args:
        upload: to be linearised.
        prior: of one image; images are independent.
        dtype: to compute in.
        extra_variance: of further noise in every entry.

    Attributes:
        sigma: standard deviation of the noise in each entry, [N].
        names: of the parameters, in order.
        sizes: their entries.
    """

    def __init__(
        self, upload: Upload, prior: ImagePrior, dtype: torch.dtype = torch.float64, extra_variance: float = 0.0
    ) -> None:
        with _once("differentiated"):
            self.map = UploadMap(upload, dtype)
            self.map(self.map.point)
        self.prior = prior
        self.names = tuple(self.map.parameters)
        self.sizes = tuple(p.numel() for p in self.map.parameters.values())
        self.images = self.map.shape[0]
        self.pixels = self.images * prior.pixels
        self.unknowns = self.map.point.numel()
        declared = self.map.variance()
        if wrong := [name for name, tensor in declared.items() if tensor.isnan().any()]:
            raise CapabilityError(f"the defence declares noise that is no number in {', '.join(wrong)}.")
        own = flatten(declared).double()
        with torch.no_grad():
            passed, before = flatten(self.map(self.map.point)), flatten(self.map.plain(self.map.point))
        rounding = rounding_deviation(passed, before, next(iter(upload.observed.values())).dtype) ** 2
        self.sigma = (own + rounding + extra_variance).sqrt().clamp(min=_TINY)
        self._back: Callable[[Tensor], tuple[Tensor]] | None = None
        self._forward_works: bool | None = None
        self._along: Callable[[Tensor], tuple[Tensor]] | None = None

    def add_noise(self, factor: float) -> None:
        """Raise the variance of the noise by a factor, in every entry."""
        self.sigma = self.sigma * factor**0.5

    @property
    def entries(self) -> int:
        """N, entries of the upload."""
        return sum(self.sizes)

    def root(self, w: Tensor) -> Tensor:
        """Return W w for vectors [..., D]; symmetric, so it is W' too."""
        pictures = self.prior.root(w[..., : self.pixels].reshape(*w.shape[:-1], self.images, self.prior.pixels))
        return torch.cat([pictures.flatten(-2), w[..., self.pixels :]], -1)

    def times(self, w: Tensor) -> Tensor:
        """Return B w for a block of vectors [K, D], [K, N]."""
        return self.slopes(self.root(w)) / self.sigma.to(w)

    def transposed(self, y: Tensor) -> Tensor:
        """Return B' y for a block of vectors [K, N], [K, D]."""
        with _once("differentiated in reverse"):
            pulled: Tensor = vmap(self._pull, chunk_size=self._lanes)((y / self.sigma.to(y)).to(self.map.point))[0]
        return self.root(pulled.to(y))

    def slopes(self, directions: Tensor) -> Tensor:
        """Return J u for directions u of the unknowns, [K, D] to [K, N].

        Of a large model in forward mode, where it has one: a second derivative takes several times as long there. Of a
        small one as the derivative of v -> J'v, which is linear: its graph is made once, and nothing has to be loaded
        and compiled first, as for the forward mode, which would take longer than a small reading.
        """
        directions = directions.to(self.map.point)
        with _once("differentiated twice"):
            if self._forward_works is None:
                self._forward_works = self.entries > _SMALL and self._try_forward(directions[:1])
            if self._forward_works:
                return vmap(self._forward, chunk_size=self._lanes)(directions)
            if self._along is None:
                zeros = torch.zeros(self.entries, dtype=self.map.point.dtype, device=self.map.point.device)
                self._along = vjp(lambda v: self._pull(v)[0], zeros)[1]
            result: Tensor = vmap(self._along, chunk_size=self._lanes)(directions)[0]
        return result

    @property
    def _lanes(self) -> int:
        """How many directions are followed at once."""
        return max(1, min(128, _LANE_BYTES // (8 * (2 * self.entries + 8 * self.unknowns))))

    def _flat(self, point: Tensor) -> Tensor:
        return flatten(self.map(point))

    @property
    def _pull(self) -> Callable[[Tensor], tuple[Tensor]]:
        """The way back, v -> J'v."""
        if self._back is None:
            self._back = vjp(self._flat, self.map.point)[1]
        return self._back

    def _forward(self, direction: Tensor) -> Tensor:
        slope: Tensor = jvp(self._flat, (self.map.point,), (direction,))[1]
        return slope

    def _try_forward(self, directions: Tensor) -> bool:
        try:
            vmap(self._forward)(directions)
        except (NotImplementedError, RuntimeError):
            return False
        return True


def rounding_deviation(passed: Tensor, before: Tensor, dtype: torch.dtype) -> float:
    """Return the deviation rounding leaves in an upload: half a unit in the last place of its mean magnitude.

    The mean is that of the whole update, scaled as what is sent was: which entries are sent does not change it.

    Args:
        passed: what is sent, flat; entries that are zero are not.
        before: the update before the defence.
        dtype: it is sent in.
    """
    sent = passed != 0
    reference = float(before[sent].double().norm())
    scale = float(passed[sent].double().norm()) / reference if reference > 0 else 1.0
    return 0.5 * float(torch.finfo(dtype).eps) * scale * float(before.double().abs().mean())


@contextmanager
def _once(what: str) -> Iterator[None]:
    """Turn what torch says of an operation it cannot differentiate into a sentence."""
    try:
        yield
    except (NotImplementedError, RuntimeError) as error:
        if "memory" in str(error).lower():
            raise
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CapabilityError(f"the upload cannot be {what} by the images: {reason}") from error
