if __name__ != "elf.configs":
    raise ImportError("import this package as elf.configs: install the project first (pip install -e .)")
