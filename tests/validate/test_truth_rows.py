"""Reading truth tables from strangers."""

from __future__ import annotations

import gzip
import random
import time
from pathlib import Path

import pytest

from ridgeline.errors import InputError, RidgelineError
from ridgeline.search.complete import complete
from ridgeline.validate import check as check_module
from ridgeline.validate import rows as rows_module
from ridgeline.validate.check import Checker, check
from ridgeline.validate.rows import KINDS, Row, read

COLUMNS = [
    "id",
    "model",
    "params_b",
    "layers",
    "hidden",
    "heads",
    "vocab",
    "seq_len",
    "hardware",
    "n_devices",
    "interconnect",
    "tp",
    "pp",
    "dp",
    "cp",
    "ep",
    "zero_stage",
    "micro_batch",
    "global_batch",
    "recompute",
    "precision",
    "engine",
    "metric",
    "value",
    "unit",
    "source",
    "source_where",
    "confidence",
    "also_reported",
    "notes",
]
HEADER = "\t".join(COLUMNS)


def line(**cells: str) -> str:
    return "\t".join(cells.get(column, "") for column in COLUMNS)


TITAN = line(
    id="t-titan-0001",
    model="Llama 3.1 8B",
    params_b="8",
    layers="32",
    hidden="4096",
    heads="32",
    vocab="128256",
    hardware="H100 SXM 96GB HBM2e 2.4TB/s 500W cap",
    n_devices="8",
    interconnect="NVLink 8/node; 400Gb/s RDMA per GPU",
    dp="8",
    zero_stage="FSDP2",
    micro_batch="2",
    global_batch="16",
    recompute="selective",
    precision="bf16",
    engine="torchtitan 9dec370",
    metric="tokens_per_s_per_gpu",
    value="5762",
    unit="tok/s/GPU",
    source="pytorch/torchtitan@b5bcd76",
    source_where="Table 1",
    confidence="high",
    also_reported="peak_mem_gib=82.4",
    notes="FSDP",
)
SEQPAR = line(
    id="t-seqpar-0001",
    model="Megatron 22B",
    params_b="22",
    layers="48",
    hidden="6144",
    heads="64",
    seq_len="2048",
    hardware="A100 SXM 80GB",
    n_devices="8",
    interconnect="8x HDR 200Gb/s IB per node",
    tp="8",
    pp="1",
    dp="1",
    micro_batch="4",
    global_batch="4",
    recompute="full",
    precision="fp16",
    engine="Megatron-LM 2022",
    metric="step_time",
    value="1.42",
    unit="s",
    source="arXiv:2205.05198",
    source_where="Table 5",
    confidence="high",
    notes="vp=1",
)


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_columns_are_found_by_name_in_any_order_with_missing_and_extra_ones(tmp_path: Path) -> None:
    names = HEADER.split("\t")
    cells = dict(zip(names, TITAN.split("\t"), strict=True))
    chosen = [
        "value",
        "MODEL",
        "unit",
        "metric",
        "id",
        "mood",
        "tp",
        "hardware",
        "seq_len",
        "global_batch",
        "recompute",
    ]
    line = "\t".join(cells.get(name.casefold(), "good") for name in chosen)
    table = read(write(tmp_path / "a.tsv", "\t".join(chosen), line))
    row = table.rows[0]
    assert table.kind == "training"
    assert (row.id, row.measured, row.text("model"), row.text("mood")) == (
        "t-titan-0001",
        5762.0,
        "Llama 3.1 8B",
        "good",
    )
    assert row.count("tp") is None
    assert row.count("layers") is None
    assert row.source == "titan"
    assert row.problem is None


def test_gzip_carriage_returns_byte_order_mark_quotes_and_stripped_tails(tmp_path: Path) -> None:
    quoted = SEQPAR.replace("\tfull\t", '\t"full ""uniform"""\t')
    text = "\ufeff" + "\r\n".join([HEADER, quoted.rstrip(), ""])
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    row = read(path).rows[0]
    assert row.text("recompute") == 'full "uniform"'
    assert row.count("global_batch") == 4
    assert row.problem is None


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("tp", "eight", "field 'tp': 'eight' is not a number"),
        ("tp", "-8", "field 'tp': '-8' is out of range"),
        ("hidden", "61.5", "field 'hidden': '61.5' is not a whole number"),
        ("layers", "1e400", "field 'layers': '1e400' is not a number"),
        ("value", "fast!", "field 'value'"),
        ("value", "nan", "field 'value'"),
        ("value", "", "field 'value': blank"),
        ("metric", "", "field 'metric': blank"),
    ],
)
def test_a_bad_cell_names_file_line_and_field_and_the_good_rows_stand(
    tmp_path: Path, column: str, cell: str, said: str
) -> None:
    names = HEADER.split("\t")
    cells = SEQPAR.split("\t")
    cells[names.index(column)] = cell
    path = write(tmp_path / "a.tsv", HEADER, SEQPAR, "\t".join(cells), SEQPAR)
    rows = read(path).rows
    assert [row.problem is None for row in rows] == [True, False, True]
    assert str(rows[1].problem).startswith(f"{path}:3: {said}")


