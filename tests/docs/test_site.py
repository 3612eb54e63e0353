"""What the site's pages promise: the API page names everything public, the navigation every page."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fedseal

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_api_page_has_every_public_name_and_no_other() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    named = {line.rpartition(".")[2] for line in re.findall(r"^\.\. auto\w+:: (\S+)", text, re.MULTILINE)}
    assert named == set(fedseal.__all__) - {"__version__"}


@pytest.fixture(scope="module")
def conf(script: Callable[[Path], ModuleType]) -> ModuleType:
    return script(DOCS / "conf.py")


def test_a_page_is_in_the_navigation_as_soon_as_it_is_in_the_tree(conf: Any) -> None:
    found = {"index", "start", "flower", "just-landed", "guides/my-model", "guides/new", "results/README", "results/x"}
    app = SimpleNamespace(env=SimpleNamespace(found_docs=found))
    source = ["```{toctree}\nstart\n```\n```{toctree}\n%GUIDES%\n```\n"]
    conf._navigation(app, "index", source)
    assert source == ["```{toctree}\nstart\n```\n```{toctree}\nguides/my-model\nflower\nguides/new\njust-landed\n```\n"]
    source = ["# Results\n"]
    conf._navigation(app, "results/README", source)
    assert source[0].endswith("\n/results/x\n```\n")
    app.env.found_docs = found - {"results/x"}
    source = ["# Results\n"]
    conf._navigation(app, "results/README", source)
    assert source == ["# Results\n"]


def test_a_site_that_loads_from_elsewhere_is_refused(conf: Any, tmp_path: Path) -> None:
    app = SimpleNamespace(outdir=tmp_path)
    (tmp_path / "fine.html").write_text('<a href="https://example.org">link</a><script src="_static/x.js"></script>')
    conf._loads_nothing_from_elsewhere(app, None)
    for text in ('<script src="https://cdn.example/x.js">', '<link rel="stylesheet" href="//fonts.example/f.css">'):
        (tmp_path / "bad.html").write_text(text)
        with pytest.raises(Exception, match="loads from the network"):
            conf._loads_nothing_from_elsewhere(app, None)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", str(tmp_path / "trees")]
    done = subprocess.run([*command, str(DOCS), str(tmp_path / "site")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "site" / "searchindex.js").is_file()
