"""What the threat model means for matching: local steps simulated or averaged, statistics to compare with."""

from __future__ import annotations

from torch.nn.modules.batchnorm import _BatchNorm

from fedseal.attacks.matching.priors import Priors, Statistics
from fedseal.attacks.matching.problem import Surrogate, Unroll
from fedseal.attacks.matching.recipe import LocalSteps
from fedseal.core.errors import CapabilityError
from fedseal.core.observation import Observation


def unrolled(observation: Observation, local_steps: LocalSteps) -> Unroll | None:
    """Return the local steps to simulate; None where the update is read as one mean gradient."""
    knowledge = observation.knowledge
    if local_steps != "unroll" or observation.update.kind == "gradient" or (knowledge.clients or 1) > 1:
        return None
    if knowledge.learning_rate is None or knowledge.local_steps is None:
        raise CapabilityError(
            "unrolling local steps needs the learning rate and their number.",
            hint="Grant `learning_rate` and `local_steps` under `attacker:` in the scenario.",
        )
    return Unroll(knowledge.local_steps, knowledge.learning_rate, knowledge.local_epochs or 1, knowledge.rule)


def surrogate_for(observation: Observation, local_steps: LocalSteps, rate: float) -> Surrogate | None:
    """Return where one gradient stands for all local steps; None at the weights that were sent, as of a gradient."""
    wanted = local_steps == "surrogate" and observation.update.kind == "delta"
    return Surrogate(rate) if wanted else None


def remarks(observation: Observation, local_steps: LocalSteps) -> tuple[str, ...]:
    """Return what is to be said of how the update was read."""
    knowledge = observation.knowledge
    several = (knowledge.clients or 1) > 1 and (knowledge.local_steps or 1) > 1
    if local_steps == "unroll" and several and observation.update.kind == "delta":
        return (
            f"local steps were averaged, not unrolled: the update is the mean of {knowledge.clients} clients' changes, "
            "whose paths cannot be told apart",
        )
    return ()


def known_statistics(observation: Observation, priors: Priors) -> Statistics | None:
    """Return the normalisation statistics the prior on them compares with; None switches it off."""
    if not priors.bn or priors.bn_source == "none":
        return None
    if priors.bn_source == "batch":
        if observation.knowledge.bn_statistics is None:
            raise CapabilityError(
                "the prior on batch normalisation statistics needs those of the client's batch.",
                hint="Set `client.bn_mode: train-exact-stats`, or give the attack bn=running or bn=none.",
            )
        return observation.knowledge.bn_statistics
    return {
        name: (module.running_mean, module.running_var)
        for name, module in observation.model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None and module.running_var is not None
    } or None
