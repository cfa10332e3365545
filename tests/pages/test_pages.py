"""Pages: well-formed, self-contained, and nothing of a stranger's file becomes markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest

import ridgeline as rl
from ridgeline.api.answer import Answer
from ridgeline.cli.main import run
from ridgeline.errors import InputError, UnknownNameError
from ridgeline.report.blocks import Line, Table, blank, labelled, listed

EVIL = '<script>alert("x")</script><img src=x onerror=alert(1)>\x1b[31m'
VOID = {"meta", "br", "img", "input"}


class Reader(HTMLParser):
    """Reads a page; every tag must be closed in order. Keeps tags with attributes, and the words."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words += data


def read(page: str) -> Reader:
    """What a browser makes of a page that is in order."""
    found = Reader()
    found.feed(page)
    assert not found.open
    assert [tag for tag, _ in found.tags].count("script") == 1
    for _, attributes in found.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href")]
    return found


def made(text: str) -> Answer:
    """An answer with a text in every place where a stranger's may stand."""
    table = Table(columns=(text, "b"), rows=((text, "[##  ]"),), right=frozenset({"b"}))
    blocks = [
        Line(text=text, hang=2),
        blank(),
        *labelled([("model", text)]),
        Line(text=text, strong=True),
        table,
        Line(text="Notes", strong=True),
        *listed([text]),
    ]
    told = {"step_time_s": {"value": 1.0, "low": 0.5, "high": 2.0, "unit": text, "evidence": text}, "sources": [text]}
    return Answer(lambda: told, lambda: blocks, impossible=text)


def test_text_of_a_stranger_stays_text() -> None:
    found = read(made(EVIL).html(EVIL))
    assert "img" not in [tag for tag, _ in found.tags]
    shown = EVIL.replace("\x1b", "")
    assert found.words.count('<script>alert("x")</script>') >= 9
    assert "\x1b" not in found.words
    assert shown.partition("[")[0] in found.words


def test_a_page_follows_the_reader_and_loads_nothing() -> None:
    page = made("a").html()
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page
    assert "default-src 'none'" in page
    assert not re.findall(r"https?://(?!www\.w3\.org/)", page)


def test_names_and_texts_lists_and_tables_are_such() -> None:
    tags = [tag for tag, _ in read(made("a").html()).tags]
    assert tags.count("dt") == 3  # of the answer, of its evidence and of its sources
    assert {"ul", "table", "h1", "h2"} <= set(tags)


def test_every_answer_is_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["techniques"], ["catalog", "clusters", "8xH100-SXM"], ["op", "gemm", "64x64x64"]):
        file = tmp_path / f"{words[0]}.html"
        assert run([*words, "--html", str(file), "--json"]) == 0
        json.loads(capsys.readouterr().out)
        assert read(file.read_text(encoding="utf-8")).words


def test_a_chart_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    answer = rl.catalog("clusters", "8xH100-SXM")
    with pytest.raises(InputError, match="no chart"):
        answer.figure()
    with pytest.raises(UnknownNameError, match="unknown chart 'memory'"):
        answer.figure("memory")
    assert run(["op", "gemm", "64x64x64", "--svg", str(tmp_path / "a.png")]) == 2
    assert run(["op", "gemm", "64x64x64", "--html", str(tmp_path / "none" / "a.html")]) == 2


def well_formed(svg: str) -> ElementTree.Element:
    """The picture as any XML reader takes it."""
    assert svg.isascii()
    return ElementTree.fromstring(svg)


TRAINED = {"on": "8xH100-SXM", "pp": 2, "dp": 4, "micro_batch": 1, "global_batch": 32, "seq_len": 2048}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def trained() -> Answer:
    return rl.predict("llama-3.1-8b", **TRAINED)


def tips(svg: str) -> list[str]:
    """What is said of the marks of a picture."""
    return [one.text or "" for one in well_formed(svg).iter(f"{SVG}title")]


