"""A tiny random judge in a folder, as the fetch stage would leave it, and artifacts around folders."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from elf.cache.manifest import JSON, Fingerprint, Manifest, Provenance, merkle_root
from elf.cache.store import Artifact
from elf.pipeline.progress import LineProgress
from elf.pipeline.stage import Compute, StageContext

END = "<|endoftext|>"
ALPHABET = " abcdefghijklmnopqrstuvwxyz.,'0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def make_judge(folder: Path, *, window: int = 64, seed: int = 0) -> Path:
    """A two-layer GPT-2 over single characters, end mark included, saved with its tokenizer."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    pieces = {END: 0, "?": 1} | {letter: i + 2 for i, letter in enumerate(ALPHABET)}
    plain = Tokenizer(models.WordLevel(pieces, unk_token="?"))
    plain.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token=END, unk_token="?")
    tokenizer.save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = GPT2Config(
            vocab_size=len(pieces),
            n_positions=window,
            n_embd=24,
            n_layer=2,
            n_head=3,
            eos_token_id=0,
            bos_token_id=0,
            initializer_range=0.3,
        )
        GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def make_artifact(
    path: Path,
    stage: str,
    *,
    key: str = "",
    facts: Mapping[str, JSON] | None = None,
    config: Mapping[str, JSON] | None = None,
    inputs: Mapping[str, str] | None = None,
    seconds: float = 1.0,
) -> Artifact:
    """`path` as a finished artifact of `stage`, its manifest written beside what lies there."""
    path.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(
        stage=stage,
        version=1,
        fingerprint=Fingerprint(key or (stage.encode().hex() * 64)[:64]),
        identity={},
        config=config or {},
        inputs={role: Fingerprint(value) for role, value in (inputs or {}).items()},
        content=merkle_root({}),
        files={},
        aux={},
        facts=facts or {},
        provenance=Provenance(None, None, (), "here", "3", {}, "2026-01-01T00:00:00Z", seconds),
    )
    (path / "manifest.json").write_text(manifest.to_json())
    return Artifact(path, manifest)


def make_context(
    out: Path, inputs: Mapping[str, Artifact], *, batch: int | None = None, device: str = "cpu"
) -> StageContext:
    """A context on one thread that reports to nobody in particular."""
    out.mkdir(parents=True, exist_ok=True)
    compute = Compute.model_validate({"device": device, "threads": 1, "batch": batch})
    return StageContext(out, inputs, compute, LineProgress(every=1e9))


def write_samples(folder: Path, texts: Sequence[str | tuple[int, str]], **more: JSON) -> Path:
    """`samples.jsonl` with these texts, or (seed, text) pairs, ids in order within a seed."""
    folder.mkdir(parents=True, exist_ok=True)
    seen: dict[int, int] = {}
    with (folder / "samples.jsonl").open("w") as file:
        for item in texts:
            seed, text = item if isinstance(item, tuple) else (0, item)
            seen[seed] = seen.get(seed, -1) + 1
            file.write(json.dumps({"id": seen[seed], "seed": seed, "text": text, **more}) + "\n")
    return folder
