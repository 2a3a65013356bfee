"""What each view keeps of a row, against transformers' own attention under the masks spelt out by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toy_encoders import Case, make_bert, make_case, make_t5, pairs, texts
from transformers import T5EncoderModel

from elf.cache.layout import ArrayLayout, RaggedLayout
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.encoder import describe_encoder, load_encoder
from elf.stages.rows import TokenRows
from elf.stages.views import PAIRS, TEXT, ViewName, ViewRows, choose_views, encode_rows

LENGTH, SOURCE = 12, 5


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp("pairs"), make_t5(), pairs(9), length=LENGTH, max_source=SOURCE)


def by_hand(
    case: Case, row: int, *, dropped: bool = False, only_condition: bool = False
) -> tuple[torch.Tensor, int, int]:
    """States (L, D) of a row by transformers, who sees whom written out position by position."""
    tokens = TokenRows.open(case.tokens.path)
    one = np.array([row])
    start, end = int(tokens.condition_lengths(one)[0]), int(tokens.lengths(one)[0])
    mask = torch.full((1, 1, LENGTH, LENGTH), torch.finfo(torch.float32).min)
    for query in range(LENGTH):
        for key in range(LENGTH):
            both_condition = query < start and key < start
            after = query >= start and key < end and not (dropped and key < start)
            if both_condition or (after and not only_condition):
                mask[0, 0, query, key] = 0
    model = T5EncoderModel.from_pretrained(case.encoder.path / "data", attn_implementation="eager").eval()
    with torch.no_grad():
        states = model(
            input_ids=torch.from_numpy(tokens.ids(one).astype(np.int64)), attention_mask=mask
        ).last_hidden_state[0]
    return states, start, end


def states_of(case: Case, view: ViewName, rows: list[int]) -> torch.Tensor:
    encoder = load_encoder(describe_encoder(case.encoder.path / "data", layer=None, compute="float32"))
    return encode_rows(encoder, ViewRows(view, TokenRows.open(case.tokens.path)).inputs(np.array(rows)))


@pytest.mark.parametrize("row", range(9))
def test_pair_views_are_transformers_states(paired: Case, row: int) -> None:
    kept, start, _ = by_hand(paired, row)
    alone, _, _ = by_hand(paired, row, dropped=True)
    wanted: dict[ViewName, torch.Tensor] = {
        "condition": kept[:start],
        "target_given_condition": kept[start:],
        "target": alone[start:],
    }
    for view, states in wanted.items():
        torch.testing.assert_close(states_of(paired, view, [row]), states, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(kept[start:], alone[start:], atol=1e-3)


def test_rows_of_a_batch_follow_each_other(paired: Case) -> None:
    for view in PAIRS:
        apart = torch.cat([states_of(paired, view, [row]) for row in (4, 0, 7)])
        assert torch.equal(states_of(paired, view, [4, 0, 7]), apart)


def test_a_target_alone_holds_nothing_of_the_condition(tmp_path: Path) -> None:
    sides = [("w1 w2 w3", "w7 w8"), ("w4 w5 w6", "w7 w8")]
    case = make_case(tmp_path, make_t5(), sides, length=LENGTH, max_source=SOURCE)
    first, second = (states_of(case, "target", [row]) for row in (0, 1))
    assert torch.equal(first, second)
    seen = [states_of(case, "target_given_condition", [row]) for row in (0, 1)]
    assert not torch.allclose(seen[0], seen[1], atol=1e-3)


@pytest.mark.parametrize("model", [make_t5(), make_bert()], ids=["t5", "bert"])
def test_padding_of_text_is_encoded_but_not_seen(model, tmp_path: Path) -> None:
    case = make_case(tmp_path, model, ["w1 w2 w3 w4", "w9 w8"], length=20)  # one row: 4 + end + 2 + end
    rows = TokenRows.open(case.tokens.path)
    assert rows.lengths(np.array([0])) < 20
    states = states_of(case, "plain", [0])
    assert states.shape == (1, 20, 32)
    assert torch.isfinite(states).all()
    encoder = load_encoder(describe_encoder(case.encoder.path / "data", layer=None, compute="float32"))
    valid = int(rows.lengths(np.array([0]))[0])
    ids = torch.from_numpy(rows.ids(np.array([0])).astype(np.int64))
    torch.testing.assert_close(states[:, :valid], encoder.states(ids[:, :valid]), rtol=1e-5, atol=1e-5)


@given(shard_bytes=st.integers(1, 20_000), width=st.sampled_from([1, 3, 32]))
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_shards_hold_whole_rows_and_about_the_bytes_asked(paired: Case, shard_bytes: int, width: int) -> None:
    tokens = TokenRows.open(paired.tokens.path)
    for name in (*TEXT, *PAIRS):
        layout = ViewRows(name, tokens).layout(width, "float16", shard_bytes)
        covered = [row for shard in range(layout.shards) for row in layout.rows_of(shard)]
        assert covered == list(range(tokens.rows))
        assert all(len(layout.rows_of(shard)) for shard in range(layout.shards))
        smallest = LENGTH if isinstance(layout, ArrayLayout) else 128
        for shard in range(layout.shards):
            held = int(layout.tokens_of(shard).sum()) * width * 2
            assert held <= max(shard_bytes, smallest * width * 2)


def test_ragged_lengths_are_those_of_the_sides(paired: Case) -> None:
    tokens = TokenRows.open(paired.tokens.path)
    everything = np.arange(tokens.rows)
    conditions = tokens.condition_lengths(everything)
    wanted: dict[ViewName, np.ndarray] = {"condition": conditions, "target": LENGTH - conditions}
    for name, lengths in wanted.items():
        view = ViewRows(name, tokens)
        layout = view.layout(8, "float16", 2**20)
        assert isinstance(layout, RaggedLayout)
        assert layout.lengths.tolist() == lengths.tolist()


def test_valid_states_leave_padding_out(paired: Case) -> None:
    tokens = TokenRows.open(paired.tokens.path)
    rows = np.arange(tokens.rows)
    inputs = ViewRows("target", tokens).inputs(rows)
    assert inputs.valid_B.tolist() == (tokens.lengths(rows) - tokens.condition_lengths(rows)).tolist()
    assert ViewRows("condition", tokens).inputs(rows).valid_B.tolist() == (
        tokens.condition_lengths(rows).tolist()
    )


def test_views_must_fit_the_rows() -> None:
    assert choose_views(None, pairs=False) == TEXT
    assert choose_views(None, pairs=True) == PAIRS
    assert choose_views(("target",), pairs=True) == ("target",)
    for wanted, paired in (
        (("target",), False),
        (("plain",), True),
        ((), True),
        (("target", "target"), True),
    ):
        with pytest.raises(Misconfigured, match=r"encode\.views"):
            choose_views(wanted, pairs=paired)  # pyright: ignore[reportArgumentType]


def test_text_has_no_condition_to_store(tmp_path: Path) -> None:
    case = make_case(tmp_path, make_t5(), texts(3))
    with pytest.raises(Failed, match="one side only"):
        ViewRows("condition", TokenRows.open(case.tokens.path)).layout(8, "float16", 2**20)
