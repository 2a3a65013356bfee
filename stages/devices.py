"""Where tensors are computed, and whether a compiler is there for it."""

import os
import platform
import shutil
import sysconfig
from importlib.util import find_spec
from pathlib import Path

import torch

from elf.pipeline.devices import Devices
from elf.pipeline.errors import Failed
from elf.pipeline.progress import Progress
from elf.stages.compute import Compile
from elf.stages.memory import cores


def choose_device(wanted: str) -> str:
    """`cuda` or `cpu` for the setting `auto`, `cpu` or `cuda`; Failed where a GPU is asked for and none is there."""
    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise Failed(
            "compute.device is cuda, but torch finds no CUDA device here; set it to auto or cpu, or install a CUDA "
            "build of torch where there is a GPU."
        )
    return wanted


def describe_devices(device: str, *, processes: int = 1, hosts: int = 1) -> Devices:
    """What so many processes compute on: of `cuda` a GPU each, of `cpu` all cores of their hosts."""
    if device == "cuda":
        return Devices("cuda", torch.cuda.get_device_name(), processes, processes, cores())
    return Devices("cpu", _processor(), hosts, processes, cores())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.machine()


def choose_compile(wanted: Compile, device: str, progress: Progress) -> bool:
    """Whether to compile for the device: `auto` does on CUDA where all that it takes is there, and says what is not.

    Raises Failed where it is asked for and cannot be done.
    """
    if wanted is False or (wanted == "auto" and device == "cpu"):
        return False
    missing = _missing_for_compiling(device)
    if missing is None:
        return True
    if wanted == "auto":
        progress.note(f"Not compiled, for want of {missing}.")
        return False
    raise Failed(
        f"compute asks for a compiled network (compile: true), and torch.compile lacks {missing} here; bring it, or "
        "set compile to false."
    )


def _missing_for_compiling(device: str) -> str | None:
    """What torch.compile would fail for."""
    if device == "cuda" and find_spec("triton") is None:
        return "the package triton"
    named, usual = ("CC", ("gcc", "clang")) if device == "cuda" else ("CXX", ("g++", "clang++"))
    compilers = [os.environ[named]] if os.environ.get(named) else usual
    if not any(shutil.which(compiler.split()[0]) for compiler in compilers):
        return f"a compiler ({' or '.join(compilers)})"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return (
        None if header.exists() else f"Python's headers ({header}; Debian, Ubuntu: apt install python3-dev)"
    )
