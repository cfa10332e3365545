"""Versions of engines in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.facts.engine_kernels import nearest_version, release_key


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("0.5.9", "0.5.14"),
        ("1.3.0rc20", "1.3.0"),
        ("1.3.0rc9", "1.3.0rc20"),
        ("1.2.9", "1.3.0rc1"),
        ("2.27", "2.27.3"),
        ("0.5.6.post2", "0.5.7"),
    ],
)
def test_versions_are_in_the_order_that_their_writers_meant(older: str, newer: str) -> None:
    assert release_key(older) < release_key(newer)
    assert nearest_version({newer, older}, "") == newer
    assert nearest_version({newer, older}, older) == older


@given(st.lists(st.from_regex(r"\d{1,2}(\.\d{1,3}){0,3}((rc|post)\d{1,2})?", fullmatch=True), min_size=1, max_size=6))
def test_any_versions_can_be_ordered(versions: list[str]) -> None:
    newest = nearest_version(versions, "")
    assert all(release_key(version) <= release_key(newest) for version in versions)
    assert nearest_version(versions, newest) in versions
    assert release_key(nearest_version(versions, versions[0])) <= release_key(versions[0])


def test_a_version_older_than_all_takes_the_oldest() -> None:
    assert nearest_version(("2.27", "2.29"), "2.1") == "2.27"
    assert nearest_version((), "1") == ""
