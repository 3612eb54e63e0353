"""What people and machines do to the command line: bad inputs, odd consoles, full disks, missing rights.

What must hold: exit code 2 and one line that begins with `error:`, never a traceback, never the code of a found risk.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from campaign.outcomes import Tally
from campaign.processes import Ended, start

_QUICK = "--data faces:size=8 --attack ig:iterations=1 --targets 1 --workers 1"
_NETS = """
import torch
from torch import nn

class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 2)
    def forward(self, x):
        x *= 2
        return self.last(x.flatten(1))

class Raises(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(64, 2)
    def forward(self, x):
        raise LookupError("no idea")
"""

BAD: dict[str, str] = {
    "zero learning rate": f"audit {_QUICK} --attack ig:lr=0",
    "negative total variation": f"audit {_QUICK} --attack ig:tv=-1",
    "NaN option": f"audit {_QUICK} --attack ig:lr=nan",
    "zero client learning rate": "audit zero.yaml",
    "duplicate keys": "audit twice.yaml",
    "several wrong keys": "audit wrong.yaml",
    "impossible date": "audit date.yaml",
    "alias bomb": "audit bomb.yaml",
    "deep nesting": "audit deep.yaml",
    "5,000 digits": "audit digits.yaml",
    "empty !!int": "audit empty.yaml",
    "negative labels": "audit --data npz:negative.npz --targets 1",
    "one class": "audit --data npz:one.npz --targets 1",
    "text named .npz": "audit --data npz:text.npz",
    "comma in a path": "audit --data folder:path=a,b,size=8",
    "missing --data-root": "audit --data cifar10 --data-root nowhere",
    "operation in place": f"audit {_QUICK} --model campaign_nets:InPlace",
    "model that raises": f"audit {_QUICK} --model campaign_nets:Raises",
    "a model too deep": f"audit {_QUICK} --model mlp:depth=100000",
    "a device without numbers": f"audit {_QUICK} --device meta",
    "a path of nobody": "audit --data folder:~nouser/x",
    "a path too long": f"audit --data folder:{'x' * 5000}",
    "a scenario path too long": f"audit {'x' * 5000}",
    "an unknown loss": "audit loss.yaml",
    "a loss that does not fit": "audit fit.yaml",
    "an evaluator at no rate": "train-evaluator --data faces --lr nan",
    "a model that leaves": f"audit {_QUICK} --model sys:exit --fail-on low",
    "a training without a model": "train --model campaign_nets:Raises",
}

_FEW = f"{{fedseal}} audit {_QUICK} --defence topk --workers 2"
_SHELL: dict[str, tuple[str, tuple[int, ...]]] = {
    "a console that knows ASCII only": ("PYTHONIOENCODING=ascii {fedseal} list attacks", (0,)),
    "a full output": ("{fedseal} list attacks > /dev/full", (2,)),
    "a closed output": ("{fedseal} list attacks >&-", (0, 2)),
    "six open files": (f"ulimit -n 6; {_FEW}", (2,)),
    "twelve open files": (f"ulimit -n 12; {_FEW}", (2,)),
    "twenty open files": (f"ulimit -n 20; {_FEW}", (0, 2)),  # enough for two workers, if the shell itself has few open
}
"""What is typed, and the exit codes that are right; with 2 goes a line that says why."""
_LIMIT = 900.0
"""Seconds after which a command hangs: a busy machine takes minutes to start one."""

_FILES = {
    "zero.yaml": "client: {learning_rate: 0}\n",
    "twice.yaml": "data: faces\ndata: digits\n",
    "wrong.yaml": "dataa: faces\ntargets: few\nclient: {batch: 3}\n",
    "date.yaml": "name: 2001-02-30\n",
    "deep.yaml": "data: " + "[" * 1000 + "]" * 1000 + "\n",
    "digits.yaml": "targets: " + "9" * 5000 + "\n",
    "empty.yaml": "targets: !!int ''\n",
    "bomb.yaml": "a: &a [x,x,x,x,x,x,x,x,x]\n"
    + "".join(
        f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "loss.yaml": "loss: crossentropy\n",
    "fit.yaml": "data: digits:size=8\nmodel: campaign_nets:two\n",
    "text.npz": "images, labels\n",
    "campaign_nets.py": _NETS + "\ndef two():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5))\n",
}


def prepare(place: Path) -> None:
    """Write the files the commands name."""
    for name, text in _FILES.items():
        (place / name).write_text(text)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(place / "negative.npz", images=pixels, labels=np.arange(40) % 3 - 1)
    np.savez(place / "one.npz", images=pixels, labels=np.zeros(40, np.int64))


def commands(place: Path) -> Tally:
    """Run every bad command, and sound ones on broken consoles, each in a process of its own."""
    place.mkdir(parents=True, exist_ok=True)
    prepare(place)
    tally = Tally("command line")
    for name, words in BAD.items():
        child = start(words.split(), place, {"FEDSEAL_CACHE": str(place / "cache")})
        if not child.wait(_LIMIT):
            child.send(signal.SIGKILL)
            tally.add(name, "hang", words[:200])
            continue
        _expect(tally, name, child.ended(), (2,))
    for name, (text, codes) in _SHELL.items():
        try:
            done = subprocess.run(
                ["bash", "-c", text.format(fedseal=f"'{sys.executable}' -m fedseal")],
                cwd=place,
                capture_output=True,
                text=True,
                timeout=_LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            tally.add(name, "hang", text)
            continue
        _expect(tally, name, Ended(done.returncode, done.stderr), codes)
    return tally


def _expect(tally: Tally, name: str, done: Ended, codes: tuple[int, ...]) -> None:
    """Count what a command did: one of these codes, and a line of its own with 2."""
    said = done.said.strip().splitlines()
    if "Traceback" in done.said:
        tally.add(name, "traceback", done.said[-800:])
    elif done.code not in codes:
        tally.add(name, "silently wrong", f"exit code {done.code}: {done.said[-300:]}")
    elif done.code == 2 and (not said or not said[-1].startswith("error: ")):
        tally.add(name, "silently wrong", f"no line of its own: {done.said[-300:]}")
    else:
        tally.add(name, "refused" if done.code == 2 else "taken")
