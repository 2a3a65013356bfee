"""Identity is everything that is not marked, keys are hashes of plain data."""

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ConfigDict, ValidationError

from elf.pipeline.section import LINKED, RUNTIME, Section, canonical, differences, fingerprint, identity

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


class Inner(Section):
    rate: float = 1e-4
    loud: Annotated[bool, RUNTIME] = False


class Outer(Section):
    inner: Inner = Inner()
    items: tuple[Inner, ...] = ()
    asset: Annotated[str, LINKED] = "here"
    later: int | None = None


def test_runtime_and_linked_fields_stay_out_of_the_identity() -> None:
    one = Outer(inner=Inner(loud=True), asset="there")
    assert identity(one) == identity(Outer()) == {"inner": {"rate": 1e-4}, "items": [], "later": None}


def test_every_other_field_is_identity() -> None:
    assert identity(Outer(inner=Inner(rate=2e-4))) != identity(Outer())
    assert identity(Outer(items=(Inner(),))) != identity(Outer())


def test_a_neutral_value_leaves_the_identity_and_another_does_not() -> None:
    assert "later" not in identity(Outer(), {"later": None})
    assert identity(Outer(later=3), {"later": None})["later"] == 3
    assert "rate" in identity(Outer(), {"rate": 1e-4})["inner"]  # type: ignore[operator]


def test_equal_numbers_have_one_key_however_they_are_written() -> None:
    assert fingerprint(identity(Inner(rate=0.0001))) == fingerprint(identity(Inner(rate=1.0e-4)))


@given(st.dictionaries(st.text(), plain, max_size=4))
def test_the_order_of_keys_changes_no_fingerprint(payload: dict[str, Any]) -> None:
    backwards = dict(reversed(payload.items()))
    assert fingerprint(payload) == fingerprint(backwards)


@given(plain, plain)
def test_differences_are_empty_exactly_for_equal_trees(old: Any, new: Any) -> None:
    assert bool(list(differences({"x": old}, {"x": new}))) == (old != new)


@pytest.mark.parametrize("value", [print, object(), b"bytes", {1, 2}])
def test_what_is_not_plain_data_gets_no_key(value: object) -> None:
    class Loose(Section):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        thing: Any

    with pytest.raises(TypeError, match="thing"):
        identity(Loose(thing=value))


def test_numbers_that_are_not_finite_get_no_key() -> None:
    with pytest.raises(ValidationError):
        Inner(rate=float("nan"))
    with pytest.raises(ValueError, match="JSON"):
        canonical({"x": float("inf")})
