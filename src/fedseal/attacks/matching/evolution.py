"""CMA-ES (Hansen 2016) in the place of a descent: values only, no slopes; by the package `cmaes` (extra `tune`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedseal.attacks.matching.descent import Surroundings
from fedseal.attacks.matching.evaluation import Evaluate
from fedseal.attacks.matching.problem import Lanes
from fedseal.attacks.matching.roster import Roster, Solution
from fedseal.core.errors import UsageError

_HOPELESS = 1e30


@dataclass(frozen=True)
class Evolution:
    """Minimises each lane by a population of its own; a step is a generation.

    Attributes:
        population: candidates of a generation.
        spread: their deviation at first.
    """

    population: int = 16
    spread: float = 1.0

    def minimise(self, evaluate: Evaluate, z: Tensor, lanes: Lanes, iterations: int, around: Surroundings) -> Solution:
        """Let `iterations` generations follow z [L, D]; return the best candidates there were."""
        strategies = [
            _strategy(one.double().cpu().numpy(), self, int(torch.randint(2**31, (1,), generator=source)))
            for one, source in zip(z, around.sources, strict=True)
        ]
        roster = Roster(z, lanes)
        best, values = z.clone(), z.new_full((len(z),), float("inf"))
        for step in range(iterations):
            if step % around.report_every == 0:
                around.report(step, *roster.record(step, best, values, lanes))
            for lane, strategy in enumerate(strategies):
                asked = np.stack([strategy.ask() for _ in range(self.population)])
                candidates = torch.as_tensor(asked).to(z)
                own = lanes.pick(torch.full((self.population,), lane, device=z.device))
                found = evaluate(candidates, own).values.nan_to_num(_HOPELESS, _HOPELESS, _HOPELESS)
                strategy.tell([(one, min(value, _HOPELESS)) for one, value in zip(asked, found.tolist(), strict=True)])
                least = int(found.argmin())
                if float(found[least]) < min(float(values[lane]), _HOPELESS):
                    best[lane], values[lane] = candidates[least], found[least]
        around.report(iterations, *roster.record(iterations, best, values, lanes))
        return roster.solution()


def _strategy(mean: Any, options: Evolution, seed: int) -> Any:
    try:
        from cmaes import CMA
    except ImportError as error:
        raise UsageError("searching by CMA-ES needs the package cmaes.", hint="pip install 'fedseal[tune]'") from error
    return CMA(mean=mean, sigma=options.spread, population_size=options.population, seed=seed)
