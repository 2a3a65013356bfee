"""What people type for a key means one artifact or is refused with what would have been right."""

from pathlib import Path

import pytest
from stored import key_of, link, put

from elf.cache.errors import Damaged
from elf.cache.manifest import Fingerprint
from elf.cache.store import Store
from elf.cache.uses import Place
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.finding import find_artifact, find_place

ROWS: Place = "encode", Fingerprint("ab12" + "0" * 60)
NEAR: Place = "encode", Fingerprint("ab13" + "0" * 60)
SAME: Place = "train", Fingerprint("ab12" + "1" * 60)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "store"
    for place in (ROWS, NEAR, SAME):
        put(root, place)
    runs = tmp_path / "runs"
    link(runs, "tiny/encode", root, ROWS)
    link(runs, "tiny/gone", root, ("encode", key_of("gone")))
    link(runs, "tiny/other", tmp_path / "another", put(tmp_path / "another", ("encode", key_of("other"))))
    (runs / "tiny" / "experiment.yaml").write_text("name: tiny\n")
    return Store(root)


RUNS = Path("runs")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("ab13", NEAR),
        ("encode/ab12", ROWS),
        ("train/ab12", SAME),
        (ROWS[1], ROWS),
        ("tiny/encode", ROWS),
        ("runs/tiny/encode", ROWS),
        ("runs/tiny/encode/", ROWS),
        ("./runs/tiny/encode", ROWS),
        (f"store/encode/{NEAR[1]}", NEAR),
    ],
)
def test_it_means_one_artifact(store: Store, text: str, place: Place) -> None:
    assert find_place(text, store, RUNS) == place
    assert find_artifact(text, store, RUNS).path == store.path(*place)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("ab12", Misconfigured, r"fits several artifacts: encode/ab1200000000, train/ab1211111111"),
        ("encode/ab1", Misconfigured, "four hexadecimal digits or more"),
        ("ab", Misconfigured, "four hexadecimal digits or more"),
        ("encode", Misconfigured, "is no key"),
        ("ffff", Failed, "no artifact 'ffff'"),
        ("train/ab13", Failed, "no artifact 'train/ab13'"),
        ("tiny/gone", Failed, r"leads to .*, which is gone"),
        ("tiny/nothing", Failed, "has no step 'nothing'; it has: encode, other"),
        ("tiny/other", Failed, "no artifact of this store; name its store with --store"),
        ("huge/encode", Failed, "no artifact 'huge/encode'"),
        ("../../etc/ab12", Failed, "no artifact"),
    ],
)
def test_what_means_none_or_several_is_refused(
    store: Store, text: str, kind: type[Exception], words: str
) -> None:
    with pytest.raises((Failed, Misconfigured), match=words) as caught:
        find_place(text, store, RUNS)
    assert caught.type is kind


def test_a_damaged_artifact_has_a_place_all_the_same(store: Store) -> None:
    (store.path(*NEAR) / "manifest.json").write_text("{")
    assert find_place("ab13", store, RUNS) == NEAR
    with pytest.raises(Damaged):
        find_artifact("ab13", store, RUNS)
    (store.path(*ROWS) / "manifest.json").write_text("{")
    assert find_place("tiny/encode", store, RUNS) == ROWS
