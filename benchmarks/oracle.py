"""The training loss as it is written down, which the tests keep."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent


def load_literal() -> ModuleType:
    """The tests' reference, by its path: tests are no package."""
    path = ROOT / "tests" / "stages" / "model" / "literal.py"
    spec = importlib.util.spec_from_file_location("literal", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["literal"] = module
    spec.loader.exec_module(module)
    return module
