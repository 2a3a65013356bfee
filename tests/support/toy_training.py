"""A corpus so small that a training run takes a second: tokens and latents written as their stages would."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from elf.cache.files import crc32c
from elf.cache.layout import ArrayLayout, RaggedLayout
from elf.cache.manifest import MANIFEST, Fingerprint, Manifest, Provenance, merkle_root
from elf.cache.recording import records
from elf.cache.shards import finalise, write_metadata, write_shard
from elf.cache.store import Artifact
from elf.stages.rows import COUNTS, ROWS, SCHEMA, VOCABULARY, TokenRows, shard_name
from elf.stages.vocabulary import Vocabulary

LAUNCH = (sys.executable, "-m", "accelerate.commands.launch", "--log_dir", os.devnull, "--num_machines", "1")
PLAIN = ("--mixed_precision", "no", "--dynamo_backend", "no")
TRAIN: dict[str, Any] = {
    "model": {"depth": 1, "hidden": 16, "heads": 2, "bottleneck": 4},
    "latents": {"std": "measured"},
    "optim": {"lr": 0.01, "warmup_steps": 3, "ema": 0.9},
    "batch": 6,
    "steps": 20,
    "seed": 1,
    "save_every": 5,
}


@dataclass(frozen=True, slots=True)
class Size:
    rows: int = 23
    length: int = 8
    width: int = 6
    vocabulary: int = 40
    max_source: int | None = None


SMALL = Size()


def make_tokens(path: Path, size: Size, *, seed: int = 0) -> Artifact:
    """A tokenize artifact of random ids."""
    random = np.random.default_rng(seed)
    ids = random.integers(2, size.vocabulary, (size.rows, size.length), dtype=np.int32)
    condition, length = np.zeros(size.rows, np.int32), np.full(size.rows, size.length, np.int32)
    if size.max_source is not None:
        condition = random.integers(1, size.max_source + 1, size.rows, dtype=np.int32)
        length = np.minimum(condition + random.integers(1, 4, size.rows, dtype=np.int32), size.length)
    (path / ROWS).mkdir(parents=True)
    columns = [
        ids.tolist(),
        condition.tolist(),
        length.tolist(),
        list(range(size.rows)),
        [[f"d{row}"] for row in range(size.rows)],
    ]
    table = pa.table([pa.array(c, t) for c, t in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA)
    pq.write_table(
        table,
        path / ROWS / shard_name(0),
        use_dictionary=False,
        compression="NONE",
        data_page_size=2**30,
        write_statistics=False,
    )
    Vocabulary(
        mode="full",
        size=size.vocabulary,
        tokenizer_size=size.vocabulary,
        ids=None,
        unknown_id=0,
        end_id=1,
        pad_id=1,
        end_token="</s>",
        length=size.length,
        max_source=size.max_source,
    ).write(path / VOCABULARY)
    (path / COUNTS).write_text(json.dumps({"rows": size.rows}))
    return finish(path, "tokenize", {"rows": size.rows}, {})


def make_latents(
    path: Path,
    tokens: Artifact,
    size: Size,
    *,
    seed: int = 0,
    spread: float = 2.0,
    dtype: Any = "float16",
    zero: range = range(0),
) -> Artifact:
    """An encode artifact whose states tell their ids, one ``plain`` view or three views for pairs.

    The states of the rows in ``zero`` are all zero.
    """
    random = np.random.default_rng([seed, 1])
    known = TokenRows.open(tokens.path)
    ids = known.ids(np.arange(min(size.rows, known.rows)))
    states = np.random.default_rng(5).standard_normal((size.vocabulary, size.width)) * spread
    noise = random.standard_normal((size.rows, size.length, size.width)) * spread / 20
    whole = (noise + np.resize(states[ids], noise.shape)).astype(dtype)
    whole[list(zero)] = 0
    if size.max_source is None:
        layout = ArrayLayout(size.rows, size.length, size.width, dtype, 10)
        blocks = [[whole[layout.rows_of(s).start : layout.rows_of(s).stop]] for s in range(layout.shards)]
        _store(path / "plain", layout, blocks)
    else:
        rows = TokenRows.open(tokens.path)
        everything = np.arange(size.rows)
        condition = rows.condition_lengths(everything)
        views = {
            "condition": (condition, 0.0),
            "target_given_condition": (size.length - condition, 0.0),
            "target": (size.length - condition, 100.0),
        }
        for name, (lengths, shift) in views.items():
            layout = RaggedLayout(lengths.astype(np.int32), size.length, size.width, dtype, 128)
            starts = condition if name != "condition" else np.zeros_like(condition)
            parts = [
                whole[row, starts[row] : starts[row] + lengths[row]] + np.array(shift, dtype)
                for row in range(size.rows)
            ]
            blocks = [[parts[row] for row in layout.rows_of(s)] for s in range(layout.shards)]
            _store(path / name, layout, blocks)
    facts = {
        "rows": size.rows,
        "length": size.length,
        "width": size.width,
        "dtype": dtype,
        "mean": float(whole.astype(np.float64).mean()),
        "std": float(whole.astype(np.float64).std()),
        "encoder": "toy",
    }
    return finish(path, "encode", facts, {"tokens": tokens.manifest.fingerprint})


def _store(path: Path, layout: Any, blocks: list[list[np.ndarray]]) -> None:
    write_metadata(path, layout)
    for shard, each in enumerate(blocks):
        write_shard(path, layout, shard, each)
    finalise(path, layout)


def finish(path: Path, stage: str, facts: Mapping[str, Any], inputs: Mapping[str, Fingerprint]) -> Artifact:
    """Write the manifest of a folder; its key is made from its bytes."""
    files = records(path).files
    content = merkle_root(files)
    manifest = Manifest(
        stage=stage,
        version=1,
        fingerprint=Fingerprint(content),
        identity={},
        config={},
        inputs=dict(inputs),
        content=content,
        files=files,
        aux={},
        facts=dict(facts),
        provenance=Provenance(None, None, (), "here", "3", {}, "2026-01-01T00:00:00Z", 0.0),
    )
    (path / MANIFEST).write_text(manifest.to_json())
    return Artifact(path, manifest)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Inputs of a training run."""

    inputs: Mapping[str, Artifact]

    @classmethod
    def make(cls, folder: Path, size: Size = SMALL, *, heldout: Size | None = None) -> "Corpus":
        inputs: dict[str, Artifact] = {}
        for prefix, each in (("", size), ("heldout_", heldout)):
            if each is not None:
                seed = len(prefix)
                tokens = make_tokens(folder / f"{prefix}tokens", each, seed=seed)
                inputs[f"{prefix}tokens"] = tokens
                inputs[f"{prefix}latents"] = make_latents(
                    folder / f"{prefix}latents", tokens, each, seed=seed
                )
        return cls(inputs)


