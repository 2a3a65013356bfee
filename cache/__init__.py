if __name__ != "elf.cache":
    raise ImportError("import this package as elf.cache: install the project first (pip install -e .)")
