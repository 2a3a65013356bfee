if __name__ != "elf.stages":
    raise ImportError("import this package as elf.stages: install the project first (pip install -e .)")
