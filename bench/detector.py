"""Calibrate the detector and measure it: thresholds, false alarms, and how far attacks can be weakened.

    python bench/detector.py [--seeds 8] [--strikes 1] [--write bench/out]
    python bench/detector.py --seer bench/lids.yaml --data-root DIR --write bench/out

Thresholds are judged on the first four seeds' checkpoints and false alarms counted on all others, which they were not
chosen on. About twenty minutes on one core; everything but `--seer` runs on embedded data. With `--seer` the detector
also looks at the attackers of that experiment, which `bench/lids.py` trains (those in the cache are not trained again).
Measurements go to `bench/out/detector.json`, and a part that is there already is not measured again (`--again` for a
new start); `--write` renews `detector.md` and `detector.svg`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import torch
from scipy.stats import beta

from detectorbench.chart import Curve, draw
from detectorbench.honest import DATA, LEARNING_RATE, MODELS, PAIRS, STAGES, TEXT_MODELS, TEXTS, Checkpoint, checkpoints
from detectorbench.trained import BATCHES, Trained, trained_weapons
from detectorbench.weapons import ADAPTED, ATTACKS_TRIED, NOISE, VICTIMS, Strike, strike, victims_of
from fedseal.core.files import write_atomically
from fedseal.detection.death import OUTWEIGHED
from fedseal.detection.readings import CHECKS, THRESHOLDS

CALIBRATION_SEEDS = 4
BOUND = 0.01
OUT = Path(__file__).parent / "out" / "detector.json"
Part = TypeVar("Part", Checkpoint, Strike, Trained)


def main() -> None:
    """Run everything and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8, help="of honest training; the first four calibrate")
    parser.add_argument("--strikes", type=int, default=1, help="batches per weakened attack and model")
    parser.add_argument("--seer", type=Path, help="experiment whose SEER attackers are looked at")
    parser.add_argument("--data-root", type=Path, help="where its data are")
    parser.add_argument("--again", action="store_true", help="measure everything again")
    parser.add_argument("--write", type=Path, help="directory for detector.md and detector.svg")
    given = parser.parse_args()
    torch.set_num_threads(1)
    record = Record(given.again)
    honest = [
        point
        for name, data in PAIRS
        for point in record.part(
            f"honest {name} {data} {given.seeds}", Checkpoint, partial(checkpoints, name, data, range(given.seeds))
        )
    ]
    print(_honest_table(honest))
    strikes = [
        point
        for attack in ATTACKS_TRIED
        for point in record.part(f"strikes {attack} {given.strikes}", Strike, partial(_strikes, attack, given.strikes))
    ]
    print(_strike_table(strikes))
    weapons = []
    if given.seer is not None:
        weapons = record.part(f"seer {given.seer}", Trained, partial(trained_weapons, given.seer, given.data_root))
        print(_seer_table(weapons))
    if given.write is not None:
        curves = {attack: _curve(strikes, attack) for attack in ATTACKS_TRIED}
        write_atomically(given.write / "detector.svg", draw(curves).encode())
        write_atomically(given.write / "detector.md", _page(honest, strikes, weapons).encode())


class Record:
    """Measurements by part, kept in a file as soon as a part is whole."""

    def __init__(self, again: bool) -> None:
        self._parts: dict[str, list[dict[str, Any]]] = {}
        if OUT.is_file() and not again:
            self._parts = json.loads(OUT.read_text())

    def part(self, name: str, kind: type[Part], measure: Callable[[], Iterable[Part]]) -> list[Part]:
        """Return a part, measured if it is not there."""
        if name not in self._parts:
            self._parts[name] = [vars(point) for point in measure()]
            OUT.parent.mkdir(exist_ok=True)
            write_atomically(OUT, json.dumps(self._parts, indent=1).encode())
        return [kind(**point) for point in self._parts[name]]


def _strikes(attack: str, count: int) -> Iterator[Strike]:
    for model, noise, seed in product(victims_of(attack), NOISE, range(count)):
        yield strike(attack, model, noise, seed)


def _honest_table(honest: list[Checkpoint]) -> str:
    lines = [
        "| check | threshold | largest, calibration | largest, held out | false alarms, held out |",
        "|---" * 5 + "|",
    ]
    first = [point for point in honest if point.seed < CALIBRATION_SEEDS]
    others = [point for point in honest if point.seed >= CALIBRATION_SEEDS]
    for check in CHECKS:
        limit = THRESHOLDS[check]
        seen, held = ([p.values[check] for p in part if check in p.values] for part in (first, others))
        alarms = sum(value > limit for value in held)
        lines.append(f"| {check} | {limit:g} | {_largest(seen)} | {_largest(held)} | {alarms} of {len(held)} |")
    lines.append(f"\nCheckpoints with any alarm: {_rate(others)} held out, {_rate(honest)} in all.")
    verdicts = f"{_verdict(others)} on those held out and {_verdict(honest)} in all"
    lines.append(f"That at most {BOUND:.0%} of honest checkpoints raise one {verdicts}.")
    return "\n".join(lines)


