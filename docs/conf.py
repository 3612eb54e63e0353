"""How Sphinx makes the site: `make docs`. Why Sphinx, and how to add a page, is in CONTRIBUTING.md, "Documentation"."""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from fedseal import __version__

project = "fedseal"
author = "The fedseal developers"
copyright = author
release = version = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
root_doc = "index"
exclude_patterns = ["results/*/*.md", "results/*.intro.md"]  # parts of pages
show_warning_types = True

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # notebooks carry their outputs; tests/docs executes them

default_role = "literal"  # docstrings put code in single backticks
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"exclude-members": "model_config, model_post_init, __new__"}
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"fedseal {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_search_summary = False  # summaries are fetched, which a page opened from a file may not
copybutton_exclude = ".linenos, .gp, .go"

INDICES = ("methods/README", "results/README")
"""Pages that list all others of their directory, and have them below them in the navigation."""
GUIDES = (
    *(
        "guides/first-verdict",
        "guides/my-model",
        "guides/my-data",
        "guides/my-update",
        "flower",
        "nvflare",
        "ci",
        "guides/text-and-tables",
    ),
    *("guides/scale-out", "guides/write-an-attack", "guides/write-a-defence"),
)
"""The guides to read first. Whatever else lies in docs/ or docs/guides/ follows by its name: a page is on the site as
soon as it is in the tree."""


def _navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Fill in the parts of the navigation that follow from the tree."""
    if page in INDICES:
        below = sorted(p for p in app.env.found_docs if p.startswith(page.removesuffix("README")) and p != page)
        source[0] += (
            "\n```{toctree}\n:hidden:\n\n" + "\n".join(f"/{name}" for name in below) + "\n```\n" if below else ""
        )
    if page == root_doc:
        found, named = app.env.found_docs, {*source[0].split(), *GUIDES, root_doc}
        others = sorted(p for p in found - named if "/" not in p or p.startswith("guides/"))
        source[0] = source[0].replace("%GUIDES%", "\n".join([*(p for p in GUIDES if p in found), *others]))


def _loads_nothing_from_elsewhere(app: Sphinx, error: Exception | None) -> None:
    """Refuse a site that would fetch scripts, styles, fonts or pictures from the network."""
    outside = re.compile(r"""(<(?:script|img|link|iframe)[^>]*(?:src|href)=|@import |url\()["']?(?:https?:)?//[^>]*""")
    for page in () if error else (p for p in Path(app.outdir).rglob("*") if p.suffix in {".html", ".css"}):
        if found := outside.search(page.read_text(encoding="utf-8")):
            raise ExtensionError(f"{page.relative_to(app.outdir)} loads from the network: {found.group()}")


def setup(app: Sphinx) -> None:
    """Connect the navigation and the last check."""
    app.connect("source-read", _navigation)
    app.connect("build-finished", _loads_nothing_from_elsewhere)
