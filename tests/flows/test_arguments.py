"""Several values after one option."""

import pytest

from elf.flows.arguments import spread


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("run tiny --set a=1 b=2", "run tiny --set a=1 --set b=2"),
        ("run --set a=1 b=2 tiny", "run --set a=1 --set b=2 tiny"),
        ("run tiny --set a=1 --set b=2", "run tiny --set a=1 --set b=2"),
        ("run tiny --force train encode --store s", "run tiny --force train --force encode --store s"),
        ("run --force train tiny", "run --force train tiny"),
        ("run tiny --only train", "run tiny --only train"),
        ("why --store s tiny train", "why --store s tiny train"),
        ("why tiny --set a=b=c train", "why tiny --set a=b=c train"),
        ("run tiny --set=a=1 b=2", "run tiny --set=a=1 --set b=2"),
    ],
)
def test_words_go_to_the_option_they_belong_to(given: str, meant: str) -> None:
    assert spread(given.split()) == meant.split()
