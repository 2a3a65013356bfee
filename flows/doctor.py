"""``elf doctor``: what of this machine is fit for the work, line by line, with the cure where it is not."""

import json
import os
import platform
import re
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.text import Text

from elf.cache.errors import BadRemote, CacheError, Unreachable
from elf.cache.files import free_bytes, write_atomic
from elf.cache.store import Store
from elf.flows.failing import FAILED, Ended
from elf.flows.remotes import REMOTE, named_remote
from elf.flows.request import open_store
from elf.flows.terminal import make_console
from elf.pipeline.errors import Misconfigured
from elf.pipeline.wording import bytes_text, seconds_text
from elf.stages.disk import disk_speed

Verdict = Literal["good", "note", "bad"]
LEAST_FREE = 5 * 10**9
PINS = "constraints.txt"
REINSTALL = "`make clean quickstart` installs it."
HUB = "https://huggingface.co"
INDENT = 18
"""Columns before a finding's words."""
_MARKS = {"good": "[green]good[/]", "note": "[yellow]note[/]", "bad": "[bold red]bad [/]"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, how it stands, and the cure where it does not stand well."""

    subject: str
    verdict: Verdict
    words: str
    cure: str = ""


def examine(store: str | None, *, as_json: bool) -> None:
    """Look at everything and print it. Ends with code 1 if anything is bad."""
    out = make_console()
    findings: list[Finding] = []
    for look in checks(open_store(store)):
        for found in look():
            findings.append(found)
            if not as_json:
                print_finding(found, out)
    if as_json:
        print(json.dumps([asdict(each) for each in findings], indent=1))
    if any(each.verdict == "bad" for each in findings):
        raise Ended(FAILED)


def print_finding(found: Finding, out: Console) -> None:
    """What is longer than a terminal's line goes on under itself."""
    width = max(20, out.width - INDENT) if out.is_terminal else 10**6
    words = [Text(line) for line in textwrap.wrap(found.words, width)]
    words += [Text(line, style="yellow") for line in textwrap.wrap(found.cure, width)]
    head = Text.from_markup(f"{_MARKS[found.verdict]}  [bold]{found.subject:<11}[/] ")
    for line in words:
        out.print(head + line, soft_wrap=True, highlight=False)
        head = Text(" " * INDENT)


def checks(store: Store) -> Iterator[Callable[[], Iterator[Finding]]]:
    """Every check, quick ones first."""
    yield look_at_python
    yield look_at_pins
    yield lambda: look_at_disk(store)
    yield look_at_remote
    yield look_at_torch
    yield look_at_hub
    yield look_at_services


def look_at_python() -> Iterator[Finding]:
    words = f"{platform.python_version()} at {sys.executable}"
    if sys.platform != "linux":
        yield Finding("python", "bad", f"{words} on {sys.platform}", "Only Linux is supported.")
    else:
        yield Finding("python", "good", f"{words}, {len(os.sched_getaffinity(0))} CPU cores")


def look_at_pins() -> Iterator[Finding]:
    """Installed versions beside the pinned ones, where this is a checkout that has the pins."""
    pins = Path(__file__).resolve().parent.parent / PINS
    if not pins.is_file():
        yield Finding("versions", "note", f"no {PINS} here: installed from a wheel, nothing to compare with")
        return
    differing: list[str] = []
    compared = 0
    for name, wanted in _wanted(pins):
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        compared += 1
        if installed.partition("+")[0] not in wanted:
            differing.append(f"{name} {installed} (pinned {' or '.join(sorted(wanted))})")
    if differing:
        shown = ", ".join(differing[:4]) + (", …" if len(differing) > 4 else "")
        yield Finding(
            "versions",
            "note",
            f"{len(differing)} differ: {shown}",
            "`make clean quickstart` installs the pins.",
        )
    else:
        yield Finding("versions", "good", f"all {compared} installed packages are the pinned ones")


def look_at_remote() -> Iterator[Finding]:
    """Whether the remote store answers, where one is named."""
    if not os.environ.get(REMOTE):
        return
    began = time.monotonic()
    try:
        remote = named_remote()
        next(remote.keys(), None)
    except Unreachable as fault:
        yield Finding("remote", "note", str(fault), "Runs build what they miss until it is back.")
    except (Misconfigured, BadRemote) as fault:
        yield Finding("remote", "bad", str(fault), f"Correct {REMOTE} or the credentials, or unset it.")
    else:
        yield Finding("remote", "good", f"{remote} answers in {seconds_text(time.monotonic() - began)}")


def look_at_disk(store: Store) -> Iterator[Finding]:
    """Room for the store, and the speed of its disk that plans rest on, measured now where it was not before."""
    probe = store.root / ".doctor.tmp"
    made = not store.root.exists()
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        write_atomic(probe, b"")
        speed = disk_speed(store.root)
    except (OSError, CacheError) as error:
        yield Finding(
            "store",
            "bad",
            f"{store.root} cannot be written: {error}",
            "Name another with --store or ELF_STORE.",
        )
        return
    finally:
        if store.root.is_dir():
            probe.unlink(missing_ok=True)
            if made and not any(store.root.iterdir()):
                store.root.rmdir()
    free = free_bytes(store.root)
    words = f"{store.root}: {bytes_text(free)} free"
    if speed is not None:
        words += (
            f"; {speed} (through to the disk, and from it with nothing in memory; measured {speed.measured}, "
            "`elf plan CONFIG --probe` measures anew)"
        )
    if free < LEAST_FREE:
        yield Finding(
            "store", "bad", words, "The quickstart wants 2 GB, real runs far more: `elf plan` says how much."
        )
    else:
        yield Finding("store", "good", words)


def look_at_torch() -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding("torch", "bad", f"cannot be imported: {error}", REINSTALL)
        return
    if not torch.cuda.is_available():
        built = "built for CUDA, but no GPU is usable" if torch.version.cuda else "a CPU build"
        seen = Path("/proc/driver/nvidia/gpus").is_dir()
        cure = "The driver knows a GPU: install a CUDA build of torch (README, OWN_TORCH)." if seen else ""
        yield Finding(
            "torch", "note" if seen else "good", f"{torch.__version__}, {built}: float32 on the CPU", cure
        )
        return
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    precision = "bf16" if torch.cuda.is_bf16_supported() else "no bf16: set train.precision to float32"
    yield Finding("torch", "good", f"{torch.__version__}, {len(names)} × {names[0]}, {precision}")


def look_at_hub() -> Iterator[Finding]:
    """Whether hub assets can be fetched; most shipped configurations that need none say so."""
    without = "`pypi:` and `path:` assets work without it; quickstart needs no hub."
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        yield Finding(
            "hub", "note", "HF_HUB_OFFLINE is set: `hub:` and `dataset:` assets cannot be fetched", without
        )
        return
    from urllib.error import URLError
    from urllib.request import Request, urlopen

    address = os.environ.get("HF_ENDPOINT", HUB)
    try:
        with urlopen(Request(address, method="HEAD"), timeout=3):
            yield Finding("hub", "good", f"{address} answers")
    except (URLError, OSError, ValueError) as error:
        yield Finding(
            "hub", "note", f"{address} does not answer ({getattr(error, 'reason', error)})", without
        )


def look_at_services() -> Iterator[Finding]:
    uses = {"prefect": "flows and the UI", "distributed": "workers of encode", "accelerate": "training"}
    for package, use in uses.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            yield Finding(package, "bad", f"not installed, needed for {use}", REINSTALL)
            continue
        where = ""
        if package == "prefect":
            server = os.environ.get("PREFECT_API_URL")
            where = f", server {server}" if server else ", no PREFECT_API_URL (`elf run` needs none)"
        yield Finding(package, "good", f"{found}{where}")


def _wanted(pins: Path) -> Iterator[tuple[str, frozenset[str]]]:
    """Package names with every version the pins allow (another per Python, told apart by markers)."""
    found: dict[str, set[str]] = {}
    for line in pins.read_text(encoding="utf-8").splitlines():
        match = re.match(r"([A-Za-z0-9._-]+)==([^ ;]+)", line)
        if match:
            found.setdefault(match[1], set()).add(match[2])
    return ((name, frozenset(versions)) for name, versions in found.items())
