"""The test's side of a script that has imported everything and forks a child for each line of JSON it reads."""

import json
import os
import subprocess
import sys
from typing import Any


class Forking:
    """Runs the script; it answers each order with the exit code of the child that took it (negative: the signal)."""

    def __init__(self, script: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        )

    def order(self, **order: Any) -> int:
        """Send an order, wait for the child's end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()
