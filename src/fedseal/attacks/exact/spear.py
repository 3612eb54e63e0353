"""SPEAR: exact recovery of whole batches from the gradient of a linear layer in front of a ReLU.

The weight's gradient is G = D X^T, D the loss' derivatives by the layer's outputs and X its inputs. Its rank is the
number of samples, which need not be known. Behind ReLU the columns of D are sparse, and that alone tells them apart
from their mixtures: directions are sought that are orthogonal to many rows of the singular vectors. Whether the outcome
is exact is known without the truth: a derivative must be there exactly where the claimed input fires the unit. Labels
are not needed.

Equations: G = U S V^T, D = U Q, X^T = Q^-1 S V^T, Q d = U^T h with h the bias' gradient (Dimitrov et al. 2024, Sec. 3).

Threat model: passive server.

Departures: directions are first sought by reweighted least squares from random starts, then by the paper's draws of
rows: photographs fire much the same units, and of twelve of CIFAR-10 200,000 draws did not tell all apart, where the
descent does in half a second; zeros are told by the noise that is left beside the rank, row by row, not by constants;
rows that sparse directions vanish on are drawn more often, which finds batches whose samples fire alike; members of a
basis are exchanged for other directions as long as the certificate grows. Where the batch cannot be taken apart, the
rows of single units are read as `first-layer` does.

Cost: a second for what the descent finds, to B = 12 at least; where it does not, about 2^(B - 1) draws of B - 1 rows, B
the batch size, each a small linear system.

Known breaks: pruning and strong noise hide the rank; several local steps move the weights between samples; a layer
without ReLU behind it has no zeros (see `cocktail`); equal samples are one. A defence that scales, however unevenly
among clients, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedseal.attacks.exact.layer import LayerSeparation, LayerUpdate
from fedseal.attacks.exact.separation import CHUNK, Separated, expected_draws, separate
from fedseal.attacks.spectrum import Spectrum
from fedseal.core.attack import ATTACKS, Budget
from fedseal.core.errors import CapabilityError
from fedseal.core.ranges import Count
from fedseal.core.registry import Info
from fedseal.core.seeds import generator
from fedseal.models.gates import LinearGate

_HOPELESS = 30.0


@ATTACKS.register(
    "spear",
    Info(
        "exact batches from a linear layer in front of a ReLU, with a certificate",
        paper="Dimitrov et al., NeurIPS 2024",
        threat="passive",
        needs=("batch_size",),
    ),
)
class Spear(LayerSeparation):
    """Separates samples by the zeros that ReLU leaves in their derivatives.

    Args:
        draws: at most; a budget of iterations counts them in batches of 4,096.
        steps: of the inversion of features, where the layer does not see the images themselves.
    """

    def __init__(self, draws: Count = 200_000, steps: int = 300) -> None:
        super().__init__(steps)
        self.draws = draws

    def choose(self, gates: Sequence[LinearGate]) -> LinearGate:
        """Return the first linear layer with a bias and a ReLU behind it."""
        for gate in gates:
            if gate.gated and gate.bias_name is not None:
                return gate
        raise CapabilityError(
            "spear needs a linear layer with a bias and a ReLU behind it.",
            hint="Smooth activations are taken apart by `cocktail`; other models are attacked by matching, as by `ig`.",
        )

    def separate(self, layer: LayerUpdate, found: Spectrum, budget: Budget, seed: int) -> tuple[Separated | None, str]:
        """Search for sparse directions until the certificate is 1 or the draws are spent."""
        draws = self.draws if budget.iterations is None else budget.iterations * CHUNK
        needed = expected_draws(found.rank)
        if not found.clear:
            return None, "not exact: the spectrum has no clear gap, so noise hides how many samples there are"
        if needed > _HOPELESS * draws:
            return None, f"not exact: about {needed:.0e} draws would be needed, and {draws} were allowed"
        source = generator(seed, "spear")
        result = separate(found, layer.bias, (layer.weight, layer.shift), draws, source)
        if result is None:
            return None, f"not exact: fewer than {found.rank} directions in {draws} draws"
        if result.agreement == 1:
            return result, f"exact: certificate 1 after {result.draws} draws"
        return result, f"not certified: {result.agreement:.4f} of units and samples agree after {draws} draws"
