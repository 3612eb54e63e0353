"""A training run as a Markdown document: the setting, a table of costs, and every curve in numbers."""

from __future__ import annotations

from fedseal.metrics.intervals import Interval
from fedseal.report import words
from fedseal.training.run import TrainingRun, Utility

_MOST_POINTS, _MOST_CLASSES = 11, 20
_HEAD = (
    "| defence | accuracy | AUC | PMM | rounds to target | upload per client and round | s per round | epsilon | "
    "uploads refused |\n" + "|---" * 9 + "|\n"
)


def render_utility(run: TrainingRun) -> str:
    """Return the document."""
    table = _HEAD + "\n".join(_row(run, one) for one in run.utilities)
    caution = [run.caution, ""] if run.caution else []
    return "\n".join([_setting(run), *caution, table, "", *_remarks(run), _curves(run), _classes(run)])


def _setting(run: TrainingRun) -> str:
    scenario, federation = run.scenario, run.scenario.federation
    steps = (
        "one gradient per client and round"
        if federation.algorithm == "fedsgd"
        else f"{federation.local_steps} local steps"
        if federation.local_steps
        else words.plural(federation.local_epochs or 1, "local epoch")
    )
    sampled = federation.clients_per_round or scenario.clients
    seeds = ", ".join(map(str, scenario.seeds))
    target = "" if run.target is None else f" Target accuracy: {run.target:.1%}."
    return (
        f"# Accuracy under each defence: {scenario.name}\n\nBy `{run.command}`.\n\n"
        f"`{scenario.model}` on `{scenario.data}` ({run.environment['training images']} training and {run.test_images} "
        f"test samples), {words.plural(scenario.clients, 'client')} ({sampled} per round), partition "
        f"`{scenario.partition}`; {federation.algorithm}, {steps}, batch {federation.batch_size or 'all'}, learning "
        f"rate {federation.learning_rate:g}, client momentum {federation.momentum:g}, server learning rate "
        f"{federation.server_learning_rate:g}, server momentum {federation.server_momentum:g}, "
        f"{words.plural(federation.rounds, 'round')}; {'seed' if len(scenario.seeds) == 1 else 'seeds'} {seeds}. "
        f"Chance: {run.chance:.1%}.{target}\n\n"
        "PMM is 100 × accuracy with the defence / accuracy of its undefended twin, which has the same data, partition, "
        "weights, sampling and batches. Brackets: 95 % bootstrap interval over seeds, where there are several. Seconds "
        "are wall time, and the machine may have had other work.\n"
    )


def _row(run: TrainingRun, one: Utility) -> str:
    if one.accuracy is None:
        return f"| `{one.defence}` | not trained: {one.refused} |" + " |" * 7
    runs = len([t for t in one.trainings if t.history is not None])
    reached = words.ABSENT if run.target is None else "never" if one.rounds is None else _interval(one.rounds, 0)
    if one.rounds is not None and one.reached < runs:
        reached += f" ({one.reached} of {runs} runs)"
    percent = Interval(
        100 * one.accuracy.mean,
        None if one.accuracy.low is None else 100 * one.accuracy.low,
        None if one.accuracy.high is None else 100 * one.accuracy.high,
        one.accuracy.n,
    )
    chance = "" if one.learnt else " (chance)"
    epsilon = "–" if one.epsilon is None else words.significant(one.epsilon)
    figures = [
        f"{_interval(percent)} %{chance}",
        _interval(one.auc, 3),
        _interval(one.pmm),
        reached,
        words.size(one.bytes_up),
        words.significant(one.seconds),
        epsilon,
        str(one.dropped),
    ]
    return f"| `{one.defence}` | " + " | ".join(figures) + " |"


def _remarks(run: TrainingRun) -> list[str]:
    lines = [f"- `{one.defence}`: {remark}." for one in run.utilities for remark in one.remarks]
    return [f"What the clients' defences say (seed {run.scenario.seeds[0]}):\n", *lines, ""] if lines else []


def _curves(run: TrainingRun) -> str:
    trained = [one for one in run.utilities if one.accuracy is not None]
    if not trained:
        return "Nothing was trained.\n"
    measured = [number for number, _ in trained[0].curve]
    stride = -(-(len(measured) - 1) // (_MOST_POINTS - 1)) or 1
    shown = [*measured[:-1:stride], measured[-1]]
    head = "Accuracy in per cent after so many rounds, mean over seeds:\n\n| defence | "
    lines = [head + " | ".join(map(str, shown)) + " |", "|---" * (len(shown) + 1) + "|"]
    for one in trained:
        curve = dict(one.curve)
        cells = [f"{100 * curve[number]:.1f}" if number in curve else "" for number in shown]
        lines.append(f"| `{one.defence}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _classes(run: TrainingRun) -> str:
    trained = [one for one in run.utilities if one.class_accuracy]
    if not trained or len(run.classes) > _MOST_CLASSES:
        return ""
    lines = ["Accuracy on each class in per cent after the last round, mean over seeds:\n"]
    lines += ["| defence | " + " | ".join(run.classes) + " |", "|---" * (len(run.classes) + 1) + "|"]
    for one in trained:
        cells = [words.ABSENT if share is None else f"{100 * share:.0f}" for share in one.class_accuracy]
        lines.append(f"| `{one.defence}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _interval(interval: Interval | None, digits: int = 1) -> str:
    if interval is None:
        return "–"
    if interval.low is None or interval.high is None:
        return f"{interval.mean:.{digits}f}"
    return f"{interval.mean:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"
