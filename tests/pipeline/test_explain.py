"""Why a step is built: the first differing settings, by their names in the configuration."""

import shutil

from toy_stages import COUNT, WORDS, Count, Recorder, Words, toy_plan

from elf.cache.store import Store
from elf.pipeline.explain import Explainer, explain
from elf.pipeline.plan import Plan, Step
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import materialise, needed
from elf.pipeline.section import Section
from elf.pipeline.stage import StageSpec


def test_an_empty_store_has_nothing_near(store: Store) -> None:
    told = explain(toy_plan(), "count", store)
    assert told.found is None
    assert told.nearest is None
    assert "build" in next(told.lines())


def test_a_hit_says_when_it_was_built(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    materialise(toy_plan(), store, watch=watch, progress=quiet)
    assert "hit" in next(explain(toy_plan(), "count", store).lines())


def test_what_is_gone_and_not_needed_any_more_is_not_said_to_be_built(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    plan = toy_plan()
    outcomes = materialise(plan, store, watch=watch, progress=quiet)
    shutil.rmtree(outcomes["words"].artifact.path)
    told = Explainer(plan, store, needed(plan, store)).explain("words")
    assert told.state == "skip"
    assert "missing, and not needed by what is there" in next(told.lines())
    assert explain(plan, "words", store).state == "build"


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


class Many(Section):
    """Nine settings."""

    a: int = 0
    b: int = 0
    c: int = 0
    d: int = 0
    e: int = 0
    f: int = 0
    g: int = 0
    h: int = 0
    i: int = 0


def house(one: str = "one two", two: str = "three", scale: float = 1.0) -> Plan:
    """Two texts, counted apart and summed up by a step that takes both counts and the first text."""
    both = StageSpec("both", Count, "toy_stages:make_nothing", ("*",), version=1)
    return Plan(
        [
            Step("words-one", WORDS, Words(text=one), prefix="words.0"),
            Step("words-two", WORDS, Words(text=two), prefix="words.1"),
            Step("count-one", COUNT, Count(scale=scale), {"words": "words-one"}, prefix="count.0"),
            Step("count-two", COUNT, Count(scale=scale), {"words": "words-two"}, prefix="count.1"),
            Step(
                "both",
                both,
                Count(),
                {"a": "count-one", "b": "count-two", "words": "words-one"},
                prefix="both",
            ),
        ]
    )


def test_the_way_from_a_changed_setting_is_told_once_and_short(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    materialise(house(), store, watch=watch, progress=quiet)
    changed = house(one="one", two="three four", scale=2.0)
    title, *causes = explain(changed, "both", store).lines()
    assert title.startswith("both  ")
    assert causes == [
        '  words.0.text: "one two" → "one"  (words-one → both)',
        "  count.0.scale: 1.0 → 2.0  (count-one → both)",
        "  count.1.scale: 1.0 → 2.0  (count-two → both)",
        '  words.1.text: "three" → "three four"  (words-two → count-two → both)',
    ]


def test_an_artifact_near_upstream_is_nearer_than_a_young_one(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    first = house(one="a b c", two="d e f g")
    materialise(first, store, watch=watch, progress=quiet, until="count-one")
    materialise(first, store, watch=watch, progress=quiet)
    wanted = Plan(
        [
            Step("words", WORDS, Words(text="a b c", limit=2), prefix="words"),
            Step("count", COUNT, Count(), {"words": "words"}, prefix="count"),
        ]
    )
    told = explain(wanted, "count", store)
    assert [(str(change), way) for change, way in told.causes()] == [
        ("words.limit: (absent) → 2", ("words", "count"))
    ]


def test_an_input_that_is_gone_is_said_so(store: Store, watch: Recorder, quiet: LineProgress) -> None:
    plan = toy_plan()
    materialise(plan, store, watch=watch, progress=quiet)
    shutil.rmtree(store.path("words", plan["words"].key))
    told = explain(toy_plan(Words(text="one")), "count", store)
    assert [change.place for change in told.changes] == ["input words"]
    assert told.upstream == ()


def test_another_experiment_is_not_compared_setting_by_setting(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    """What shares nothing and differs in a few settings is told as ever; in many, it is no help."""
    alone = StageSpec("alone", Many, "toy_stages:make_nothing", (), version=1)
    below = StageSpec("below", Many, "toy_stages:make_nothing", ("alone",), version=1)

    def plan(above: int, changed: int) -> Plan:
        return Plan(
            [
                Step("alone", alone, Many(a=above), prefix="alone"),
                Step("below", below, Many(**dict.fromkeys("abcdefghi"[:changed], 1)), {"alone": "alone"}),
            ]
        )

    materialise(plan(0, 0), store, watch=watch, progress=quiet)
    few = list(explain(plan(1, 7), "below", store).lines())
    assert len(few) == 9, "the title, seven settings of its own and one above"
    (title,) = explain(plan(1, 8), "below", store).lines()
    assert "nothing like it is stored" in title
    assert "differs in 9 settings" in title
    assert len(list(explain(plan(0, 9), "below", store).lines())) == 10, "they share what lies above"


def test_what_serves_for_something_else_is_not_compared(
    store: Store, watch: Recorder, quiet: LineProgress
) -> None:
    """Two texts of one stage, one counted and one that is read as it is: neither is nearest to the other."""
    reading = StageSpec("reading", Count, "toy_stages:make_nothing", ("text",), version=1)

    def plan(read: str) -> Plan:
        return Plan(
            [
                Step("words", WORDS, Words(), prefix="words"),
                Step("count", COUNT, Count(), {"words": "words"}, prefix="count"),
                Step("text", WORDS, Words(text=read), prefix="text"),
                Step("reading", reading, Count(), {"text": "text"}, prefix="reading"),
            ]
        )

    materialise(toy_plan(), store, watch=watch, progress=quiet)
    assert explain(plan("other"), "text", store).nearest is None
    materialise(plan("other"), store, watch=watch, progress=quiet)
    assert [change.place for change in explain(plan("third"), "text", store).changes] == ["text.text"]
