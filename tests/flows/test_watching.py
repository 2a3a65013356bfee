"""A run as it is watched: live and within 80 columns on a terminal, plain lines in a pipe."""

import os
import pty
import re
import struct
import subprocess
import termios
from fcntl import ioctl
from pathlib import Path

from commands import ELF, environment, start

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
AGAIN = ("run", "tiny", "--force", "sample", "evaluate")


def on_a_terminal(folder: Path, *arguments: str) -> str:
    """All that the command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    extra = {"TERM": "xterm-256color"}
    process = subprocess.Popen(
        [ELF, *arguments], cwd=folder, env=environment(extra), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            piece = os.read(ours, 1 << 16)
        except OSError:  # the last of them closed its side
            break
        if not piece:
            break
        said += piece
    os.close(ours)
    assert process.wait(timeout=60) == 0, said.decode()
    return said.decode()


def test_a_terminal_sees_bars_and_colours_within_80_columns(copied: Path) -> None:
    said = on_a_terminal(copied, *AGAIN)
    lines = re.split(r"[\r\n]+", CODES.sub("", said))
    assert "\x1b[" in said
    assert any("━" in line for line in lines), "bars were drawn"
    assert max(map(len, lines)) <= 80
    assert said.count("\x1b[?25l") == said.count("\x1b[?25h"), "the cursor is shown again"


def test_a_pipe_gets_plain_lines(copied: Path) -> None:
    out, err = start(copied, *AGAIN).communicate(timeout=280)
    for text in (out, err):
        assert "\x1b" not in text
        assert "\r" not in text
    assert "built   sample-ode" in out
    assert re.search(r"^sample: \d+ of \d+ texts  ", err, re.MULTILINE), err
    assert "━" not in out + err
