"""Stands in for the NPU compiler, which a machine may not have: says and writes what the real one did once.

    python npu_stand_in.py BEHAVIOUR RECORDED LIMIT_S MODEL BLOB|- ...

BEHAVIOUR: "works", "spins" (goes on for ever after the schedule), "hangs" (before it), "crashes", "refuses", "stumbles"
(as Wine does at times: does not start the first time). RECORDED: folder with dense_4000.json and .log.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

behaviour, recorded, _, model, *_ = sys.argv[1:]
calls = Path(recorded) / "calls.txt"
count = int(calls.read_text(encoding="utf-8")) if calls.exists() else 0
calls.write_text(str(count + 1), encoding="utf-8")

if behaviour == "stumbles" and count == 0:
    print("wine client error:0: recvmsg: Connection reset by peer")
    sys.exit(1)
assert Path(model).is_file()
print("ovnpu compiling", flush=True)
if behaviour == "crashes":
    print("[INFO] 10:00:00.000 [some-pass] working on Tan", flush=True)
    os._exit(5)
if behaviour == "refuses":
    said = json.loads((Path(recorded) / "refusals.json").read_text(encoding="utf-8"))["unique"]
    print(f"ovnpu failed: compile: {said}", flush=True)
    os._exit(1)
if behaviour == "hangs":
    time.sleep(600)
print((Path(recorded) / "dense_4000.log").read_text(encoding="utf-8").rpartition("ovnpu compiled")[0], flush=True)
shutil.copy(Path(recorded) / "dense_4000.json", "compileTimeScheduleTrace.json")
if behaviour == "spins":
    time.sleep(600)
print("ovnpu compiled\novnpu done")
