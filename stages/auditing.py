"""Whether an embedding store holds what its encoder says: random rows encoded again from the artifacts it was made of.

tokens, encoder (by the manifest's keys), the stored section → fresh states, compared with the stored ones
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from elf.cache.manifest import JSON, short
from elf.cache.records import stores_in
from elf.cache.rows import open_rows, random_rows
from elf.cache.store import Artifact, Store
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.stage import Compute
from elf.stages.config import Encode
from elf.stages.encoding import EncodeJob, forget_encoder, job_of, view_of
from elf.stages.parity import Compared, compare_rows, tolerance
from elf.stages.views import PAIRS, TEXT, ViewName


@dataclass(frozen=True, slots=True)
class AuditedView:
    """What came of one view. Distances are relative to a row's size; ``equal`` is the share of numbers that are the
    same to the bit; ``worst`` is the row farthest away and ``beyond`` counts those past the tolerance."""

    view: ViewName
    rows: int
    largest: float
    mean: float
    equal: float
    worst: int
    beyond: int


@dataclass(frozen=True, slots=True)
class Audit:
    """``faults`` says in sentences what is wrong; ``dtype`` and ``tolerance`` are what was judged by."""

    dtype: str
    tolerance: float
    views: tuple[AuditedView, ...]
    faults: tuple[str, ...]


def audit(
    artifact: Artifact,
    store: Store,
    *,
    rows: int,
    seed: int,
    advance: Callable[[int], None] = lambda rows: None,
) -> Audit:
    """Encode ``rows`` random rows of each view again and compare; ``advance`` is told of every row.

    Raises Misconfigured for what is no encode artifact, Failed where what it was made of is not in the store, Damaged
    where a stored row is not even what was recorded.
    """
    inputs = inputs_of(artifact, store)
    with store.using([each.manifest.place for each in (artifact, *inputs.values())]):
        job = _job(artifact, inputs)
        faults = list(_encoder_faults(artifact, job))
        audited: list[AuditedView] = []
        try:
            for name in views_of(artifact):
                done = _audit_view(job, name, rows=rows, seed=seed, advance=advance)
                audited.append(done)
                if done.beyond:
                    faults.append(
                        f"{done.beyond} of {done.rows} rows of view {name} are farther than {tolerance(job):g} "
                        f"(relative) from what the encoder says, row {done.worst} by {done.largest:.3g}: they were "
                        "made by other weights, from other tokens or with other settings than the manifest names."
                    )
        finally:
            forget_encoder()
    return Audit(job.dtype, tolerance(job), tuple(audited), tuple(faults))


def inputs_of(artifact: Artifact, store: Store) -> dict[str, Artifact]:
    """What an encode artifact was made of, by role. Raises Misconfigured for another stage, Failed for what is gone."""
    manifest = artifact.manifest
    if manifest.stage != "encode":
        raise Misconfigured(
            f"{manifest.stage} {short(manifest.fingerprint)} holds no encoder states; give the key of an encode "
            "artifact (`elf cache ls encode`)."
        )
    found: dict[str, Artifact] = {}
    for role, key in manifest.inputs.items():
        stages = sorted(path.parent.name for path in store.root.glob(f"[a-z]*/{key}"))
        made = store.find(stages[0], key) if stages else None
        if made is None:
            raise Failed(
                f"encode {short(manifest.fingerprint)} was made from {role} {short(key)}, which {store.root} does not "
                "hold; `elf run` with the experiment it belongs to builds it again."
            )
        found[role] = made
    return found


def views_of(artifact: Artifact) -> list[ViewName]:
    """The views that an encode artifact holds."""
    there = stores_in(artifact.manifest)
    return [name for name in (*TEXT, *PAIRS) if name in there]


def _job(artifact: Artifact, inputs: Mapping[str, Artifact]) -> EncodeJob:
    """The job that made the artifact, were it done again."""
    try:
        section = Encode.model_validate_json(json.dumps(artifact.manifest.config))
    except ValidationError as error:
        raise Failed(
            f"encode {short(artifact.manifest.fingerprint)} was made with settings that this version does not know: "
            f"{error.errors()[0]['msg']} ({'.'.join(map(str, error.errors()[0]['loc']))}). Audit it with the version "
            "that made it, or build it again with `elf run`."
        ) from error
    return job_of(section, inputs, artifact.path, Compute())


def _encoder_faults(artifact: Artifact, job: EncodeJob) -> list[str]:
    said = artifact.manifest.facts.get("encoder")
    digest: JSON = said.get("digest") if isinstance(said, Mapping) else None
    if digest == job.encoder.digest:
        return []
    return [
        f"Its facts say that it was made by an encoder of digest {digest}; the one that its manifest names has "
        f"{job.encoder.digest}."
    ]


def _audit_view(
    job: EncodeJob, name: ViewName, *, rows: int, seed: int, advance: Callable[[int], None]
) -> AuditedView:
    layout = view_of(job, name)[1]
    stored = open_rows(job.out / name).layout.rows
    if stored != layout.rows:
        raise Failed(
            f"View {name} in {job.out} holds {stored:,} rows, but the tokens it was made from have {layout.rows:,}: "
            "they were built again since, and came out otherwise. Encode them again: run encode with --force."
        )
    chosen = random_rows(layout.rows, rows, seed=seed)
    compared: list[Compared] = []
    for each in compare_rows(job, name, chosen):
        compared.append(each)
        advance(1)
    if not compared:
        return AuditedView(name, 0, 0.0, 0.0, 1.0, 0, 0)
    worst = max(compared, key=lambda each: each.relative)
    return AuditedView(
        view=name,
        rows=len(compared),
        largest=worst.relative,
        mean=sum(each.relative for each in compared) / len(compared),
        equal=sum(each.equal for each in compared) / sum(each.numbers for each in compared),
        worst=worst.row,
        beyond=sum(not each.relative <= tolerance(job) for each in compared),
    )
