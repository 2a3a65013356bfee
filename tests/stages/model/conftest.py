"""Makes the helpers of these tests importable by their dotted names: tests are no package on the path."""

import importlib.util
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)  # everything here is tiny: threads would only wait for each other

for name in ("literal", "tiny"):
    dotted = f"tests.stages.model.{name}"
    if dotted not in sys.modules:
        spec = importlib.util.spec_from_file_location(dotted, Path(__file__).parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[dotted] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[dotted])