def test_bars_of_memory_are_as_long_as_the_bytes_are_many(trained: Answer) -> None:
    report, root = trained.value, well_formed(trained.figure("memory").svg)
    widths: dict[str, float] = {}
    for rect in root.iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None and title.text:
            widths[title.text.partition(":")[0]] = float(rect.get("width", "nan"))
    sizes = {
        f"stage {stage.stage}, {name}": size
        for stage in report.memory
        for name, size in stage.categories.items()
        if size > 0
    }
    assert widths.keys() == sizes.keys()
    scale = max(widths.values()) / max(sizes.values())
    for name, size in sizes.items():
        assert widths[name] == pytest.approx(size * scale, abs=0.02)
    assert "interval" in " ".join(tips(trained.figure("memory").svg))


def test_every_task_has_its_span_on_the_timeline(trained: Answer) -> None:
    figure, report = trained.figure("timeline"), trained.value
    paths = [one for one in well_formed(figure.svg).iter(f"{SVG}path") if one.get("class") == "spans"]
    assert sum(one.get("d", "").count("M") for one in paths) == report.tasks.tasks
    assert all(one.get("d", "").count("M") == len(one.get("data-batches", "").split()) for one in paths)
    ends = [sum(map(int, pair)) for one in paths for pair in re.findall(r"M(\d+) [\d.]+h(\d+)", one.get("d", ""))]
    assert max(ends) == pytest.approx(1e6, abs=1.5)


def test_a_long_timeline_is_bounded(trained: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.pages.training._SPANS", 60)
    figure = trained.figure("timeline")
    assert figure.svg.count("M") < trained.value.tasks.tasks
    assert "drawn as one" in figure.note


def test_evidence_of_operators_is_shown_under_the_roof(trained: Answer) -> None:
    found = tips(trained.figure("roofline").svg)
    counted = [one for one in trained.value.ops if one.flop > 0 and one.bytes > 0]
    assert sum("evidence: " in tip for tip in found) == len(counted)


def test_the_front_of_a_search_greys_what_is_dominated() -> None:
    answer = rl.plan("gpt2", on="4xA100-SXM-80GB", global_batch=32, seq_len=1024, top=12)
    found = [tip for tip in tips(answer.figure("front").svg) if tip.startswith("#")]
    rates = [one.counts_per_s for one in answer.value.best]
    peaks = [max(stage.total_bytes for stage in one.memory) for one in answer.value.best]
    for place, (rate, peak) in enumerate(zip(rates, peaks, strict=True), start=1):
        beaten = any(r >= rate and p <= peak and (r, p) != (rate, peak) for r, p in zip(rates, peaks, strict=True))
        tip = next(tip for tip in found if tip.startswith(f"#{place}:"))
        assert tip.endswith("dominated") == beaten


def test_a_replay_is_drawn(tmp_path: Path) -> None:
    words = {"rate": 4, "requests": 60, "prompt": 256, "output": 32}
    answer = rl.simulate("llama-3.1-8b", on="1xH100-SXM", **words)
    for name in ("latency", "distribution", "load", "cache", "memory", "iteration"):
        well_formed(answer.figure(name).svg)
    assert any("80 % interval" in tip for tip in tips(answer.figure("latency").svg))
    assert [tag for tag, _ in read(answer.html()).tags].count("figure") == 6


def test_the_name_of_a_strangers_model_is_text_in_charts(tmp_path: Path) -> None:
    given = json.loads((Path(rl.__file__).parent / "data/models/gpt2.json").read_text(encoding="utf-8"))
    folder = tmp_path / "<script>alert(1)<" / "script>"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**given, "_name_or_path": EVIL}), encoding="utf-8")
    answer = rl.predict(str(folder / "config.json"), on="1xA100-SXM-80GB", micro_batch=8, global_batch=8, seq_len=512)
    found = read(answer.html(str(folder)))
    assert "img" not in [tag for tag, _ in found.tags]


def test_png_is_drawn_or_says_what_is_missing(trained: Answer) -> None:
    if find_spec("cairosvg") is None:
        with pytest.raises(InputError, match=r"ridgeline\[pictures\]"):
            trained.figure("time").png()
    else:
        assert trained.figure("time").png().startswith(b"\x89PNG")


