"""A person's own machine from TOML: defaults, refusals with file, line and field, and no traceback for any text."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.errors import InputError
from ridgeline.facts.cluster_file import cluster_of
from ridgeline.facts.clusters import cluster, cluster_from_toml
from ridgeline.facts.records import Cluster, Evidence
from ridgeline.facts.user_files import line_of, parse_toml

FULL = """\
name = "lab"
count = 32
price = "1.8 USD/h"
region = "fr"

[accelerator]
name = "X1"
memory = "80 GB"
memory_bandwidth = "3.35 TB/s"
tdp = "700 W"

[accelerator.peak]
bf16 = "1000 TFLOP/s"
fp8 = "2 PFLOP/s"

[accelerator.sustained]
bf16 = "700 TFLOP/s"

[[tier]]
name = "nvl"
size = 8
bandwidth = "450 GB/s"
topology = "mesh"
latency = "1 us"

[[tier]]
bandwidth = "400 Gb/s"
oversubscription = 2.0

[host]
dram = "2 TB"
nvme = 0
"""


def read(text: str) -> Cluster:
    file = parse_toml(text.encode(), file="m.toml")
    raw, source = file.tables, file.text
    return cluster_of(raw, file="m.toml", text=source)


def test_the_whole_file() -> None:
    one = read(FULL)
    assert (one.name, one.count, one.node_devices) == ("lab", 32, 8)
    assert [(tier.name, tier.size, tier.bytes_per_s) for tier in one.tiers] == [("nvl", 8, 450e9), ("tier 1", 32, 50e9)]
    assert one.tiers[0].topology == "mesh"
    assert one.tiers[0].latency_s == pytest.approx(1e-6)
    assert one.tiers[1].oversubscription == 2.0
    assert one.accelerator.memory_bytes == 80e9
    assert one.accelerator.sustained["matrix.bf16"].evidence is Evidence.HERE
    assert one.accelerator.facts["vector_flop_per_s"].evidence is Evidence.DERIVED
    assert (one.host.dram_bytes, one.host.nvme_bytes) == (2e12, 0.0)
    assert one.price_usd_per_device_h is not None
    assert one.price_usd_per_device_h.value == 1.8
    assert one.carbon_kg_per_j is not None
    assert one.carbon_kg_per_j.value * 3.6e9 == pytest.approx(56.039)


def test_datasheet_numbers_alone_are_enough() -> None:
    one = read('[accelerator]\nmemory = "16 GiB"\nmemory_bandwidth = "1 TB/s"\npeak = { fp16 = "100 TFLOP/s" }\n')
    assert (one.name, one.count) == ("m", 1)
    assert one.accelerator.memory_bytes == 16 * 2**30
    assert one.price_usd_per_device_h is None


def test_a_name_and_a_machine() -> None:
    assert read('accelerator = "h100"\ncount = 20').tiers == cluster("20xH100").tiers
    assert read('machine = "dgx-a100"').count == 8
    assert read('machine = "gb200-nvl72"\ncount = 100').tiers[-1].size == 144


def test_a_path_is_read(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(FULL, encoding="utf-8")
    assert cluster(str(path)) == cluster_from_toml(path)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("memory =", "memroy =", r"m.toml:8: field 'accelerator.memroy': unknown field; nearest: memory"),
        ('"80 GB"', '"80 Gx"', r"m.toml:8: field 'accelerator.memory': '80 Gx' has the unknown unit 'Gx'; wanted byte"),
        ('"80 GB"', '"80 TFLOP/s"', r"m.toml:8: .* is in FLOP/s; wanted byte"),
        ('"80 GB"', "-5", r"m.toml:8: .*needs a quantity > 0 .*; got -5"),
        ('"80 GB"', "80", r"m.toml:8: .*80 byte is less than any machine has; write the unit, such as '80 GB'; got 80"),
        ('"80 GB"', "nan", r"m.toml:8: .*'nan' is not a finite quantity"),
        ('"80 GB"', "[1]", r"m.toml:8: .*wanted a quantity in byte.*; got \[1\]"),
        ('"80 GB"', "true", r"m.toml:8: .*wanted a quantity in byte"),
        ("count = 32", "count = 0", r"m.toml:2: field 'count': needs to be greater than or equal to 1; got 0"),
        ("count = 32", "count = 1" + "0" * 99, r"m.toml:2: field 'count': .*a whole number of 329 bits"),
        ("count = 32", "count = " + "9" * 5000, r"m.toml:2: not usable TOML: a number has too many digits"),
        ("count = 32", 'count = "32"', r"m.toml:2: field 'count'"),
        ("size = 8", "size = 0", r"m.toml:21: field 'tier.0.size'"),
        ("size = 8", "sizes = 8", r"m.toml:21: field 'tier.0.sizes': unknown field; nearest: size"),
        ('topology = "mesh"', 'topology = "star"', r"m.toml:23: field 'tier.0.topology': .*'switch'.*got 'star'"),
        ("oversubscription = 2.0", "oversubscription = 0.5", r"m.toml:28: field 'tier.1.oversubscription'"),
        ("oversubscription = 2.0", "size = 20", r"m.toml:28: field 'tier.1.size': 20 is no larger multiple of the 8"),
        ("oversubscription = 2.0", "size = 16", r"m.toml:28: field 'tier.1.size': reaches 16 of 32 devices"),
        ('"700 TFLOP/s"', '"1.5 PFLOP/s"', r"m.toml:17: field 'accelerator.sustained.bf16': 1.5e\+15 is above"),
        ('region = "fr"', 'region = "frr"', r"m.toml:4: field 'region': unknown region 'frr'"),
        ("[host]", "[hosts]", r"m.toml:30: field 'hosts': unknown field; nearest: host"),
        ('name = "lab"', 'name = "lab"\nname = "b"', r"m.toml:2: not TOML: Cannot overwrite a value"),
        ("[accelerator.peak]", "[accelerator.peak", r"m.toml:12: not TOML: "),
    ],
)
def test_every_defect_is_placed(old: str, new: str, says: str) -> None:
    assert old in FULL
    with pytest.raises(InputError, match=says):
        read(FULL.replace(old, new, 1))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "needs accelerator = 'NAME'"),
        ('accelerator = "H10O"', r"m.toml:1: field 'accelerator': unknown accelerator 'H10O'; nearest: .*H100"),
        ("accelerator = 5", r"m.toml:1: field 'accelerator': wanted a name"),
        ('machine = "dgx-h10"', r"m.toml:1: field 'machine': unknown machine 'dgx-h10'; nearest: dgx-h100"),
        ('machine = "dgx-h100"\naccelerator = "A100"', "'dgx-h100' holds H100-SXM, the file says A100-SXM-80GB"),
        ("x = " + "[" * 5000, "TOML"),
        ("x = " + "{a=" * 5000, "TOML"),
        ('accelerator = "H100"\n[[tier]]\nbandwidth = 1e9', "needs count = N"),
        (
            "[accelerator]\nmemory = 1e9\nmemory_bandwidth = 1e9\n[accelerator.peak]\n",
            "needs a rate of at least one format",
        ),
    ],
)
def test_whole_file_refusals(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "no.toml", tmp_path, "a\0.toml"):
        with pytest.raises(InputError, match=r"no such file|is a folder|cannot be read"):
            cluster_from_toml(path)


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(InputError, match=r"b.toml:2: not UTF-8 text"):
        parse_toml(b"a = 1\nb = '\xff'\n", file="b.toml")


def refusal(raw: object, text: str = "") -> str | None:
    """What the reader says against these tables, None when they make a sound cluster."""
    try:
        one = cluster_of(raw, file="m.toml", text=text)  # type: ignore[arg-type]
    except InputError as error:
        return str(error)
    return None if one.tiers[-1].size >= one.count >= 1 else "unsound"


def refuses_or_reads(data: bytes) -> None:
    """Anything a file can hold gives a cluster or an InputError that names the file."""
    try:
        file = parse_toml(data, file="m.toml")
        raw, text = file.tables, file.text
    except InputError as error:
        said: str | None = str(error)
    else:
        said = refusal(raw, text)
    assert said is None or said.startswith("m.toml")


@given(st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    refuses_or_reads(data)


@given(st.text(alphabet=st.sampled_from('[]{}=".,#\n\t\\ _-+e0129abctier'), max_size=200))
def test_random_toml_like_text(text: str) -> None:
    refuses_or_reads(text.encode())


@given(st.integers(0, len(FULL)), st.integers(0, 40), st.text(max_size=20))
def test_mutated_files(place: int, cut: int, insert: str) -> None:
    refuses_or_reads((FULL[:place] + insert + FULL[place + cut :]).encode("utf-8", "surrogatepass"))


def lines() -> st.SearchStrategy[list[str]]:
    return st.permutations(FULL.splitlines()).map(lambda rows: rows[:20])


@given(lines())
def test_shuffled_lines(rows: list[str]) -> None:
    refuses_or_reads("\n".join(rows).encode())


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=10**30),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(["80 GB", "1 TB/s", "5 us", "1e999 GB", "H100", "switch"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
keys = st.sampled_from(
    ["name", "count", "machine", "price", "pue", "carbon", "region", "tier", "host", "accelerator", "x"]
)


@given(st.dictionaries(keys, values, max_size=6))
def test_any_tables(raw: dict[str, object]) -> None:
    said = refusal(raw)
    assert said is None or said.startswith("m.toml")


@given(
    st.sampled_from(["memory", "memory_bandwidth", "peak", "tdp", "sm_count", "sustained", "vector", "name"]), values
)
def test_any_value_in_the_accelerator(key: str, value: object) -> None:
    table = {"memory": "80 GB", "memory_bandwidth": "3 TB/s", "peak": {"bf16": "1 PFLOP/s"}} | {key: value}
    said = refusal({"accelerator": table})
    assert said is None or said.startswith("m.toml")


def test_line_of_finds_keys_in_their_own_table() -> None:
    assert line_of(FULL, ("accelerator", "name")) == 7
    assert line_of(FULL, ("tier", 1, "bandwidth")) == 27
    assert line_of(FULL, ("tier", 1, "size")) == 26  # absent: the line of its table
    assert line_of(FULL, ("nowhere",)) is None
