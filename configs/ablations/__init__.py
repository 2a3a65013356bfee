if __name__ != "elf.configs.ablations":
    raise ImportError(
        "import this package as elf.configs.ablations: install the project first (pip install -e .)"
    )
