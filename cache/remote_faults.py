"""What the library of remote stores raises, in our words: not there, wrong place, closed to us, out of reach."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import urlsplit

from elf.cache.errors import BadRemote, Unreachable
from elf.cache.redaction import redact

_ABSENT_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|bucket does not exist")
_DENIED = re.compile(
    r"status code: (?:401|403)|Missing AccessKeyId|Missing SecretAccessKey|must be specified|configured region"
)
_FULL = re.compile(r"os error (?:28|122)\b")
# Where the library looks for the credentials of a cloud's machine if none are set.
_METADATA = re.compile(r"//(?:169\.254\.169\.254|metadata\.google\.internal)")
_CODE = re.compile(r"<Code>(\w+)</Code>(?:<Message>([^<]*))?")
_CAUSE = re.compile(r"(?:error|message): \"([^\"]+)\"")
_HOST = re.compile(r"https?://[^/\s]+")
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; AWS_REGION and AWS_ENDPOINT_URL for the place",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


@contextmanager
def asking(url: str) -> Generator[None]:
    """Turn what is raised below into BadRemote or Unreachable about `url`.

    FileNotFoundError passes as it is: the file is not there, but its bucket is.
    """
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    try:
        yield
    except (BaseError, OSError) as error:
        text = str(error)
        if _ABSENT_BUCKET.search(text):
            raise BadRemote(
                f"There is no such place as the remote {url}: its bucket does not exist. Make it, or correct the "
                "address."
            ) from error
        if isinstance(error, FileNotFoundError):
            raise
        denied = isinstance(error, PermissionDeniedError | UnauthenticatedError | PermissionError)
        if denied or _DENIED.search(text) or _METADATA.search(text):
            raise BadRemote(_closed(url, error)) from error
        full = _FULL.search(text) is not None
        state = "is full" if full else "cannot be reached"
        cure = "Free some space there" if full else "Check the network and the address"
        raise Unreachable(f"The remote {url} {state}: {_words(error)}. {cure}.") from error


def _closed(url: str, error: Exception) -> str:
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return (
            f"The remote {url} is not open to this user: {_words(error)}. Let this user read and list it (and write to "
            "it, for a push), or run the command as one who may."
        )
    words = "there are none" if _METADATA.search(str(error)) else _words(error)
    return (
        f"The remote {url} is not open to our credentials ({words}). They are taken from the environment "
        f"({_CREDENTIALS[scheme]}) and must be allowed to read and list there, and to write for a push."
    )


def _words(error: Exception) -> str:
    """What a library's error says, in a line and without secrets."""
    text = str(error)
    code = _CODE.search(text)
    if code is not None:
        return redact(" ".join(filter(None, code.groups())).rstrip("."))
    head, _, details = text.partition("\n\nDebug source")
    words = head.strip().splitlines()[0] if head.strip() else type(error).__name__
    host, cause = _HOST.search(words), _CAUSE.findall(details)
    words = words.rpartition(" - ")[2].rstrip(" .")
    if host is not None and host[0] not in words:
        words += f" to {host[0]}"
    if cause and cause[-1] not in words:
        words += f" ({cause[-1]})"
    return redact(words)
