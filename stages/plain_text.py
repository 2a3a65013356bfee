"""Plain text as documents: the whole file, its paragraphs, or its lines.

A line ends at ``\\n``, ``\\r\\n`` or ``\\r``, wherever the file was written, and nowhere else: U+0085, U+2028 and other
characters that part lines elsewhere are characters like any other here.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Literal

Unit = Literal["file", "paragraph", "line"]
BOM = b"\xef\xbb\xbf"
LINE_END = re.compile(rb"\r\n|\n|\r")
BLANK_LINES = re.compile(rb"(?>\r\n|\n|\r)(?:[ \t]*(?>\r\n|\n|\r))+")
"""What parts paragraphs, to count them by."""


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """Number, from 1, and bytes of each line of a file, its end included; a byte order mark is no part of the first."""
    # Latin-1 has a character for each byte, whatever the bytes mean.
    with path.open(encoding="latin-1", newline="") as stream:
        for number, line in enumerate(stream, 1):
            raw = line.encode("latin-1")
            yield number, raw.removeprefix(BOM) if number == 1 else raw


def divide(path: Path, unit: Unit) -> Iterator[tuple[int, bytes]]:
    """Number of the first line, from 1, and bytes of each document of a file, in order, without the ends of its first
    and last line; what is blank is none. Of a file that is not divided the bytes are all there are.

    Lines that hold nothing but white space part paragraphs.
    """
    if unit == "file":
        yield 1, path.read_bytes().removeprefix(BOM)
        return
    if unit == "line":
        yield from ((number, line.strip(b"\r\n")) for number, line in lines_of(path) if line.strip())
        return
    for blank, group in groupby(lines_of(path), key=lambda each: not each[1].strip()):
        if not blank:
            number, first = next(group)
            yield number, b"".join((first, *(line for _, line in group))).strip(b"\r\n")
