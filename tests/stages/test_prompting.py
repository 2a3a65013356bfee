"""What a person reads of a model is what the sample stage would have written."""

from pathlib import Path

import pytest
from judging import make_artifact, make_context
from toy_encoders import WORDS, pairs, texts
from toy_sources import Sources, make_split

from elf.cache.store import Artifact
from elf.pipeline.errors import Failed, Misconfigured
from elf.stages import sample
from elf.stages.config import Sample
from elf.stages.prompting import Prompter, choose_setting, open_prompter
from elf.stages.texts import Text, read_texts

SETTING = Sample(name="x", method="ode", steps=3, input_guidance=2.0, count=6)


def trained(folder: Path, sources: Sources) -> Artifact:
    sources.run(folder, "store", {"steps": 5})
    return make_artifact(folder, "train")


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sources, Artifact]:
    root = tmp_path_factory.mktemp("pairs")
    sources = Sources(make_split(root / "split", pairs(9), max_source=6, dtype="float32"))
    return sources, trained(root / "train", sources)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sources, Artifact]:
    root = tmp_path_factory.mktemp("plain")
    sources = Sources(make_split(root / "split", texts(9), dtype="float32"))
    return sources, trained(root / "train", sources)


def prompter(made: tuple[Sources, Artifact], *, encoder: bool = True) -> Prompter:
    sources, model = made
    case = sources.train.case
    given = case.encoder if encoder else None
    return open_prompter(model, case.tokens, SETTING, sources.train.section, encoder=given)


def sampled(made: tuple[Sources, Artifact], out: Path) -> tuple[Text, ...]:
    sources, model = made
    inputs = {"model": model, "tokens": sources.train.case.tokens}
    if (sources.train.stored.path / "condition").is_dir():
        inputs["latents"] = sources.train.stored
    sample.run(SETTING, make_context(out, inputs))
    return read_texts(out / "samples.jsonl")


def test_texts_are_those_of_the_stage(plain: tuple[Sources, Artifact], tmp_path: Path) -> None:
    wanted = [text.text for text in sampled(plain, tmp_path)]
    assert prompter(plain, encoder=False).texts(4, seed=0) == wanted[:4]
    assert prompter(plain, encoder=False).texts(4, seed=1) != wanted[:4]


def test_a_typed_source_is_read_as_a_row_is(paired: tuple[Sources, Artifact], tmp_path: Path) -> None:
    wanted = sampled(paired, tmp_path)
    made = prompter(paired)
    for text in wanted:
        assert isinstance(text.id, int)
        assert text.source is not None
        # The row's own noise is that of its number.
        assert made.texts(text.id + 1, seed=0, prompt=text.source)[text.id] == text.text


def test_a_long_source_is_cut_as_rows_are(paired: tuple[Sources, Artifact]) -> None:
    made, longest = prompter(paired), WORDS[3:9]
    told = [made.texts(2, seed=0, prompt=" ".join(words)) for words in (longest, [*longest, *WORDS[:4]])]
    assert told[0] == told[1]


def test_what_does_not_fit_the_model_is_refused(
    plain: tuple[Sources, Artifact], paired: tuple[Sources, Artifact]
) -> None:
    with pytest.raises(Misconfigured, match="leave --prompt out"):
        prompter(plain).texts(1, seed=0, prompt="a source")
    with pytest.raises(Misconfigured, match="give it a source with --prompt"):
        prompter(paired).texts(1, seed=0)
    with pytest.raises(Misconfigured, match="has no token"):
        prompter(paired).texts(1, seed=0, prompt="  ")
    with pytest.raises(Failed, match="The encoder of this run is gone"):
        prompter(paired, encoder=False)


def test_a_setting_is_chosen_by_name() -> None:
    settings = (SETTING, Sample(name="y"))
    assert choose_setting(settings, None) is SETTING
    assert choose_setting(settings, "y").name == "y"
    assert choose_setting((), None).name == "default"
    assert choose_setting((), None, method="masked").method == "masked"
    with pytest.raises(Misconfigured, match="no sampling setting 'z'; it has: x, y"):
        choose_setting(settings, "z")
