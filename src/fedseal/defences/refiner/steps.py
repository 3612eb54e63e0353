"""What one local step of Refiner arrived at, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass

from fedseal.core.caveat import Caveat
from fedseal.core.channel import Channel
from fedseal.defences.refiner.refinement import Refined

MOSTLY_TRUE = 0.5
"""Below this share of the way to the refined gradient the projection decides what is sent, not the refinement."""
HARDLY = 0.05
"""Below this share of the true gradient's norm a refined gradient that was sent as it is is nearly the true one."""
FAR = 0.01
"""Mean squared error from which refined images are others than the private ones: 20 dB."""


@dataclass(frozen=True)
class Step:
    """What a local step arrived at.

    Attributes:
        refined: its images or vectors.
        noise: D(x*).
        error: MSE(x*, x).
        gap: |g* - g|.
        size: |g|.
        projected: whether the upload was moved towards the true gradient.
        radius: of the ball.
        kept: share of the words that are nearest to their own vectors; None of images.
    """

    refined: Refined
    noise: float
    error: float
    gap: float = 0.0
    size: float = 0.0
    projected: bool = False
    radius: float = float("inf")
    kept: float | None = None

    @property
    def refined_share(self) -> float:
        """Which share of the way from the true gradient to the refined one the upload went."""
        return self.radius / self.gap if self.projected else 1.0

    def remark(self) -> str:
        """Return it in words."""
        outcome = f"projected to {self.radius:.3g}" if self.projected else "sent as it is"
        words = "" if self.kept is None else f"; {100 * self.kept:.0f} % of the words are nearest to their own vectors"
        return (
            f"refined in {self.refined.steps} steps to a noise ratio D(x*) of {self.noise:.3f} and "
            f"MSE(x*, x) {self.error:.4f}; |g* - g| = {self.gap:.3g}, {outcome}; at the start "
            f"|dUM/dx| = {self.refined.utility_slope:.2g} and |dPM/dx| = {self.refined.privacy_slope:.2g}{words}"
        )

    def channel(self, radius: float) -> Channel:
        """Return what the upload is a function of: the refined images, or, moved into the ball, nearly the private.

        Args:
            radius: how far all local steps together can be from the true update.
        """
        return Channel(deviation=min(radius, self.gap), fed=not self.projected and self.kept is None)

    def caveats(self) -> tuple[Caveat, ...]:
        """Say when what is sent is nearly the true gradient: given back by the projection, or never left."""
        if self.refined_share < MOSTLY_TRUE:
            text = (
                f"sends mostly the true gradient: refined images are {self.gap:.3g} away from it, and the ball of "
                f"{self.radius:.3g} lets {100 * self.refined_share:.0f} % of that way pass."
            )
            return (Caveat("projection", text, "Raise `epsilon`, or give `epsilon_relative`, a share of the norm."),)
        if self.gap < HARDLY * self.size:
            share = f"{100 * self.gap / self.size:.2g} % of its norm away"
            near = f"sends nearly the true gradient: that of refined images is {share}"
            if self.error < FAR:
                advice = "Raise `alpha`, `beta` or `t`: refined images are hardly other than the private ones."
                return (Caveat("hardly refined", f"{near}, as they are nearly the private ones.", advice),)
            text = (
                f"{near}, so no ball changes much. The gradient of this model hardly depends on its images, as with "
                "sigmoids at their initial weights, so that images far from the private ones have it too."
            )
            advice = "A larger `epsilon` changes nothing here; add noise (`refiner+gaussian`), or take another defence."
            return (Caveat("hardly refined", text, advice),)
        return ()
