"""Serving targets: memory fractions and back, pools as two files, drafts, offload, other spellings of flags."""

from __future__ import annotations

from pathlib import Path

import pytest

import ridgeline as rl
from ridgeline.errors import InputError
from ridgeline.export.memory_share import Room
from ridgeline.export.reading import read_config
from ridgeline.export.target import target

ROOM = Room(memory_bytes=80e9, weights_bytes=30e9, work_bytes=4e9)


@pytest.mark.parametrize("share", [0.5, 0.83, 0.9, 0.97])
@pytest.mark.parametrize("kind", ["total", "static", "free"])
def test_a_memory_fraction_has_an_exact_inverse(kind: str, share: float) -> None:
    assert ROOM.share(kind, ROOM.left_bytes(kind, share)) == pytest.approx(share, rel=1e-12)


def test_fractions_of_other_kinds_leave_the_same_cache() -> None:
    left = ROOM.left_bytes("total", 0.9)
    assert left == pytest.approx(38e9)
    assert ROOM.share("static", left) == pytest.approx(68 / 80)
    assert ROOM.share("free", left) == pytest.approx(38 / 46)
    with pytest.raises(InputError, match="no share of 'static'"):
        ROOM.share("static", 60e9)


def test_a_fraction_of_another_engine_is_converted_and_said() -> None:
    made = rl.export("qwen3-32b", "2xH100-SXM", to="sglang", engine="vllm", tp=2, memory_fraction=0.9)
    assert "mem-fraction-static: 0.9\n" not in made["files"]["sglang.yaml"]
    assert "0.9 of total memory is 0.8" in made["notes"][0]
    plain = rl.export("qwen3-32b", "2xH100-SXM", to="sglang", tp=2, memory_fraction=0.9)
    assert "mem-fraction-static: 0.9\n" in plain["files"]["sglang.yaml"]


@pytest.mark.parametrize(("key", "said"), [("vllm", "kv_producer"), ("sglang", "prefill"), ("trtllm", "DEFAULT")])
def test_two_pools_are_two_files(key: str, said: str, tmp_path: Path) -> None:
    made = rl.export("qwen3-32b", "2x8xH100-SXM", to=key, prefill="2xtp4", decode="1xtp8", out=str(tmp_path))
    first, second = [name for name in made["files"] if name != "README.md"]
    assert first.startswith("prefill-")
    assert second.startswith("decode-")
    assert said in made["files"][first]
    assert first in made["command"]
    found = read_config(f"{key}:{tmp_path / second}")
    assert found.words["plan.tp"] == 8
    assert not found.unknown


@pytest.mark.parametrize("key", ["vllm", "sglang", "trtllm"])
def test_a_folder_of_two_pools_reads_back_to_the_same_plan(key: str, tmp_path: Path) -> None:
    asked = {"prefill": "2xtp4", "decode": "1xtp8", "memory_fraction": 0.85}
    made = rl.export("qwen3-32b", "2x8xH100-SXM", to=key, out=str(tmp_path), **asked)
    found = read_config(f"{key}:{tmp_path}")
    assert (found.words["plan.prefill"], found.words["plan.decode"]) == ("2xtp4,pp1,dp1,ep1", "1xtp8,pp1,dp1,ep1")
    assert not found.unknown
    again = rl.export("qwen3-32b", "2x8xH100-SXM", to=key, from_config=f"{key}:{tmp_path}")
    files = {name: text for name, text in made["files"].items() if name != "README.md"}
    assert files.items() <= again["files"].items()
    assert again["predicted"] == made["predicted"]


