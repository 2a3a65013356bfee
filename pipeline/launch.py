"""Runs a stage in a child of ``accelerate launch``: supervised, logged to a file, its progress replayed.

The child's output goes to ``aux/log.txt``, a file, so that it outlives us without a broken pipe. The supervisor
between us and the child ends every descendant when we are cancelled, interrupted or killed, and keeps the
lease's lock until the last one is gone.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import yaml

from elf.cache.files import write_atomic
from elf.cache.manifest import JSON
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.progress import Progress
from elf.pipeline.replay import Replay
from elf.pipeline.section import Section
from elf.pipeline.stage import Compute, StageContext, StageSpec, Unbuilt

GRACE = 25.0
"""Seconds between SIGTERM and SIGKILL; below Prefect's 30."""
POLL = 0.1
PATIENCE = 2.0
"""Seconds of stopping before a word about it."""
_ENDED_BY = re.compile(r"(?:died with <Signals\.|exitcode +: -\d+ \(pid: \d+\) +\()(\w+)")
"""What accelerate says of one process that a signal ended, and of several; the cause of all comes last."""
_AFTERMATH = ("CalledProcessError", "ChildFailedError", "closed by peer")
"""Errors that only follow from that of another process."""
KEEP_FREED = {
    "MALLOC_MMAP_THRESHOLD_": str(8 * 2**30),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30),
    # Arenas of other threads hold at most 64 MiB and unmap what empties, whatever the thresholds say.
    "MALLOC_ARENA_MAX": "1",
}
"""glibc in a child that computes on the CPU: reuse big buffers instead of handing them back to the kernel."""


def run_child(
    spec: StageSpec[Any], section: Section, context: StageContext, *, lock: int
) -> Mapping[str, JSON]:
    """Run the stage in child processes and return the facts that rank 0 wrote.

    ``lock`` is the lease's file descriptor, kept open by the supervisor. Raises Failed (or Misconfigured) with
    the child's own words, or naming its log where it had none.
    """
    log, events = context.aux / "log.txt", context.aux / "events.jsonl"
    facts, failure = context.aux / "facts.json", context.aux / "failure.json"
    for leftover in (events, facts, failure):
        leftover.unlink(missing_ok=True)
    job = context.aux / "job.json"
    write_atomic(job, json.dumps(describe_job(spec, section, context, events), indent=1))
    before = log.stat().st_size if log.exists() else 0
    if (hosts := _hosts(spec, context.compute)) > 1:
        context.progress.note(describe_others(spec, context.compute, job, hosts))
    code = _supervised(_command(spec, context.compute, job), context, log, events, lock)
    if failure.exists():
        told = json.loads(failure.read_text())
        raise (Misconfigured if told["misconfigured"] else Failed)(told["text"])
    if code != 0 or not facts.exists():
        how = _how_it_ended(code, log.read_bytes()[before:].decode(errors="replace"))
        raise Failed(f"The {spec.name} process {how}. Its whole log is {log}.")
    found = cast("dict[str, JSON]", json.loads(facts.read_text()))
    for done in (events, facts, job):
        done.unlink()
    return found


def describe_job(
    spec: StageSpec[Any], section: Section, context: StageContext, events: Path
) -> dict[str, Any]:
    """All that a child is told, as plain data; its progress goes to the file ``events``."""
    return {
        "entry": spec.entry,
        "section": _plain_section(section),
        "out": str(context.out),
        "inputs": {role: str(artifact.path) for role, artifact in context.inputs.items()},
        "unbuilt": {role: _plain_unbuilt(each) for role, each in context.unbuilt.items()},
        "compute": _plain_section(context.compute),
        "events": str(events),
    }


def _plain_section(section: Section) -> dict[str, Any]:
    """A section and the type it is read back as."""
    kind = type(section)
    return {"type": f"{kind.__module__}:{kind.__qualname__}", "values": section.model_dump(mode="json")}


def _plain_unbuilt(unbuilt: Unbuilt) -> dict[str, Any]:
    return {
        "manifest": json.loads(unbuilt.manifest.to_json()),
        "section": _plain_section(unbuilt.section),
        "compute": _plain_section(unbuilt.compute),
        "inputs": {role: str(artifact.path) for role, artifact in unbuilt.inputs.items()},
    }


