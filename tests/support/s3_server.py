"""A server on the loopback that speaks S3, for as long as somebody needs it."""

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SECRETS = {
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "loopback-secret-of-the-tests",
}


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where it listens; `environment` is what leads a process there."""

    endpoint: str

    @property
    def environment(self) -> dict[str, str]:
        return {**SECRETS, "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": self.endpoint}

    def make_bucket(self, name: str) -> str:
        """A new bucket's URL."""
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=60).close()
        return f"s3://{name}"


@contextmanager
def serving_s3(folder: Path) -> Iterator[S3Server]:
    """Start one on a free port; its log lies in `folder`."""
    log = folder / "s3.log"
    command = [str(Path(sys.executable).parent / "moto_server"), "-H", "127.0.0.1", "-p", "0"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT, env=kept)
    try:
        yield S3Server(_endpoint(process, log))
    finally:
        process.kill()
        process.wait()


def _endpoint(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + 120
    while (found := re.search(r"Running on (http://127\.0\.0\.1:\d+)", log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, "the S3 server did not start"
        time.sleep(0.02)
    return found[1]
