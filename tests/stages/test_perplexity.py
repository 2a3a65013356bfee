"""What the report says of a baseline's held-out perplexity."""

from pathlib import Path

import pytest
from judging import make_artifact

from elf.cache.manifest import JSON
from elf.stages.lineage import trace
from elf.stages.perplexity import perplexity_figures

KEYS = {name: letter * 64 for name, letter in zip(("tokenizer", "tokens", "train"), "abc", strict=True)}


HUB: dict[str, JSON] = {"source": "hub:google-t5/t5-small@" + "0" * 40}


def figures(
    root: Path, heldout: dict[str, JSON] | None, *, trained_here: bool = False, fetched: dict[str, JSON] = HUB
) -> dict[str, str]:
    stage = "tokenizer" if trained_here else "fetch"
    config: dict[str, JSON] = {} if trained_here else fetched
    make_artifact(root / stage / KEYS["tokenizer"], stage, key=KEYS["tokenizer"], config=config)
    make_artifact(
        root / "tokenize" / KEYS["tokens"],
        "tokenize",
        key=KEYS["tokens"],
        facts={"rows": 48},
        inputs={"tokenizer": KEYS["tokenizer"]},
    )
    train = make_artifact(
        root / "train" / KEYS["train"],
        "train",
        key=KEYS["train"],
        facts={"heldout": heldout},
        config={"heldout": {"every": 10, "rows": 64}},
        inputs={"heldout_tokens": KEYS["tokens"]},
    )
    return dict(perplexity_figures(train.manifest, trace({"train": train})))


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("perplexity", "held-out perplexity"),
        ("perplexity_bound", "held-out perplexity: an estimate, by random masks, of a bound above it"),
    ],
)
def test_it_is_named_for_what_it_is_with_rows_and_tokenizer(name: str, label: str, tmp_path: Path) -> None:
    assert figures(tmp_path, {f"heldout_{name}": 1234.56, "step": 4}) == {
        label: "1,234.6",
        "counted over": "48 held-out rows, in tokens of google-t5/t5-small",
    }


def test_a_tokenizer_of_ones_own_goes_by_its_key(tmp_path: Path) -> None:
    told = figures(tmp_path, {"heldout_perplexity": 9.0}, trained_here=True)
    assert told["counted over"] == "48 held-out rows, in tokens of a tokenizer trained here (aaaaaaaaaaaa)"


def test_a_local_tokenizer_goes_by_where_it_lay(tmp_path: Path) -> None:
    told = figures(
        tmp_path, {"heldout_perplexity": 9.0}, fetched={"source": "bytes:/", "location": "/lab/t5"}
    )
    assert told["counted over"] == "48 held-out rows, in tokens of /lab/t5"


@pytest.mark.parametrize("heldout", [None, {"heldout_loss": 2.0}])
def test_a_flow_has_none(heldout: dict[str, JSON] | None, tmp_path: Path) -> None:
    assert figures(tmp_path, heldout) == {}
