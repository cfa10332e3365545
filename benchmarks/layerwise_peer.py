"""Runs Hetu-Galvatron's search engine in an environment of its own, and writes the cost tables that it searches.

    python layerwise_peer.py CHECKOUT TABLES.pickle [--search]

CHECKOUT is a clone of https://github.com/PKU-DAIR/Hetu-Galvatron with its extension `galvatron_dp_core` importable.
Nothing of Ridgeline is imported. `flash_attn`, which only its runtime needs, is stood in for where it is missing.
With `--search` its own search runs, timed from after its imports to its answer.
"""

import contextlib
import importlib.abc
import importlib.machinery
import io
import json
import os
import pickle
import sys
import time
import types
from pathlib import Path
from typing import ClassVar

OVERRIDES = ["search_engine.profiling_info.time_profile_mode=batch", "SEQ_LENGTH=2048"]


class _StandIn(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An empty `flash_attn`: the search never calls it."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "flash_attn":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        class Empty(types.ModuleType):
            def __getattr__(self, name):
                if name.startswith("__"):
                    raise AttributeError(name)
                return object

        found = Empty(spec.name)
        found.__path__ = []
        found.__version__ = "2.6.3"
        return found

    def exec_module(self, module):
        pass


def engine(checkout: Path):
    """The search engine on Llama-2-7B, 8 devices and 38 GB, with the profile that it ships."""
    from galvatron.core.arguments import load_with_hydra
    from galvatron.core.search_engine.search_engine import GalvatronSearchEngine
    from galvatron.utils.hf_config_adapter import model_layer_configs, model_name, resolve_model_config

    folder = checkout / "galvatron" / "models" / "gpt"
    os.chdir(folder)
    args = load_with_hydra(
        "scripts/search_dist.yaml", overrides=[*OVERRIDES, "LOG_DIR=/tmp/layerwise_logs"], mode="search"
    )
    resolve_model_config(args)
    found = GalvatronSearchEngine(args)
    layers = model_layer_configs(args)
    found.set_search_engine_info(path=str(folder), model_layer_configs=layers, model_name=model_name(args))
    found.initialize_search_engine(show_all_strategy_list=False)
    return found


class Tables:
    """Takes the place of the inner dynamic programme, and keeps what it is asked."""

    kept: ClassVar[list] = []

    def __init__(self, max_mem, other_mem_cost, other_time_cost, layer_num, **_):
        self.one = {"limit": max_mem, "held": other_mem_cost, "ends_s": other_time_cost, "layers": layer_num}
        self.keys = list(other_mem_cost)

    def set_v_and_cost(self, v, intra_layer_cost, inter_layer_cost):
        self.one |= {"bytes": v, "seconds": intra_layer_cost, "relayout": inter_layer_cost}

    def fit(self):
        Tables.kept.append(self.one)
        return {k: float("inf") for k in self.keys}, dict.fromkeys(self.keys), dict.fromkeys(self.keys, -1)


def record(found, programme):
    """Every task of the search as tables: strategies of layers and ends, seconds and memory of each."""
    from galvatron.core.cost_model.components.embedding_lmhead_cost import EmbeddingLMHeadTimeCostModel
    from galvatron.core.cost_model.components.layer_cost import TimeCostModelBase

    tasks = []
    original = programme.DpOnModel._build_dp_and_run_multi_layer_type

    def build(self, gbsz, chunks, pp_size, pp_stage_list, **rest):
        Tables.kept = []
        answer = original(self, gbsz=gbsz, chunks=chunks, pp_size=pp_size, pp_stage_list=pp_stage_list, **rest)
        common = {"global_batch_size": gbsz, "chunks": chunks, "logger": None, "model_args": self.model_args_list[0],
                  "train_args": self.train_args_list[0], "parallel_args": self.parallel_args_list[0],
                  "profile_model_args": self.profile_model_args_list[0],
                  "profile_hardware_args": self.profile_hardware_args_list[0]}  # fmt: skip
        ends = sorted(self.input_embedding_lmhead_strategy_list)
        tasks.append({
            "chunks": chunks, "pp": pp_size, "split": list(pp_stage_list), "stages": Tables.kept,
            "names": [str(s.to_simple_string()) for s in self.input_layer_strategy_list],
            "plain_s": [
                TimeCostModelBase(strategy=s, **common).gen_result()[1] for s in self.input_layer_strategy_list
            ],
            "ends_plain_s": [
                EmbeddingLMHeadTimeCostModel(strategy=s, sequence_length_list=self.sequence_len, **common)
                .gen_result()[1]
                for s in ends
            ],
        })  # fmt: skip
        return answer

    programme.DpOnModel._build_dp_and_run_multi_layer_type = build
    programme.DPAlg, kept = Tables, programme.DPAlg
    with contextlib.redirect_stdout(io.StringIO()):
        found.parallelism_optimization()
    programme.DpOnModel._build_dp_and_run_multi_layer_type, programme.DPAlg = original, kept
    return tasks


def main() -> None:
    checkout, out = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    sys.meta_path.insert(0, _StandIn())
    sys.path.insert(0, str(checkout))
    import galvatron.core.search_engine.dynamic_programming as programme
    import galvatron.core.search_engine.search_engine as module

    with contextlib.redirect_stdout(io.StringIO()):
        found = engine(checkout)
    started = time.perf_counter()
    tasks = record(found, programme)
    told = {"tables_s": time.perf_counter() - started, "tasks": len(tasks)}
    out.write_bytes(pickle.dumps(tasks))
    if "--search" in sys.argv:
        best = {}
        original = module.GalvatronSearchEngine.search_for_single_task

        def single(self, *args):
            one = original(self, *args)
            if one.get("time_cost", float("inf")) < best.get("time_cost", float("inf")):
                best.update(one)
            return one

        module.GalvatronSearchEngine.search_for_single_task = single
        started, busy = time.perf_counter(), time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            found.parallelism_optimization()
        told |= {"search_s": time.perf_counter() - started, "search_cpu_s": time.process_time() - busy}
        told["step_s"] = float(best["time_cost"])
        told["layers"] = [s.to_simple_string() for s in best["strategy_list"]]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