def _command(spec: StageSpec[Any], compute: Compute, job: Path) -> list[str]:
    # Without a place for logs of its own, torch leaves an empty folder in /tmp each time.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--log_dir", os.devnull]
    if compute.accelerate_config is not None:
        launch += ["--config_file", compute.accelerate_config]
    else:
        launch += ["--num_processes", str(compute.processes), "--num_machines", "1"]
        launch += ["--main_process_port", "0"]  # a free one: several stages may be launched at once
        launch += ["--mixed_precision", "no", "--dynamo_backend", "no"]
        if compute.processes > 1:
            launch += ["--multi_gpu"]
        elif compute.device == "cpu":
            launch += ["--cpu"]
    return [*launch, "-m", spec.worker, str(job)]


def _hosts(spec: StageSpec[Any], compute: Compute) -> int:
    """How many hosts the accelerate config file speaks of. Raises Misconfigured where it cannot be read."""
    if compute.accelerate_config is None:
        return 1
    try:
        told = yaml.safe_load(Path(compute.accelerate_config).read_text(encoding="utf-8"))
        return int(told.get("num_machines", 1))
    except (OSError, ValueError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise Misconfigured(
            f"compute.{spec.name}.accelerate_config names {compute.accelerate_config}, which is no accelerate config "
            f"file: {error}. `accelerate config --config_file FILE` makes one."
        ) from error


def describe_others(spec: StageSpec[Any], compute: Compute, job: Path, hosts: int) -> str:
    """What to call on the other hosts, which read the same store under the same path."""
    python, config = Path(sys.executable), Path(compute.accelerate_config or "").resolve()
    launch = f"{python} -m accelerate.commands.launch --config_file {config} --machine_rank RANK"
    others = "RANK 1" if hosts == 2 else f"RANK 1 to {hosts - 1}"
    return f"Waiting for {others}; on each of those hosts: {launch} -m {spec.worker} {job.resolve()}"


def child_environment(threads: int) -> dict[str, str]:
    """Environment of a CPU child with ``threads`` threads."""
    limits = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return {**KEEP_FREED, **limits, "TOKENIZERS_PARALLELISM": "false"}


def _environment(compute: Compute) -> dict[str, str]:
    threads = compute.threads or max(1, len(os.sched_getaffinity(0)) // compute.processes)
    extra = {"PYTHONUNBUFFERED": "1"}
    if compute.device == "cpu":
        extra["ACCELERATE_USE_CPU"] = "true"
    return {**os.environ, **child_environment(threads), **extra}


def _supervised(command: list[str], context: StageContext, log: Path, events: Path, lock: int) -> int:
    supervisor = [sys.executable, "-m", "elf.pipeline.supervise", str(os.getpid()), str(GRACE)]
    replay = Replay(events, context.progress)
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*supervisor, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(context.compute),
            start_new_session=True,
            pass_fds=(lock,),
        )
    try:
        while (code := process.poll()) is None:
            replay.poll()
            time.sleep(POLL)
        return code
    finally:
        _end(process, context.progress)
        replay.close()


def _end(process: subprocess.Popen[bytes], progress: Progress) -> None:
    """Have the supervisor end everything below it; it does so within its own grace period, and what had no time to
    save is said."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
            return
        progress.note(f"Stopping: what was computed is being saved, for at most {GRACE:.0f} s.")
        process.wait(GRACE + 5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    finally:
        if process.returncode in (128 + signal.SIGKILL, -signal.SIGKILL):
            progress.note(f"It did not stop within {GRACE:.0f} s and was killed; what it saved before stays.")


def _how_it_ended(code: int, said: str) -> str:
    """What became of a child that left no word of its own, from its part of the log."""
    if signals := _ENDED_BY.findall(said):
        cause = ", perhaps for want of memory" if signals[-1] == "SIGKILL" else ""
        return f"was ended by {signals[-1]}{cause}; the same command goes on from what it had saved"
    lines = [line.strip() for line in said.splitlines()[-200:] if line.strip()]
    telling = [line for line in lines if "Error" in line and not any(word in line for word in _AFTERMATH)]
    telling = telling or lines
    return f"ended with exit code {code}" + (f"; its last words: {telling[-1][:300]}" if telling else "")
