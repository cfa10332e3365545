"""What an engine's policy file may say: one dataclass, whose fields are the keys, their units and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from ridgeline.facts.policy_schema import Check, keys_of, measured_of, number, typed
from ridgeline.facts.policy_schema import cost as _cost
from ridgeline.facts.policy_schema import count as _count
from ridgeline.facts.policy_schema import flag as _flag
from ridgeline.facts.policy_schema import key as _key
from ridgeline.facts.policy_schema import share as _share
from ridgeline.facts.policy_schema import word as _word
from ridgeline.facts.records import Evidence, Fact


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The keys of a policy. Their metadata is the schema: unit, limits, meaning."""

    scheduler: str = _word(
        "mixed",
        "how an iteration is filled: whole prompts in iterations of their own, decode tokens first and prompts with "
        "them, a batch that starts and ends together, or one sequence at a time",
        *("prefill-first", "mixed", "static", "single"),
    )
    chunked: bool = _flag(False, "prompts may be cut to the token budget")
    token_budget: int = _count(8192, "tokens of one iteration; of prompts only where prompts run apart", "token", 1)
    budget_covers_context: bool = _flag(False, "the budget grows to the model's context length")
    max_seqs: int = _count(256, "sequences that run at once, on one attention rank", "sequence", 1)
    block_tokens: int = _count(16, "tokens of one cache block", "token", 1)
    memory_fraction: float = _share(0.9, "share of device memory, see memory_of")
    memory_of: str = _word(
        "total",
        "what the fraction is of: of the device, for weights, activations and cache; of what is free after weights "
        "and activations, for the cache; of the device, for weights and cache",
        *("total", "free", "static"),
    )
    reserved_bytes: float = _key(
        0.0, "memory left free, in place of a fraction", unit="byte", kind=float, low=0.0, high=1e12
    )
    reserved_rank_bytes: float = _key(
        0.0, "memory left free for each rank of the instance", unit="byte", kind=float, low=0.0, high=1e12
    )
    watermark: float = _share(0.0, "share of blocks kept free when a request is admitted")
    admits: str = _word(
        "prompt",
        "what must fit before a request starts: its first chunk, its prompt, prompt and the longest output, or "
        "prompt and an estimate of the output",
        *("chunk", "prompt", "whole", "estimate"),
    )
    output_estimate: float = _share(1.0, "share of the longest output that an estimate counts, at first")
    output_estimate_floor: float = _share(1.0, "the share at last")
    output_estimate_steps: int = _count(0, "iterations from first to last; a preemption starts over", "iteration")
    preemption: str = _word("recompute", "what happens when blocks run out", "recompute", "swap", "none")
    ends_at_context: bool = _flag(False, "sequences that reach the model's context length end there")
    prefix_cache: bool = _flag(False, "blocks of common prefixes are kept and found again")
    graph_sizes: tuple[int, ...] = _key(
        (), "decode batches that replay a captured graph; empty: none", unit="sequence", kind=tuple
    )
    graph_max: int = _count(0, "sizes above it are not captured; 0: all are", "sequence")
    graph_doubling: bool = _flag(
        False, "sizes that a launch asks for beyond the last go on by doubling, up to max_seqs; else in the last step"
    )
    graph_padding: bool = _flag(True, "other batches are padded up to the next size; else they run without a graph")
    graphs: bool = _flag(True, "graphs can be captured at all")
    graph_prefill: bool = _flag(
        False, "iterations with prompts replay piecewise graphs, up to the largest size in tokens"
    )
    graph_whole: bool = _flag(True, "a decode graph holds the whole model; else attention runs between its pieces")
    step_host_s: float = _cost("host time per iteration: scheduling, inputs, sampling, outputs")
    seq_host_s: float = _cost("and per running sequence")
    group_host_s: float = _cost("and per iteration where an instance has several devices")
    exposed_host_s: float = _cost("part of the host time that the device waits for although host work overlaps")
    request_host_s: float = _cost("time from a person's request to the scheduler and back: network, parsing, streaming")
    prompt_token_host_s: float = _cost("and per token of the prompt: tokenizing")
    overlapped_host: bool = _flag(False, "the host prepares the next iteration while the device runs")
    late_results: bool = _flag(
        False, "where host work overlaps, an iteration's result is looked at when the next one has been launched"
    )
    drafts_overlap: bool = _flag(True, "where host work overlaps, it does so beside drafts as well")
    python_host: bool = _flag(False, "the scheduler is written in Python, which hosts of Grace run slower")
    eager_kernel_host_s: float = _cost("host time to launch one kernel outside graphs")
    all_reduce: str = _word(
        "nccl", "kernels for small all-reduces: own one- and two-shot ones, or NCCL", "custom", "nccl"
    )
    graph_reduce_s: float = _cost("how much longer a library's all-reduce takes inside a captured graph: host nodes")
    apart_reduce_s: float = _cost("and outside one: ranks that launch apart wait for each other")
    choice_wait_s: float = _cost("before each product of routed experts: the host copies and waits for what was chosen")
    scan_kernels: int = _count(
        0, "kernels of a layer with a gated scan that the host launches beside those of its operators", "kernel"
    )
    scan_build_s: float = _cost(
        "time to compile a gated scan's kernels for a number of prompt tokens that they have not met"
    )
    own_kernels: bool = _flag(False, "its kernels are its own, and no table of measured kernels holds any of them")
    keys_per_query: bool = _flag(False, "decode reads keys from memory for each query head by itself")
    whole_cache: bool = _flag(False, "decode reads the cache as long as it will be at the end: shapes never change")
    tuned_share: float = _share(1.0, "share of the rate of tuned products that its products reach, where compute binds")
    tuned_share_least: float = _share(1.0, "the least that was seen, for intervals")
    tuned_share_most: float = _share(1.0, "and the most")
    skinny_share: float = _share(1.0, "share of the memory rate of tuned products that its products reach")
    skinny_share_least: float = _share(1.0, "the least that was seen, for intervals")
    skinny_share_most: float = _share(1.0, "and the most")
    vector_rows: int = _count(
        0, "rows up to which its own products of matrices and vectors stream the weights; 0: it has none", "row"
    )
    wide_products: str = _word(
        "",
        "products of more rows by weights of few bits: as tables have them, of weights widened to 16 bits first, of "
        "inputs cast to 8-bit integers, or as those of 16 bits that read less",
        *("", "widened", "int8", "read"),
    )
    score_bytes: float = _key(
        0.0, "memory traffic of a prompt's score where attention is not fused; 0: it is", unit="byte", kind=float,
        low=0.0, high=100.0,
    )  # fmt: skip
    pass_bytes: float = _key(
        2.0, "bytes of an element of activations between kernels", unit="byte", kind=float, low=1.0, high=8.0
    )
    half_sums: bool = _flag(False, "products in 16 bits add up in 16 bits")
    pipelined: bool = _flag(
        False,
        "a layer is one kernel that activations stream through: operators, memory and links work side by side, and an "
        "iteration takes as long as the slowest of these",
    )
    chunks_follow: bool = _flag(
        False, "chunks of one prompt follow each other through the stages of a pipeline, if nothing else runs"
    )
    even_parts: bool = _flag(
        False,
        "a static batch is divided over the stages of a pipeline where they divide it evenly, else passes them whole",
    )
    whole_blocks: bool = _flag(
        False, "experts with a scale for each block of weights start only where no rank cuts one"
    )
    part_tokens: int = _count(0, "tokens of a part of its prompts that pass a pipeline one after the other", "token")
    decode_groups: tuple[int, ...] = _key(
        (),
        "query heads of a key head that decode reads it for at once, else for each; empty: any",
        unit="head",
        kind=tuple,
    )
    earlier_attention: str = _word(
        "",
        "kernels of attention where its tables hold those that came after them: what other devices' tables call theirs",
        *("", "vllm_flash_attn"),
    )
    block_heads: int = _count(
        0, "query heads of all sequences of a rank above which decode gives each one block, with room in shared memory "
        "for the scores of the longest context; 0: never", "head",
    )  # fmt: skip
    graph_context: int = _count(0, "contexts beyond it run without a captured graph; 0: none do", "token")
    decode_splits: bool = _flag(True, "decode splits the keys of a sequence over idle multiprocessors")
    layer_kernels: int = _count(
        0, "kernels of one layer where every operator is one of its own; 0: as layers are divided", "kernel"
    )
    whole_groups: bool = _flag(
        False, "tensor-parallel ranks have whole key heads with their queries, some more of them than others"
    )
    static_scales: bool = _flag(
        False, "fp8 checkpoints of one scale a tensor hold that of inputs too, which earlier kernels write in fp8"
    )
    fused_norm: bool = _flag(True, "norm and residual are one kernel")
    fused_all_reduce_norm: bool = _flag(False, "all-reduce, residual and norm are one kernel")
    merged_latents: bool = _flag(False, "both down-projections of latent attention are one product")
    shared_beside_tokens: int = _count(
        0, "tokens up to which shared experts run beside the routed ones, inside graphs", "token"
    )
    drawn_ranks: str = _word(
        "",
        "disaggregated pools whose requests go to any attention rank, not to the least loaded: of prompts, or all",
        *("", "prompts", "all"),
    )
    prompt_pools_overlap: bool = _flag(
        True, "where host work overlaps, pools of prompts launch a batch before the last one's result"
    )
    moving_holds_place: bool = _flag(True, "a prompt whose cache is on its way to another pool keeps its place")
    narrow_inputs: str = _word(
        "",
        "format in which experts of mxfp4 are computed: their inputs are cast to 8 bits, whose products are faster",
        *("", "w4a8_mxfp4_mxfp8"),
    )
    without_rate: str = _word(
        "",
        "weights of 8- or 4-bit floats on devices that do not multiply them: read so and multiplied in 16 bits, or "
        "refused; '' is taken for the former",
        *("", "weight-only", "refused"),
    )
    prompts_meet: bool = _flag(
        False, "attention ranks of pools of prompts gather tokens and sums by all-reduces, not gathering and scattering"
    )
    taking_in_stands: bool = _flag(
        False, "an attention rank of a decode pool computes nothing in an iteration in which it takes sequences in"
    )
    narrow_kv: str = _word(
        "",
        "format of the cache where a quantized checkpoint (fp8, nvfp4) names one and nothing else is asked",
        *("", "fp8"),
    )
    expert_backend: str = _word(
        "",
        "backend of experts where a deployment names none; '' the kernels that it was measured with",
        *("", "CUTLASS", "TRTLLM", "DEEPGEMM", "triton_kernel"),
    )
    wide_backend: str = _word(
        "",
        "backend of experts that are divided over 16 ranks or more, where a deployment names none; '' as over fewer",
        *("", "deepep", "deepep_low_latency", "WIDEEP"),
    )
    wide_prompt_backend: str = _word("", "and that of pools of prompts; '' the same", *("", "deepep_high_throughput"))
    expert_backend_alone: bool = _flag(False, "it is taken only where no rank holds whole experts alone")
    prompt_widths: float = _key(
        0.0, "buffers held for every token of all prompts, in widths of the model; 0: as the widest layer needs",
        unit="1", kind=float, low=0.0, high=1000.0,
    )  # fmt: skip
    prompt_shards: float = _key(
        0.0, "and those that the devices of an instance divide", unit="1", kind=float, low=0.0, high=1000.0
    )
    held_score_bytes: float = _key(
        0.0, "held for every score of every head of all prompts, beside those", unit="byte", kind=float, low=0.0,
        high=100.0,
    )  # fmt: skip
    held_logit_bytes: float = _key(
        0.0, "and for every word of the vocabulary of every sequence: logits, and copies that are sorted", unit="byte",
        kind=float, low=0.0, high=1000.0,
    )  # fmt: skip
    own_head: bool = _flag(False, "the head has a table of its own even where the model's is that of its embedding")
    context_bytes: float = _cost("memory held beside weights, activations and cache, within the fraction", "byte")
    group_context_bytes: float = _cost("and for communicators where an instance has several devices", "byte")


