if __name__ != "elf.stages.model":
    raise ImportError("import this package as elf.stages.model: install the project first (pip install -e .)")