def poison(corpus: Corpus, row: int) -> None:
    """Put an infinity into a row of a finished store and into its records; shards hold 10 rows."""
    store = corpus.inputs["latents"].path / "plain"
    path, sums = store / "c" / str(row // 10) / "0" / "0", store / "crc" / f"{row // 10}.npy"
    size = SMALL.length * SMALL.width * 2
    raw = bytearray(path.read_bytes())
    start = row % 10 * size
    raw[start : start + 2] = np.array([np.inf], "<f2").tobytes()
    path.unlink()
    path.write_bytes(raw)
    crc = np.load(sums, allow_pickle=False)
    crc[row % 10] = crc32c(bytes(raw[start : start + size]))
    np.save(sums, crc)


def write_job(
    corpus: Corpus,
    out: Path,
    train: Mapping[str, Any],
    *,
    compute: Mapping[str, Any] | None = None,
    entry: str = "elf.stages.train:run",
    section: str = "elf.stages.train_settings:Train",
) -> Path:
    """JOB.json for the worker, in ``out/aux``."""
    (out / "aux").mkdir(parents=True, exist_ok=True)
    job = {
        "entry": entry,
        "section": {"type": section, "values": dict(train)},
        "out": str(out),
        "inputs": {role: str(artifact.path) for role, artifact in corpus.inputs.items()},
        "unbuilt": {},
        "compute": {
            "type": "elf.stages.compute:TrainCompute",
            "values": {"device": "cpu", "threads": 1, **(compute or {})},
        },
        "events": str(out / "aux" / "events.jsonl"),
    }
    path = out / "aux" / "job.json"
    path.write_text(json.dumps(job))
    return path


def start_worker(job: Path, *, command: tuple[str, ...] = (), **environment: str) -> subprocess.Popen[str]:
    """The worker as a process of its own."""
    return subprocess.Popen(
        [*(command or (sys.executable,)), "-m", "elf.stages.worker", str(job)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


def launch(job: Path, processes: int, *, code: int = 0, **environment: str) -> str:
    """Run a job as the product launches it; what was said. It must end with ``code``."""
    many = ("--multi_gpu",) if processes > 1 else ("--cpu",)
    port = str(20000 + os.getpid() % 20000)
    command = (*LAUNCH, "--num_processes", str(processes), "--main_process_port", port, *PLAIN, *many)
    process = start_worker(job, command=command, ACCELERATE_USE_CPU="true", **environment)
    said, _ = process.communicate(timeout=280)
    assert process.returncode == code, said
    return said


def config_file(folder: Path, *, hosts: int = 1) -> str:
    """An accelerate config file for two CPU processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    told = {"distributed_type": "MULTI_GPU", "use_cpu": False, "mixed_precision": "no", "num_processes": 2}
    place = {"num_machines": hosts, "machine_rank": 0, "main_process_ip": "127.0.0.1"}
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump({**told, **place, "main_process_port": port}))
    return str(path)


def flat(line: Mapping[str, Any]) -> dict[str, float]:
    """A line of metrics with the lists by noise level spread out, so that `pytest.approx` takes it."""
    spread: dict[str, float] = {}
    for name, value in line.items():
        listed = value if isinstance(value, list) else [value]
        spread |= {f"{name}.{place}" if value is listed else name: each for place, each in enumerate(listed)}
    return spread


def payload(out: Path) -> dict[str, str]:
    """Digest of every file but those under aux/."""
    return {name: record.digest for name, record in records(out).files.items()}
