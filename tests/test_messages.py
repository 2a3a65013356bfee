"""Every message that a user may meet says what is wrong, where, and what would be right."""

import re

import pytest
from message_groups import CARRIED, PASSED_ON
from messages import PAGE, Message, find_messages, find_passed_on, find_unlisted, make_page

LONGEST = 600
DOING = (
    "accept|add|audit|break|bring|build|call|check|choose|compute|convert|correct|delete|encode|end|export|fetch"
    "|find|follow|free|give|install|leave|let|load|log|look|lower|make|mount|name|pin|push|put|raise|read|remove"
    "|report|run|sample|save|score|set|shorten|start|store|sweep|take|tokenize|train|try|type|unset|use|write"
)
"""What a message may ask for: verbs, where they begin a clause."""
CURE = re.compile(
    rf"(?:^|[.;:,(\]] |\bor |\band |\bthen |\bplease |\[)(?:{DOING})\b(?!-)"
    r"|\bmust (?:be|begin|end|lie|have|fit|hold)\b|\bshould end\b|\bdid you mean\b|\bis the (?:cure|default)\b"
    r"|\bthe same command (?:goes|tries)\b|`[^`]+` (?:first|builds|ends|makes|lists|shows)\b"
    r"|\b(?:builds it again|brings it back)\b|\bso it may not\b|\bto go on\b|\bagain:"
    r"|\b(?:it has|it takes|it knows|there are|these are known|allowed are|which has items)\b[^.;]*\{[^}]+\}[^.;]*\.?$"
    r"|\{(?:cure|remote\.cure)\}",
    re.IGNORECASE,
)
"""Words that say what would be right: an order, a rule, or the list of what there is at the end of the message."""
WHERE = re.compile(r"\{[^}]+\}|`[^`]+`|--\w+|\b[A-Z]+_[A-Z_]+\b|\b[a-z]+[._][a-z_.]+\b")
"""A value, a setting, an option, a variable of the environment or a command."""
EXCEPTIONS: dict[str, str] = {
    "interrupted; ": "a person asked for it, and it says what the next command does",
    "terminated; ": "somebody asked for it, and it says what the next command does",
    "Interrupted in ": "said beside the one above, of a stage's process",
    "Interrupted, and ": "said beside the one above, of a stage's process",
    "Shard {shard} was given up.": "it ends a thread whose work nobody wants any more, and nobody reads it",
    "ELF_REMOTE: {fault}": "the message of a bad address behind the name of the variable",
    "{corpus}, file {document.file}, line or row {document.place}: {error}": "the tokenizer's message behind the place",
    "{told}": "up to three of the messages about settings",
}
"""Beginnings of messages without a cure, and why there is none to give."""


def whole() -> list[Message]:
    """Messages that stand alone and end a command."""
    return [each for each in find_messages() if each.frame is None and each.exit is not None]


def faults_of(text: str) -> list[str]:
    """What is wrong with a message that ends a command."""
    faults = [] if WHERE.search(text) else ["it does not say where: no value, no setting, no command"]
    faults += [] if CURE.search(text) else ["it does not say what would be right"]
    faults += (
        [] if re.search(r"[.?]$|\.\]$|`$|\{[\w.]*cure\}$", text) else ["it does not end with a full stop"]
    )
    faults += ["it shouts"] if "!" in text else []
    fixed = re.sub(r"\{[^}]*\}", "", text)
    faults += [f"it has {len(fixed)} characters of fixed text"] if len(fixed) > LONGEST else []
    return faults


def test_each_message_says_what_where_and_what_would_be_right() -> None:
    bad = {
        f"{each.file}:{each.line}: {each.text}": faults
        for each in whole()
        if (faults := faults_of(each.text)) and not any(each.text.startswith(start) for start in EXCEPTIONS)
    }
    assert not bad, "\n".join(f"{place}\n    {'; '.join(faults)}" for place, faults in bad.items())


def test_each_part_about_a_setting_says_what_would_be_right() -> None:
    parts = [each for each in find_messages() if each.frame is not None and each.frame.startswith("`key`")]
    assert len(parts) > 20
    assert [each.text for each in parts if not CURE.search(each.text)] == []


def test_each_refusal_of_the_pieces_names_a_value() -> None:
    raised = [each for each in find_messages() if each.ending == "raised" and each.frame is None]
    bare = [each.text for each in raised if not WHERE.search(each.text)]
    assert bare == [
        "no row has a token; there is nothing to store.",
        "This loss gave its gradients away when it was first asked for them.",
        "the window's schedule is at its end.",
    ]


def test_nothing_shouts() -> None:
    assert [each.text for each in find_messages() if "!" in each.text] == []


def test_the_exceptions_are_needed() -> None:
    texts = [each.text for each in whole()]
    for start in EXCEPTIONS:
        assert any(text.startswith(start) and faults_of(text) for text in texts), start


@pytest.mark.parametrize(
    "text",
    [
        "Something went wrong.",
        "{path} cannot be read: {error}.",
        "Invalid value {value}.",
        "The shard {shard} is damaged. Its digest differs.",
        "The text is empty; give it some words.",
        "Set {name} to 1!",
        "Set {name} to 1",
        "The setting {key} is unknown, which is not so good, because nobody knows what it is meant for.",
    ],
)
def test_the_rules_refuse_what_helps_nobody(text: str) -> None:
    assert faults_of(text)


def test_no_raise_and_no_message_is_left_out() -> None:
    assert find_unlisted().keys() == CARRIED.keys()
    assert find_passed_on() == PASSED_ON.keys()


def test_the_page_is_that_of_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == make_page(), "run: python tests/support/messages.py"
