if __name__ != "elf.flows":
    raise ImportError("import this package as elf.flows: install the project first (pip install -e .)")