KEYS = keys_of(fields(Settings))
MEASURED = measured_of(KEYS)
CONDITIONS: Mapping[str, str] = {
    "memory_above_bytes": "device memory is at least this",
    "memory_below_bytes": "device memory is less than this",
    "offline": "requests are known beforehand (true), or come over a network (false)",
    "context_above_tokens": "the model's context is longer than this",
    "ranks_at_least": "the instance has at least so many devices",
    "device": "the accelerator's name holds this word",
    "architecture": "the accelerator's vendor or architecture is this word",
    "build": "the version holds this word, such as that of a fork",
    "model": "the model's name begins with this word",
    "experts": "the model routes tokens to experts (true), or is dense (false)",
    "hidden_up_to": "the model's hidden size is at most this",
}


@dataclass(frozen=True, kw_only=True)
class EnginePolicy(Settings):
    """How one version of an engine batches, holds memory and spends host time; `facts` tell how each key is known."""

    name: str
    version: str
    facts: Mapping[str, Fact] = field(compare=False, repr=False)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of all keys that the file sets, each once."""
        return tuple(dict.fromkeys(fact.source for fact in self.facts.values()))

    @property
    def evidence(self) -> Evidence:
        """The lowest rung that the policy's times and bytes rest on."""
        return min((self.facts[name].evidence for name in MEASURED if name in self.facts), default=Evidence.ASSUMED)

    def step_seconds(self, seqs: int, *, devices: int = 1) -> float:
        """Host time of one iteration with `seqs` running sequences [s]."""
        return self.step_host_s + self.seq_host_s * seqs + (self.group_host_s if devices > 1 else 0.0)

    def graph_batch(self, seqs: int) -> int | None:
        """Size of the graph that a decode batch of `seqs` replays [sequence]; None where it runs without one."""
        if not self.graph_padding:
            return seqs if seqs in self.graph_sizes else None
        return next((size for size in self.graph_sizes if size >= seqs), None)


def _words(value: object) -> object:
    """Words, separated by commas, of which an accelerator's name may hold any."""
    told = "a word of the accelerator's name, or some, separated by commas"
    if not all(word.strip() for word in str(typed(value, str, told)).split(",")):
        raise ValueError(f"needs {told}; got {value!r}")
    return value


CONDITION_CHECKS: Mapping[str, Check] = {
    "memory_above_bytes": lambda value: number(value, float, 0, 1e15, "byte"),
    "memory_below_bytes": lambda value: number(value, float, 0, 1e15, "byte"),
    "offline": lambda value: typed(value, bool, "true or false"),
    "context_above_tokens": lambda value: number(value, int, 0, 10**9, "token"),
    "ranks_at_least": lambda value: number(value, int, 1, 10**7, "device"),
    "device": _words,
    "architecture": lambda value: typed(value, str, "the accelerator's vendor or architecture"),
    "build": lambda value: typed(value, str, "a word of the version"),
    "model": lambda value: typed(value, str, "the first word of the model's name"),
    "experts": lambda value: typed(value, bool, "true or false"),
    "hidden_up_to": lambda value: number(value, int, 1, 10**7, "1"),
}
