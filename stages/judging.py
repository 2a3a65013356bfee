"""A judge's verdict on many texts: longest first, batch by batch, each batch recorded as soon as it is done."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from elf.cache.files import write_atomic
from elf.cache.manifest import JSON
from elf.cache.store import Artifact
from elf.pipeline.errors import Failed
from elf.pipeline.progress import Progress
from elf.stages.config import Judge as JudgeSection
from elf.stages.devices import choose_device
from elf.stages.judge import Judge, load_judge
from elf.stages.protocol import TOKENS_PER_CALL, Judged, Tokens, plan_batches
from elf.stages.texts import Text


def open_judge(section: JudgeSection, artifact: Artifact, device: str) -> Judge:
    """The judge that the section names, from the artifact that was fetched for it. Raises as `load_judge`."""
    return load_judge(
        artifact.path / "data",
        window=section.window,
        precision=section.precision,
        device=choose_device(device),
    )


def judge_facts(section: JudgeSection, judge: Judge, artifact: Artifact) -> dict[str, JSON]:
    """Who judged, and how."""
    return {
        "name": section.name,
        "window": section.window,
        "precision": section.precision,
        "end_ids": sorted(judge.end_ids),
        "key": artifact.manifest.fingerprint,
        "content": artifact.manifest.content,
    }


def judge_texts(
    texts: Sequence[Text], judge: Judge, *, rows: int | None, parts: Path, progress: Progress
) -> list[Judged]:
    """Score every text, ``rows`` at a time or as many as fit; a batch whose record lies in ``parts`` already is not
    scored again. Empty texts are not read. Raises Failed where an NLL is not finite."""
    tokens = judge.tokenize([text.text for text in texts])
    tokens = [Tokens((), False) if text.empty else item for text, item in zip(texts, tokens, strict=True)]
    batches = plan_batches(
        [len(item.ids) for item in tokens],
        rows=rows,
        tokens=TOKENS_PER_CALL[judge.model.device.type],
    )
    results: dict[int, Judged] = {}
    records = {batch[0]: parts / f"judged-{batch[0]:07d}-{len(batch)}.json" for batch in batches}
    for batch in batches:
        results |= _recorded(records[batch[0]], batch)
    total = sum(len(item.ids) for item in tokens)
    done = sum(len(tokens[i].ids) for i in results)
    with progress.bar("judge", total, unit="tokens", done=done) as bar:
        for batch in batches:
            if batch[0] in results:
                continue
            scored = judge.score([tokens[i] for i in batch])
            _refuse_not_finite([texts[i] for i in batch], scored)
            plain = {"texts": list(batch), "judged": [asdict(item) for item in scored]}
            write_atomic(records[batch[0]], json.dumps(plain, sort_keys=True, allow_nan=False))
            results |= dict(zip(batch, scored, strict=True))
            bar.advance(sum(len(tokens[i].ids) for i in batch))
    return [results[i] for i in range(len(texts))]


def _recorded(record: Path, batch: Sequence[int]) -> dict[int, Judged]:
    """What an interrupted run found for exactly this batch; nothing where it made other batches."""
    if not record.exists():
        return {}
    saved = json.loads(record.read_text(encoding="utf-8"))
    if saved["texts"] != list(batch):
        return {}
    return {i: Judged(**item) for i, item in zip(batch, saved["judged"], strict=True)}


def _refuse_not_finite(texts: Sequence[Text], scored: Sequence[Judged]) -> None:
    for text, item in zip(texts, scored, strict=True):
        if not np.isfinite(item.nll):
            raise Failed(
                f"The judge gives text {text.id!r} of seed {text.seed} an NLL of {item.nll}: the judge is damaged "
                "or overflows in this precision; set evaluate.judge.precision to float32 or fetch it again."
            )
