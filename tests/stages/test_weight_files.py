"""Which files of a model folder are its weights, and what is refused before a number of them is read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from elf.pipeline.errors import Failed
from elf.stages.weight_files import (
    INDEX,
    SINGLE,
    read_header,
    read_headers,
    refuse_other_numbers,
    weight_files,
)

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def put(path: Path, *names: str, dtype: torch.dtype = torch.float32) -> None:
    save_file({name: torch.ones(3).to(dtype) for name in names}, path)


def list_files(folder: Path, *files: str) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {str(n): file for n, file in enumerate(files)}}))


def test_the_single_file_stands_alone(tmp_path: Path) -> None:
    for file in (SINGLE, FIRST):
        put(tmp_path / file, "a")
    list_files(tmp_path, FIRST)
    assert weight_files(tmp_path) == [tmp_path / SINGLE]
    assert read_headers(tmp_path)["a"].file == tmp_path / SINGLE


def test_without_it_the_index_says_what_is_read(tmp_path: Path) -> None:
    put(tmp_path / FIRST, "a")
    put(tmp_path / SECOND, "b")
    put(tmp_path / "leftover.safetensors", "a")
    list_files(tmp_path, SECOND, FIRST, FIRST)
    assert weight_files(tmp_path) == [tmp_path / FIRST, tmp_path / SECOND]
    assert {name: held.file.name for name, held in read_headers(tmp_path).items()} == {
        "a": FIRST,
        "b": SECOND,
    }


def test_one_name_in_two_files_is_refused(tmp_path: Path) -> None:
    put(tmp_path / FIRST, "a", "b")
    put(tmp_path / SECOND, "b")
    list_files(tmp_path, FIRST, SECOND)
    with pytest.raises(Failed, match=f"holds b twice, in {FIRST} and in {SECOND}"):
        read_headers(tmp_path)


def test_folders_without_a_list_of_weights_are_refused(tmp_path: Path) -> None:
    put(tmp_path / FIRST, "a")
    with pytest.raises(Failed, match=rf"neither {SINGLE} nor {INDEX}.*there is {FIRST}.*pickles"):
        weight_files(tmp_path)
    list_files(tmp_path, FIRST, SECOND)
    with pytest.raises(Failed, match=f"lists {SECOND} among 2 files .* 1 of them are missing"):
        weight_files(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "{}",
        '{"weight_map": {}}',
        '{"weight_map": {"a": "../a.safetensors"}}',
        '{"weight_map": [1]}',
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(Failed, match="does not list files of weights"):
        weight_files(tmp_path)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 162976\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (POINTER, "is no safetensors file: it is a git-LFS pointer.*`git lfs pull`"),
        (b"<!DOCTYPE html><html>not found</html>\n", "is no safetensors file: it is a web page"),
        (b"", "is no safetensors file: it is empty"),
        (b"\x10", "its header would end at byte 24, and the file has 1"),
        (b"\xff" * 64, "its header would end at byte 18,446,744,073,709,551,623, and the file has 64"),
        (b"\x02" + bytes(7) + b"[]", "header cannot be read"),
        (b"\x02" + bytes(7) + b"\xff\xff", "header cannot be read"),
        (b"\x08" + bytes(7) + b'{"a": 1}', "header cannot be read"),
        (
            b"\x38" + bytes(7) + b'{"a": {"dtype": "F32", "data_offsets": [0, Infinity]}}   ',
            "header cannot be read",
        ),
    ],
)
def test_what_is_no_safetensors_file_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / SINGLE
    path.write_bytes(content)
    with pytest.raises(Failed, match=said):
        read_header(path)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_size_than_its_tensors_is_damaged(tmp_path: Path, change: int) -> None:
    path = tmp_path / SINGLE
    put(path, "a")
    whole = path.read_bytes()
    path.write_bytes(whole[:change] if change < 0 else whole + bytes(change))
    with pytest.raises(
        Failed, match=f"by its header it has {len(whole)} bytes, and it has {len(whole) + change}"
    ):
        read_header(path)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.float8_e4m3fn])
def test_other_numbers_than_floats_are_refused_where_they_are_wanted(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    put(tmp_path / SINGLE, "a", dtype=dtype)
    headers = read_headers(tmp_path)
    refuse_other_numbers(headers, ["b"])
    with pytest.raises(Failed, match=rf"{SINGLE} holds a as [IF]\d+\S*\. .*Bring the unquantised weights"):
        refuse_other_numbers(headers, ["a"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_floats_are_taken(tmp_path: Path, dtype: torch.dtype) -> None:
    put(tmp_path / SINGLE, "a", dtype=dtype)
    refuse_other_numbers(read_headers(tmp_path), ["a"])
