"""Make the pages of docs/results, each by its commands, from one commit that it names.

    python docs/results/make.py [PAGE ...] [--data-root DIR] [--runs runs] [--render]

`pages.yaml` says what a page is made of. Audits and trainings resume, so an interrupted call goes on. A page is refused
where the package or its scenarios differ from the commit it would name; `--render` writes pages again from runs that
are there, after their words (`PAGE/words.md`) have changed. Words say by `<!-- table: SCENARIO -->` where a table goes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path += [str(HERE), str(ROOT / "bench")]

from compact import KEY, TRAINING_KEY, render_compact, render_outcomes, render_training  # noqa: E402

from fedseal.audit.runner import open_run  # noqa: E402
from fedseal.report.protocol import render_protocol_markdown  # noqa: E402
from fedseal.training.run import open_training  # noqa: E402
from provenance import changed, made_from, of_one_state, state  # noqa: E402

KEYS = {"audit": KEY, "train": TRAINING_KEY}
"""How tables are read, by what made them."""


@dataclass(frozen=True)
class Page:
    """One page.

    Attributes:
        name: of its file, and of the folder with its words.
        title: its heading.
        scenarios: what it audits or trains, in this order.
        prepared: options of `fedseal prepare`, called before.
        asked: options of `fedseal infer`, called behind.
        path: where models are that are no part of the package.
    """

    name: str
    title: str
    scenarios: tuple[str, ...]
    prepared: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    path: str = ""

    @property
    def words(self) -> str:
        """What is said of the tables."""
        return (HERE / self.name / "words.md").read_text(encoding="utf-8").strip()


def pages() -> dict[str, Page]:
    """Return all pages by name."""
    found = yaml.safe_load((HERE / "pages.yaml").read_text(encoding="utf-8"))
    return {
        name: Page(
            name,
            about["title"],
            tuple(about["scenarios"]),
            tuple(about.get("prepare", ())),
            tuple(about.get("infer", ())),
            about.get("path", ""),
        )
        for name, about in found.items()
    }


def verb(scenario: str) -> str:
    """Return which command runs a scenario."""
    keys = yaml.safe_load((HERE / scenario).read_text(encoding="utf-8"))
    return "train" if "federation" in keys else "protocol" if "each" in keys else "audit"


def out_of(scenario: str, runs: Path) -> Path:
    """Return where a scenario's run is kept, seen from the repository."""
    return runs / scenario.removesuffix(".yaml").replace("/", "-")


def command(scenario: str) -> str:
    """Return a scenario's command as a reader types it."""
    return f"fedseal {verb(scenario)} docs/results/{scenario} --data-root DIR --out {out_of(scenario, Path('runs'))}"


def answer_to(page: Page, number: int, runs: Path) -> Path:
    """Return where the answer to one of a page's questions is kept, seen from the repository."""
    return runs / f"{page.name}-infer-{number}.json"


def run(page: Page, runs: Path, data_root: Path | None) -> None:
    """Run what is left of a page's preparations, scenarios and questions."""
    environment = os.environ | ({"FEDSEAL_DATA": str(data_root.absolute())} if data_root else {})  # in no run's command
    if page.path:
        environment |= {"PYTHONPATH": os.pathsep.join([page.path, os.environ.get("PYTHONPATH", "")])}
    for options in page.prepared:
        _call(["prepare", *shlex.split(options)], environment)
    for scenario in page.scenarios:
        out = str(out_of(scenario, runs))
        _call([verb(scenario), f"docs/results/{scenario}", "--out", out, "--workers", "1"], environment)
    for number, options in enumerate(page.asked):
        kept = ROOT / answer_to(page, number, runs)
        if not kept.is_file():
            kept.write_bytes(_call(["infer", *shlex.split(options), "--json"], environment, piped=True))


def _call(arguments: list[str], environment: dict[str, str], *, piped: bool = False) -> bytes:
    """Call fedseal, and return what it printed if that is piped."""
    words = [sys.executable, "-m", "fedseal", *arguments]
    done = subprocess.run(words, cwd=ROOT, env=environment, check=False, stdout=subprocess.PIPE if piped else None)
    if done.returncode not in {0, 1, 3}:  # 1 is a leak that was found, 3 trials that failed and are shown as such
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}")
    return done.stdout or b""


def table(scenario: str, runs: Path) -> str:
    """Return a run's tables."""
    out = ROOT / out_of(scenario, runs)
    if verb(scenario) == "protocol":
        return render_protocol_markdown(open_run(out))
    if verb(scenario) == "train":
        return render_training(open_training(out))
    return render_compact(open_run(out))


def render(page: Page, runs: Path) -> str:
    """Return a page's text: its words with each scenario's table where they ask for it, or behind them."""
    tables = {scenario: _lowered(table(scenario, runs).strip()) for scenario in page.scenarios}
    for number, options in enumerate(page.asked):
        answer = json.loads((ROOT / answer_to(page, number, runs)).read_text(encoding="utf-8"))
        tables[shlex.split(options)[0]] = render_outcomes(answer).strip()
    text = page.words
    for name in tuple(tables):
        if (asked := f"<!-- table: {name} -->") in text:
            text = text.replace(asked, tables.pop(name))
    within = f"PYTHONPATH={page.path} " if page.path else ""
    lines = [
        f"# {page.title}",
        "",
        made_from(),
        f"by `python docs/results/make.py {page.name}`, that is",
        "",
        *(f"    fedseal prepare {options} --data-root DIR" for options in page.prepared),
        *(f"    {within}{command(scenario)}" for scenario in page.scenarios),
        *(f"    {within}fedseal infer {options} --data-root DIR" for options in page.asked),
        "",
        *(
            line
            for kind, key in KEYS.items()
            if kind in {verb(scenario) for scenario in page.scenarios}
            for line in (key, "")
        ),
        text,
        "",
        *(f"{_headed(scenario, found)}\n" for scenario, found in tables.items()),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _lowered(text: str) -> str:
    """Return text with its headings a level lower, below the page's own."""
    return re.sub(r"^#+ ", lambda found: "#" + found[0], text, flags=re.MULTILINE)


def _headed(scenario: str, found: str) -> str:
    """Return a table that stands behind the words, with a heading if it has none of its own."""
    return found if found.startswith("## ") else f"## {Path(scenario).stem}\n\n{found}"


def main() -> None:
    """Make the pages that are asked for, or all."""
    known = pages()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*known, []], help="pages; all by default")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="in the repository, or anywhere else")
    parser.add_argument("--render", action="store_true", help="run nothing")
    given = parser.parse_args()
    for page in [known[name] for name in given.names or known]:
        if found := changed([f"docs/results/{scenario}" for scenario in page.scenarios]):
            raise SystemExit("commit first, so that the page can name a commit:\n" + "\n".join(found))
        kept = ROOT / given.runs / f"{page.name}.state"
        if not given.render:
            run(page, given.runs, given.data_root)
            kept.write_text(state(), encoding="utf-8")
        of_one_state([kept.read_text(encoding="utf-8") if kept.is_file() else "unknown"], ())
        (HERE / f"{page.name}.md").write_text(render(page, given.runs), encoding="utf-8")


if __name__ == "__main__":
    main()
