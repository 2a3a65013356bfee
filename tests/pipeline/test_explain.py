"""Why a step is built: the first differing settings, by their names in the configuration."""

from toy_stages import Count, Recorder, Words, toy_plan

from elf.cache.store import Store
from elf.pipeline.explain import explain
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import materialise


def test_an_empty_store_has_nothing_near(store: Store) -> None:
    told = explain(toy_plan(), "count", store)
    assert told.found is None
    assert told.nearest is None
    assert "build" in next(told.lines())


def test_a_hit_says_when_it_was_built(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    materialise(toy_plan(), store, watch=watch, progress=quiet)
    assert "hit" in next(explain(toy_plan(), "count", store).lines())


def test_the_changed_setting_is_named(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    materialise(toy_plan(), store, watch=watch, progress=quiet)
    told = explain(toy_plan(count=Count(scale=2.5)), "count", store)
    assert [str(change) for change in told.changes] == ["count.scale: 1.0 → 2.5"]
    assert told.upstream == ()


def test_a_change_upstream_is_followed(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    materialise(toy_plan(), store, watch=watch, progress=quiet)
    told = explain(toy_plan(Words(text="one")), "count", store)
    assert told.changes == ()
    assert [str(change) for change in told.upstream[0].changes] == ['words.text: "one two three" → "one"']


def test_the_nearest_of_several_is_taken(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    for words, count in [(Words(), Count()), (Words(text="other"), Count(scale=7))]:
        materialise(toy_plan(words, count), store, watch=watch, progress=quiet)
    told = explain(toy_plan(Words(), Count(scale=2)), "count", store)
    assert [change.place for change in told.changes] == ["count.scale"]
    assert told.upstream == ()
