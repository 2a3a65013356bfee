"""Several values after one option: ``--set a=1 b=2`` and, once CONFIG is given, ``--force train encode``."""

from collections.abc import Sequence

VALUED = ("--only", "--until", "--store")


def spread(arguments: Sequence[str]) -> list[str]:
    """``arguments`` with the option repeated before each further value, as the parser wants it.

    A word after ``--set`` belongs to it if it holds ``=``; a word after ``--force`` if the command and its
    CONFIG stand before the option, for otherwise it is the CONFIG.
    """
    out: list[str] = []
    option, taken, words = "", 0, 0
    for word in arguments:
        if word.startswith("-"):
            option, taken = word.partition("=")[0], int("=" in word)
            out.append(word)
            continue
        first = taken == 0
        more = (option == "--set" and "=" in word) or (option == "--force" and words >= 2)
        if first and option in ("--set", "--force", *VALUED):
            out.append(word)
        elif more:
            out += [option, word]
        else:
            option, words = "", words + 1
            out.append(word)
        taken += 1
    return out
