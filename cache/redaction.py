"""Passwords and tokens, kept out of whatever is written or said.

What counts as one: the user part of a URI, the value behind a name such as ``password=`` or ``--api-key``, text of
the form that hubs and clouds give their tokens, and the value of any environment variable named like one.
"""

import os
import re
from collections.abc import Iterable

HIDDEN = "***"
_SHORTEST = 6  # an environment value shorter than this is no secret, and would blot out ordinary words
# `tokenize.end_token` and counts of tokens are settings like any other.
_NAME = r"(?:(?<!end_)token|secret|passw(?:or)?d|passphrase|credentials?|signature|(?:api|access|private)[_-]?key)"
_VARIABLE = re.compile(
    r"(?:TOKEN|SECRET|PASSW(?:OR)?D|PASSPHRASE|CREDENTIALS?|(?:API|ACCESS|PRIVATE)_?KEY)$", re.IGNORECASE
)
_OPTION = re.compile(rf"--?[\w.-]*{_NAME}", re.IGNORECASE)
_NAMED = re.compile(rf"({_NAME}[\"']?\s*=\s*)(\"[^\"]*\"|'[^']*'|[^\s\"'&;,]+)", re.IGNORECASE)
_USER = re.compile(r"(\w://)[^/\s\"']+@")
_BEARER = re.compile(r"\b(Bearer|Basic)\s+[\w.~+/=-]{8,}")
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|pn[ub]_[A-Za-z0-9]{16,}"
    r"|sk-[\w-]{20,}|pypi-[\w-]{20,}|xox[abeoprs]-[\w-]{10,}|A[KS]IA[0-9A-Z]{16}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
)


def redact(text: str) -> str:
    """``text`` with ``***`` in the place of every secret in it."""
    return _by_form(_by_environment(text))


def redact_arguments(arguments: Iterable[str]) -> tuple[str, ...]:
    """A command line without its secrets; ``--token VALUE`` in two words is seen as well."""
    told: list[str] = []
    hide = False
    for argument in arguments:
        told.append(HIDDEN if hide and not argument.startswith("-") else redact(argument))
        hide = _OPTION.fullmatch(argument) is not None
    return tuple(told)


def holds_secret(text: str) -> bool:
    """Whether something in ``text`` would be hidden."""
    return redact(text) != text


def _by_form(text: str) -> str:
    text = _USER.sub(rf"\1{HIDDEN}@", text)
    text = _NAMED.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    return _TOKEN.sub(HIDDEN, text)


def _by_environment(text: str) -> str:
    for name, value in os.environ.items():
        if _VARIABLE.search(name) and len(value) >= _SHORTEST and value in text:
            text = text.replace(value, HIDDEN)
    return text
