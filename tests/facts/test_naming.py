"""Keys of names."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ridgeline.facts.accelerators import name_key, split_memory


def test_order_case_and_vendor_do_not_matter() -> None:
    assert name_key("NVIDIA A100-SXM4-80GB") == name_key("a100 80 GB sxm") == ("80gb", "a100", "sxm")
    assert name_key("GeForce RTX4090") == name_key("rtx-4090") == ("4090", "rtx")


def test_what_tells_machines_apart_is_kept() -> None:
    assert len({name_key(t) for t in ("A100 SXM", "A100 PCIe", "A100", "A10", "RTX 3080", "RTX 3080 Ti")}) == 6


def test_memory_is_split_off() -> None:
    assert split_memory(name_key("RTX 3090 24GB GDDR6X")) == (("3090", "rtx"), 24.0)


@given(st.text(max_size=50))
@example("GB:0")
@example("0:G")
@example("0g_")
@example("titanrtx4090")
@example("titantitanx")
def test_a_key_is_a_fixed_point(text: str) -> None:
    assert name_key(" ".join(name_key(text))) == name_key(text)