def _largest(values: list[float]) -> str:
    return f"{max(values):.3g}" if values else "–"


def _raised(points: list[Checkpoint]) -> int:
    """Return how many of the checkpoints raise any alarm."""
    return sum(any(p.values[c] > THRESHOLDS[c] for c in CHECKS if c in p.values) for p in points)


def _rate(points: list[Checkpoint]) -> str:
    """Return how many of the checkpoints raise any alarm, with the upper end of the exact 95 % interval."""
    raised = _raised(points)
    upper = beta.ppf(0.975, raised + 1, len(points) - raised) if raised < len(points) else 1.0
    return f"{raised} of {len(points)} ({raised / len(points):.2%}, 95 % interval up to {upper:.1%})"


def _verdict(points: list[Checkpoint]) -> str:
    return "holds" if _raised(points) <= BOUND * len(points) else "does not hold"


def _strike_table(strikes: list[Strike]) -> str:
    lines = ["| attack | " + " | ".join(f"noise {noise:g}" for noise in NOISE) + " | checks at full strength |"]
    lines.append("|---" * (len(NOISE) + 2) + "|")
    for attack in ATTACKS_TRIED:
        cells = [f"{detected:.0%} / {leaked:.0%}" for _, detected, leaked in _curve(strikes, attack)]
        full = Counter(a for s in strikes if s.attack == attack and s.noise == 0 for a in s.alarms)
        lines.append(f"| {attack} | " + " | ".join(cells) + f" | {', '.join(sorted(full)) or 'none'} |")
    return "\n".join(lines)


def _seer_table(weapons: list[Trained]) -> str:
    lines = [
        "| property | trained on LIDS's batches | batches with an alarm | checks | single direction, least | D-SNR |",
        "|---" * 6 + "|",
    ]
    for one in weapons:
        checks = ", ".join(f"{check} ({count})" for check, count in sorted(one.checks.items())) or "none"
        lines.append(
            f"| {one.property} | {'yes' if one.adaptive else 'no'} | {one.flagged:.0%} | {checks} | "
            f"{one.values['single direction']:.2f} | {one.dsnr:.1f} |"
        )
    return "\n".join(lines)


def _curve(strikes: list[Strike], attack: str) -> Curve:
    own = [point for point in strikes if point.attack == attack]
    points = []
    for noise in NOISE:
        here = [point for point in own if point.noise == noise]
        leaks = [point.leak for point in here if math.isfinite(point.leak)]
        points.append((noise, fmean(bool(point.alarms) for point in here), fmean(leaks) if leaks else 0.0))
    return points


