"""The code in Markdown pages: found, and run as a reader would run it. What marks mean is in CONTRIBUTING.md.

`python -m tests.docs.blocks` lists the blocks that no test runs, and why.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
RUN = ("sh", "python")
"""Languages that are run, if the block is not a file."""
SHOWN = ("yaml", "toml", "json", "text", "console", "html", "ini", "xml")
MARKS = ("slow", "fresh", "not run", "exits", "before", "serves", "beside", "until")
_MARK = re.compile(rf"<!--\s*({'|'.join(MARKS)}):\s*(.*?)\s*-->", re.DOTALL)
_NAMED = re.compile(r"`([\w./-]+\.\w+)`[^`]*:$")
_FIRST_LINE = re.compile(r"# ([\w./-]+\.\w+)(?:\s|$)")
_COPIED = ("examples", "docs", "Makefile", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")
_INTERPRETER = """
import json, sys, traceback
sys.path.insert(0, "")
names = {"__name__": "__main__"}
for line in sys.stdin:
    try:
        exec(compile(json.loads(line), "<the page>", "exec"), names)
        print("\\n<<ok>>", flush=True)
    except BaseException:
        print(traceback.format_exc() + "\\n<<failed>>", flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A block of code in a page.

    Attributes:
        page: path of the page.
        line: of its fence, from 1.
        language: after the fence; empty if it has none.
        code: its lines.
        marks: what the comments above it say.
        file: the file it is the content of, or None.
    """

    page: Path
    line: int
    language: str
    code: str
    marks: dict[str, str] = field(default_factory=dict)
    file: str | None = None

    @property
    def where(self) -> str:
        """Page and line."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[list[str]]:
        """The commands of a shell block as words, without what joins and redirects them."""
        found: list[list[str]] = []
        for line in self.code.replace("\\\n", " ").splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
            lexer.whitespace_split = True
            found.append([])
            for word in lexer:
                if set(word) <= set("();<>|&"):
                    found.append([])
                else:
                    found[-1].append(word)
        return [words for words in found if words]


def guides() -> list[str]:
    """Return the pages whose blocks are run."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/guides/*.md"), *ROOT.glob("examples/*/*.md")]
    return sorted(str(page.relative_to(ROOT)) for page in found if blocks_of(page))


def left_out() -> list[Block]:
    """Return the blocks of guides that are never run."""
    return [block for page in guides() for block in blocks_of(ROOT / page) if "not run" in block.marks]


def blocks_of(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order, those in lists among them."""
    return read_blocks(page, page.read_text(encoding="utf-8"))


def read_blocks(page: Path, text: str) -> list[Block]:
    """Return the blocks of a page's text; an indented block is one without a language."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    said = ""
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "html_block":
            marks |= dict(_MARK.findall(token.content))
        elif token.type == "inline":
            said, marks = token.content, {}
        elif token.type in ("fence", "code_block") and not token.info.startswith("{"):
            line = (token.map or [0])[0] + 1
            found.append(Block(page, line, token.info.strip(), token.content, marks, _file(token.content, said)))
            said, marks = "", {}
    return found


def _file(code: str, said: str) -> str | None:
    """Return the name of the file a block is: said by its first line, or at the end of the sentence before."""
    named = _FIRST_LINE.match(code) or _NAMED.search(said.strip())
    return named.group(1) if named else None


class Reader:
    """Somebody who does what a page says, in a directory of their own with the repository's examples."""

    def __init__(self, directory: Path, *, fresh: bool = False) -> None:
        self._directory, self._state = directory, directory.parent / f"{directory.name}.state"
        self._interpreter: subprocess.Popen[str] | None = None
        directory.mkdir(parents=True)
        for name in (*_COPIED, "src", ".gitignore", "tests") if fresh else _COPIED:
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, directory / name)
        environment = {} if fresh else {"PYTHONPATH": str(ROOT / "src")}
        path = [] if fresh else [str(Path(sys.executable).parent)]
        environment |= {"PATH": os.pathsep.join([*path, os.environ["PATH"]]), "COLUMNS": "120", "TERM": "dumb"}
        environment |= {"FEDSEAL_CACHE": str(directory.parent / "cache"), "OMP_NUM_THREADS": "1", "BROWSER": "true"}
        self._flower = str(directory.parent / "flwr")
        environment["FLWR_HOME"] = self._flower  # where `flwr run` starts a SuperLink that outlives it
        environment["FEDSEAL_WORKERS"] = "1"  # small audits: starting further processes would cost more than they do
        lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
        self._state.write_text("\n".join([*lines, f"cd {shlex.quote(str(directory))}", ""]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._interpreter is not None:
            self._interpreter.kill()
            self._interpreter.communicate()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("FLWR_HOME") == self._flower:
                    process.kill()

    def read(self, block: Block) -> None:
        """Do what a block says; raises AssertionError with what was printed if that does not work."""
        if block.file is not None:
            path = self._directory / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.code, encoding="utf-8")
        elif block.language in RUN:
            run = self._shell if block.language == "sh" else self._python
            if "before" in block.marks:
                run(block, block.marks["before"], {0})
            if "serves" in block.marks:
                with self._server(block, block.code, block.marks["serves"]) as serving:
                    pass
                assert serving.returncode in (0, 130), f"{block.where} ends with {serving.returncode}"  # 130: the shell
                return
            with contextlib.ExitStack() as others:
                if "beside" in block.marks:
                    others.enter_context(self._server(block, block.marks["beside"], block.marks["until"]))
                run(block, block.code, {int(code) for code in block.marks.get("exits", "0").split(" or ")})

    @contextlib.contextmanager
    def _server(self, block: Block, code: str, words: str) -> Iterator[subprocess.Popen[str]]:
        """Run what goes on until somebody ends it: wait until it says `words`, and press Ctrl-C in the end."""
        script = f". {shlex.quote(str(self._state))}\nexport PYTHONUNBUFFERED=1\n{code}"
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        heeding = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # who runs us may ignore it
        command = ["bash", "-c", script]
        with subprocess.Popen(command, text=True, start_new_session=True, preexec_fn=heeding, **pipes) as serving:
            assert serving.stdout is not None
            said: list[str] = []
            while (line := serving.stdout.readline()) and words not in line:
                said.append(line)
            try:
                assert line, f"{block.where} does not say {words!r}\n{''.join(said)}"
                yield serving
            finally:
                os.killpg(serving.pid, signal.SIGINT)
                serving.communicate(timeout=300)

    def _shell(self, block: Block, code: str, expected: set[int]) -> None:
        state = shlex.quote(str(self._state))
        keep = (
            f"keep() {{ code=$?; {{ export -p; printf 'cd %q\\n' \"$PWD\"; }} > {state}; exit $code; }}\ntrap keep EXIT"
        )
        script = f". {state}\n{keep}\nset -e\n{code}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False, timeout=1800)
        assert done.returncode in expected, (
            f"{block.where} ends with {done.returncode}\n{code}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )

    def _python(self, block: Block, code: str, expected: set[int]) -> None:
        if self._interpreter is None:
            command = f". {shlex.quote(str(self._state))}; exec python -u -c {shlex.quote(_INTERPRETER)}"
            self._interpreter = subprocess.Popen(
                ["bash", "-c", command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        talk = self._interpreter
        assert talk.stdin is not None
        assert talk.stdout is not None
        talk.stdin.write(json.dumps(code) + "\n")
        talk.stdin.flush()
        said: list[str] = []
        for line in talk.stdout:
            if line.strip() in ("<<ok>>", "<<failed>>"):
                assert line.strip() == "<<ok>>", f"{block.where} fails\n{code}\n" + "".join(said)[-3000:]
                return
            said.append(line)
        raise AssertionError(f"{block.where} ended the interpreter\n{code}\n" + "".join(said)[-3000:])


if __name__ == "__main__":
    sys.stdout.writelines(f"{block.where}: {block.marks['not run']}\n" for block in left_out())
