"""Stage ``encode``: every row of a split through the frozen encoder, its raw states into one store per view.

    tokens, encoder → <view>/ (a store of elf.cache)      views: elf.stages.views

Nothing random and nothing normalised is stored. Bytes depend on the tokens, the encoder and the section alone, not
on batch size, threads, workers or on where a killed run went on; the facts say what made them.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from elf.cache.files import remove_strays, remove_tree, write_atomic
from elf.cache.manifest import JSON
from elf.cache.parts import ShardRecord
from elf.cache.shards import finalise, write_metadata
from elf.pipeline.devices import note_devices
from elf.pipeline.errors import Failed
from elf.pipeline.stage import Compute, StageContext
from elf.stages.config import Encode
from elf.stages.devices import describe_devices
from elf.stages.encoder import EncoderInfo
from elf.stages.encoding import (
    MOMENTS,
    EncodeJob,
    Part,
    encode_part,
    finished,
    forget_encoder,
    job_of,
    read_moments,
    view_of,
)
from elf.stages.memory import cores, keep_freed_memory, set_threads
from elf.stages.moments import Moments, counted, seen_in_training
from elf.stages.parity import Parity, measure_parity
from elf.stages.rows import TokenRows
from elf.stages.views import ViewName, choose_views
from elf.stages.vocabulary import TOKENIZER_FILE, load_tokenizer

PROBES = (
    "The quick brown fox jumps over the lazy dog.",
    "In 1969, 3.5% of $1,200 was $42.00 (net).",
    "don't can't won't it's they're",
    "ALL CAPS and Title Case and mIxEd",
    "state-of-the-art e-mail co-operation",
    "naïve façade, Übergröße, señor, Čeština",
    "日本語 русский العربية ελληνικά",
    "  two  spaces\tand a tab",
    'He said: "Yes" — then left… and <b>why</b>?',
    "pneumonoultramicroscopicsilicovolcanoconiosis",
)


def run(section: Encode, context: StageContext) -> Mapping[str, JSON]:
    """Encode the split; facts as described in ``_facts``.

    Raises Failed where tokens and encoder do not belong together or a state cannot be stored, Misconfigured for a
    layer, view or dtype that is not there.
    """
    job = job_of(section, context.inputs, context.out, context.compute)
    rows = TokenRows.open(job.tokens)
    probe = check_tokens(rows, job.encoder)
    views = choose_views(section.views, pairs=rows.vocabulary.max_source is not None)
    _encode(job, views, context)
    refuse_constant(job, seen_in_training({name: read_moments(job, name) for name in views}))
    made: dict[ViewName, dict[int, ShardRecord]] = {
        name: finalise(job.out / name, view_of(job, name)[1]) for name in views
    }
    try:
        parity: dict[ViewName, Parity] = {name: measure_parity(job, name) for name in views}
    finally:
        forget_encoder()
    facts = _facts(job, made, parity, probe)
    remove_tree(context.out / MOMENTS)
    remove_strays(context.out)  # of workers that were killed
    return facts


def check_tokens(rows: TokenRows, info: EncoderInfo) -> str:
    """Digest of the ids of ten probe strings. Raises Failed where tokens and encoder do not belong together."""
    if rows.rows == 0:
        raise Failed(
            f"There is no row to encode in {rows.path}: tokenize made none of these documents. Bring more text, or "
            "lower tokenize.length."
        )
    if rows.vocabulary.tokenizer_size > info.vocabulary:
        raise Failed(
            f"The tokenizer of the rows has {rows.vocabulary.tokenizer_size:,} ids, but the encoder in {info.folder} "
            f"embeds {info.vocabulary:,}: tokenize with the encoder's own tokenizer."
        )
    if info.longest is not None and rows.length > info.longest:
        raise Failed(
            f"Rows are {rows.length} tokens long, but the encoder in {info.folder} takes {info.longest} at most; set "
            f"tokenize.length to {info.longest} or less, or choose an encoder with relative positions (T5)."
        )
    ours = _probe(rows.path / "tokenizer")
    if (info.folder / TOKENIZER_FILE).is_file():
        theirs = _probe(info.folder)
        for text, mine, other in zip(PROBES, ours, theirs, strict=True):
            if mine != other:
                raise Failed(
                    f"The rows were not made with the encoder's tokenizer: {text!r} is {mine[:8]}… in the rows and "
                    f"{other[:8]}… for the encoder in {info.folder}. Leave tokenize.tokenizer out to take its own."
                )
    return f"sha256:{hashlib.sha256(json.dumps(ours).encode()).hexdigest()}"


def refuse_constant(job: EncodeJob, moments: Moments) -> None:
    """Raises Failed where every stored number is the same, so that no state tells its token."""
    if counted(moments).std:
        return
    info = job.encoder
    raise Failed(
        f"Hidden layer {info.layer} of the encoder in {info.folder} is {moments.low + 0.0:g} everywhere once stored as "
        f"{job.dtype}: the encoder gives the same state for every token, and nothing can be learnt from it. Look at "
        "its weights (a final norm or an embedding table of zeros, a file of another model); for numbers too small for "
        "the dtype, set encode.dtype to float32."
    )


def _probe(folder: Path) -> list[list[int]]:
    return load_tokenizer(folder).probe(PROBES)


def _encode(job: EncodeJob, views: Sequence[ViewName], context: StageContext) -> None:
    """Make the parts that are missing."""
    todo: list[Part] = []
    total = done = 0
    for name in views:
        view, layout = view_of(job, name)
        write_metadata(job.out / name, layout)
        ready = finished(job, name)
        todo += [Part(name, shard) for shard in range(layout.shards) if shard not in ready]
        total += view.tokens.rows * view.length
        done += sum(len(layout.rows_of(shard)) for shard in ready) * view.length
    began = time.monotonic()
    with context.progress.bar("encode", total, unit="tokens", done=done) as bar:
        _do(job, todo, context.compute, context.out / "scratch", lambda amount: bar.advance(amount))
    seconds = time.monotonic() - began
    if todo:
        speed = {"tokens": total - done, "seconds": seconds, "tokens_per_second": (total - done) / seconds}
        write_atomic(context.aux / "timing.json", json.dumps(speed))


def _do(
    job: EncodeJob, todo: Sequence[Part], compute: Compute, scratch: Path, advance: Callable[[int], None]
) -> None:
    """Do the parts here, on local processes, or on the workers of the scheduler that is named."""
    remove_tree(scratch)
    if job.device == "cpu":
        keep_freed_memory()
    set_threads(compute.threads)
    wanted = compute.workers or (torch.cuda.device_count() if job.device == "cuda" else cores())
    workers = min(wanted, len(todo))
    if not todo:
        return
    if compute.scheduler is None:
        note_devices(job.out, describe_devices(job.device, processes=workers))
    if compute.scheduler is None and workers == 1:
        for part in todo:
            encode_part(job, part, advance)
        return
    from elf.stages.cluster import do_parts, local_workers, named_scheduler  # half a second to import

    threads = compute.threads or max(1, cores() // workers)
    address = compute.scheduler
    cluster = local_workers(workers, threads, scratch) if address is None else named_scheduler(address)
    with cluster as client:
        do_parts(client, encode_part, job, todo, advance)


def _facts(
    job: EncodeJob,
    made: Mapping[ViewName, Mapping[int, ShardRecord]],
    parity: Mapping[ViewName, Parity],
    probe: str,
) -> dict[str, JSON]:
    """Shape and dtype, size, parity, moments, and what made the states.

    Moments are of what training sees most: states of tokens, not of padding, and of kept conditions; each view has
    its own besides.
    """
    moments = {name: read_moments(job, name) for name in made}
    sizes = {name: sum(record.bytes for record in records.values()) for name, records in made.items()}
    views: dict[str, JSON] = {
        name: {
            "shards": len(made[name]),
            "bytes": sizes[name],
            "numbers": moments[name].count,
            **_described(moments[name]),
            "parity": parity[name].plain(),
        }
        for name in made
    }
    layout, info = view_of(job, next(iter(made)))[1], job.encoder
    return {
        "rows": layout.rows,
        "length": layout.length,
        "width": layout.width,
        "dtype": job.dtype,
        **_described(seen_in_training(moments)),
        "shards": sum(map(len, made.values())),
        "bytes": sum(sizes.values()),
        "parity": max(each.relative for each in parity.values()),
        "views": views,
        "encoder": encoder_facts(info, probe),
    }


def encoder_facts(info: EncoderInfo, probe: str) -> dict[str, JSON]:
    """What an encoder is, wherever its states come from: a model trained on them wants the same one again."""
    return {
        "class": info.kind,
        "type": info.model_type,
        "digest": info.digest,
        "layer": info.layer,
        "layers": info.layers,
        "width": info.width,
        "vocabulary": info.vocabulary,
        "weights": info.weights,
        "compute": info.compute,
        "tokenizer": probe,
    }


def _described(moments: Moments) -> dict[str, JSON]:
    counted(moments)
    return {"mean": moments.mean, "std": moments.std, "min": moments.low, "max": moments.high}
