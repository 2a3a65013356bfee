"""A stage's child process in miniature: speaks the job protocol, and ends in the way its section asks for."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from elf.pipeline.replay import ChildProgress

job = json.loads(Path(sys.argv[1]).read_text())
aux = Path(job["out"]) / "aux"
ending = job["section"]["values"]["ending"]
if ending == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
progress = ChildProgress(Path(job["events"]))
print("a line for the log", flush=True)
with progress.bar("working", 3, unit="things") as bar:
    for _ in range(3):
        bar.advance(1, loss=0.5)
    if ending == "crash":
        raise ValueError("something broke here")
    if ending == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if ending in ("hang", "deaf"):
        (aux / "pid").write_text(str(os.getpid()))
        time.sleep(60)
if ending == "refuse":
    (aux / "failure.json").write_text(json.dumps({"text": "The rows do not fit.", "misconfigured": False}))
    sys.exit(1)
(Path(job["out"]) / "result").write_text(job["section"]["type"])
(aux / "facts.json").write_text(json.dumps({"threads": int(os.environ["OMP_NUM_THREADS"])}))
