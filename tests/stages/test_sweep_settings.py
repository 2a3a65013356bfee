"""The section `sweep`: which experiments it stands for, and what they are called."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from elf.stages.sweep_settings import Sweep


def names(**settings: Any) -> list[str]:
    return [variant.name for variant in Sweep.model_validate(settings, strict=False).combinations()]


def test_every_combination_has_a_name_of_what_differs() -> None:
    assert names(over={"train.seed": [0, 1], "train.model.bottleneck": [32, None]}) == [
        "seed=0-bottleneck=32",
        "seed=0-bottleneck=null",
        "seed=1-bottleneck=32",
        "seed=1-bottleneck=null",
    ]
    assert names(variants={"prefix": {}, "adaln": {"train.model.conditioning": "adaln"}}) == [
        "prefix",
        "adaln",
    ]
    assert names(variants={"a": {}, "b": {}}, over={"train.optim.lr": [1.0, 0.5]}) == [
        "a-lr=1",
        "a-lr=0.5",
        "b-lr=1",
        "b-lr=0.5",
    ]


def test_names_that_would_be_the_same_are_told_in_full() -> None:
    assert names(over={"train.seed": [0], "pretrain.seed": [1]}) == ["train.seed=0-pretrain.seed=1"]
    assert names(over={"sample.0.steps": [4], "train.steps": [5]}) == ["sample.0.steps=4-train.steps=5"]


def test_settings_are_as_the_command_line_takes_them() -> None:
    (variant,) = Sweep.model_validate(
        {"variants": {"x": {"train.objective": {"decode_share": 0.5}, "report.title": "a: b"}}}
    ).combinations()
    assert variant.overrides == ['train.objective={"decode_share": 0.5}', 'report.title="a: b"']


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "names nothing to vary"),
        ({"over": {"train.seed": []}}, "list of `train.seed` is empty"),
        ({"over": {"train.seed": [1, 1]}}, "stands in its list twice"),
        (
            {"over": {"train": {"seed": [0]}}},
            r"has a section `train`, but takes lists by the whole dotted names.*"
            r"""--set 'sweep.over=\{"train.seed": \[0\]\}'""",
        ),
        ({"over": {"train.seed": 3}}, r"has 3 for `train.seed`, which is no list; .* as \[3\]"),
        ({"over": {"train.seed": list(range(201))}}, "201 variants, and 200 are the most"),
        ({"over": {"a.b": [1]}, "variants": {"x": {"a.b": 2}}}, "set by a variant and by `over`"),
        ({"over": {"a.b": [1, 1.0]}}, "stands in its list twice"),
        (
            {"over": {"a.b": [[1]]}},
            r"has \[1\] for `a.b`, which can be no part of a name; give the setting under",
        ),
        ({"over": {"a.b": ["x/y"]}}, "no part of a name"),
        ({"over": {"name": ["x"]}}, "`name` cannot vary"),
        ({"variants": {"x": {"name": "zz"}}}, "`name` cannot vary"),
        ({"variants": {"x": {"sweep.over": {"a": [1]}}}}, "`sweep.over` cannot vary"),
        ({"variants": {"sweep": {}}}, "would be called 'sweep'"),
        ({"variants": {"": {"a.b": 1}}}, "would be called ''"),
        ({"ower": {"a.b": [1]}}, "ower"),
    ],
)
def test_what_makes_no_sweep_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Sweep.model_validate(settings, strict=False)


def test_lists_of_a_file_are_taken() -> None:
    (variant,) = Sweep.model_validate_json('{"over": {"train.seed": [7]}}').combinations()
    assert variant.settings == {"train.seed": 7}
    with pytest.raises(ValidationError, match="should be an object"):
        Sweep.model_validate_json('{"over": [7]}')


def test_text_is_told_as_it_is() -> None:
    (variant,) = Sweep.model_validate(
        {"over": {"data.train.text": ["c #1: 😀"]}}, strict=False
    ).combinations()
    assert variant.name == "text=c #1: 😀"
    assert variant.overrides == ['data.train.text="c #1: 😀"']


values = st.lists(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-2, 2).map(lambda x: round(x, 3) + 0.0005),
    min_size=1,
    max_size=4,
    unique_by=repr,
)


@given(
    st.dictionaries(st.sampled_from(["a.x", "b.x", "a.y", "c.0.z", "d.0"]), values, min_size=1, max_size=3)
)
def test_no_two_variants_share_a_name(over: dict[str, list[Any]]) -> None:
    found = names(over=over)
    assert len(set(found)) == len(found)
    count = 1
    for each in over.values():
        count *= len(each)
    assert len(found) == count
