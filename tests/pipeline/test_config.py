"""Configuration files: inheritance, overrides, and what is refused in which words."""

from pathlib import Path

import pytest

from elf.pipeline.config import load_experiment
from elf.pipeline.errors import Misconfigured
from elf.pipeline.section import Section


class Optim(Section):
    lr: float = 1e-3
    name: str = "muon"


class Train(Section):
    steps: int = 10
    optim: Optim = Optim()


class Sampling(Section):
    steps: int = 8
    label: str | float = "x"


class Toy(Section):
    name: str
    train: Train = Train()
    sample: tuple[Sampling, ...] = ()
    flag: bool = False


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "base.yaml").write_text(
        "train:\n  steps: 5\n  optim: {lr: 0.5}\nsample: [{steps: 1}, {steps: 2}]\n"
    )
    return folder


def load(shipped: Path, text: str, *overrides: str) -> Toy:
    path = shipped.parent / "mine.yaml"
    path.write_text(text)
    return load_experiment(str(path), Toy, overrides, shipped)


def refusal(shipped: Path, text: str, *overrides: str) -> str:
    with pytest.raises(Misconfigured) as caught:
        load(shipped, text, *overrides)
    return str(caught.value)


def test_defaults_then_parent_then_file_then_override(shipped: Path) -> None:
    toy = load(shipped, "extends: base\ntrain: {optim: {name: adamw}}\n", "train.steps=7")
    assert (toy.train.steps, toy.train.optim.lr, toy.train.optim.name) == (7, 0.5, "adamw")


def test_lists_replace_and_their_items_can_be_overridden(shipped: Path) -> None:
    assert [each.steps for each in load(shipped, "extends: base\n").sample] == [1, 2]
    assert [each.steps for each in load(shipped, "extends: base\nsample: [{steps: 9}]\n").sample] == [9]
    assert [each.steps for each in load(shipped, "extends: base\n", "sample.1.steps=4").sample] == [1, 4]


def test_an_override_may_change_what_another_gave_whole(shipped: Path) -> None:
    given = ("sample=[{steps: 2}, {steps: 3}]", "sample.1.steps=9", "train={steps: 7}", "train.optim.lr=0.5")
    made = load(shipped, "{}\n", *given)
    assert [each.steps for each in made.sample] == [2, 9]
    assert (made.train.steps, made.train.optim.lr) == (7, 0.5)


def test_a_shipped_name_needs_no_path_and_names_the_run(shipped: Path) -> None:
    assert load_experiment("base", Toy, (), shipped).name == "base"
    assert load(shipped, "extends: base\n").name == "mine"


def test_scientific_notation_is_a_number(shipped: Path) -> None:
    assert load(shipped, "train: {optim: {lr: 1e-4}}\n").train.optim.lr == 1e-4
    assert load(shipped, "{}\n", "train.optim.lr=3e-4").train.optim.lr == 3e-4


def test_equal_meaning_reads_equal(shipped: Path) -> None:
    one = load(shipped, "train: {steps: 3, optim: {lr: 0.0001}} # a comment\n")
    assert one == load(shipped, "train:\n  optim:\n    lr: 1.0e-4\n  steps: 3\n")


def test_overrides_are_called_what_their_giver_knows_them_as(shipped: Path) -> None:
    for called in ("--set", "overrides"):
        with pytest.raises(Misconfigured, match=rf"`train\.optim\.ler` \({called}\)"):
            load_experiment("base", Toy, ("train.optim.ler=1",), shipped, called=called)


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        ("train: {stesp: 3}\n", (), ["`train.stesp`", "line 1", "did you mean `steps`"]),
        ("trian: {}\n", (), ["`trian`", "did you mean `train`"]),
        ("{}\n", ("train.optim.ler=1",), ["`train.optim.ler`", "--set", "`lr`"]),
        (
            "\ntrain:\n  optim:\n    lr: '1e-3'\n",
            (),
            ["`train.optim.lr`", "line 4", '"1e-3"', "without quotes"],
        ),
        ("train: {optim: {lr: nan}}\n", (), ["`train.optim.lr`", "line 1", '"nan"', "finite numbers"]),
        ("train: {steps: 2.5}\n", (), ["`train.steps`", "2.5", "integer"]),
        ("train: {steps: true}\n", (), ["`train.steps`", "true", "integer"]),
        ("train: {optim: {lr: .nan}}\n", (), ["`train.optim.lr`", "finite"]),
        ("flag: 'yes'\n", (), ["`flag`", "boolean"]),
        ("train: {optim: {name: no}}\n", (), ["`train.optim.name`", "false", "string"]),
        ("sample: [{steps: x}]\n", (), ["`sample.0.steps`", '"x"']),
        ("train: [\n", (), ["not valid YAML", "line"]),
        ("train: {steps: 1, steps: 2}\n", (), ["not valid YAML"]),
        ("- a\n- b\n", (), ["list"]),
        ("extends: nowhere\n", (), ["nowhere", "base"]),
        ("extends: mine.yaml\n", (), ["extends itself"]),
        (
            "extends: base\nsample: {steps: 9}\n",
            (),
            ["`sample`", "line 2", "a mapping", "base.yaml", "write a list"],
        ),
        ("extends: base\ntrain:\n  optim: [1]\n", (), ["`train.optim`", "line 3", "write a mapping"]),
        ("train: {optim: {name: '${oc.env:HOME}'}}\n", (), ["`train.optim.name`", "${"]),
        ("{}\n", ("train.steps",), ["section.key=value"]),
        ("flag: true\ntrain:\n  steps: 010\n", (), ["line 3", "has 010", "010 as 8"]),
        ("sample: [{steps: 1:30}]\n", (), ["line 1", "has 1:30", "1:30 as 90"]),
        ("{}\n", ("train.steps=010",), ["'train.steps'", "has 010"]),
        ("train: {optim: {name: on}}\n", (), ["`train.optim.name`", "true", "string"]),
        ("train: {optim: {name: 1_000}}\n", (), ["`train.optim.name`", "1000", "string"]),
        ("extends: base\n", ("sample.5.steps=1",), ["sample", "0 to 1"]),
    ],
)
def test_what_is_wrong_is_refused_and_named(
    shipped: Path, text: str, overrides: tuple[str, ...], words: list[str]
) -> None:
    message = refusal(shipped, text, *overrides)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_both_members_of_a_union_complain_in_one_sentence(shipped: Path) -> None:
    message = refusal(shipped, "sample: [{label: [1]}]\n")
    assert message.count("`sample.0.label`") == 1


def test_a_missing_file_and_a_missing_name_say_what_there_is(shipped: Path, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"nofile\.yaml does not exist"):
        load_experiment(str(tmp_path / "nofile.yaml"), Toy, (), shipped)
    with pytest.raises(Misconfigured, match="Did you mean 'base'"):
        load_experiment("bsae", Toy, (), shipped)
