"""Secrets put where a run could pick them up, to be looked for afterwards in everything it left."""

from pathlib import Path

MARK = "s3cr3tV4lu3"
SECRETS = {
    "HF_TOKEN": f"hf_{MARK}{MARK}",
    "AWS_SECRET_ACCESS_KEY": f"{MARK}/aws+{MARK}",
    "PREFECT_API_KEY": f"pnu_{MARK}{MARK}",
    "PIP_INDEX_URL": f"https://somebody:{MARK}@mirror.invalid/simple",
    "WANDB_API_KEY": MARK,
}
"""Environment of a run that is offline all the same."""


def leaks(folder: Path) -> list[str]:
    """Files and links below a folder that hold the mark, in their content or their name."""
    found: list[str] = []
    for path in sorted(folder.rglob("*")):
        inside = path.is_file() and MARK.encode() in path.read_bytes()
        if (
            inside
            or MARK in str(path.relative_to(folder))
            or (path.is_symlink() and MARK in str(path.readlink()))
        ):
            found.append(str(path.relative_to(folder)))
    return found
