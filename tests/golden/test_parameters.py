"""Parameter counts of the catalog against what transformers allocated, kept in a table.

The table stands in for the rival where it is not installed. `python tests/golden/test_parameters.py` makes it anew;
it needs PyTorch and transformers (`pip install '.[rival]'`).
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

from ridgeline.graph.load import catalog, load

TABLE = Path(__file__).with_name("parameters.tsv")
LEAST = 137  # models compared when the table was made; it may only grow
COLUMNS = ("model", "parameters", "transformers")


def rows() -> list[dict[str, str]]:
    """The rows of the table, one a model."""
    with TABLE.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle, delimiter="\t"))


ROWS = rows() if TABLE.exists() else []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["model"])
def test_a_model_has_the_parameters_that_transformers_allocated(row: dict[str, str]) -> None:
    assert load(row["model"]).graph.params == int(row["parameters"])


def test_the_table_never_shrinks_and_names_each_model_once() -> None:
    names = [row["model"] for row in ROWS]
    assert len(names) == len(set(names))
    assert set(names) <= set(catalog())
    assert len(names) >= LEAST


def renew() -> None:
    """Asks the rival for every model that it knows, and writes the table."""
    sys.path.insert(0, str(TABLE.parents[1] / "rivals"))
    import test_transformers_params as rival
    import transformers

    from ridgeline.graph.load import catalog_config

    lines = ["\t".join(COLUMNS)]
    for name in rival.compared():
        config = catalog_config(name)
        count = rival.theirs(str(config["model_type"]), config)
        lines.append(f"{name}\t{count}\t{transformers.__version__}")
    TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    renew()
