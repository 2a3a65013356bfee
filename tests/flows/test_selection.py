"""--only, --until and --force through the command line, on a copy of a finished run."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from commands import call, keys, start

READER = """
import sys
from pathlib import Path
from elf.cache.manifest import SEAL
from elf.cache.store import Store
stage, key = sys.argv[2].split("/")
with Store(Path(sys.argv[1])).building("evaluate", "0" * 64, uses=[(stage, key)]):
    print("reading", flush=True)
    sys.stdin.read()
"""


def steps(said: str, word: str) -> list[str]:
    """Names of the steps that a run said this of."""
    return [line.split()[1] for line in said.splitlines() if line.split()[:1] == [word]]


def failure(folder: Path, *arguments: str) -> str:
    """The one paragraph of a command that must fail."""
    _, err = (process := start(folder, *arguments)).communicate(timeout=280)
    assert process.returncode == 1
    assert err.count("elf: ") == 1
    return err


def test_force_builds_again_compares_and_leaves_the_rest(copied: Path) -> None:
    store, named = copied / "store", keys(copied)
    before = {path: path.stat().st_ino for path in store.glob("[a-z]*/*/manifest.json")}
    said = call(copied, "run", "tiny", "--force", "control-real", "sample-ode")
    assert steps(said, "built") == ["sample-ode", "control-real"]
    assert said.count("identical to what was recorded") == 2
    assert {"evaluate-ode", "evaluate-real", "report", "train"} <= set(steps(said, "reused"))
    after = {path: path.stat().st_ino for path in store.glob("[a-z]*/*/manifest.json")}
    assert before.keys() == after.keys()
    changed = {path.parent.relative_to(store).as_posix() for path in before if before[path] != after[path]}
    assert changed == {named["control-real"], named["sample-ode"]}
    assert all(path.suffix == ".lock" for path in (store / ".building").rglob("*") if path.is_file())


def test_force_says_where_the_bytes_differ_and_reuses_what_was_made_of_them(copied: Path) -> None:
    control = copied / "store" / keys(copied)["control-unigram"]
    manifest = json.loads((control / "manifest.json").read_text())
    text = (control / "samples.jsonl").read_text()
    (control / "samples.jsonl").write_text(text.replace("a", "b", 1))
    manifest["files"]["samples.jsonl"]["digest"] = "xxh3:" + "0" * 32
    manifest["content"] = _content(manifest["files"])
    del manifest["digest"]
    (control / "manifest.json").write_text(json.dumps(manifest))
    said = call(copied, "run", "tiny", "--force", "control-unigram")
    assert "differs from what was there" in said
    assert steps(said, "built") == ["control-unigram"]
    assert "evaluate-unigram" in steps(said, "reused")
    assert (control / "samples.jsonl").read_text() == text


def _content(files: dict[str, dict[str, object]]) -> str:
    from elf.cache.manifest import FileRecord, merkle_root

    return merkle_root({name: FileRecord(**record) for name, record in files.items()})  # type: ignore[arg-type]


def test_what_somebody_reads_is_not_replaced(copied: Path) -> None:
    control = keys(copied)["control-real"]
    manifest = copied / "store" / control / "manifest.json"
    before = manifest.read_bytes()
    command = [sys.executable, "-c", READER, str(copied / "store"), control]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "reading\n"
    try:
        said = failure(copied, "run", "tiny", "--force", "control-real")
        assert f"is being read by process {reader.pid}" in said
        assert manifest.read_bytes() == before
    finally:
        reader.kill()
        reader.communicate()
    assert "identical" in call(copied, "run", "tiny", "--only", "control-real", "--force", "control-real")


def test_only_builds_nothing_upstream(copied: Path) -> None:
    named = keys(copied)
    control, tokens = (copied / "store" / named[step] for step in ("control-real", "tokenize-validation"))
    shutil.rmtree(control)
    tokens.rename(copied / "aside")
    try:
        said = failure(copied, "run", "tiny", "--only", "control-real")
        assert "'control-real' needs 'tokenize-validation'" in said
        assert named["tokenize-validation"].split("/")[1][:12] in said
        assert not tokens.exists()
        assert not control.exists()
    finally:
        (copied / "aside").rename(tokens)
    said = call(copied, "run", "tiny", "--only", "control-real")
    assert steps(said, "built") == ["control-real"]
    assert steps(said, "reused") == []


def test_until_builds_up_to_there(copied: Path) -> None:
    named = keys(copied)
    for step in ("tokenize-validation", "control-replaced"):
        shutil.rmtree(copied / "store" / named[step])
    said = call(copied, "run", "tiny", "--until", "tokenize")
    assert steps(said, "built") == ["tokenize-validation"]
    assert set(steps(said, "reused")) == {"fetch-train", "tokenizer", "tokenize"}
    assert not (copied / "store" / named["control-replaced"]).exists()


def test_why_follows_a_setting_through_the_stages(copied: Path) -> None:
    said = call(copied, "why", "tiny", "report", "--set", "tokenize.length=16")
    assert "tokenize.length: 32 → 16  (tokenize → report)" in said
    told = json.loads(call(copied, "why", "tiny", "sample-ode", "--set", "encode.layer=0", "--json"))
    assert told[0]["causes"] == [
        {"setting": "encode.layer", "old": None, "new": 0, "way": ["encode", "train", "sample-ode"]}
    ]
