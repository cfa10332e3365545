"""How quickly the web app answers: the first answer after loading and each change, beside the library in one process.

    python benchmarks/bench_web.py [CHANGES]

Writes web.md. The app runs as people run it. Each change is asked over HTTP in turn with the same call of the library
and a request for the bare page, so that neighbours slow all three; then, where Chromium and Playwright are installed, a
person's keystrokes are timed until the answer is on the page, the wait for more keys included. Processor seconds are of
the server and its processes. Fails where the first answer takes a second or more, or the median change 0.3 s or more.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from urllib.request import Request, urlopen

import ridgeline as rl
from ridgeline.api.confined import EXAMPLE

PAGE = Path(__file__).with_name("web.md")
WAIT_MS = 90  # that the page waits for more keys
FIRST_S, CHANGE_S = 1.0, 0.3  # asked of the app


class App:
    """A running app: its address, the seconds until it had one, and the processor time of it and its processes."""

    def __init__(self, address: str, started_s: float, process: int) -> None:
        self.address, self.started_s, self.process = address, started_s, process

    def user_s(self) -> float:
        """Processor time in user mode of the app and its processes so far [s]."""
        children = Path(f"/proc/{self.process}/task/{self.process}/children").read_text(encoding="ascii").split()
        ticks = 0
        for each in (self.process, *map(int, children)):
            ticks += int(Path(f"/proc/{each}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[11])
        return ticks / os.sysconf("SC_CLK_TCK")

    def asked(self, words: dict[str, str]) -> None:
        """A question and its whole answer."""
        body = json.dumps({"verb": "predict", "words": words}).encode()
        with urlopen(Request(f"{self.address}ask", body, {"content-type": "application/json"})) as answer:
            assert b"event: answer" in answer.read()

    def page(self) -> None:
        """The bare page."""
        with urlopen(self.address) as answer:
            answer.read()


@contextmanager
def app() -> Iterator[App]:
    """A running app, which is ended in any case."""
    command, began = [sys.executable, "-m", "ridgeline.cli.main", "web", "--port", "0", "--no-browser"], time.time()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None
            yield App(found[0], time.time() - began, server.pid)
        finally:
            server.terminate()


def timed(what: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def called(words: dict[str, str], **more: bool) -> None:
    """The same by the library, as the page shows it."""
    answer = rl.predict(**words, **more)
    answer.body(), answer.as_dict()


def changes(count: int) -> list[dict[str, str]]:
    """Questions that differ from the example in a word or two, all of them unlike."""
    varied = [
        *({"global_batch": str(256 + 32 * number)} for number in range(count)),
        *({"micro_batch": str(2 ** (number % 3)), "seq_len": str(2048 + 256 * number)} for number in range(count)),
        *({"on": name} for name in ("8xH200-SXM", "8xB200-SXM", "8xA100-SXM-80GB")),
    ]
    stride = max(1, len(varied) // count)
    return [{**EXAMPLE, "global_batch": "512", **each} for each in varied[::stride]][:count]


_SHOWN = """words => document.querySelector('#command code').textContent.includes(words) &&
    !document.querySelector('#answer.old, #command[hidden]')"""


def _loaded(page: Any, address: str) -> None:
    page.goto(address)
    page.wait_for_function(_SHOWN, arg="llama-3.1-8b", polling=5)


def _typed(page: Any, name: str, value: str) -> None:
    page.fill(f"#word-{name}", value)
    said = value if name == "on" else f"--{name.replace('_', '-')} {value}"
    page.wait_for_function(_SHOWN, arg=said, polling=5)


def seen(running: App, asked: list[dict[str, str]]) -> tuple[list[float], list[float]] | None:
    """Seconds to the first answer on the page, and of each change; None where there is no browser."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if browser is None:
        return None
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        first, later = [], []
        for _ in range(3):
            page = chromium.new_page()
            first.append(timed(partial(_loaded, page, running.address)))
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        for words in asked:
            for name, value in words.items():
                if page.input_value(f"#word-{name}") != value:
                    later.append(timed(partial(_typed, page, name, value)))
        chromium.close()
    return first, later


def row(name: str, taken: list[float], unit_s: float, user_s: float | None = None) -> str:
    """A line of the page."""
    high = quantiles(taken, n=20)[-1] if len(taken) > 1 else taken[0]
    user = "" if user_s is None else f"{1000 * user_s:.0f}"
    return f"| {name} | {1000 * median(taken):.0f} | {1000 * high:.0f} | {median(taken) / unit_s:.2f} | {user} |"


def main(count: int) -> int:
    """Measures, writes the page, and says whether what is asked of the app was kept."""
    asked = changes(count)
    for words in asked[:3]:
        called(words)
    pages, asks, calls, bounds, own_s = [], [], [], [], 0.0
    with app() as running:
        ready_s = running.started_s + timed(partial(running.asked, EXAMPLE))
        start_s = running.user_s()
        time.sleep(3)  # as long as a person looks at it
        began = running.user_s()
        for words in asked:
            pages.append(timed(running.page))
            asks.append(timed(partial(running.asked, words)))
            before = os.times().user
            calls.append(timed(partial(called, words)))
            own_s += os.times().user - before
            bounds.append(timed(partial(called, words, quick=True)))
        app_s = running.user_s() - began
        before = running.user_s()
        browser = seen(running, asked)
        browsed_s = running.user_s() - before
    unit_s = median(bounds)
    rows = [
        row("the bare page over HTTP", pages, unit_s),
        row(
            "`rl.predict(..., quick=True)`, shown as the page shows it, in one warm process: the bound", bounds, unit_s
        ),
        row("`rl.predict(...)`, the same", calls, unit_s, own_s / count),
        row("a change, asked over HTTP", asks, unit_s, app_s / count),
        row("the command `ridgeline web` until the first answer over HTTP", [ready_s], unit_s, start_s),
    ]
    slow = False
    if browser is not None:
        first, later = browser
        rows += [
            row("the page loaded until its first answer, in Chromium", first, unit_s),
            row(
                f"a key until the new answer is on the page, in Chromium ({WAIT_MS} ms of it waiting for more keys)",
                later, unit_s, browsed_s / (len(first) + len(later)),
            ),
        ]  # fmt: skip
        slow = median(first) >= FIRST_S or median(later) >= CHANGE_S
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    load = f"load {os.getloadavg()[0]:.1f}, of neighbours as well; priority {os.nice(0)}"
    PAGE.write_text(
        "# The web app beside the library\n\nWritten by `bench_web.py`: a prediction of training (llama-3.1-8b on"
        f" 8xH100-SXM, ZeRO-3) and {count} changes of it.\nAsked: a first answer in less than {FIRST_S:g} s after the"
        f" page is loaded, a change in less than {1000 * CHANGE_S:g} ms.\nProcessor time is of the app's processes in"
        f" user mode, for one answer.\n\n{machine}, {load}\n\n"
        "| | median ms | p95 ms | times the bound | processor ms |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n",
        encoding="utf-8",
    )
    print(PAGE.read_text(encoding="utf-8"))
    return int(slow)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 30))
