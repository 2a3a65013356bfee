"""Stage evaluate: texts of any origin → `metrics.json` and `per_text.jsonl`.

Needs only `samples.jsonl` (and copies `settings.json` beside it into the result, so that no number stands without
what made it). Without a judge the text statistics are still there and Gen-PPL is absent, with the reason.

Resumes batch by batch: the judge's records and the place in the training text lie under `parts/` until the end.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from elf.cache.files import make_folder, remove_at_once, write_atomic
from elf.cache.manifest import JSON
from elf.pipeline.devices import note_devices
from elf.pipeline.errors import Failed
from elf.pipeline.stage import StageContext
from elf.stages.config import Evaluate
from elf.stages.copies import CopySearch, stream_documents
from elf.stages.devices import choose_device, describe_devices
from elf.stages.guards import CONTROL
from elf.stages.json_files import read_json
from elf.stages.judge import Judge
from elf.stages.judging import judge_facts, judge_texts, open_judge
from elf.stages.memory import keep_freed_memory, set_threads
from elf.stages.rows import TokenRows
from elf.stages.scores import (
    METRICS,
    PER_TEXT,
    Floor,
    Measured,
    assess,
    library_versions,
    measure,
    notes_of,
    value_of,
)
from elf.stages.texts import SAMPLES, SETTINGS, Text, read_texts
from elf.stages.textstats import unigram_entropy, words_of
from elf.stages.vocabulary import cut_at_end, decode_texts, load_tokenizer

REAL_ROWS = 256
"""Rows of real text from which the entropy floor is taken."""
REAL_MARGIN = 0.5
COPY_ROWS = 16384
"""Training rows read between two records of the search for copies."""


def run(section: Evaluate, context: StageContext) -> Mapping[str, JSON]:
    """Score the texts of `context.inputs["samples"]`."""
    keep_freed_memory()
    set_threads(context.compute.threads)
    samples = context.inputs["samples"].path
    texts = read_texts(samples / SAMPLES)
    parts = make_folder(context.out / "parts")
    copied = find_copies(texts, section.copy_ngram, context, parts)
    judge, facts, judged = None, None, None
    if section.judge is not None:
        if "judge" not in context.inputs:
            raise Failed("evaluate.judge is set but no judge was fetched; give the step its input 'judge'.")
        note_devices(context.out, describe_devices(choose_device(context.compute.device)))
        judge = open_judge(section.judge, context.inputs["judge"], context.compute.device)
        facts = judge_facts(section.judge, judge, context.inputs["judge"])
        rows = context.compute.batch
        judged = judge_texts(texts, judge, rows=rows, parts=parts, progress=context.progress)
    floor = find_floor(section, judge, context)
    measured = measure(texts, copied, judged)
    assessed = assess(measured, copy_ngram=section.copy_ngram, floor=floor)
    control = context.inputs["samples"].manifest.stage == CONTROL
    for line in notes_of(assessed, control=control):
        context.progress.note(line)
    result = {
        **assessed,
        "judge": facts,
        "settings": _settings_of(samples),
        "samples": {"stage": context.inputs["samples"].manifest.stage, "key": _key(context, "samples")},
        "versions": library_versions(),
    }
    write_atomic(context.out / METRICS, _json(result, indent=1))
    write_atomic(
        context.out / PER_TEXT, "".join(_json(_per_text(item, section.copy_ngram)) for item in measured)
    )
    remove_at_once(parts)
    return {
        **{name: value_of(assessed["scores"], name) for name in assessed["scores"]},
        "texts": len(texts),
        "degenerate": assessed["degenerate"],
        "warnings": assessed["warnings"],
    }


def find_copies(texts: Sequence[Text], n: int, context: StageContext, parts: Path) -> list[tuple[int, int]]:
    """Per text (word n-grams that occur in the training text, all its n-grams); the training text is streamed."""
    tokens = context.inputs["tokens"].path
    rows, tokenizer = TokenRows.open(tokens), load_tokenizer(tokens / "tokenizer")
    search = CopySearch([words_of(text.text) for text in texts], n)
    record = parts / "copies.json"
    done, carry = 0, []
    if record.exists():
        saved = json.loads(record.read_text(encoding="utf-8"))
        done, carry = saved["rows"], saved["carry"]
        search.found[saved["found"]] = True
    documents = stream_documents(
        rows, end_id=rows.vocabulary.end_id, chunk=COPY_ROWS, start=done, carry=carry
    )
    with context.progress.bar("look for copies", rows.rows, unit="rows", done=done) as bar:
        for read, held, pieces in documents:
            search.look_through(tokenizer.backend.decode_batch(pieces, skip_special_tokens=True))
            found = np.flatnonzero(search.found).tolist()
            write_atomic(record, _json({"rows": read, "carry": held, "found": found}))
            bar.advance(read - done)
            done = read
    return search.counts()


def find_floor(section: Evaluate, judge: Judge | None, context: StageContext) -> Floor | None:
    """The entropy under which texts are degenerate: as configured, or that of real rows less a margin."""
    if section.entropy_floor is not None:
        return Floor(section.entropy_floor, "evaluate.entropy_floor")
    role = "heldout" if "heldout" in context.inputs else "tokens"
    folder = context.inputs[role].path
    rows, tokenizer = TokenRows.open(folder), load_tokenizer(folder / "tokenizer")
    chosen = np.unique(np.linspace(0, rows.rows - 1, min(REAL_ROWS, rows.rows)).round().astype(np.int64))
    bounds = zip(rows.ids(chosen), rows.condition_lengths(chosen), rows.lengths(chosen), strict=True)
    ids = [row[first:last] for row, first, last in bounds]
    end = rows.vocabulary.end_id
    if judge is not None:
        texts = [text for text in decode_texts(tokenizer, ids, end) if text.strip()]
        values = [unigram_entropy(item.ids) for item in judge.tokenize(texts)]
    else:
        values = [unigram_entropy(cut_at_end(row, end).tolist()) for row in ids]
    known = [value for value in values if value is not None]
    if not known:
        return None
    origin = "held-out text" if role == "heldout" else "training text"
    return Floor(float(np.mean(known)) - REAL_MARGIN, f"{origin} − {REAL_MARGIN}")


def _settings_of(samples: Path) -> Any:
    path = samples / SETTINGS
    return read_json(path) if path.exists() else None


def _key(context: StageContext, role: str) -> str:
    return context.inputs[role].manifest.fingerprint


def _per_text(item: Measured, n: int) -> dict[str, JSON]:
    plain: dict[str, JSON] = {
        "id": item.text.id,
        "seed": item.text.seed,
        "empty": item.text.empty,
        "duplicate": item.duplicate,
        "words": len(item.words),
        "repeats_4": list(item.repeated),
        f"copy_{n}": None if item.copied is None else list(item.copied),
        "entropy_ids": item.entropy_ids,
    }
    return plain | {"judged": asdict(item.judged) if item.judged is not None else None}


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=indent) + "\n"
