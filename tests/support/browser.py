"""Pages in a real Chromium, opened in a frame of a given width."""

import html
import re
import shutil
import subprocess
from pathlib import Path

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
OVERFLOWING = """[...document.querySelectorAll("body *")]
  .filter(e => !e.closest("svg") && e.getClientRects().length && e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => e.tagName + "." + e.className).join(" ") || "fits " + innerWidth"""
"""An expression: what reaches over the right edge, or `fits` and the width."""
# A window is never narrower than 500 px, a frame is.
FRAME = """<!doctype html><meta charset="utf-8"><link rel="icon" href="data:,"><title>nothing said</title><script>
addEventListener("message", e => document.title = e.data);
</script><iframe src="page.html" style="border: 0; width: {width}px; height: 900px"></iframe>"""
SAY = '<script>addEventListener("load", async () => parent.postMessage({expression}, "*"));</script></body>'


def ask_page(folder: Path, page: str, width: int, expression: str) -> str:
    """What `expression` (JavaScript, of type string) comes to in `page`, in a frame `width` px wide.

    Fails where the console said anything.
    """
    assert BROWSER is not None
    (folder / "page.html").write_text(page.replace("</body>", SAY.replace("{expression}", expression)))
    (folder / "frame.html").write_text(FRAME.format(width=width))
    command = [
        BROWSER, *FLAGS, f"--user-data-dir={folder / 'browser'}", "--window-size=1400,1000",
        "--enable-logging=stderr", "--virtual-time-budget=20000", "--dump-dom", f"file://{folder / 'frame.html'}",
    ]  # fmt: skip
    seen = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in seen.stderr
    found = re.search(r"<title>(.*?)</title>", seen.stdout, re.DOTALL)
    assert found is not None
    return html.unescape(found[1])
