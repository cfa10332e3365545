"""Damages inputs and asks the commands: `python tests/fuzz/run.py --kind trace --seconds 60 --first 1`.

Each case runs in a child of its own, forked from a process that has everything loaded. It is a finding when it ends in
a traceback or an internal error, with another exit code than 0, 1 or 2, without an answer, without one JSON object
where `--json` asks for it, after more than 20 s, or with more than 2 GB of memory. A finding is printed with the line
that runs it alone. The exit code is 1 when there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from kinds import KINDS, words_of

SLOWEST_S, LARGEST_BYTES = 20.0, 2_000_000_000
_KILLED_AFTER_S, _MOST_ADDRESSES = 40, 16_000_000_000
_COMPILES = "simulate gpt2 --on 1xT4 --rate 4 --requests 10 --prompt 64 --output 4 --json"


def _child(words: list[str], folder: Path) -> None:
    """Runs one command line with its streams in files; never returns."""
    signal.alarm(_KILLED_AFTER_S)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))
    for number, name in ((0, os.devnull), (1, folder / "out"), (2, folder / "err")):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    code = 70
    try:
        from ridgeline.cli.main import run

        code = run(words)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def finding(kind: str, seed: int, folder: Path) -> str:
    """What is wrong with one case; '' where nothing is."""
    words = words_of(kind, seed, folder)
    begun_s = time.monotonic()
    child = os.fork()
    if child == 0:
        _child(words, folder)
    _, status, used = os.wait4(child, 0)
    spent_s, peak_bytes = time.monotonic() - begun_s, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    out = (folder / "out").read_text(encoding="utf-8", errors="replace")
    err = (folder / "err").read_text(encoding="utf-8", errors="replace")
    faults = _faults(words, os.waitstatus_to_exitcode(status), out, err, whole=seed == 0)
    if used.ru_utime + used.ru_stime > SLOWEST_S:  # of the processor: other work on the machine does not count
        faults.append(f"took {used.ru_utime + used.ru_stime:.0f} s of processor time, {spent_s:.0f} s in all")
    if peak_bytes > LARGEST_BYTES:
        faults.append(f"took {peak_bytes / 1e9:.1f} GB")
    if not faults:
        return ""
    again = f"python tests/fuzz/run.py --kind {kind} --first {seed} --cases 1 --keep"
    return f"{again}\n  ridgeline {' '.join(words)[:600]}\n  {'; '.join(faults)}\n  {err.strip()[-1500:]}\n"


def _faults(words: list[str], code: int, out: str, err: str, *, whole: bool) -> list[str]:
    told = [f"exit code {code}"] if code not in (0, 1, 2) or (whole and code) else []
    if "Traceback" in err or "internal error" in err:
        told.append("traceback")
    inner = re.findall(r"internal: [^\"\n]*", out)
    told += [inner[0][:300]] if inner else []
    if code in (1, 2) and not re.search(r"^(error: |Usage: |Error)", err, re.MULTILINE):
        told.append("no word of what is wrong")
    if "--json" in words and code in (0, 1, 2):
        try:
            if not isinstance(json.loads(out), dict):
                told.append("no JSON object")
        except ValueError:
            told.append("no JSON")
    elif code == 0 and not out.strip():
        told.append("no answer")
    return told


def main() -> int:
    """Runs cases of some kinds one after another, kinds in turn; the exit code."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--kind", action="append", choices=sorted(KINDS), help="only this kind; may be repeated")
    asked.add_argument("--first", type=int, default=0, help="seed of the first case; 0 is the input as it is")
    asked.add_argument("--cases", type=int, default=10**9, help="cases of each kind")
    asked.add_argument("--seconds", type=float, default=1e9, help="ends after so many seconds of cases")
    asked.add_argument("--keep", action="store_true", help="leave the last case's files, and say where")
    given = asked.parse_args()
    found, ran = 0, 0
    folder = Path(tempfile.mkdtemp(prefix="ridgeline-fuzz-"))
    os.environ |= {"XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "200"}
    _load(given.kind or list(KINDS))
    end_s = time.monotonic() + given.seconds
    for seed in range(given.first, given.first + given.cases):
        for kind in given.kind or KINDS:
            if time.monotonic() > end_s:
                break
            told = finding(kind, seed, folder)
            ran += 1
            if told:
                found += 1
                print(told, flush=True)
        else:
            continue
        break
    print(f"{ran} cases, {found} findings" + (f"; files in {folder}" if given.keep else ""))
    if not given.keep:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()
    return int(found > 0)


def _load(kinds: list[str]) -> None:
    """Answers each kind once in this process, so that its children find all modules and kernels loaded.

    The request clock is compiled once for an installation, which is no case's own time.
    """
    from ridgeline.cli.main import run

    here = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            run(words_of(kind, 0, Path(folder)))
        run(_COMPILES.split())
    sys.stdout.flush()
    os.dup2(here, 1)


if __name__ == "__main__":
    sys.exit(main())
