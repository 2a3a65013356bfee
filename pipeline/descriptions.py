"""What an artifact is, without its files: the manifest it would have, kept beside a result that was made without it.

``aux/unbuilt/<role>.json`` describes an input that was not in the store, so that what a result rests on can be told
and compared all the same.
"""

from datetime import UTC, datetime
from pathlib import Path

from elf.cache.errors import Damaged
from elf.cache.files import make_folder, write_atomic
from elf.cache.manifest import Manifest, merkle_root
from elf.pipeline import provenance
from elf.pipeline.plan import Planned

FOLDER = Path("aux", "unbuilt")


def describe(planned: Planned) -> Manifest:
    """What the manifest of a step says before anything of it is built: no files, no facts."""
    step = planned.step
    return Manifest(
        stage=step.spec.name,
        version=step.spec.version,
        fingerprint=planned.key,
        identity=planned.payload["identity"],  # type: ignore[arg-type]  # a mapping by construction
        config=step.section.model_dump(mode="json"),
        inputs=planned.input_keys,
        content=merkle_root({}),
        files={},
        aux={},
        facts={},
        provenance=provenance.record(started=datetime.now(UTC), seconds=0.0),
    )


def keep_description(folder: Path, role: str, manifest: Manifest) -> Path:
    """Write it beside the result in ``folder``; returns the file."""
    path = folder / FOLDER / f"{role}.json"
    make_folder(path.parent)
    write_atomic(path, manifest.to_json())
    return path


def read_description(folder: Path, role: str) -> Manifest | None:
    """What the result in ``folder`` says of an input it was made without; None where it says nothing that can be
    read."""
    try:
        return Manifest.from_json((folder / FOLDER / f"{role}.json").read_bytes())
    except (OSError, Damaged):
        return None
