"""Number formats: what a word means."""

from __future__ import annotations

import pytest

from ridgeline.cost.formats import by_bits, form
from ridgeline.errors import DomainError


def test_weights_of_any_bits_run_as_the_nearest_width_does() -> None:
    few, many = form("W2.5A16"), form("w6.01a16")
    assert (few.name, few.weight_bytes, few.matrix, few.like) == ("w2.5a16", 0.3125, "bf16", "int4_wo")
    assert (many.weight_bytes * 8, many.like) == (pytest.approx(6.01), "int8_wo")
    assert form(by_bits(4.625)).weight_bytes * 8 == 4.625
    assert (form("w4a16").name, form("w8a16").name) == ("int4_wo", "int8_wo")  # formats with kernels of their own


@pytest.mark.parametrize("word", ["w0.5a16", "w9a16", "w16a16", "wa16", "w-3a16", "w2.5a8", "w1e1a16"])
def test_words_that_mean_no_format_are_refused(word: str) -> None:
    with pytest.raises(DomainError, match=r"is no number format; .*known: .*w1a16 to w8\.5a16"):
        form(word)


@pytest.mark.parametrize("word", ["int4", "AWQ", "gptq", "w4a16"])
def test_words_for_weights_of_four_bits_mean_them(word: str) -> None:
    assert form(word).name == "int4_wo"


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("Q4_K_M", "q4_k"),
        ("q4_k_s", "q4_k"),
        ("q6_k", "q6_k"),
        ("IQ3_XXS", "iq3"),
        ("iq1_s", "iq1_s"),
        ("IQ5_K", "iq5_k"),
        ("iq6_k", "iq6_k"),
    ],
)
def test_mixtures_of_llama_cpp_are_the_format_of_most_weights(word: str, name: str) -> None:
    assert form(word).name == name


def test_an_unknown_format_names_those_near_it() -> None:
    with pytest.raises(DomainError, match="'q4_k_n' is no number format; nearest: q4_k"):
        form("q4_k_n")
