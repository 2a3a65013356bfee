"""A store with tokens, an encoder and the encode artifact that was made of them, as runs leave them."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from toy_encoders import make_case, make_t5, pairs, texts
from toy_training import finish

from elf.cache.manifest import Fingerprint
from elf.cache.recording import records
from elf.cache.store import Artifact, Store
from elf.pipeline.plan import payload_of
from elf.pipeline.section import fingerprint, identity
from elf.stages import encode
from elf.stages.config import Encode


def make_encoded(
    folder: Path, *, paired: bool = False, dtype: Any = "float16", documents: int = 8
) -> Artifact:
    """The artifact of so many texts, or of 20 pairs, in ``folder/store``."""
    given = pairs(20) if paired else texts(documents)
    case = make_case(folder / "made", make_t5(), given, length=16, max_source=6 if paired else None)
    section = Encode(dtype=dtype, shard_bytes=2500)
    out = folder / "made" / "out"
    facts = dict(encode.run(section, case.context()))
    inputs = {"tokens": case.tokens.manifest.fingerprint, "encoder": case.encoder.manifest.fingerprint}
    plain = finish(out, "encode", facts, inputs).manifest
    unkeyed = dataclasses.replace(
        plain, identity=identity(section), config=json.loads(section.model_dump_json()), aux=records(out).aux
    )
    manifest = dataclasses.replace(unkeyed, fingerprint=fingerprint(payload_of(unkeyed)))
    (out / "manifest.json").write_text(manifest.to_json())
    for made, stage, key in (
        (case.tokens.path, "tokenize", inputs["tokens"]),
        (case.encoder.path, "fetch", inputs["encoder"]),
        (out, "encode", manifest.fingerprint),
    ):
        place = folder / "store" / stage / key
        place.parent.mkdir(parents=True, exist_ok=True)
        made.rename(place)
    return find(folder / "store", manifest.fingerprint)


def find(root: Path, key: Fingerprint) -> Artifact:
    """The encode artifact of a store."""
    found = Store(root).find("encode", key)
    assert found is not None
    return found
