"""What can be the address of a remote store: a place alone, never credentials."""

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from elf.cache.errors import BadRemote
from elf.cache.redaction import HIDDEN, redact

SCHEMES = ("s3", "gs", "az", "file")
_BUCKET = re.compile(r"[\w.-]+")


def check_address(url: str) -> None:
    """Raise BadRemote unless `url` can be that of a remote store; asks no network and loads no library."""
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    user, _, host = parts.netloc.rpartition("@")
    shown = (
        redact(f"{parts.scheme}://{f'{HIDDEN}@' if user else ''}{host}{parts.path}") if parts.scheme else url
    )
    if user or parts.query or parts.fragment:
        raise BadRemote(
            f"The remote {shown} holds a user, a question mark or a number sign. Leave them out: an address is a "
            "place alone; credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)."
        )
    local = parts.scheme == "file"
    if parts.scheme not in SCHEMES or not (parts.path and not host if local else _BUCKET.fullmatch(host)):
        raise BadRemote(
            f"{redact(shown)!r} is no address of a remote. Write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, "
            "az://CONTAINER/PREFIX or file:///FOLDER."
        )
    if local and not Path(unquote(parts.path)).is_dir():
        raise BadRemote(
            f"The remote {url} is a folder that does not exist here. Mount it, make it (mkdir -p "
            f"{unquote(parts.path)}), or correct the address."
        )
