"""A tiny wheel full of data, whose code would stop the interpreter if anybody ran it."""

import hashlib
import zipfile
from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: tiny-text\nVersion: 1.0\nLicense-Expression: CC0-1.0\n"


def make_wheel(folder: Path, extra: dict[str, str] | None = None) -> Path:
    path = folder / "tiny_text-1.0-py3-none-any.whl"
    files = {
        "tiny_text/__init__.py": "raise SystemExit('a wheel was executed')\n",
        "tiny_text/data/a.txt": "one",
        "tiny_text/data/deep/b.txt": "two",
        "tiny_text/datafile.txt": "three",
        "tiny_text-1.0.dist-info/METADATA": METADATA,
        "tiny_text-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(extra or {}),
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr("tiny_text-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
    return path


def digest(path: Path) -> str:
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
