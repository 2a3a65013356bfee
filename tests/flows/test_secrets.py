"""What is secret stays so: in no manifest, log, report, event or word of a run, whether it succeeds or fails."""

from pathlib import Path

import pytest
from commands import start
from planted import MARK, SECRETS, leaks


def ended(folder: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and all that was printed of a command in an environment full of secrets."""
    process = start(folder, *arguments, **SECRETS)
    out, err = process.communicate(timeout=280)
    return process.returncode, out + err


def test_the_mark_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "log.txt").write_text(f"token {SECRETS['HF_TOKEN']}")
    (tmp_path / MARK).touch()
    assert leaks(tmp_path) == ["deep/log.txt", MARK]


def test_a_run_leaves_no_secret_of_its_environment(whole: Path) -> None:
    assert len(list(whole.glob("store/*/*/manifest.json"))) > 15
    assert list(whole.glob("store/train/*/aux/log.txt"))
    assert leaks(whole) == []


def test_a_failing_run_names_its_log_and_leaks_nothing(copied: Path) -> None:
    code, said = ended(copied, "run", "tiny", "--set", "train.optim.weight_decay=0.1")
    assert code == 2
    (log,) = copied.glob("store/.building/train/*/aux/log.txt")
    assert "muon decays no weights" in said
    assert f"The log of train is {log}." in said
    assert "muon decays no weights" in log.read_text()
    assert "Traceback" not in said
    assert MARK not in said
    assert leaks(copied) == []


@pytest.mark.parametrize(
    "setting",
    [
        f"report.note=https://somebody:{MARK}@host/page",
        f"report.title=hf_{MARK}{MARK}",
        f"compute.encode.scheduler=tcp://me:{MARK}@host:8786",
        f"data.train.asset.uri=https://somebody:{MARK}@host/texts.jsonl",
        f"report.note={SECRETS['AWS_SECRET_ACCESS_KEY']}",
    ],
)
def test_a_secret_in_a_setting_is_refused_without_repeating_it(tmp_path: Path, setting: str) -> None:
    code, said = ended(tmp_path, "run", "tiny", "--set", setting)
    assert code == 2
    assert f"`{setting.partition('=')[0]}` holds a password or a token" in said
    assert MARK not in said
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_with_a_request_is_told_without_its_secrets(tmp_path: Path) -> None:
    for arguments in (
        ("plan", f"https://somebody:{MARK}@host/config.yaml"),
        ("plan", "tiny", "--set", f"https://somebody:{MARK}@host"),
        ("plan", "tiny", "--set", f"train.api_key={MARK}"),
        ("run", "tiny", "--only", f"token={MARK}"),
    ):
        code, said = ended(tmp_path, *arguments)
        assert code == 2
        assert MARK not in said
