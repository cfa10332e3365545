"""The command `ridgeline`: reads words, asks the rooms below, prints the answer.

Exit codes: 0 answered, 1 asked well but impossible (nothing fits), 2 the input cannot be used,
70 a defect of Ridgeline itself. What takes time to import is imported when needed: `--help` stays under 0.3 s.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from ridgeline.api.progress import watcher
from ridgeline.cli.commands import SETTINGS, Commands, Misused
from ridgeline.cli.screen import Terminal, print_json
from ridgeline.errors import RidgelineError, printable

MISUSED, STOPPED = 2, 130
DEFECT = 70  # EX_SOFTWARE of sysexits.h
_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG, errno.EROFS})
"""Why an answer cannot be written that is no fault of the program."""
_JSON = "--json"
_MEASURING = ["calibrate"], ["measure"], ["score"]
_COLLECTED = 100_000  # new objects after which the garbage collector looks at the youngest

app = typer.Typer(
    name="ridgeline",
    cls=Commands,
    add_completion=True,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"ridgeline {version('ridgeline')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Predicts, plans and explains how a deep-learning workload will run on a machine, before anyone rents it."""


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command line, run in this process; defects are raised, not hidden."""
    shown = watcher.set(Terminal())
    try:
        code, told = _ended(arguments)
    finally:
        watcher.reset(shown)
    if told is not None and _JSON in arguments:
        print_json(told)
    return code


def _ended(arguments: Sequence[str]) -> tuple[int, dict[str, Any] | None]:
    """The exit code of a command line, and why there is no answer, in the form of `--json`."""
    try:
        ended = app(args=list(arguments), prog_name="ridgeline", standalone_mode=False)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None), None
    except typer.Abort:  # older releases of Typer say so where a person stops the program
        print("stopped", file=sys.stderr)
        return STOPPED, None
    except Misused as error:
        from ridgeline.api.refusals import misused

        error.show()
        return MISUSED, misused(error, MISUSED)
    except RidgelineError as error:
        from ridgeline.api.refusals import refusal

        print(f"error: {printable(str(error))}", file=sys.stderr)
        return error.exit_code, refusal(error)
    return ended if isinstance(ended, int) else 0, None


def _unwritten(error: OSError) -> int:
    """The exit code where the answer could not be written, which is told."""
    told = f"the answer cannot be written: {error.strerror}; free some space, or write elsewhere"
    print(f"error: {told}", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left over would fail again at the end
    return RidgelineError.exit_code


def main() -> None:
    """The entry point of the console script; it ends soon, and needs few of the collector's passes.

    Its matrix products are small: threads of OpenBLAS spin longer than they compute. What measures keeps them.
    """
    gc.set_threshold(_COLLECTED, 50, 1000)
    if sys.argv[1:2] not in _MEASURING:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _UNWRITABLE:
            sys.exit(_unwritten(error))
        print(f"internal error: {type(error).__name__}: {error}", file=sys.stderr)
        print("this is a defect of ridgeline; please report it with the command line and files used", file=sys.stderr)
        if _JSON in sys.argv[1:]:
            from ridgeline.api.refusals import defect

            print_json(defect(error, DEFECT))
        code = DEFECT
    sys.exit(code)


if __name__ == "__main__":
    main()
