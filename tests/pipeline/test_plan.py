"""Plans: keys from settings and inputs, order, selection, and graphs that make no sense."""

from dataclasses import replace

import pytest
from toy_stages import COUNT, WORDS, Count, Words, toy_plan

from elf.pipeline.errors import Misconfigured
from elf.pipeline.plan import Plan, Step


def test_a_changed_setting_changes_its_key_and_those_downstream_only() -> None:
    base, scaled, longer = toy_plan(), toy_plan(count=Count(scale=2)), toy_plan(Words(text="a b"))
    assert base["words"].key == scaled["words"].key != longer["words"].key
    assert len({base["count"].key, scaled["count"].key, longer["count"].key}) == 3


def test_runtime_settings_change_no_key() -> None:
    assert toy_plan()["count"].key == toy_plan(Words(workers=8))["count"].key


def test_a_knob_added_later_is_neutral_at_its_default() -> None:
    assert "limit" not in toy_plan()["words"].payload["identity"]  # type: ignore[operator]
    assert toy_plan()["words"].key != toy_plan(Words(limit=2))["words"].key


def test_a_version_bumped_by_hand_changes_the_key_and_those_downstream() -> None:
    """For bytes that a constant or a library changes: no setting says so, and source text is never asked."""
    bumped = replace(WORDS, version=WORDS.version + 1)
    steps = [Step("words", bumped, Words()), Step("count", COUNT, Count(), {"words": "words"})]
    assert all(each.key != toy_plan()[each.step.name].key for each in Plan(steps))
    renamed = replace(WORDS, entry="elsewhere:make")
    assert Plan([Step("words", renamed, Words())])["words"].key == toy_plan()["words"].key


def test_inputs_come_first_whatever_the_order_given() -> None:
    steps = [Step("count", COUNT, Count(), {"words": "words"}), Step("words", WORDS, Words())]
    assert Plan(steps).names() == ("words", "count")


def test_select_takes_a_step_or_a_stage_and_suggests_for_a_typo() -> None:
    plan = Plan([Step("a", WORDS, Words()), Step("b", WORDS, Words(text="x"))])
    assert plan.select("a") == ("a",)
    assert plan.select("words") == ("a", "b")
    with pytest.raises(Misconfigured, match="Did you mean 'words'"):
        plan.select("wrods")


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([Step("count", COUNT, Count())], "lacks its input words"),
        ([Step("count", COUNT, Count(), {"words": "gone"})], "no such step"),
        ([Step("count", COUNT, Count(), {"wodrs": "count"})], "no input called 'wodrs'"),
        ([Step("count", COUNT, Count(), {"words": "count"})], "circle"),
        ([Step("w", WORDS, Words()), Step("w", WORDS, Words())], "Two steps"),
    ],
)
def test_a_graph_that_makes_no_sense_is_refused(steps: list[Step], words: str) -> None:
    with pytest.raises(Misconfigured, match=words):
        Plan(steps)


def test_messages_name_settings_where_the_configuration_has_them() -> None:
    step = Step("t", WORDS, Words(), prefix="tokenize", places={"data": "data.train"})
    assert step.place_of("data.text") == "data.train.text"
    assert step.place_of("length") == "tokenize.length"
