"""The encode stage: right states, the same bytes however they were made, and nothing that is not a number."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damage import HARM
from safetensors.torch import load_file, save_file
from toy_encoders import (
    ONE,
    VOCABULARY,
    WORDS,
    Case,
    make_bert,
    make_case,
    make_t5,
    pairs,
    texts,
    tree,
)
from toy_training import finish

from elf.cache.errors import Damaged
from elf.cache.files import remove_strays
from elf.cache.rows import RaggedRows, Rows
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.section import identity
from elf.pipeline.stage import Compute
from elf.stages import encode
from elf.stages.config import Encode
from elf.stages.encoder import describe_encoder, load_encoder
from elf.stages.encoding import EncodeJob, Part, encode_part
from elf.stages.latents import open_latents
from elf.stages.rows import TokenRows
from elf.stages.train_settings import Latents
from elf.stages.views import PAIRS, ViewName, ViewRows, encode_rows

MANY = Encode(shard_bytes=2500)  # two rows of 16 × 32 float16 in a shard
Poison = Callable[[dict[str, torch.Tensor]], None]


def run(case: Case, section: Encode = MANY, *, out: str = "out", compute: Compute = ONE) -> dict[str, Any]:
    return dict(encode.run(section, case.context(out, compute)))


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("text"), make_t5(), texts(8))


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("pairs"), make_t5(), pairs(20), length=16, max_source=6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_what_is_stored_are_the_encoders_states(text: Case, dtype: Any) -> None:
    run(text, Encode(dtype=dtype, shard_bytes=2500), out=dtype)
    tokens = TokenRows.open(text.tokens.path)
    rows = Rows.open(text.folder / dtype / "plain")
    encoder = load_encoder(describe_encoder(text.encoder.path / "data", layer=None, compute="float32"))
    states = encode_rows(encoder, ViewRows("plain", tokens).inputs(np.arange(tokens.rows)))
    wanted = states.to(
        {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
    )
    assert rows.shape == (tokens.rows, 16, 32)
    for row in range(tokens.rows):
        raw = torch.from_numpy(rows[row].copy())
        assert torch.equal(raw.view(torch.bfloat16) if dtype == "bfloat16" else raw, wanted[row])


def test_the_facts_say_what_was_made(text: Case) -> None:
    facts = run(text, Encode(dtype="float32", layer=1, shard_bytes=5000), out="facts")
    tokens = TokenRows.open(text.tokens.path)
    rows = Rows.open(text.folder / "facts" / "plain")
    lengths = tokens.lengths(np.arange(tokens.rows))
    valid = np.concatenate([rows[row][: lengths[row]].reshape(-1) for row in range(tokens.rows)])
    assert lengths.min() < 16  # padding is there and does not count
    assert facts["mean"] == pytest.approx(valid.astype(np.float64).mean(), rel=1e-9)
    assert facts["std"] == pytest.approx(valid.astype(np.float64).std(), rel=1e-6)
    assert (facts["min"], facts["max"]) == (valid.min(), valid.max())
    assert (facts["rows"], facts["length"], facts["width"]) == (tokens.rows, 16, 32)
    assert facts["dtype"] == "float32"
    assert facts["parity"] == 0
    stored = [path for path in (text.folder / "facts" / "plain" / "c").rglob("*") if path.is_file()]
    assert facts["shards"] == len(stored) > 1
    assert facts["bytes"] == sum(path.stat().st_size for path in stored)
    encoder = facts["encoder"]
    assert (encoder["class"], encoder["layer"], encoder["layers"]) == ("FastT5", 1, 2)
    assert encoder["tokenizer"].startswith("sha256:")
    assert encoder["digest"].startswith("xxh3:")


def test_only_the_store_is_left(text: Case) -> None:
    run(text, out="clean")
    payload = {name.split("/")[0] for name in tree(text.folder / "clean")}
    assert payload == {"plain"}
    assert (text.folder / "clean" / "aux" / "timing.json").exists()


def test_training_opens_what_encode_made(text: Case, paired: Case) -> None:
    for case, drops in ((text, False), (paired, True)):
        facts = run(case, out="read")
        made = finish(case.folder / "read", "encode", facts, {"tokens": case.tokens.manifest.fingerprint})
        latents = open_latents(case.tokens, made, Latents(std="measured"), drops=drops)
        raw = latents.read(np.arange(4), torch.tensor([False] * 4), latents.make_buffer(4))
        x = latents.normalise(raw, torch.device("cpu")).x_BLD
        assert torch.isfinite(x).all()
        assert (latents.rows, latents.length, latents.width) == (facts["rows"], 16, 32)


def test_pairs_have_three_views_that_add_up(paired: Case) -> None:
    facts = run(paired, Encode(dtype="float32"), out="views")
    tokens = TokenRows.open(paired.tokens.path)
    stores: dict[ViewName, RaggedRows] = {
        name: RaggedRows.open(paired.folder / "views" / name) for name in PAIRS
    }
    encoder = load_encoder(describe_encoder(paired.encoder.path / "data", layer=None, compute="float32"))
    for name, store in stores.items():
        view = ViewRows(name, tokens)
        for row in range(tokens.rows):
            assert np.array_equal(store[row], encode_rows(encoder, view.inputs(np.array([row]))).numpy())
    both = [facts["views"][name]["numbers"] for name in ("condition", "target_given_condition")]
    assert sum(both) == int(tokens.lengths(np.arange(tokens.rows)).sum()) * 32
    assert facts["views"]["target"]["mean"] != facts["views"]["target_given_condition"]["mean"]


@pytest.mark.parametrize("compute", [{"batch_tokens": 1}, {"batch_tokens": 50}, {"threads": 2}])
def test_batches_and_threads_change_no_byte(paired: Case, compute: dict[str, int]) -> None:
    other = run(paired, out=f"other{compute}", compute=ONE.model_copy(update=compute))
    assert run(paired, out="one") == other
    assert tree(paired.folder / "one") == tree(paired.folder / f"other{compute}")


def test_a_run_that_stopped_goes_on_with_what_is_missing(text: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = run(text, out="whole")
    made: list[int] = []

    def stop_at_three(job: EncodeJob, part: Part, advance: Callable[[int], None]) -> None:
        if len(made) == 3:
            raise KeyboardInterrupt
        made.append(part.shard)
        encode_part(job, part, advance)

    monkeypatch.setattr(encode, "encode_part", stop_at_three)
    with pytest.raises(KeyboardInterrupt):
        run(text, out="again")
    half = {path: path.stat().st_ino for path in (text.folder / "again" / "plain" / "c").glob("*/0/0")}
    assert len(half) == 3
    made.clear()
    made += [-1, -1, -1, -1]  # never stop again
    assert run(text, out="again") == facts
    assert sorted(made)[4:] == list(range(3, facts["shards"]))
    assert {path: path.stat().st_ino for path in half} == half
    assert tree(text.folder / "again") == tree(text.folder / "whole")


@pytest.mark.parametrize("harm", [*HARM, "stray"])
def test_what_was_damaged_meanwhile_is_made_again_or_refused_by_name(text: Case, harm: str) -> None:
    out = f"harmed {harm}"
    facts = run(text, out="unharmed")
    run(text, out=out)
    store = text.folder / out / "plain"
    if harm == "stray":
        (store / "c" / "1" / "0" / ".tmp-12-ab").write_bytes(b"half")
        remove_strays(text.folder / out)  # as whoever gets the folder to build in does
    else:
        HARM[harm][0](store)
    if harm == "description cut":
        with pytest.raises(Damaged, match=r"zarr\.json does not describe this store"):
            run(text, out=out)
        (store / "zarr.json").unlink()
    again = run(text, out=out)
    assert again == facts
    assert tree(text.folder / out) == tree(text.folder / "unharmed")


def test_a_shard_without_its_moments_is_made_again(text: Case) -> None:
    facts = run(text, out="moments")
    assert run(text, out="moments") == facts  # the first run took the moments with it


def poisoned(case: Case, poison: Poison, folder: Path) -> Case:
    """The same tokens before an encoder whose weights were changed."""
    data = folder / "data"
    data.mkdir(parents=True)
    for path in (case.encoder.path / "data").iterdir():
        (data / path.name).write_bytes(path.read_bytes())
    weights = load_file(data / "model.safetensors")
    poison(weights)
    save_file(weights, data / "model.safetensors", {"format": "pt"})
    return Case(folder, case.tokens, finish(folder, "fetch", {}, {}))


def blow_up(weights: dict[str, torch.Tensor]) -> None:
    weights["encoder.block.0.layer.1.DenseReluDense.wo.weight"] *= 1e6


def put_nan(weights: dict[str, torch.Tensor]) -> None:
    weights["shared.weight"][3 + WORDS.index("w7")] = float("nan")


def test_float16_overflow_stops_and_names_row_layer_and_dtype(text: Case, tmp_path: Path) -> None:
    case = poisoned(text, blow_up, tmp_path)
    section = Encode(layer=1, dtype="float16", shard_bytes=2500)
    with pytest.raises(Failed, match=r"Row \d+ .*hidden layer 1 .*beyond the 6\.55e\+04 of float16"):
        encode.run(section, case.context())
    assert not list((tmp_path / "out").rglob("*.json.tmp"))
    assert not (tmp_path / "out" / "plain" / "parts" / "0.json").exists()
    wide = encode.run(Encode(layer=1, dtype="float32"), case.context("wide"))
    assert float(str(wide["max"])) > 65504


def test_nan_stops_at_the_row_and_layer_where_it_comes_up(text: Case, tmp_path: Path) -> None:
    case = poisoned(text, put_nan, tmp_path)
    tokens = TokenRows.open(text.tokens.path)
    ids = tokens.ids(np.arange(tokens.rows))
    first = int(np.flatnonzero((ids == 3 + WORDS.index("w7")).any(axis=1))[0])
    with pytest.raises(Failed, match=rf"Row {first} .*hidden layer 0 .*is not finite.*float16"):
        run(case)
    finished = sorted(int(path.stem) for path in (tmp_path / "out" / "plain" / "parts").glob("*.json"))
    assert finished == list(range(first // 2))  # shards of two rows before it, none with it


def flatten(weights: dict[str, torch.Tensor]) -> None:
    weights["encoder.final_layer_norm.weight"] *= 0


def shrink(weights: dict[str, torch.Tensor]) -> None:
    weights["encoder.final_layer_norm.weight"] *= 1e-30


def test_an_encoder_that_gives_one_state_for_all_is_refused(text: Case, paired: Case, tmp_path: Path) -> None:
    for name, source in (("text", text), ("pairs", paired)):
        case = poisoned(source, flatten, tmp_path / name)
        for dtype in ("float16", "float32"):
            with pytest.raises(
                Failed, match=r"layer 2 of the encoder in .* is 0 .*same state for every token"
            ):
                encode.run(Encode(dtype=dtype), case.context(dtype))


def test_states_that_hardly_differ_are_stored(text: Case, tmp_path: Path) -> None:
    case = poisoned(text, shrink, tmp_path)
    facts = run(case, Encode(dtype="float32"))
    assert 0 < facts["std"] < 1e-29
    with pytest.raises(Failed, match=r"is 0 everywhere once stored as float16.*encode\.dtype"):
        run(case, Encode(dtype="float16"), out="half")


def test_tokens_of_another_tokenizer_are_refused(text: Case, tmp_path: Path) -> None:
    other = make_case(tmp_path, make_t5(), ["w1 w2"])
    path = other.encoder.path / "data" / "tokenizer.json"
    path.write_text(path.read_text().replace('"w59"', '"The"'))
    mixed = Case(tmp_path, text.tokens, other.encoder)
    with pytest.raises(Failed, match=r"not made with the encoder's tokenizer: 'The quick"):
        run(mixed)


def test_an_encoder_with_fewer_ids_is_refused(text: Case, tmp_path: Path) -> None:
    small = make_case(tmp_path, make_t5(vocab_size=VOCABULARY - 1), ["w1 w2"])
    with pytest.raises(Failed, match=f"has {VOCABULARY} ids.*embeds {VOCABULARY - 1}"):
        run(Case(tmp_path, text.tokens, small.encoder))


def test_rows_longer_than_the_positions_are_refused(tmp_path: Path) -> None:
    case = make_case(tmp_path, make_bert(), texts(5), length=65)
    with pytest.raises(Failed, match=r"65 tokens long.*takes 64"):
        run(case)


def test_views_and_layers_that_are_not_there_are_refused(text: Case) -> None:
    with pytest.raises(Misconfigured, match=r"encode\.views"):
        run(text, Encode(views=("target",)), out="refused")
    with pytest.raises(Misconfigured, match=r"encode\.layer"):
        run(text, Encode(layer=9), out="refused")


def test_a_bert_layer_is_stored(tmp_path: Path) -> None:
    case = make_case(tmp_path, make_bert(), texts(4))
    facts = run(case, Encode(layer=2))
    assert facts["encoder"]["class"] == "AutoModel"
    assert facts["parity"] < 1e-3


def test_what_changes_bytes_is_part_of_the_key() -> None:
    base = Encode()
    changes: tuple[dict[str, Any], ...] = (
        {"compute": "bfloat16"},
        {"dtype": "float32"},
        {"layer": 1},
        {"shard_bytes": 7},
    )
    for change in changes:
        assert identity(Encode(**change)) != base
    assert identity(Encode(expect_width=7)) == identity(base)


def test_arithmetic_in_bfloat16_changes_bytes(text: Case) -> None:
    run(text, out="full")
    facts = run(text, Encode(shard_bytes=2500, compute="bfloat16"), out="half")
    assert facts["encoder"]["compute"] == "bfloat16"
    assert tree(text.folder / "half").keys() == tree(text.folder / "full").keys()
    assert tree(text.folder / "half") != tree(text.folder / "full")
