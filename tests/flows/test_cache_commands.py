"""``elf cache …`` as people and scripts meet it: words that fit 80 columns, JSON, exit codes."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import flip, reword
from encoded import make_encoded
from stored import finished, half_build, key_of, link, listing, put

from elf.cache.manifest import Fingerprint, short
from elf.cache.roots import remember
from elf.cache.store import Store
from elf.cache.uses import Place
from elf.flows.cli import main

Elf = Callable[..., tuple[int, str, str]]


@pytest.fixture
def elf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Elf:
    """Run ``elf cache …`` in a folder of its own: exit code, and what it printed on both streams."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("ELF_STORE", "ELF_REMOTE", "ELF_DEBUG"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["elf", "cache", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return int(end.value.code or 0), out, err

    return call


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A fetch, the encode that was made of it and a run leads to, and an old train that nothing reaches."""
    root = tmp_path / "store"
    text = put(root, ("fetch", key_of("text")), age=30)
    rows = put(root, ("encode", key_of("rows")), inputs=[text], age=30)
    put(root, ("train", key_of("weights")), inputs=[rows], age=9)
    half_build(root, ("train", key_of("half")), age=9)
    link(tmp_path / "runs", "tiny/encode", root, rows)
    (tmp_path / "runs" / "tiny" / "experiment.yaml").write_text("name: tiny\n")
    return Store(root)


TEXT: Place = "fetch", key_of("text")
ROWS: Place = "encode", key_of("rows")
WEIGHTS: Place = "train", key_of("weights")


def loaded(elf: Elf, *arguments: str) -> Any:
    code, out, err = elf(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_ls_says_what_lies_there_and_what_keeps_it(elf: Elf, store: Store) -> None:
    code, out, _ = elf("ls")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    lines = {line.split()[1]: line for line in out.splitlines()[1:4]}
    assert re.search(r"^encode .* 3 .* 30 days ago +tiny/encode", lines[short(ROWS[1])])
    assert lines[short(TEXT[1])].rstrip().endswith(f"input of encode {short(ROWS[1])}")
    assert "3 artifacts" in out


def test_ls_cuts_no_key_and_no_unit_on_a_narrow_terminal(
    elf: Elf, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    told = [line for line in elf("ls")[1].splitlines()[:4] if line]
    assert max(map(len, told)) <= 60
    for place in (TEXT, ROWS, WEIGHTS):
        (line,) = (each for each in told if short(place[1]) in each)
        assert re.search(r"\d+ [kMG]?B +\d+ days ago ", line)
    told = loaded(elf, "ls", "encode")
    assert [(each["stage"], each["key"], each["runs"]) for each in told] == [(*ROWS, ["tiny/encode"])]
    code, _, err = elf("ls", "encod")
    assert code == 1
    assert "there are: encode, fetch, train" in err


def test_an_empty_store_is_no_error_but_proves_nothing_where_there_is_none(elf: Elf, tmp_path: Path) -> None:
    assert elf("ls")[0] == elf("du")[0] == elf("gc")[0] == 0
    assert loaded(elf, "ls") == []
    code, _, err = elf("verify")
    assert code == 1
    assert "so nothing was compared" in err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "store").mkdir()
    assert elf("verify")[0] == 0


def test_a_store_that_is_a_file_is_refused(elf: Elf, tmp_path: Path) -> None:
    (tmp_path / "store").write_text("x")
    below = ("ls", "--store", str(tmp_path / "store" / "below"))
    for command in (("ls",), ("du",), ("gc",), ("verify",), below):
        code, _, err = elf(*command)
        assert code == 2
        assert f"{tmp_path / 'store'} is a file" in err


def test_du_adds_up_and_agrees_with_gc(elf: Elf, store: Store) -> None:
    told = loaded(elf, "du")
    files = [path for path in store.root.rglob("*") if path.is_file()]
    assert told["bytes"] == sum(path.stat().st_size for path in files)
    assert set(told["stages"]) == {"encode", "fetch", "train", "unfinished builds"}
    assert told["bytes_gc_frees"] == loaded(elf, "gc")["bytes"] > 0
    code, out, _ = elf("du")
    assert code == 0
    assert "would free" in out
    assert "1 artifact, 1 unfinished build" in out


def test_show_tells_the_manifest_in_words(elf: Elf, store: Store) -> None:
    code, out, _ = elf("show", "tiny/encode")
    assert code == 0
    for words in (f"encode {ROWS[1]}", f"fetch {short(TEXT[1])}", "rows: 3", "part/a.txt", "tiny/encode"):
        assert words in out
    told = loaded(elf, "show", ROWS[1][:8])
    assert told["manifest"]["facts"] == {"rows": 3}
    assert elf("show", "ffffffff")[0] == 1
    assert elf("show", "not-a-key")[0] == 2


def test_gc_is_dry_unless_told_and_then_does_what_it_said(elf: Elf, store: Store) -> None:
    before = listing(store.root)
    code, out, _ = elf("gc")
    assert code == 0
    assert "--delete does it" in out
    assert short(WEIGHTS[1]) in out
    assert listing(store.root) == before
    told = loaded(elf, "gc")
    done = loaded(elf, "gc", "--delete")
    assert [each["key"] for each in done["removed"]] == [each["key"] for each in told["removed"]]
    assert done["bytes"] == told["bytes"]
    assert finished(store.root) == {TEXT, ROWS}
    assert "Nothing to remove" in elf("gc", "--delete")[1]


def test_the_grace_decides_what_is_young(elf: Elf, store: Store) -> None:
    assert loaded(elf, "gc", "--grace", "10d")["removed"] == []
    assert len(loaded(elf, "gc", "--grace", "0")["removed"]) == 2
    for wrong in ("7x", "-1d", "soon", "inf", ""):
        code, _, err = elf("gc", "--grace", wrong)
        assert code == 2
        assert "7d, 12h, 30m or 0" in err


def test_a_pin_keeps_an_artifact_and_its_inputs(elf: Elf, store: Store, tmp_path: Path) -> None:
    assert elf("pin", WEIGHTS[1][:12], "--note", "for the paper")[0] == 0
    shutil.rmtree(tmp_path / "runs")
    assert "pin" in elf("ls", "train")[1]
    assert loaded(elf, "gc", "--delete")["removed"][0]["kind"] == "unfinished"
    assert finished(store.root) == {TEXT, ROWS, WEIGHTS}
    assert "for the paper" in elf("show", "train/" + WEIGHTS[1][:6])[1]
    assert elf("unpin", WEIGHTS[1][:12])[0] == 0
    code, _, err = elf("unpin", WEIGHTS[1][:12])
    assert code == 1
    assert "is not pinned" in err
    assert loaded(elf, "gc", "--delete")["bytes"] > 0
    assert finished(store.root) == set()


def test_the_pin_of_what_is_gone_can_be_taken_away(elf: Elf, store: Store) -> None:
    elf("pin", WEIGHTS[1][:12])
    shutil.rmtree(store.path(*WEIGHTS))
    assert elf("unpin", WEIGHTS[1][:12])[0] == 0
    assert elf("unpin", WEIGHTS[1][:12])[0] == 1


def test_runs_elsewhere_keep_and_those_that_are_gone_are_forgotten_on_demand(
    elf: Elf, store: Store, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere" / "runs"
    link(elsewhere, "big/train", store.root, WEIGHTS)
    assert loaded(elf, "gc", "--runs", str(elsewhere), "--grace", "8d")["bytes"] < loaded(elf, "gc")["bytes"]
    remember(store.root, elsewhere, {})
    assert WEIGHTS[1] not in {each["key"] for each in loaded(elf, "gc")["removed"]}
    assert elf("gc", "--forget", str(elsewhere))[0] == 2
    (tmp_path / "elsewhere").rename(tmp_path / "away")
    _, out, _ = elf("gc")
    assert f"--forget {elsewhere}" in out
    assert "cannot be seen from here" in out
    assert elf("gc", "--forget", str(tmp_path / "never"))[0] == 2
    assert elf("gc", "--runs", str(tmp_path / "never"))[0] == 2
    forgotten = loaded(elf, "gc", "--forget", str(elsewhere))
    assert WEIGHTS[1] in {each["key"] for each in forgotten["removed"]}


def test_gc_of_a_store_with_something_damaged_that_stays_says_so(elf: Elf, store: Store) -> None:
    (store.path(*ROWS) / "manifest.json").write_text("{")
    code, _, err = elf("gc", "--delete")
    assert code == 1
    assert ROWS[1] in err
    assert elf("gc")[0] == 1
    assert finished(store.root) == {TEXT, ROWS, WEIGHTS}
    assert "damaged" in elf("ls")[1]


def test_verify_names_what_is_bad_and_ends_with_1(elf: Elf, tmp_path: Path) -> None:
    made = make_encoded(tmp_path)
    tokens = Fingerprint(made.manifest.inputs["tokens"])
    for place in ("tokenize", tokens), ("fetch", Fingerprint(made.manifest.inputs["encoder"])):
        shutil.rmtree(Store(tmp_path / "store").path(*place))  # their keys are not made of their settings
    code, out, err = elf("verify")
    assert (code, "ok" in out) == (0, True), out + err
    assert elf("verify", "--sample", "2")[0] == 0
    flip(made.path / "plain" / "c" / "1" / "0" / "0")
    code, out, err = elf("verify")
    assert code == 1
    assert "plain/c/1/0/0 has digest" in out
    assert re.search(r"Shard 1 of .* holds rows that have changed since they were written: 2\.", out)
    assert f"encode {short(made.manifest.fingerprint)}" in err
    assert "elf run CONFIG --force STAGE" in err
    assert elf("verify", "--sample", "99")[0] == elf("verify", made.manifest.fingerprint[:9])[0] == 1
    text = (made.path / "manifest.json").read_text()
    (made.path / "manifest.json").write_text(text.replace('"shard_bytes": 2500', '"shard_bytes": 2501'))
    assert "what it says was changed" in elf("verify")[1]
    (made.path / "manifest.json").write_text(text)
    reword(made.path / "manifest.json", '"shard_bytes": 2500', '"shard_bytes": 2501')
    assert "does not say what its key is the hash of" in elf("verify")[1]
    (made.path / "manifest.json").write_text(text[:200])
    told = elf("verify", "--json")
    assert told[0] == 1
    assert "not JSON" in json.loads(told[1])["artifacts"][0]["faults"][0]


def test_verify_names_an_artifact_that_is_a_link_out_of_the_store(elf: Elf, tmp_path: Path) -> None:
    made = make_encoded(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    made.path.rename(elsewhere)
    made.path.symlink_to(elsewhere)
    code, out, err = elf("verify")
    assert code == 1
    assert f"encode {short(made.manifest.fingerprint)}" in err
    assert "a store holds folders and files only" in " ".join(out.split())


def test_audit_and_stats_of_a_store(elf: Elf, tmp_path: Path) -> None:
    made = make_encoded(tmp_path)
    key = made.manifest.fingerprint[:12]
    code, out, err = elf("audit", key, "--rows", "3")
    assert code == 0, err
    assert "100.0%" in out
    assert "0.002 is allowed for float16" in out.replace("\n", " ")
    assert loaded(elf, "audit", key)["faults"] == []
    code, out, err = elf("stats", key)
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 80
    told = loaded(elf, "stats", key)
    assert told["training"]["std"] == pytest.approx(made.manifest.facts["std"])
    assert len(told["channels"]["std"]) == 32
    reword(made.path / "manifest.json", f'"std": {made.manifest.facts["std"]}', '"std": 0.25')
    code, _, err = elf("stats", key)
    assert code == 1
    assert "say mean" in err
    encoder = next(tmp_path.glob(f"store/fetch/{made.manifest.inputs['encoder']}"))
    flip(encoder / "data" / "model.safetensors", -1)
    code, _, err = elf("audit", key)
    assert code == 1
    assert "made by an encoder of digest" in err


def test_a_whole_run_is_right_kept_and_remembered(
    whole: Path, elf: Elf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(whole)
    code, out, err = elf("verify")
    assert code == 0, out + err
    assert "of 19 artifacts" in out
    damaged = whole / "runs/tiny/tokenize/vocabulary.json"
    key = damaged.parent.readlink().name
    flip(damaged)
    code, _, err = elf("verify", "tiny/tokenize")
    monkeypatch.chdir(whole.parent)
    elsewhere, _, from_elsewhere = elf("verify", key, "--store", str(whole / "store"))
    flip(damaged)
    monkeypatch.chdir(whole)
    assert code == elsewhere == 1
    command = "elf run runs/tiny/experiment.yaml --force tokenize"
    assert f"To build again what is bad: {command}." in err
    assert f"cd {whole} && {command} --store {whole}/store." in from_elsewhere
    assert loaded(elf, "gc", "--grace", "0")["removed"] == []
    [folder] = loaded(elf, "gc")["folders"]
    assert (folder["path"], folder["seen"]) == (str(whole / "runs"), True)
    assert loaded(elf, "audit", "tiny/encode", "--rows", "4")["faults"] == []
    assert loaded(elf, "stats", "tiny/encode")["facts"]["agree"]
