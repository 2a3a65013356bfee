"""The pages as a test sees them: their fenced blocks, what stands before each, and which of them are executed.

A shell block (``sh``) is executed, in the order of its page, unless the line before it says why not:

    <!-- not run: needs the hub -->

A block that has a title is a file of that name, which blocks after it may use.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OWN_PROJECT = ROOT / "configs" / "own-project" / "README.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), OWN_PROJECT]
LANGUAGES = {"sh", "yaml", "python", "text"}
REASONS = {
    "needs the hub",
    "needs a GPU",
    "needs other hosts",
    "needs credentials",
    "needs hours",
    "shows a form",
    "is the tests",
}
"""Why a shell block is not executed; nothing else counts as a reason."""
_FENCE = re.compile(r'```(?P<language>\w*)(?: title="(?P<title>[^"]+)")?\s*')
_MARK = re.compile(r"<!-- not run: (.*) -->")
_ITEM = re.compile(r"\s*([*-]|\d+\.) ")


class Malformed(Exception):
    """A page that cannot be read as blocks and prose; says where."""


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its page, the line of its fence, its language, the file it is, the reason not to run it."""

    page: Path
    line: int
    language: str
    title: str | None
    mark: str | None
    text: str

    @property
    def place(self) -> str:
        return f"{_shown(self.page)}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether it is executed."""
        return self.language == "sh" and self.mark is None and self.title is None


def read_blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order. Raises Malformed for an indented block, a fence without an end or a language
    that nobody knows, and a mark that stands before no shell block."""
    return list(_read(page, page.read_text(encoding="utf-8").splitlines()))


def _read(page: Path, lines: list[str]) -> Iterator[Block]:
    at, mark = 0, None
    in_list = False
    while at < len(lines):
        line, place = lines[at], f"{_shown(page)}:{at + 1}"
        if fence := _FENCE.fullmatch(line):
            end = next((n for n in range(at + 1, len(lines)) if lines[n] == "```"), None)
            if end is None:
                raise Malformed(f"{place}: the block has no end")
            language = fence["language"]
            if language not in LANGUAGES:
                raise Malformed(
                    f"{place}: the block's language is {language!r}, not one of {sorted(LANGUAGES)}"
                )
            if mark is not None and language != "sh":
                raise Malformed(f"{place}: {mark!r} stands before a block that is never executed")
            text = "\n".join(lines[at + 1 : end]) + "\n"
            yield Block(page, at + 1, language, fence["title"], mark, text)
            at, mark = end + 1, None
            continue
        if mark is not None:
            raise Malformed(f"{place}: a mark stands before no block")
        if line.lstrip().startswith("```"):
            raise Malformed(f"{place}: a fence that cannot be read: {line.strip()}")
        if found := _MARK.fullmatch(line):
            mark = found[1]
        elif line.strip():
            in_list = bool(_ITEM.match(line)) or (in_list and line.startswith(" "))
            if line.startswith("    ") and not in_list:
                raise Malformed(f"{place}: an indented block; fence it and say what it is")
        at += 1
    if mark is not None:
        raise Malformed(f"{page.name}: a mark stands before no block")


def _shown(page: Path) -> str:
    return str(page.relative_to(ROOT) if page.is_relative_to(ROOT) else page)


def every_block() -> list[Block]:
    """The blocks of all pages."""
    return [block for page in PAGES for block in read_blocks(page)]
