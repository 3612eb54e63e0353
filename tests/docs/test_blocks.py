"""Every command and code block of README and guides is run, word by word; those of result pages are parsed."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import click
import pytest
import typer
import yaml

from fedseal.cli import app

from .blocks import RUN, SHOWN, Block, Reader, blocks_of, guides, left_out, read_blocks

ROOT = Path(__file__).resolve().parents[2]
FRESH = os.environ.get("FEDSEAL_FRESH") == "1"
"""Whether what installs things is run too, in directories of their own."""
QUICK = ("docs/scenario.md",)
"""Pages every change runs; the others are read through at night."""


def all_pages() -> list[str]:
    found = [page for top in ("docs", "bench") for page in (ROOT / top).rglob("*.md") if blocks_of(page)]
    return sorted({*guides(), *(str(page.relative_to(ROOT)) for page in found)})


def read_page(page: str, directory: Path, *, slow: bool) -> None:
    with Reader(directory / "work", fresh=FRESH) as reader:
        for block in blocks_of(ROOT / page):
            leave = "not run" in block.marks or ("fresh" in block.marks and not FRESH)
            if not leave and (slow or "slow" not in block.marks):
                reader.read(block)


@pytest.mark.parametrize("page", [page for page in QUICK if page in guides()])
def test_a_small_page_works_word_by_word(page: str, tmp_path: Path) -> None:
    read_page(page, tmp_path, slow=False)


@pytest.mark.slow
@pytest.mark.parametrize("page", guides())
def test_a_page_works_word_by_word(page: str, tmp_path: Path) -> None:
    read_page(page, tmp_path, slow=True)


@pytest.mark.parametrize("page", guides())
def test_code_has_a_language_and_marks_have_reasons(page: str) -> None:
    for block in blocks_of(ROOT / page):
        assert block.language in (*RUN, *SHOWN), f"{block.where}: fence it, with a language ({block.language!r})"
        assert all(block.marks.values()), f"{block.where}: say why"


@pytest.mark.parametrize("page", all_pages())
def test_code_is_well_formed_and_commands_have_the_options_they_are_given(page: str) -> None:
    for block in blocks_of(ROOT / page):
        if block.language == "python":
            compile(block.code, block.where, "exec")
        elif block.language == "yaml":
            yaml.safe_load(block.code)
        elif block.language in ("sh", ""):
            check_commands(block)


def check_commands(block: Block) -> None:
    exported: dict[str, str] = {}  # options may come from the environment
    for words in block.commands:
        if words[0] == "export":
            exported |= dict(word.split("=", 1) for word in words[1:])
        if words[0] == "fedseal":
            try:
                with mock.patch.dict(os.environ, exported):
                    parse(words)
            except (click.ClickException, typer.Exit) as error:
                raise AssertionError(f"{block.where}: {' '.join(words)}: {getattr(error, 'message', error)}") from error


def parse(words: list[str]) -> None:
    command: click.Command = typer.main.get_command(app)
    name, *rest = words
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name, *rest = rest
        if name not in command.commands:
            raise click.UsageError(f"there is no command {name!r}")
        command = command.commands[name]
    if "--help" not in rest and "--version" not in rest:
        command.make_context(name, rest)


def test_what_is_never_run_needs_what_a_test_cannot_have() -> None:
    """A GPU, Docker, a cluster, another machine, hours: a fragment or a name that stands for another is no reason."""
    lame = [f"{block.where}: {why}" for block in left_out() if not (why := block.marks["not run"]).startswith("needs ")]
    assert lame == []
    assert len(left_out()) <= 16, "say less, or run more"


# The reader itself


def test_blocks_carry_marks_names_and_languages() -> None:
    text = (
        "In `a/b.py`:\n\n```python\nx = 1\n```\n\n<!-- slow: long -->\n<!-- exits: 1 -->\n```sh\nfalse\n```\n\n"
        "- a list\n\n  ```sh\n  true\n  ```\n\n```yaml\n# c.yaml\na: 1\n```\n\n    indented\n\n"
        "```{note}\nno code\n```\n"
    )
    found = read_blocks(ROOT / "made-up.md", text)
    assert [(b.language, b.file, b.marks) for b in found] == [
        ("python", "a/b.py", {}),
        ("sh", None, {"slow": "long", "exits": "1"}),
        ("sh", None, {}),
        ("yaml", "c.yaml", {}),
        ("", None, {}),
    ]


def test_commands_are_found_among_pipes_and_continued_lines() -> None:
    code = "a=1 b \\\n  c | fedseal list attacks > x  # words\n(cat y; fedseal show z)\n"
    found = [" ".join(words) for words in Block(ROOT / "x.md", 1, "sh", code).commands]
    assert found == ["a=1 b c", "fedseal list attacks", "x", "cat y", "fedseal show z"]


@pytest.mark.parametrize(
    "words", [["fedseal", "audit", "--no-such"], ["fedseal", "adit"], ["fedseal", "audit", "--targets", "many"]]
)
def test_a_wrong_command_is_seen(words: list[str]) -> None:
    with pytest.raises(click.ClickException):
        parse(words)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```sh\nfalse\n```", "ends with 1"),
        ("```python\nraise ValueError('wrong')\n```", "ValueError: wrong"),
        ("<!-- exits: 1 -->\n```sh\ntrue\n```", "ends with 0"),
    ],
)
def test_what_does_not_work_is_seen(text: str, says: str, tmp_path: Path) -> None:
    (block,) = read_blocks(ROOT / "made-up.md", text)
    with Reader(tmp_path / "work") as reader, pytest.raises(AssertionError, match=says):
        reader.read(block)


def test_what_goes_on_is_ended_once_it_has_said_its_words(tmp_path: Path) -> None:
    page = ROOT / "made-up.md"
    (good,) = read_blocks(page, "<!-- serves: ready -->\n```sh\ntrap 'exit 0' INT\necho ready\nsleep 600 & wait\n```")
    (mute,) = read_blocks(page, "<!-- serves: ready -->\n```sh\necho no\n```")
    with Reader(tmp_path / "work") as reader:
        reader.read(good)
        with pytest.raises(AssertionError, match="does not say 'ready'"):
            reader.read(mute)


def test_shell_and_interpreter_keep_their_state_from_block_to_block(tmp_path: Path) -> None:
    text = (
        "```sh\nmkdir 'a b'\ncd 'a b'\nexport WORD=x\n```\n\n"
        '```sh\ntest "$(basename "$PWD")$WORD" = \'a bx\'\ncd ..\n```\n\n'
        "```python\nx = 1\n```\n\n<!-- before: y = 2 -->\n```python\nassert x + y == 3\n```\n"
    )
    with Reader(tmp_path / "work") as reader:
        for block in read_blocks(ROOT / "made-up.md", text):
            reader.read(block)
