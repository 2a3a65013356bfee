"""`pytest tests/golden [--goldens DIR]`: the model against recorded numbers, the shipped ones or any other folder."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
torch.set_num_threads(1)  # the recorded sizes are tiny: threads would only wait for each other


def _import_beside(name: str, path: Path) -> None:
    """Make a helper of the tests importable by its dotted name: tests are no package on the path."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


_import_beside("tests.stages.model.literal", HERE.parent / "stages/model/literal.py")
_import_beside("tests.golden.reading", HERE / "reading.py")

from tests.golden.reading import Goldens, open_folder  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--goldens", metavar="DIR", help="folder with index.json and its files (default: the shipped)"
    )


def folder(config: pytest.Config) -> Goldens:
    chosen = config.getoption("--goldens", default=None)
    return open_folder(Path(chosen) if chosen else HERE / "data")


@pytest.fixture(scope="session")
def goldens(pytestconfig: pytest.Config) -> Goldens:
    return folder(pytestconfig)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`case` runs over the index's cases of the module's GROUP, `dtype` over both precisions."""
    if "case" in metafunc.fixturenames:
        group = getattr(metafunc.module, "GROUP")  # noqa: B009
        cases = folder(metafunc.config).index["cases"]
        metafunc.parametrize("case", [n for n in cases if n == group or n.startswith(group + "/")])
    if "dtype" in metafunc.fixturenames:
        metafunc.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