def test_too_many_and_too_few_cells(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", HEADER, SEQPAR + "\textra", "t-x-1\tLlama", SEQPAR)
    problems = [row.problem for row in read(path).rows]
    assert problems == [
        f"{path}:2: 31 cells, the header has 30",
        f"{path}:3: 2 cells, too few to hold metric, value and unit",
        None,
    ]


def test_a_cell_of_a_megabyte_is_refused_and_the_next_row_stands(tmp_path: Path) -> None:
    head = "op\tshape\tdtype\tlibrary\tmetric\tvalue\tunit"
    path = tmp_path / "kernels.tsv"
    good = "gemm\tm=1 n=2 k=3\tbf16\tcuBLAS\tlatency\t1\tms"
    path.write_text("\n".join([head, good.replace("m=1", "a," * 500_000), good]), encoding="utf-8")
    long, short = read(path).rows
    assert short.problem is None
    assert str(long.problem) == f"{path}:2: field 'shape': 1000008 characters, the limit is 2000"


def test_counts_may_be_written_in_k(tmp_path: Path) -> None:
    names = dict(zip(COLUMNS, SEQPAR.split("\t"), strict=True))
    rows = read(write(tmp_path / "a.tsv", HEADER, line(**{**names, "seq_len": "8k"}))).rows
    assert rows[0].problem is None
    assert rows[0].count("seq_len") == 8192


def test_a_row_without_id_is_named_by_its_line(tmp_path: Path) -> None:
    row = read(write(tmp_path / "a.tsv", HEADER, "", SEQPAR.replace("t-seqpar-0001", ""))).rows[0]
    assert row.id == "line 3"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("id,model,metric,value\n1,a,b,2\n", "tab-separated"),
        ("id\tname\tcolour\n1\t2\t3\n", "no kind of truth table"),
        ("id\tmodel\thardware\tglobal_batch\tseq_len\tmetric\n", "missing: value"),
        ("id\tid\tmetric\tvalue\n", "'id' appears twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        read(path)


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no such file|is a folder|cannot be read"):
        read(tmp_path / "absent.tsv")
    with pytest.raises(InputError, match=r"no such file|is a folder|cannot be read"):
        read(tmp_path)
    broken = tmp_path / "a.gz"
    broken.write_bytes(gzip.compress(b"id\tmodel" * 99)[:30])
    with pytest.raises(InputError, match="gzip"):
        read(broken)


def test_every_kind_is_told_by_its_columns(tmp_path: Path) -> None:
    for kind, columns in KINDS.items():
        header = "\t".join(["id", "metric", "value", *sorted(columns)])
        assert read(write(tmp_path / f"{kind}.tsv", header)).kind == kind


def test_of_two_recipes_in_one_line_the_value_tells_which(tmp_path: Path) -> None:
    both = SEQPAR.replace("\t8\t1\t1\t", "\t2 (4)\t1 (8)\t\t").replace("vp=1", "vp=1 (5); (1.42) (99)")
    first = both.replace("\t1.42\t", "\t2.5\t")
    rows = read(write(tmp_path / "a.tsv", HEADER, first, both)).rows
    assert [(row.count("tp"), row.count("pp")) for row in rows] == [(2, 1), (4, 8)]


def refuse(*arguments: object) -> None:
    raise RidgelineError("asked")


def test_fuzzed_files_are_answered_or_refused_but_never_break(tmp_path: Path) -> None:
    chance = random.Random(20211122)
    base = "\n".join([HEADER, TITAN, SEQPAR, TITAN, SEQPAR]) + "\n"
    pieces = [
        "\t",
        "\n",
        '"',
        "\x00",
        "9" * 30,
        "-1",
        "é",
        "(",
        ")",
        "nan",
        "1e309",
        ";",
        "=",
        "x",
        "8x400Gb/s",
        "\ufeff",
    ]
    begun, answered = time.monotonic(), 0
    for number in range(300):
        text = base
        for _ in range(chance.randrange(1, 8)):
            at, length = chance.randrange(len(text)), chance.choice((0, 0, 1, 3, 20))
            text = text[:at] + chance.choice(pieces) + text[at + length :]
        raw = text.encode()
        if number % 10 == 0:
            raw = bytes(chance.randrange(256) for _ in range(60)) + raw
        path = tmp_path / "fuzz.tsv"
        path.write_bytes(raw)
        try:
            report = check(path, predictor=refuse, completer=refuse, strict=True)
        except InputError:
            continue
        answered += len(report.rows)
        assert {row["status"] for row in report.rows} <= {"refused", "skipped"}
        assert all(row["reason"] for row in report.rows)
    assert answered > 300
    assert time.monotonic() - begun < 30


def test_other_tables_are_accepted_and_their_rows_answered(tmp_path: Path) -> None:
    for kind, header in {
        "serving": "id\tmodel\thardware\tscenario\tisl\tosl\trate_rps\tmetric\tvalue\tunit\tconfidence",
        "offload": "id\tgpu\tn_gpu\tplacement\thost_mem\tdisk\tisl\tosl\tmetric\tvalue\tunit\tconfidence",
        "diffusion": "id\tresolution\tframes\tsteps\tbatch\ttechnique\tmetric\tvalue\tunit\tconfidence",
    }.items():
        cells = ["s1"] + ["1"] * header.count("\t")
        low = [*cells[:-1], "low"]
        path = write(tmp_path / f"{kind}.tsv", header, "\t".join(cells), "\t".join(low))
        rows = check(path, predictor=refuse, completer=refuse).rows
        assert [row["status"] for row in rows] == ["refused", "skipped"]
        expected = "is not predicted; known" if kind == "diffusion" else "is no metric of serving"
        assert expected in rows[0]["reason"]
    facts = write(tmp_path / "f.tsv", "name\tvendor\tyear\tfp32_tflops", "A\tB\t2020\t1")
    assert check(facts, predictor=refuse, completer=refuse).rows[0]["status"] == "skipped"


def test_checker_is_strict_only_when_asked(tmp_path: Path) -> None:
    table = read(write(tmp_path / "a.tsv", HEADER, SEQPAR))

    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("oops")

    lenient = Checker(predictor=broken, completer=broken).answer(table.rows[0], table)
    assert lenient["status"] == "refused"
    assert lenient["reason"] == "internal: ZeroDivisionError: oops (in test_truth_rows.broken)"
    with pytest.raises(ZeroDivisionError):
        Checker(predictor=broken, completer=broken, strict=True).answer(table.rows[0], table)


@pytest.mark.parametrize("name", ["find_metric", "interpret"])
def test_an_error_in_one_row_ends_no_other(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = getattr(check_module, name)
    rows = [SEQPAR.replace("t-seqpar-0001", f"t-seqpar-000{place}") for place in range(3)]
    path = write(tmp_path / "a.tsv", HEADER, *rows)

    def broken(row: Row, **words: object) -> object:
        if row.id == "t-seqpar-0001":
            raise KeyError("vocab")
        return whole(row, **words)

    expected = [row["predicted"] for row in check(path, completer=complete).rows]
    monkeypatch.setattr(check_module, name, broken)
    found = check(path, completer=complete).rows
    assert [row["status"] for row in found] == ["scored", "refused", "scored"]
    assert found[1]["reason"] == "internal: KeyError: 'vocab' (in test_truth_rows.broken)"
    assert found[1]["line"] == 3
    assert [row["predicted"] for row in found] == [expected[0], None, expected[2]]


def test_a_table_of_too_many_cells_is_refused_before_rows_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "LARGEST_CELLS", 100)
    monkeypatch.setattr(rows_module, "_row", lambda *_: pytest.fail("read"))
    with pytest.raises(InputError, match="5 lines of 30 columns, the limit is 100 cells; split the table"):
        read(write(tmp_path / "a.tsv", HEADER, *[SEQPAR] * 4))


def test_thousands_that_are_set_apart_are_one_number(tmp_path: Path) -> None:
    grouped = line(n_devices="16,384", metric="tokens_per_s", value="1,234,567.5", unit="tok/s")
    table = read(write(tmp_path / "t.tsv", HEADER, grouped, line(metric="mfu", value="1,5", unit="%")))
    first, second = table.rows
    assert (first.count("n_devices"), first.measured, first.problem) == (16384, 1234567.5, None)
    assert second.problem is not None  # this comma sets no thousands apart
    assert "'1,5' is not a finite number" in second.problem
