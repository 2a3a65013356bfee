from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
from judging import make_context

from elf.pipeline.errors import Failed
from elf.pipeline.progress import LineProgress
from elf.stages import fetch
from elf.stages.assets import locate, parse
from elf.stages.config import Asset
from elf.stages.hub import choose_files, explained, write_shards

COMMIT = "0123456789abcdef0123456789abcdef01234567"
MODEL = f"hub:google-t5/t5-small@{COMMIT}"
TOKEN = "hf_secretsecretsecret"


def test_safetensors_configuration_and_tokenizer_are_chosen() -> None:
    names = [
        "README.md", "config.json", "model.safetensors", "model.fp16.safetensors", "pytorch_model.bin", "tf_model.h5",
        "spiece.model", "tokenizer.json", "vocab.txt", "onnx/model.onnx", "onnx/config.json", ".gitattributes",
    ]  # fmt: skip
    assert choose_files(names, "r") == [
        "config.json", "model.safetensors", "spiece.model", "tokenizer.json", "vocab.txt"
    ]  # fmt: skip
    sharded = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    assert choose_files(sharded, "r") == sharded


@pytest.mark.parametrize("weights", ["pytorch_model.bin", "model.ckpt", "tf_model.h5", "flax_model.msgpack"])
def test_weights_in_pickles_or_other_formats_are_refused(weights: str) -> None:
    with pytest.raises(Failed, match=f"some/repo has its weights only as {weights}".replace(".", r"\.")):
        choose_files(["config.json", weights], "some/repo")


def test_a_model_is_downloaded_at_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}

    def model_info(self: object, name: str, *, revision: str) -> SimpleNamespace:
        siblings = [
            SimpleNamespace(rfilename=name)
            for name in ("config.json", "model.safetensors", "pytorch_model.bin")
        ]
        return SimpleNamespace(siblings=siblings, tags=["t5", "license:apache-2.0"])

    def snapshot_download(name: str, *, revision: str, local_dir: Path, allow_patterns: list[str]) -> None:
        asked.update(name=name, revision=revision, files=allow_patterns)
        for file in allow_patterns:
            (local_dir / file).write_text(file)
        (local_dir / ".cache" / "huggingface").mkdir(parents=True)

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    facts = fetch.run(locate(Asset(uri=MODEL)), make_context(tmp_path, {}))
    assert asked == {
        "name": "google-t5/t5-small",
        "revision": COMMIT,
        "files": ["config.json", "model.safetensors"],
    }
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["config.json", "model.safetensors"]
    assert facts["licence"] == "apache-2.0"
    assert str(facts["digest"]).startswith("sha256:")


def test_a_hub_that_is_not_there_is_named_without_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(self: object, name: str, *, revision: str) -> None:
        raise OSError(f"cannot connect to https://me:{TOKEN}@hub.example/api?token={TOKEN}")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", unreachable)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with pytest.raises(Failed, match="could not be reached for hub:google-t5/t5-small@0123456789ab") as error:
        fetch.run(locate(Asset(uri=MODEL)), make_context(tmp_path, {}))
    assert TOKEN not in str(error.value)
    assert not any(TOKEN in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_faults_of_a_data_set_are_told_apart() -> None:
    from datasets.exceptions import DatasetNotFoundError

    reference = parse(f"dataset:wmt/wmt14/de-en@{COMMIT}#train")
    with pytest.raises(Failed, match="The hub knows no dataset:wmt/wmt14"), explained(reference):
        raise DatasetNotFoundError("gone")
    with pytest.raises(Failed, match="cannot be read as asked: Unknown split"), explained(reference):
        raise ValueError("Unknown split\nand much more")
    with pytest.raises(OSError, match="No space"), explained(reference):
        raise OSError(28, "No space left on device")


def test_a_split_becomes_parquet_shards(tmp_path: Path) -> None:
    from datasets import Dataset, disable_progress_bars

    disable_progress_bars()
    dataset = Dataset.from_dict({"text": [f"document {index}" for index in range(100)]})
    write_shards(dataset, tmp_path, LineProgress(every=1e9), shard_bytes=700)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 3
    assert names[0] == "part-00000-of-00003.parquet"
    assert pq.read_table(tmp_path)["text"].to_pylist() == dataset["text"][:]
