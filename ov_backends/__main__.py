"""`python -m ov_backends COMMAND`: a model of any kind, from its file to figures on a device."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import time

from .commands import bench, cache, compare, compile, convert, doctor, inspect, preflight, quantize
from .commands.options import BAD_USE
from .errors import OVNPUError

COMMANDS = (inspect, convert, quantize, compile, preflight, bench, compare, doctor, cache)
INTERRUPTED = 130
"""What shells expect of a program that Ctrl+C ended."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command. 0: done. 1: it fell short, such as a gate that failed. 2: bad use or bad input."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # consoles of Windows lack most characters: a name may hold any
            stream.reconfigure(errors="replace")
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    progress = ProgressLine()
    try:
        # stdout is for the result alone: libraries and the user's own module print as they like
        with contextlib.redirect_stdout(sys.stderr):
            output = options.command.run(options, progress)
    except OVNPUError as error:
        progress.clear()
        print(f"error: {error}", file=sys.stderr)
        return BAD_USE
    except KeyboardInterrupt:
        progress.clear()
        return INTERRUPTED
    progress.clear()
    print(json.dumps(output.data, indent=1) if options.json else output.text)
    return output.code


class ProgressLine:
    """Shows progress on stderr: one line that is written over on a terminal, else a line for each new step."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._shown, self._width, self._started = "", 0, time.monotonic()

    def __call__(self, text: str) -> None:
        if self._is_terminal:
            print(f"\r{text.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = len(text)
        elif not (self._shown and text.startswith(self._shown)):  # "..., 12 s" is the same step
            print(text, file=sys.stderr, flush=True)
            self._shown = text

    def clear(self) -> None:
        """Leave nothing of the line before the result."""
        if self._is_terminal and self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ov_backends",
        description="Take a model of any kind from its file to figures on a device: CPU, GPU or NPU.",
        epilog="Exit code: 0 done, 1 fell short (gate, limit, a problem found), 2 bad use or bad input.",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        one = commands.add_parser(
            name,
            help=command.HELP,
            description=(command.__doc__ or "").split("\n\n")[0],
            epilog=f"example:\n  python -m ov_backends {command.EXAMPLE}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(one)
        one.add_argument("--json", action="store_true", help="print the result as JSON")
        one.set_defaults(command=command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
