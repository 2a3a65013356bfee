"""Anybody's texts and their references, from the files that ``elf score`` is given.

``FILE.jsonl`` has the form of `samples.jsonl` (`elf.stages.texts`). Of ``FILE.txt`` every line is a text, an empty
one too; its number, from 1, is its id. References are a file of the same kind, one text for each id, and join by
id: what has no partner is refused, not left out.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from elf.pipeline.errors import Failed, Misconfigured
from elf.stages.texts import Text, place, read_lines, read_texts

KINDS = (".jsonl", ".txt")


def read_submission(file: Path, references: Path | None) -> tuple[Text, ...]:
    """The texts in the order (seed, id), with their references if there is such a file.

    Raises Misconfigured for a file of another kind, Failed naming the line or id that does not fit.
    """
    texts = _read(file)
    if references is None:
        return texts
    if references.suffix != file.suffix:
        raise Misconfigured(
            f"{file} is {file.suffix} and {references} is {references.suffix}: lines have numbers and records have "
            "ids, which do not join. Give both as .txt or both as .jsonl."
        )
    if any(text.reference is not None for text in texts):
        raise Misconfigured(f"{file} holds references already; leave --references {references} out.")
    return _join(texts, _read(references), file, references)


def _read(file: Path) -> tuple[Text, ...]:
    if file.suffix not in KINDS:
        raise Misconfigured(
            f"{file} should end in .jsonl (records with 'id' and 'text') or .txt (a text a line)."
        )
    return read_texts(file) if file.suffix == ".jsonl" else _read_lines(file)


def _read_lines(file: Path) -> tuple[Text, ...]:
    lines = read_lines(file)
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise Failed(f"{file} holds no text at all, so there is nothing to score; name a file that does.")
    return tuple(Text(number, 0, line.removesuffix("\r")) for number, line in enumerate(lines, 1))


def _join(texts: tuple[Text, ...], references: tuple[Text, ...], file: Path, other: Path) -> tuple[Text, ...]:
    if len({reference.seed for reference in references}) > 1:
        raise Failed(
            f"{other} holds texts of several seeds; give one reference for each id, whatever the seed."
        )
    known = {reference.id: reference.text for reference in references}
    joined: list[Text] = []
    for seed in sorted({text.seed for text in texts}):
        mine = {text.id: text for text in texts if text.seed == seed}
        alone, unused = mine.keys() - known.keys(), known.keys() - mine.keys()
        if alone or unused:
            of = f"{len(mine)} texts" + (f" of seed {seed}" if seed else "")
            missing = (
                f"text {_first(alone)} has no reference"
                if alone
                else f"reference {_first(unused)} has no text"
            )
            raise Failed(
                f"{file} holds {of} and {other} {len(known)} references: {missing}. Give each text its reference "
                "under the same id (in a .txt file: in the same line), and each reference its text."
            )
        joined += [replace(text, reference=known[name]) for name, text in mine.items()]
    return tuple(sorted(joined, key=place))


def _first(names: Iterable[int | str]) -> str:
    return repr(min((Text(name, 0, "") for name in names), key=place).id)
