"""Published layouts and what is predicted for them: the facts are in layouts.tsv, `--write` renews the predictions.

PYTHONPATH=src python tests/golden/layouts.py --write     after a change of predictions that is meant
PYTHONPATH=src python tests/golden/layouts.py             prints measured, predicted and error of every row
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
from pathlib import Path

from ridgeline.facts.clusters import cluster
from ridgeline.graph.build import from_dims
from ridgeline.graph.model import Model
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import predict
from ridgeline.report.report import Report
from ridgeline.search.complete import complete

TABLE = Path(__file__).with_name("layouts.tsv")
Row = dict[str, str]


def read(path: Path = TABLE) -> tuple[list[str], list[Row]]:
    """The comment lines and the rows of the table."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = [line for line in lines if line.startswith("#")]
    rows = csv.DictReader((line for line in lines if not line.startswith("#")), delimiter="\t")
    return comments, list(rows)


def write(comments: list[str], rows: list[Row], path: Path = TABLE) -> None:
    """The table again, with the same comments and columns."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), delimiter="\t", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text("\n".join(comments) + "\n" + text.getvalue(), encoding="utf-8")


def model_of(row: Row) -> Model:
    """The GPT of a row: four-fold MLP, learned positions, tied embeddings."""
    return from_dims(
        name=row["row"],
        layers=int(row["layers"]),
        hidden=int(row["hidden"]),
        heads=int(row["heads"]),
        vocab=int(row["vocab"]),
        max_positions=int(row["seq_len"]),
        bias=row["bias"] == "yes",
        dropout=row["dropout"] == "yes",
    )


def workload_of(row: Row) -> Workload:
    """The step of a row."""
    return Workload(
        seq_len=int(row["seq_len"]),
        global_batch=int(row["global_batch"]),
        precision=row["precision"],
        attention_kernel=row["attention_kernel"],
        framework=row["framework"],
        execution=row["execution"],
    )


def stated_of(row: Row) -> dict[str, object]:
    """The fields of the plan that the source states; a blank cell is left to `complete`."""
    stated: dict[str, object] = {name: int(row[name]) for name in ("tp", "pp", "dp", "chunks", "zero")}
    if row["micro_batch"]:
        stated["micro_batch"] = int(row["micro_batch"])
    if row["recompute"]:
        stated["recompute"] = row["recompute"]
    for name in ("sequence_parallel", "overlap_tensor"):
        stated[name] = row[name] == "yes"
    return stated


def plan_of(row: Row) -> Plan:
    """The stated plan, completed where the source is silent."""
    stated = stated_of(row)
    if {"micro_batch", "recompute"} <= stated.keys():
        schedule = "interleaved" if row["chunks"] != "1" else "1f1b"
        return Plan(schedule=schedule, **stated)  # type: ignore[arg-type]
    return complete(model_of(row), cluster_of(row), workload_of(row), stated)


def cluster_of(row: Row):  # type: ignore[no-untyped-def]
    """The machine of a row."""
    return cluster(f"{row['devices']}x{row['device']}")


def in_metric(row: Row, report: Report) -> float:
    """The prediction in the metric of the row.

    step_s [s]; tokens_per_s_per_device [token/s]; model_tflop_per_s counts three passes over every product, attention
    over all pairs, per device [1e12 FLOP/s]; hardware_tflop_per_s counts the recomputed forward of the layers too:
    96 B S L D^2 (1 + S / (6 D) + V / (16 L D)) of arXiv:2104.04473, section 5.1.
    """
    devices, step_s = int(row["devices"]), report.step_time.value
    match row["metric"]:
        case "step_s":
            return step_s
        case "tokens_per_s_per_device":
            return int(row["global_batch"]) * int(row["seq_len"]) / step_s / devices
        case "model_tflop_per_s":
            return report.model_flop / step_s / devices / 1e12
        case "hardware_tflop_per_s":
            batch, seq, layers, hidden, vocab = (
                int(row[name]) for name in ("global_batch", "seq_len", "layers", "hidden", "vocab")
            )
            flop = 96 * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (16 * layers * hidden))
            return flop / step_s / devices / 1e12
    raise ValueError(f"{row['row']}: unknown metric {row['metric']}")


def predicted(row: Row) -> float:
    """What is predicted for a row, in its metric."""
    return in_metric(row, predict(model_of(row), cluster_of(row), workload_of(row), plan_of(row)))


def error_of(row: Row) -> float:
    """How far the stored prediction is from the measurement, relative [1]."""
    return float(row["predicted"]) / float(row["measured"]) - 1


def renew(rows: list[Row]) -> list[Row]:
    """The rows with predictions and errors of the code as it is."""
    for row in rows:
        row["predicted"] = f"{predicted(row):.9g}"
        row["error"] = f"{error_of(row):+.4f}"
    return rows


def main() -> None:
    """Print the table as the code predicts it now; with `--write` store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="renew the stored predictions and timelines")
    arguments = parser.parse_args()
    comments, rows = read()
    rows = renew(rows)
    for row in rows:
        print(f"{row['row']:24} {row['metric']:24} {row['measured']:>8} {float(row['predicted']):10.4g} {row['error']}")
    errors = [abs(error_of(row)) for row in rows]
    print(
        f"{len(rows)} rows, median absolute error {statistics.median(errors):.1%}, mean {statistics.mean(errors):.1%}"
    )
    if arguments.write:
        import timelines

        write(comments, rows)
        timelines.write()


if __name__ == "__main__":
    main()
