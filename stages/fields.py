"""Types of settings that several sections share."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

LONGEST_NAME = 200
"""Bytes of a name; a file system stops at 255, and `evaluate-` and more stand before it."""


def _folder_name(text: str) -> str:
    if not text.strip() or text.startswith(".") or any(letter in "/\\" or letter < " " for letter in text):
        raise ValueError(
            "it names a folder under runs/, so it may not be empty, hold a slash or begin with a dot"
        )
    if len(text.encode()) > LONGEST_NAME:
        raise ValueError(f"it names a folder under runs/, so it may not be longer than {LONGEST_NAME} bytes")
    return text


Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""What torch takes for one."""
FolderName = Annotated[str, AfterValidator(_folder_name)]
Float = Literal["float16", "bfloat16", "float32"]
ComputeFloat = Literal["float32", "bfloat16"]
Precision = Literal["float32", "bf16"]
