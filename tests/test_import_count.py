"""How much of the package one prediction loads: each module is read and run before the first answer."""

import subprocess
import sys

MOST = 131  # modules of the package; the aim is 60

ASK = """
import sys
from ridgeline.facts.clusters import cluster
from ridgeline.graph.load import load
from ridgeline.graph.workload import Workload
from ridgeline.plan.plan import Plan
from ridgeline.predict import predict

workload, plan = Workload(seq_len=4096, global_batch=1024), Plan(dp=8, zero=3)
found = predict(load("llama-3.1-8b"), cluster("8xH100-SXM"), workload, plan)
assert found.step_time.value > 0
print(*sorted(name for name in sys.modules if name.split(".")[0] == "ridgeline"))
"""


def loaded() -> list[str]:
    """Modules of the package that a prediction of one training step loads."""
    return subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True).stdout.split()


def test_one_prediction_loads_few_modules() -> None:
    modules = loaded()
    assert len(modules) <= MOST, "\n".join(modules)
    graph = {name.removeprefix("ridgeline.graph.") for name in modules if name.startswith("ridgeline.graph.")}
    assert "families.decoder" in graph
    assert not graph & {
        "families.latent",
        "families.hybrid",
        "recurrent",
        "diffusion",
        "denoisers",
        "vision",
        "networks",
    }
