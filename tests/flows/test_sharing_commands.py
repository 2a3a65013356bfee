"""``elf cache push`` and ``pull`` and read-through runs as people call them: words, exit codes, no secrets."""

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, cast

import pytest
import toy_stages
from commands import call, start
from s3_server import SECRETS, serving_s3
from stored import put
from toy_stages import Recorder, toy_plan

from elf.cache.manifest import Fingerprint
from elf.cache.store import Store
from elf.flows.cache_sharing import pull_artifacts, push_artifacts
from elf.flows.doctor import look_at_remote
from elf.flows.remotes import elsewhere, named_remote, read_limit
from elf.flows.request import Request
from elf.pipeline.errors import Failed, Misconfigured
from elf.pipeline.plan import Plan, Step, Tie
from elf.pipeline.progress import LineProgress
from elf.pipeline.runner import materialise
from elf.pipeline.runs import RunFolder
from elf.pipeline.sharing import NOWHERE, ReadThrough
from elf.pipeline.stage import StageSpec


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run ``toys`` of two steps, and an empty remote."""
    (tmp_path / "here").mkdir()
    (tmp_path / "remote").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("ELF_REMOTE", f"file://{tmp_path}/remote")
    monkeypatch.delenv("ELF_STORE", raising=False)
    store = Store(Path("store"))
    done = materialise(toy_plan(), store, watch=Recorder(), progress=LineProgress(every=1e9))
    RunFolder(Path("runs"), "toys", toy_stages.Words(), toy_plan()).finish(done)
    return tmp_path / "here"


def key(step: str) -> str:
    return toy_plan()[step].key


def test_a_run_is_pushed_with_all_its_steps(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    push_artifacts(["toys"], None, with_inputs=False)
    said = capsys.readouterr().out
    assert re.search(rf"^pushed  words +{key('words')[:12]}  .* B, .* s$", said, re.MULTILINE)
    assert f"file://{here.parent}/remote holds all 2 artifacts; " in said
    push_artifacts(["toys/count", key("words")[:8], f"words/{key('words')[:6]}"], None, with_inputs=False)
    said = capsys.readouterr().out
    assert said.count("there ") == 2
    assert said.endswith("holds all 2 artifacts; 0 B sent.\n")


def test_inputs_are_sent_and_fetched_only_when_asked_for(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = str(here.parent / "other")
    push_artifacts(["toys/count"], None, with_inputs=False)
    with pytest.raises(Failed, match=f"holds no artifact 'words/{key('words')[:6]}'"):
        pull_artifacts([f"words/{key('words')[:6]}"], other, with_inputs=False)
    push_artifacts(["toys/count"], None, with_inputs=True)
    said = capsys.readouterr().out
    assert re.search(r"pushed  words .*\nthere   count ", said)
    pull_artifacts([key("count")[:12]], other, with_inputs=False)
    assert re.search(r"pulled  count .*\n.*/other holds it; .* came\.", capsys.readouterr().out)
    assert [each.manifest.stage for each in Store(Path(other)).artifacts()] == ["count"]
    pull_artifacts([f"count/{key('count')[:12]}"], other, with_inputs=True)
    assert re.search(r"pulled  words .*\nhere    count ", capsys.readouterr().out)


def test_what_an_input_would_have_been_made_from_is_sent_with_what_was_made_without_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, count = (each.step for each in toy_plan() if each.step.name in ("words", "count"))
    spec = StageSpec("total", toy_stages.Words, "toy_stages:make_nothing", ("count",), version=1)
    total = Step("total", spec, toy_stages.Words(), {"count": "count"}, ties={"count": Tie.INLINE})
    store = Store(Path("store"))
    shutil.rmtree(store.path("count", toy_plan()["count"].key))
    done = materialise(Plan([words, count, total]), store, watch=Recorder(), progress=LineProgress(every=1e9))
    assert "count" not in done
    push_artifacts([f"total/{done['total'].artifact.manifest.fingerprint[:12]}"], None, with_inputs=True)
    assert re.search(r"pushed  words .*\npushed  total ", capsys.readouterr().out)


def test_what_a_name_means_at_the_remote_must_be_one_thing(here: Path) -> None:
    places = [(stage, Fingerprint("abcd" + stage[0] * 60)) for stage in ("account", "back")]
    for place in places:
        put(here / "store", place)
    push_artifacts([f"{stage}/{key}" for stage, key in places], None, with_inputs=False)
    with pytest.raises(
        Misconfigured, match=r"'abcd' fits several artifacts of .*account/.*back/.*Give more of the key"
    ):
        pull_artifacts(["abcd"], None, with_inputs=False)
    for slip in ("", "a", "account/", "account/abc"):
        with pytest.raises(Misconfigured, match=f"'{slip}' is no key"):
            pull_artifacts([slip], None, with_inputs=False)
    with pytest.raises(Misconfigured, match="'nonsense' is no key"):
        push_artifacts(["nonsense"], None, with_inputs=False)


def test_without_a_remote_nothing_is_sent(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELF_REMOTE")
    with pytest.raises(Misconfigured, match="No remote is named"):
        push_artifacts(["toys"], None, with_inputs=False)
    assert elsewhere(pytest.fail) is NOWHERE


@pytest.mark.parametrize(
    ("text", "bytes"),
    [
        ("500GB", 500 * 10**9),
        ("1.5TB", 15 * 10**11),
        ("64GiB", 64 * 2**30),
        ("12", 12),
        ("3 kB", 3000),
        ("", None),
    ],
)
def test_a_limit_is_a_number_of_bytes(text: str, bytes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELF_REMOTE_LIMIT", text)
    assert read_limit() == bytes


@pytest.mark.parametrize("text", ["much", "-1", "5x", "GB"])
def test_a_limit_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELF_REMOTE_LIMIT", text)
    with pytest.raises(Misconfigured, match="ELF_REMOTE_LIMIT is"):
        elsewhere(pytest.fail)


def test_a_remote_is_read_through_when_one_is_named(here: Path) -> None:
    found = elsewhere(pytest.fail)
    assert isinstance(found, ReadThrough)
    assert str(found.remote) == str(named_remote())


@pytest.mark.parametrize(
    ("environment", "code", "words"),
    [
        ({"ELF_REMOTE": "s3://me:loopback-secret-of-the-tests@b/x"}, 2, "s3://***@b/x holds a user"),
        (
            {"ELF_REMOTE": "s3://bucket/x", "AWS_ENDPOINT_URL": "http://127.0.0.1:9", **SECRETS},
            1,
            "The remote s3://bucket/x cannot be reached",
        ),
    ],
    ids=["credentials in the address", "down"],
)
def test_a_push_that_cannot_be_ends_in_one_paragraph(
    here: Path, environment: dict[str, str], code: int, words: str
) -> None:
    process = start(here, "cache", "push", "toys", **environment)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code
    assert words in err
    assert err.count("\n") == 1
    assert not any(secret in out + err for secret in SECRETS.values())


@pytest.mark.parametrize(
    ("url", "verdict"), [("", None), ("s4://x/y", "bad"), ("file:///not/there", "bad"), ("here", "good")]
)
def test_the_doctor_asks_the_remote(
    here: Path, url: str, verdict: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if url != "here":
        monkeypatch.setenv("ELF_REMOTE", url)
    assert [found.verdict for found in look_at_remote()] == ([verdict] if verdict else [])


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_a_flow_builds_what_the_remote_does_not_bring(
    here: Path, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elf.flows import experiment

    push_artifacts(["toys"], None, with_inputs=False)
    (file,) = (here.parent / "remote").glob("count/*/*/count.json")
    file.write_text("9.0")
    monkeypatch.setattr(experiment, "FlowWatcher", Recorder)
    monkeypatch.setattr(experiment, "FlowProgress", lambda step: LineProgress(every=1e9))
    said: list[str] = []
    request = Request(cast("Any", None), toy_plan(), Store(here / "another"))
    folder = RunFolder(Path("runs"), "toys", toy_stages.Words(), toy_plan())
    work = experiment.Work(request, folder, elsewhere(said.append), alone=alone)
    outcome = work.build("count", force=False)
    assert not outcome.reused
    assert json.loads((outcome.artifact.path / "count.json").read_text()) == 3.0
    assert work.outcomes["words"].pulled
    assert Path("runs/toys/count").readlink().name == outcome.artifact.path.name
    assert len(said) == 1


@pytest.mark.slow
def test_two_hosts_share_a_bucket(tmp_path: Path) -> None:
    with serving_s3(tmp_path) as server:
        through = {"ELF_REMOTE": server.make_bucket("lab") + "/elf", **server.environment}
        first, second, third = tmp_path / "first", tmp_path / "second", tmp_path / "third"
        assert "Built 4 steps" in call(first, "run", "tiny", "--until", "tokenize", **through)
        assert "all 4 artifacts" in call(first, "cache", "push", "tiny", **through)
        states = plan_states(second, **through)
        assert states["tokenize"] == states["tokenize-validation"] == "remote"
        assert states["tokenizer"] == "skip"
        said = call(second, "run", "tiny", "--until", "tokenize", **through)
        assert re.search(r"^pulls +tokenize +[0-9a-f]{12}$", said, re.MULTILINE)
        assert "all 2 steps reused, 2 of them pulled from the remote" in said
        assert digests(second) == {step: digests(first)[step] for step in digests(second)}
        assert plan_states(second, **through)["tokenize"] == "hit"
        said = call(third, "run", "tiny", "--only", "tokenize", **through)
        assert "2 of them pulled" in said
        call(third, "cache", "pull", *(key.split("/")[1] for key in digests(first)), **through)
        assert digests(third) == digests(first)
        check_secrets(tmp_path, server.environment["AWS_SECRET_ACCESS_KEY"])
    shutil.rmtree(second / "store")
    process = start(second, "run", "tiny", "--until", "tokenize", **through)
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, err
    assert "Built 4 steps" in out
    assert err.count("cannot be reached") == 1
    assert "This run goes on without it" in err
    assert digests(second) == digests(first)


@pytest.mark.slow
def test_a_bucket_that_does_not_exist_is_a_wrong_request(tmp_path: Path) -> None:
    with serving_s3(tmp_path) as server:
        for command in (("run", "tiny", "--until", "tokenize"), ("plan", "tiny"), ("cache", "pull", "abc")):
            process = start(tmp_path / "here", *command, ELF_REMOTE="s3://nowhere/x", **server.environment)
            _, err = process.communicate(timeout=120)
            assert process.returncode == 2
            assert "There is no such place as the remote s3://nowhere/x" in err
        assert not (tmp_path / "here" / "store").exists()


def plan_states(folder: Path, **environment: str) -> dict[str, str]:
    steps = json.loads(call(folder, "plan", "tiny", "--json", **environment))["steps"]
    return {step["step"]: step["state"] for step in steps}


def digests(folder: Path) -> dict[str, str]:
    return {
        f"{artifact.manifest.stage}/{artifact.manifest.fingerprint}": artifact.manifest.content
        for artifact in Store(folder / "store").artifacts()
    }


def check_secrets(folder: Path, secret: str) -> None:
    """No file below a folder holds it."""
    found = [Path(where, name) for where, _, names in os.walk(folder) for name in names]
    assert found
    assert not [path for path in found if path.is_file() and secret.encode() in path.read_bytes()]
