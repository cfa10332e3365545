"""Pictures: places worked out by hand, text that any XML reader takes, nothing dropped in silence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from ridgeline.errors import InputError
from ridgeline.report.picture import Roof, RoofPoint, roofline

SVG = "{http://www.w3.org/2000/svg}"
TOY = Roof(name="Toy", peak_flop_per_s=1e14, memory_bytes_per_s=1e12)  # its ridge is at 100 FLOP/byte
NORM = RoofPoint(name="norm", machine="Toy", flop=1e9, bytes=1e9, seconds=2e-3)  # 1 FLOP/byte, 0.5 of 1 TFLOP/s


def parts(svg: str, tag: str, name: str) -> list[ElementTree.Element]:
    """The plot's elements of a tag and class; those of the legend lie one level deeper."""
    return ElementTree.fromstring(svg).findall(f"./{SVG}g/{SVG}{tag}[@class='{name}']")


def words(svg: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def corners(element: ElementTree.Element) -> list[tuple[float, ...]]:
    return [tuple(map(float, pair.split(","))) for pair in element.attrib["points"].split()]


def dots(svg: str) -> list[tuple[float, float]]:
    found = [dot for group in parts(svg, "g", "points") for dot in group.iter(f"{SVG}circle")]
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in found]


def test_every_machine_has_its_colour_and_its_row() -> None:
    machines = [replace(TOY, name=f"machine {row}") for row in range(9)]
    svg = roofline(machines, [replace(NORM, machine=one.name) for one in machines], title="Roofs")
    found = parts(svg, "g", "points")
    looks = {(group.attrib["fill"], group[0].tag) for group in found}
    assert len(found) == len(looks) == 9
    assert {f"{one.name}: 100 TFLOP/s, 1 TB/s" for one in machines} <= set(words(svg))


def test_many_points_are_thinned_and_the_picture_says_so() -> None:
    points = [replace(NORM, name=f"op{row}", seconds=1e-3 * (row + 1)) for row in range(2_500)]
    svg = roofline([TOY], points, title="Roofs")
    assert len(dots(svg)) == 2_000
    assert "the longest 2000 of 2500 drawn" in words(svg)


def test_the_ridge_is_where_the_matrix_rate_takes_over() -> None:
    svg = roofline([TOY], [NORM], title="Roofs")  # 0.1 to 1 k FLOP/byte, 0.1 to 1000 TFLOP/s: 180 and 120 px a decade
    assert corners(*parts(svg, "polyline", "roof")) == [(120, 536), (660, 176), (840, 176)]
    assert dots(svg) == [(300, pytest.approx(536 - 120 * math.log10(5), abs=0.01))]
    assert {"Toy ridge 100 FLOP/byte", "norm 50 %", "1 TFLOP/s", "Toy: 100 TFLOP/s, 1 TB/s"} <= set(words(svg))


def test_share_is_of_the_roof_at_the_points_own_intensity() -> None:
    up = RoofPoint(name="up", machine="Toy", flop=1e12, bytes=1e9, seconds=0.0125)  # 80 of 100 TFLOP/s
    above = replace(NORM, name="above", seconds=0.8e-3)
    idle = replace(NORM, name="idle", seconds=2.0)
    found = words(roofline([TOY], [up, above, idle], title="Roofs"))
    assert {"up 80 %", "above 125 %", "idle 0.05 %"} <= set(found)


def test_points_take_the_colour_of_their_machine_and_labels_keep_apart() -> None:
    other = Roof(name="Other", peak_flop_per_s=1e13, memory_bytes_per_s=1e12)
    points = [replace(NORM, name=f"norm {row}", machine=("Toy", "Other")[row % 2]) for row in range(8)]
    svg = roofline([TOY, other], points, title="Roofs")
    roofs = [roof.attrib["stroke"] for roof in parts(svg, "polyline", "roof")]
    assert [group.attrib["fill"] for group in parts(svg, "g", "points")] == roofs * 4
    texts = [text for text in ElementTree.fromstring(svg).iter(f"{SVG}text") if (text.text or "").startswith("norm")]
    assert len({(text.attrib["x"], text.attrib["y"]) for text in texts}) == 8


def test_the_longest_operators_keep_their_labels() -> None:
    points = [replace(NORM, name=f"op{row}", seconds=1e-3 * (row + 1)) for row in range(100)]
    svg = roofline([TOY], points, title="Roofs")
    assert len(dots(svg)) == 100
    named = {text.split()[0] for text in words(svg) if text.startswith("op")}
    assert named == {f"op{row}" for row in range(40, 100)}
    assert "the longest 60 of 100 labelled" in words(svg)


def test_text_is_escaped_and_ascii() -> None:
    odd = 'a < b & "c" > µ \x00'
    svg = roofline([replace(TOY, name=odd)], [replace(NORM, name=odd, machine=odd)], title=odd)
    assert svg.isascii()
    assert "a < b" not in svg
    read = 'a < b & "c" > µ \ufffd'
    assert read in words(svg)
    assert ElementTree.fromstring(svg).findtext(f"{SVG}title") == read


def test_a_picture_stands_alone_and_is_the_same_twice() -> None:
    drawn = roofline([TOY], [NORM], title="Roofs")
    assert drawn == roofline([TOY], [NORM], title="Roofs")
    assert re.findall(r"https?://[^\"]*", drawn) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<script|<style|<image|href|nan|inf\b", drawn)


@pytest.mark.parametrize(
    ("draw", "told"),
    [
        (lambda: roofline([], [NORM], title=""), "0 machines"),
        (lambda: roofline([TOY, TOY], [NORM], title=""), "machine 'Toy' is given 2 times"),
        (lambda: roofline([TOY], [], title=""), "no points"),
        (lambda: roofline([TOY], [replace(NORM, machine="Roy")], title=""), "on machine 'Roy'"),
        (lambda: roofline([TOY], [replace(NORM, flop=0.0)], title=""), "point 'norm': flop is 0.0;"),
        (lambda: roofline([TOY], [replace(NORM, bytes=math.inf)], title=""), "point 'norm': bytes is inf;"),
        (lambda: roofline([TOY], [replace(NORM, seconds=-1.0)], title=""), "point 'norm': seconds is -1.0;"),
        (lambda: roofline([replace(TOY, peak_flop_per_s=math.nan)], [NORM], title=""), "peak_flop_per_s is nan;"),
        (lambda: roofline([replace(TOY, memory_bytes_per_s=0)], [NORM], title=""), "memory_bytes_per_s is 0;"),
    ],
)
def test_bad_input_is_named(draw: Callable[[], str], told: str) -> None:
    with pytest.raises(InputError, match=re.escape(told)):
        draw()


def test_extreme_numbers_are_drawn() -> None:
    far = Roof(name="far", peak_flop_per_s=1e308, memory_bytes_per_s=1e-308)
    point = RoofPoint(name="far", machine="far", flop=1e308, bytes=1e-308, seconds=1e-308)
    ElementTree.fromstring(roofline([far], [point], title="Far"))
