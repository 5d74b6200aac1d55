"""Compiles a model for an Intel NPU with the compiler of this OpenVINO, in a process that may be ended at any time.

    python npu_worker.py LIMIT_S MODEL BLOB|- [INPUT=[1,2,3] | KEY=VALUE]...

Takes the same arguments and says the same words as npu_compile.c, which does this where Wine is needed. A script: it is
run by its path and imports nothing of this pack.
"""

from __future__ import annotations

import os
import sys
import threading

TIMED_OUT = 124


def main(limit_s: str, path: str, blob: str, *arguments: str) -> None:
    import openvino as ov

    timer = threading.Timer(float(limit_s), lambda: leave("timed out", TIMED_OUT))
    timer.daemon = True
    timer.start()
    step = "start"
    try:
        core = ov.Core()
        step = "read"
        model = core.read_model(path)
        shapes, properties = split(arguments)
        if shapes:
            step = "reshape"
            model.reshape({model.input(index): shape for index, shape in shapes.items()})
        step = "compile"
        say("compiling")
        compiled = core.compile_model(model, "NPU", properties)
        say("compiled")
        if blob != "-":
            step = "export"
            with open(blob, "wb") as file:
                file.write(compiled.export_model().getbuffer())
    except (RuntimeError, OSError) as error:
        leave(f"failed: {step}: {error}", 1)
    leave("done", 0)


def split(arguments: tuple[str, ...]) -> tuple[dict[int, list[int]], dict[str, str]]:
    """Number of an input -> its shape, and properties of the plugin."""
    pairs = [argument.split("=", 1) for argument in arguments]
    shapes = {
        int(name): [int(n) for n in value.strip("[]").split(",")] for name, value in pairs if value.startswith("[")
    }
    return shapes, {name: value for name, value in pairs if not value.startswith("[")}


def say(text: str) -> None:
    sys.stdout.write(f"ovnpu {text}\n")
    sys.stdout.flush()


def leave(text: str, code: int) -> None:
    """At once: tearing the plugin down is not needed, and can hang without a driver."""
    say(text)
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
