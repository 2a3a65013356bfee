"""Our T5 encoder gives the numbers of transformers' own, whatever the mask."""

import pytest
import torch
from toy_encoders import VOCABULARY, make_t5
from transformers import T5EncoderModel
from transformers.models.t5.modeling_t5 import T5Attention

from elf.stages.fast_t5 import FastT5, T5Shape, relative_buckets
from elf.stages.model.masks import additive, encoder_mask, is_valid

KINDS = {
    "relu": {},
    "gated": {"feed_forward_proj": "gated-gelu"},
    "one_layer": {"num_layers": 1},
    "other_buckets": {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 20},
}


def reference(kind: str) -> T5EncoderModel:
    """transformers' encoder with its plain, unfused attention."""
    stack = T5EncoderModel(make_t5(**KINDS[kind]).config)
    stack.load_state_dict(make_t5(**KINDS[kind]).state_dict(), strict=False)
    stack.set_attn_implementation("eager")
    return stack.eval()


def fast_t5(model: T5EncoderModel, layers: int | None = None) -> FastT5:
    shape = T5Shape.of(model.config.to_dict())
    return FastT5(shape, model.state_dict(), shape.layers if layers is None else layers)


def ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 33, 200])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_every_hidden_layer_equals_transformers(kind: str, length: int) -> None:
    model = reference(kind)
    fast = fast_t5(model)
    theirs = model(ids(3, length), output_hidden_states=True).hidden_states
    ours = list(fast.hidden(ids(3, length)))
    assert len(ours) == len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other)


@pytest.mark.parametrize("layers", [0, 1])
@torch.no_grad()
def test_a_lower_layer_is_the_residual_stream(layers: int) -> None:
    model = reference("relu")
    *_, ours = fast_t5(model, layers).hidden(ids(2, 9))
    close(ours, model(ids(2, 9), output_hidden_states=True).hidden_states[layers])


@torch.no_grad()
def test_key_masks_equal_transformers() -> None:
    model, length_B = reference("relu"), torch.tensor([40, 7, 1])
    valid_BL = is_valid(length_B, 40)
    *_, ours = fast_t5(model).hidden(ids(3, 40), additive(valid_BL[:, None, :]))
    close(ours, model(ids(3, 40), attention_mask=valid_BL.long()).last_hidden_state)


@pytest.mark.parametrize("drop", [False, True])
@torch.no_grad()
def test_pair_masks_equal_transformers(*, drop: bool) -> None:
    model = reference("gated")
    condition_B, length_B = torch.tensor([5, 0, 12, 3]), torch.tensor([16, 9, 12, 3])
    mask = additive(encoder_mask(condition_B, length_B, 16, drop_B=torch.full((4,), drop)))
    *_, ours = fast_t5(model).hidden(ids(4, 16), mask)
    close(ours, model(ids(4, 16), attention_mask=mask).last_hidden_state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_a_query_without_keys_sees_all_alike(dtype: torch.dtype) -> None:
    """With values the same everywhere, uniform attention gives that value; NaN or zeros would not."""
    fast = fast_t5(reference("one_layer")).to(dtype)
    same = torch.full((2, 6), 9)
    blind = torch.ones(2, 6, 6, dtype=torch.bool)
    blind[1] = False
    *_, seen = fast.hidden(same, additive(blind, dtype))
    torch.testing.assert_close(seen[1], seen[0])
    mixed = ids(1, 6)
    *_, shuffled = fast.hidden(mixed.flip(1), additive(blind[1:], dtype))
    *_, straight = fast.hidden(mixed, additive(blind[1:], dtype))
    torch.testing.assert_close(shuffled.flip(1), straight, rtol=1e-2, atol=1e-2)
    assert torch.isfinite(straight).all()


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (16, 20), (8, 1000)])
def test_buckets_equal_transformers(buckets: int, distance: int) -> None:
    position = torch.arange(1100)
    offset = position[None, :] - position[:, None]
    theirs = T5Attention._relative_position_bucket(
        offset, bidirectional=True, num_buckets=buckets, max_distance=distance
    )
    assert torch.equal(relative_buckets(1100, buckets, distance), theirs)


@torch.no_grad()
def test_weights_that_are_listed_are_enough() -> None:
    model = reference("gated")
    shape = T5Shape.of(model.config.to_dict())
    for layers in (0, 1, 2):
        listed = {name: model.state_dict()[name] for name in shape.weights(layers)}
        assert {name: tuple(weight.shape) for name, weight in listed.items()} == shape.weights(layers)
        *_, ours = FastT5(shape, listed, layers).hidden(ids(2, 9))
        close(ours, model(ids(2, 9), output_hidden_states=True).hidden_states[layers])


def test_unknown_feed_forwards_are_refused() -> None:
    config = make_t5().config.to_dict()
    for wrong in ("gated-tanh", "double-gelu"):
        with pytest.raises(ValueError, match=wrong):
            T5Shape.of(config | {"feed_forward_proj": wrong})


@pytest.mark.parametrize(("buckets", "distance"), [(0, 128), (3, 128), (-8, 128), (32, 0), (32, 8), (32, -1)])
def test_positions_that_no_bucket_can_hold_are_refused(buckets: int, distance: int) -> None:
    numbers = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": distance}
    with pytest.raises(ValueError, match="relative_attention_"):
        T5Shape.of(make_t5().config.to_dict() | numbers)


@pytest.mark.parametrize(("buckets", "distance"), [(4, 2), (5, 2), (32, 9)])
def test_the_fewest_buckets_and_the_shortest_distance_equal_transformers(buckets: int, distance: int) -> None:
    numbers = {"relative_attention_num_buckets": buckets, "relative_attention_max_distance": distance}
    T5Shape.of(make_t5().config.to_dict() | numbers)
    test_buckets_equal_transformers(buckets, distance)


def test_the_bias_is_made_once_and_fits_every_shorter_length() -> None:
    fast = fast_t5(reference("relu"))
    long = fast.bias(50)
    assert fast.bias(20).data_ptr() == long.data_ptr()
    fresh = fast_t5(reference("relu")).bias(20)
    assert torch.equal(fast.bias(20), fresh)


def test_bfloat16_stays_near_float32() -> None:
    model = reference("relu")
    *_, full = fast_t5(model).hidden(ids(2, 30))
    *_, half = fast_t5(model).to(torch.bfloat16).hidden(ids(2, 30))
    assert half.dtype == torch.bfloat16
    assert (half.float() - full).norm() / full.norm() < 2e-2
