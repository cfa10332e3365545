"""The page in a real browser: typing, the keyboard alone, files, links, a search that is cancelled, a phone's width."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

api = pytest.importorskip("playwright.sync_api")
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium")
PICTURES = os.environ.get("RIDGELINE_PICTURES")  # a folder: screenshots of the docs are made again
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-m", "ridgeline.cli.main", "web", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        yield found[0]
        server.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with api.sync_playwright() as play:
        one = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield one
        one.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    one = browser.new_page(viewport={"width": 1280, "height": 900})
    one.set_default_timeout(WAIT_MS)
    faults: list[str] = []
    one.on("pageerror", lambda error: faults.append(str(error)))
    one.on("console", lambda told: faults.append(told.text) if "Content Security" in told.text else None)
    one.goto(address)
    answered(one, "llama-3.1-8b")
    yield one
    assert not faults
    one.close()


def answered(page: Any, words: str) -> None:
    page.wait_for_function("words => document.querySelector('#command code').textContent.includes(words)", arg=words)


def picture(page: Any, name: str) -> None:
    if PICTURES:
        page.screenshot(path=Path(PICTURES) / name)


def test_the_answer_follows_what_one_types(page: Any) -> None:
    before = page.inner_text("#answer")
    page.fill("#word-micro_batch", "2")
    answered(page, "--micro-batch 2")
    assert page.inner_text("#answer") != before
    assert "micro_batch=2" in page.url
    assert re.match(r"step time [\d.]+ s, [\d.]+ s to [\d.]+ s\.", page.inner_text("#status"))
    picture(page, "web-desk.png")


def test_an_error_stands_at_its_field_and_its_nearest_name_mends_it(page: Any) -> None:
    page.fill("#word-on", "8xH100-SXN")
    page.wait_for_selector("#word-on[aria-invalid=true]")
    assert "H100-SXM" in page.inner_text("#word-on-wrong")
    assert "word-on-wrong" in page.get_attribute("#word-on", "aria-describedby")
    assert "old" in page.get_attribute("#answer", "class")  # the answer that stays is not of this question
    page.click("#word-on-wrong button")
    page.wait_for_function("() => !document.querySelector('[aria-invalid], #answer.old')")
    assert page.input_value("#word-on") == "8xH100-SXM"


def test_the_keyboard_reaches_everything(page: Any) -> None:
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.name"))
    assert {"question", "word-subject", "word-on", "word-serve", "files", "find", "run", "keep", "share"} <= reached
    page.focus("#word-micro_batch")
    page.keyboard.press("Control+a")
    page.keyboard.type("4")
    page.keyboard.press("Enter")
    answered(page, "--micro-batch 4")
    page.focus("input[value=predict]")
    page.keyboard.press("ArrowRight")
    assert page.is_checked("input[value=plan]")


def test_every_field_has_a_name_and_a_description(page: Any) -> None:
    bare = page.evaluate(
        """() => [...document.querySelectorAll("input, select, textarea, button, progress")]
             .filter((one) => !(one.labels?.length || one.ariaLabel || one.textContent.trim()))
             .map((one) => one.outerHTML)"""
    )
    assert bare == []
    assert page.get_attribute("#status", "aria-live") == "polite"
    assert page.get_attribute("#fault", "role") == "alert"


def test_scenarios_stand_side_by_side_and_the_link_holds_them(page: Any, browser: Any) -> None:
    page.click("#keep")
    page.fill("#word-on", "8xA100-SXM-80GB")
    answered(page, "8xA100-SXM-80GB")
    rows = page.inner_text("#compare")
    assert "8xH100-SXM" in rows
    assert "8xA100-SXM-80GB" in rows
    assert re.search(r"\+\d+\.\d %", rows)
    picture(page, "web-compare.png")
    again = browser.new_page()
    again.goto(page.url)
    again.wait_for_function(
        "() => document.querySelector('#compare tbody')?.textContent.includes('%')", timeout=WAIT_MS
    )
    assert again.input_value("#word-on") == "8xA100-SXM-80GB"
    assert again.inner_text("#compare").split() == page.inner_text("#compare").split()
    again.close()


def test_files_are_models_and_scenarios(page: Any, tmp_path: Path) -> None:
    import ridgeline

    config = json.loads((Path(ridgeline.__file__).parent / "data/models/gpt2.json").read_text(encoding="utf-8"))
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    page.set_input_files("#files", tmp_path / "config.json")
    answered(page, "predict config.json")
    scenario = "model = 'gpt2'\n[cluster]\nname = '2xL40S'\n[workload]\nglobal_batch = 8\n[plan]\ntp = 2\n"
    (tmp_path / "saved.toml").write_text(scenario, encoding="utf-8")
    page.set_input_files("#files", tmp_path / "saved.toml")
    answered(page, "predict gpt2 --on 2xL40S")
    assert page.input_value("#word-tp") == "2"


def test_a_long_search_tells_progress_and_is_cancelled(page: Any) -> None:
    page.check("input[value=plan]")
    page.fill("#word-subject", "llama-3.1-70b")
    page.fill("#word-on", "512xH100-SXM")
    page.click("#run")
    page.wait_for_function("() => document.querySelector('#status').textContent.includes('searching plans')")
    assert page.is_visible("#bar")
    page.click("#cancel")
    page.wait_for_function("() => document.querySelector('#status').textContent === 'Stopped.'")
    assert not page.is_visible("#bar")
    page.check("input[value=predict]")
    page.fill("#word-on", "64xH100-SXM")
    answered(page, "64xH100-SXM")


def test_a_phone_shows_all_of_it_in_one_column(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.fill("#word-on", "8xB200-SXM")
    answered(page, "8xB200-SXM")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#status").is_visible()
    picture(page, "web-phone.png")