def _page(honest: list[Checkpoint], strikes: list[Strike], weapons: list[Trained]) -> str:
    seeds = sorted({point.seed for point in honest})
    per = len([one for one in strikes if one.attack == ATTACKS_TRIED[0]]) // len(NOISE)
    models, victims, of_text = (", ".join(f"`{name}`" for name in names) for names in (MODELS, VICTIMS, TEXT_MODELS))
    planned = len(PAIRS) * len(STAGES) * len(seeds)
    return f"""# The detector: false alarms, and what it sees of weakened attacks

`fedseal.detect(model, batch)` looks at a received model before the client answers. Renew this page with

    python bench/detector.py --seer bench/lids.yaml --data-root DIR --write bench/out

## Honest models

{len(honest)} checkpoints: {models} on
{" and ".join(f"`{name}`" for name in DATA)}, {of_text} on `{TEXTS}`,
after {", ".join(map(str, STAGES))} steps of SGD with momentum at learning
rate {LEARNING_RATE:g}, seeds {seeds[0]} to {seeds[-1]}; each read with a batch of 16, even seeds with batch statistics.
Nothing is left out that could be trained: {_lost(planned - len(honest))} Thresholds were
chosen with the first {CALIBRATION_SEEDS} seeds in sight; false alarms are counted on the others. Values are larger the
more suspicious.

{_honest_table(honest)}

{_alarms(honest)}

- **Dead networks are no alarm.** {sum(point.died for point in honest)} checkpoints died in training: some layer is
  silent on every input, and no gradient passes it. A layer that was killed to suppress gradients blocks them too, but
  has no weights, or such as its biases outweigh, while training moves both together: the median ratio of a unit's bias
  to the norm of its weights is 0.19 at most in networks that died, 4.7 or more in `suppression` blurred by noise up to
  0.3, and the limit is {OUTWEIGHED:g}. The detector says in a note that a network died: nothing leaks from a gradient
  of zeros. A server that forges the weights of a dead layer is not told from one that trains badly; comparing
  fingerprints tells. The rule was made with `lenet-relu` at learning rates up to 0.5 and seeds 0 to 7 in sight,
  everything else, but for the next item, with the calibration seeds alone.
- **The absolute D-SNR is no alarm either.** It reaches {max(p.dsnr for p in honest if math.isfinite(p.dsnr)):.2g} here,
  once all samples of a batch but one are learnt. It is reported for every layer; judged is what the loss leaves
  unexplained. It was an alarm (limit 10,000) until one more of the checkpoints held out had raised it.
- Networks that diverge have outsized weights, and networks with few units alive let single samples dominate: both
  raise alarms here, and are counted.
- A last layer initialised with zeros blocks every gradient in the first round, and kernels initialised as identities
  are bare: such honest practice, not among the models above, raises an alarm.

Models far from the ones above may need thresholds of their own: `detect(..., thresholds=...)`.

## Attacks, whole and weakened

Share of attacks detected / share that still leaks, over {per} attacks per cell (models {victims};
`peftleak`, which needs adapters, on `{ADAPTED}` alone; digits, batch 8;
LOKI and suppression with two clients). The server adds Gaussian noise to everything it altered, in
units of its root mean square; noise 0 is the attack as it is by default. "Leaks" is the share of images read off to
20 dB; for `fishing` and `suppression` it is the squared cosine of the isolated gradient and that of the images alone.
For suppression the client that looks is one of those silenced: the target receives an honest model and can only notice
by comparing fingerprints with the others, which always tells. `imprint` and `loki` stay visible at any noise by their
outsized weights, which amplify their gradients; by parallel rows alone they are seen up to noise 0.3.
`cah` leaks at every noise because at batch 8 random first-layer weights do: a neuron that fires for one sample of eight
is common, and there is nothing to detect in that.

{_strike_table(strikes)}

![Detection and leakage over noise](detector.svg)

## SEER

{_seer_section(weapons)}
"""


def _lost(count: int) -> str:
    if not count:
        return "no run diverged to NaN."
    return f"runs that diverged to NaN have no further checkpoints ({count} of them; `detect` refuses NaN)."


def _alarms(honest: list[Checkpoint]) -> str:
    """Return which honest checkpoints raise an alarm, and why."""
    raised: dict[tuple[str, str, int], dict[int, list[str]]] = {}
    for point in honest:
        checks = [check for check in CHECKS if point.values.get(check, -math.inf) > THRESHOLDS[check]]
        if checks:
            raised.setdefault((point.model, point.data, point.seed), {})[point.step] = checks
    if not raised:
        return "No honest checkpoint raises an alarm."
    lines = ["Honest checkpoints that raise an alarm all the same:", ""]
    for (model, data, seed), steps in raised.items():
        when = "; ".join(f"step {step}: {', '.join(checks)}" for step, checks in steps.items())
        lines.append(f"- `{model}` on `{data}`, seed {seed}: {when}.")
    return "\n".join(lines)


def _seer_section(weapons: list[Trained]) -> str:
    if not weapons:
        return "Not measured here: give `--seer`."
    whole = sum(one.flagged == 1 for one in weapons)
    least = min(one.flagged for one in weapons)
    limit = THRESHOLDS["single direction"]
    return f"""The models that SEER's CPU preset trained (`bench/lids.py`), each looked at by clients with
{BATCHES} batches of 8 real images and batch statistics: {whole} of {len(weapons)} are flagged on every batch, all on
{least:.0%} of the batches or more. They keep the D-SNR low, as their paper says, and it does not tell them from honest
training. What does is their last layer: it serves a decoder and not classes, so most of its energy lies in one
direction, and one sample's features outweigh the others'. The check multiplies both and needs eight classes; its limit
of {limit:g} was chosen with these attackers and the calibration seeds in sight.

What passes: attackers trained for several clients (`mode=thresh`, `bench/seer_clients.py`), which isolate a
sample only now and then, on most batches; and a narrow one trained on digits of 8 x 8 pixels (`convbn:width=8`, 0.1 to
0.3). The authors' preset, which reads all layers, and a server that adds a classification loss were not tried.

{_seer_table(weapons)}"""


if __name__ == "__main__":
    main()
