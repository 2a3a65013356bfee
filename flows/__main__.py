"""``python -m elf.flows``: the command line, whatever is on the path."""

from elf.flows.cli import main

main()
