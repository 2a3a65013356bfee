"""The few calls to a Prefect server's REST API that bringing services up and looking at them takes.

Plain HTTP from the standard library: the client of Prefect takes seconds to import, and a look should not.
"""

import base64
import json
import os
import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from elf.pipeline.errors import Failed

BUSY_FOR = 60.0
"""Seconds for which a server may say that it is too busy, or take to answer."""
_BUSY = (429, 502, 503)
_CURES = {401: "Set PREFECT_API_AUTH_STRING (or PREFECT_API_KEY) to what the server wants."}
_LOG = "Look into the server's log for the reason."
_ELSE = "Set PREFECT_API_URL to the address of one (it ends in /api), or unset it and call `elf up`."
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Unreachable(Failed):
    """Nobody answers at the address, or something that is no Prefect server."""


class Refused(Failed):
    """A server answers, but with an error; ``code`` is the HTTP status."""

    def __init__(self, words: str, code: int) -> None:
        super().__init__(words)
        self.code = code


class PrefectApi:
    """A server by its API address, such as ``http://127.0.0.1:4200/api``.

    Credentials are Prefect's own: ``PREFECT_API_KEY`` or ``PREFECT_API_AUTH_STRING`` of the environment.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        local = urlsplit(self.url).hostname in LOOPBACK
        self._opener = build_opener(ProxyHandler({})) if local else build_opener()

    def version(self, *, patience: float = 30) -> str:
        """Version of the server; raises Unreachable if no Prefect server answers."""
        try:
            answer = self._ask("GET", "admin/version", None, patience)
        except Refused as error:
            if error.code in (401, 403):
                raise
            answer = None
        if not isinstance(answer, str):
            raise Unreachable(f"What answers at {self.url} is no Prefect server. {_ELSE}")
        return answer

    def answers(self, *, patience: float = 30) -> bool:
        """Whether a Prefect server answers."""
        try:
            self.version(patience=patience)
        except Unreachable:
            return False
        return True

    def get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        return self._call("POST", path, body)

    def put(self, path: str, body: Any) -> Any:
        return self._call("PUT", path, body)

    def patch(self, path: str, body: Any) -> Any:
        return self._call("PATCH", path, body)

    def _call(self, method: str, path: str, body: Any) -> Any:
        """Ask, again if the server says that it is too busy, as a SQLite database makes it now and then."""
        deadline = time.monotonic() + BUSY_FOR
        pause = 0.2
        while True:
            try:
                return self._ask(method, path, body, BUSY_FOR)
            except Refused as error:
                if error.code not in _BUSY or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause *= 2

    def _ask(self, method: str, path: str, body: Any, patience: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **_credentials()}
        request = Request(f"{self.url}/{path}", data, headers, method=method)
        try:
            with self._opener.open(request, timeout=patience) as answer:
                text = answer.read()
        except HTTPError as error:
            with error:
                words = error.read(2000).decode(errors="replace")
            cure = _CURES.get(error.code, _LOG)
            told = (
                f"The server refused {method} {self.url}/{path} ({error.code}): {words.rstrip('. ')}. {cure}"
            )
            raise Refused(told, error.code) from None
        except (URLError, OSError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"No Prefect server answers at {self.url} ({reason}). {_ELSE}") from None
        try:
            return json.loads(text) if text else None
        except ValueError:
            raise Unreachable(f"What answers at {self.url} is no Prefect server. {_ELSE}") from None


def _credentials() -> dict[str, str]:
    key, pair = os.environ.get("PREFECT_API_KEY"), os.environ.get("PREFECT_API_AUTH_STRING")
    if key:
        return {"Authorization": f"Bearer {key}"}
    if pair:
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
    return {}
