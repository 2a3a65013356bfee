if __name__ != "elf.pipeline":
    raise ImportError("import this package as elf.pipeline: install the project first (pip install -e .)")
