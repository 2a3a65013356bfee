"""Imports of ``elf`` find this checkout, installed or not: its folders are the parts of the package."""

import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent

if "elf" not in sys.modules:
    package = ModuleType("elf")
    package.__path__ = [str(ROOT)]
    sys.modules["elf"] = package