def test_an_operator_is_drawn_under_the_roof_of_each_machine() -> None:
    answer = rl.op("gemm", "4096x4096x4096", on="H100-SXM,MI300X")
    for name in ("time", "roofline"):
        told = " ".join(tips(answer.figure(name).svg))
        assert "H100-SXM: " in told
        assert "MI300X: " in told
    assert rl.op("stream", "256MiB").html().count("<figure") == 1  # no FLOP, so no roofline


def test_rows_of_a_check_are_drawn_by_metric() -> None:
    row = {"status": "scored", "metric": "step_time", "unit": "s", "evidence": "derived", "low": 0.9, "high": 1.3}
    rows = [
        {**row, "id": EVIL, "measured": 1.0, "predicted": 1.1},
        {**row, "id": "b", "measured": 2.0, "predicted": 1.1},
        {**row, "id": "c", "measured": 3.0, "predicted": None, "status": "refused"},
        {**row, "id": "d", "measured": "fits", "predicted": "fits"},
    ]
    answer = Answer(lambda: {"rows": rows}, list, value=rows)
    svg = answer.figure("step_time").svg
    dots = [one.get("fill") for one in well_formed(svg).iter(f"{SVG}circle")]
    assert len(dots) == 2
    assert len(set(dots)) == 2
    assert "<script" not in svg


def test_one_row_of_a_check_is_drawn() -> None:
    row = {"id": "a", "status": "scored", "metric": "mfu", "unit": "1", "evidence": "derived", "low": None}
    rows = [{**row, "high": None, "measured": 0.4, "predicted": 0.4}]
    well_formed(Answer(lambda: {"rows": rows}, list, value=rows).figure().svg)


DREW = {
    "flux.1-dev": ({"on": "1xH100-SXM", "width": 512, "height": 512, "steps": 4, "batch": 1}, "time step memory"),
    "mixtral-8x7b": (
        {"on": "1xRTX-4090", "serve": True, "offload": "computed", "cpu": "Xeon Gold 6454S", "dram": "512GB"},
        "time step prompts weights",
    ),
    "llama-2-7b": (
        {"on": "8xA100-SXM-80GB", "context_style": "ulysses", "seq_len": 32768, "global_batch": 64, "zero": 3,
         "lengths": "lognormal(median=1500,sigma=1.6)"},
        "time waiting groups",
    ),
    "bert-large": (
        {"on": "cephalo-a", "global_batch": 256, "seq_len": 512, "recompute": "full", "zero": 3,
         "technique": "decoupled-shares"},
        "time busy memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("subject", DREW)
def test_answers_of_other_kinds_are_drawn(subject: str) -> None:
    words, names = DREW[subject]
    answer = rl.predict(subject, **words)
    for name in names.split():
        svg = answer.figure(name).svg
        assert tips(svg), name
    assert "80 % interval" in " ".join(tips(answer.figure("time").svg))


def test_a_claim_stands_left_or_right_of_the_papers_number() -> None:
    row = {
        "paper": 1, "system": EVIL, "family": "serve", "claim": EVIL, "checked": "forward",
        "verdict": "within tolerance",
        "theirs": 2.0, "unit": "x",
    }  # fmt: skip
    rows = [
        {**row, "ours": 4.0, "low": 3.0, "high": 5.0},
        {**row, "ours": 1.0, "low": 0.5, "high": 1e9, "verdict": "miss"},
        {**row, "ours": None, "low": None, "high": None},
    ]
    figure = Answer(dict, list, value=rows).figure("serve")
    root = well_formed(figure.svg)
    dots = [(float(one.get("cx", "nan")), one.get("fill")) for one in root.iter(f"{SVG}circle")]
    (middle,) = {
        float(one.get("points", "").split(",")[0])
        for one in root.iter(f"{SVG}polyline")
        if one.get("stroke") == "#009E73"
    }
    assert dots[0][0] > middle > dots[1][0]
    assert dots[0][1] != dots[1][1]
    assert len(dots) == 2
    assert "1 of 2 numbers miss" in figure.note