def test_a_folder_that_is_no_pair_of_pools_is_refused(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        (tmp_path / name).write_text("model: Qwen/Qwen3-32B\ntensor-parallel-size: 2\n")
    with pytest.raises(InputError, match="holds 3 configs"):
        read_config(f"vllm:{tmp_path}")
    (tmp_path / "c.yaml").unlink()
    with pytest.raises(InputError, match="not of a prefill and a decode pool"):
        read_config(f"vllm:{tmp_path}")


def test_pools_are_refused_where_a_program_has_none() -> None:
    with pytest.raises(InputError, match="TGI has no prefill and decode pools"):
        rl.export("qwen3-32b", "2x8xH100-SXM", to="tgi", prefill="2xtp4", decode="1xtp8")


@pytest.mark.parametrize("key", ["vllm", "sglang", "trtllm"])
def test_drafts_go_there_and_back_but_for_their_acceptance(key: str, tmp_path: Path) -> None:
    drafts = {"draft_model": "qwen3-0.6b", "draft_tokens": 3, "acceptance": 0.7}
    made = rl.export("qwen3-32b", "2xH100-SXM", to=key, tp=2, out=str(tmp_path), **drafts)
    assert [one["word"] for one in made["left_out"]] == ["plan.acceptance"]
    found = read_config(f"{key}:{tmp_path / target(key).file}").words
    assert (found["plan.draft_model"], found["plan.draft_tokens"]) == ("qwen3-0.6b", 3)


def test_attention_ranks_are_counted_as_sglang_does(tmp_path: Path) -> None:
    words = {"dp": 8, "ep": 8, "max_seqs": 32, "token_budget": 4096}
    text = rl.export("deepseek-v3", "8xH200-SXM", to="sglang", **words)["files"]["sglang.yaml"]
    for line in ("tp-size: 8", "attn-dp-size: 8", "max-running-requests: 256",
                 "chunked-prefill-size: 32768"):  # fmt: skip
        assert line in text
    file = tmp_path / "x.yaml"
    file.write_text(text)
    found = read_config(f"sglang:{file}").words
    assert {name: found[f"plan.{name}"] for name in ("tp", *words)} == {"tp": 1, **words}


def test_llama_cpp_flags_are_read_in_their_short_spellings(tmp_path: Path) -> None:
    file = tmp_path / "run.sh"
    file.write_text(
        "llama-server -m Mixtral-8x7B-Q4_K_M.gguf -c 32768 -np 4 -ngl 99 -ncmoe 16 -ctk q8_0 -ctv q8_0 -fa on\n"
    )
    found = read_config(f"llamacpp:{file}")
    assert not found.unknown
    said = {"plan.weights": "q4_k", "workload.longest": 8192, "plan.max_seqs": 4, "plan.kv": "fp8"}
    assert said.items() <= found.words.items()
    assert found.words["plan.offload"] == "computed"
    assert found.words["plan.device_share"] == pytest.approx(0.5)
    one = target("llamacpp")
    words = {**found.words, "model.name": "Mixtral-8x7B", "model.layers": 32}
    flags = one.exported(words).files[one.file]
    assert "--n-cpu-moe 16" in flags
    assert "--ctx-size 32768" in flags


def test_fields_may_be_spelt_with_underscores_and_no(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("model: Qwen/Qwen3-32B\ntensor_parallel_size: 2\nno-enable-prefix-caching: true\n")
    found = read_config(str(file))
    assert found.words["plan.tp"] == 2
    assert found.words["plan.prefix_cache"] is False
    assert not found.unknown


def test_the_longest_request_is_that_of_the_traffic_or_what_the_model_and_cache_hold() -> None:
    def said(**words: object) -> str:
        text = rl.export("qwen3-32b", "2xH100-SXM", to="vllm", tp=2, **words)["files"]["vllm.yaml"]
        return next(line for line in text.splitlines() if line.startswith("max-model-len"))

    assert said(prompt=1000, output=200) == "max-model-len: 1201"
    assert said() == "max-model-len: 40960"  # the model's positions
    assert said(prompt="100-300", output=10) == said()
    small = rl.export("llama-3.1-8b", "1xRTX-4090", to="vllm")
    length = int(small["files"]["vllm.yaml"].partition("max-model-len: ")[2].split()[0])
    assert 1281 < length < 131072
    assert any("what the cache holds" in note for note in small["notes"])
