"""What other programs call the words of a scenario, so that an error can name the word that is read here.

Megatron-LM, DeepSpeed, Hugging Face's Trainer, torchtitan, vLLM, SGLang, TensorRT-LLM and llama.cpp have a name of
their own for most of these words.
"""

from __future__ import annotations

from collections.abc import Iterable

_TABLE = """
tp                 tensor_parallel tensor_model_parallel tensor_parallelism tp_size tp_degree
pp                 pipeline_parallel pipeline_model_parallel pipeline_parallelism pp_size pp_degree
cp                 context_parallel context_parallelism sequence_parallel_degree cp_size cp_degree
dp                 data_parallel data_parallelism data_parallel_replicate dp_size dp_degree replicas
ep                 expert_parallel expert_model_parallel expert_parallelism ep_size ep_degree moe_ep
etp                expert_tensor_parallel expert_tensor_parallelism moe_tp
micro_batch        micro_batch_size micro_batch_size_per_gpu train_micro_batch_size_per_gpu per_device_batch_size
                   per_device_train_batch_size local_batch_size
global_batch       global_batch_size train_batch_size effective_batch_size total_batch_size gradient_accumulation_steps
                   gradient_accumulation grad_accum accumulation_steps num_microbatches
chunks             virtual_pipeline virtual_stages num_virtual_stages vpp num_layers_per_virtual_pipeline_stage
zero               zero_stage fsdp fully_shard deepspeed_stage sharding_strategy distributed_optimizer
zero_group         hybrid_shard data_parallel_shard
recompute          activation_checkpointing gradient_checkpointing recompute_granularity activation_recompute
recompute_layers   recompute_num_layers
layer_split        pipeline_layout stage_layers
offload_optimizer  optimizer_offload cpu_offload
offload_activations  activation_offload activation_offloading enable_activation_offloading
offload_weights    fsdp_cpu_offload offload_params offload_param use_cpu_offload
optimizer_in_backward  optimizer_in_bwd apply_optimizer_in_backward
loss               cross_entropy use_liger_kernel fused_linear_cross_entropy chunked_cross_entropy
seq_len            seq_length sequence_length max_seq_len max_seq_length context_length context_len max_length
                   cutoff_len block_size
encoder_seq_len    encoder_seq_length
tokens             train_tokens total_tokens training_tokens train_samples train_iters max_steps num_train_epochs epochs
precision          dtype mixed_precision torch_dtype training_dtype data_type fp16_opt amp
optimizer          optim optimizer_type
task               training_type finetuning_type train_type stage mode
attention_kernel   attn_implementation attention_backend flash_attn flash_attention
lora_rank          lora_r r lora_dim
lora_targets       target_modules lora_target
padding            pad_ratio
on                 cluster gpus gpu machine hardware device devices accelerator system
weights            dtype quantization quantize quant weight_dtype weight_format load_format
kv                 kv_cache_dtype kv_dtype cache_dtype cache_type_k kv_cache
prompt             input_len input_length isl prompt_len prompt_tokens input_tokens random_input_len prefill_len
output             output_len output_length osl max_tokens max_new_tokens output_tokens random_output_len gen_len
                   n_predict
batch              batch_size max_batch_size bs num_prompts
max_seqs           max_num_seqs max_running_requests max_batch_size max_num_sequences
token_budget       max_num_batched_tokens chunked_prefill_size max_num_tokens max_prefill_tokens
memory_fraction    gpu_memory_utilization mem_fraction_static kv_cache_free_gpu_memory_fraction
chunked            enable_chunked_prefill enable_chunked_context
prefix_cache       enable_prefix_caching prefix_caching radix_cache enable_radix_cache
graphs             cuda_graph cuda_graphs enforce_eager use_cuda_graph disable_cuda_graph
concurrency        max_concurrency num_users users num_concurrent
rate               request_rate qps rps requests_per_second
requests           num_requests request_count
duration           time_limit
instances          replicas num_instances
draft_tokens       num_speculative_tokens speculative_num_draft_tokens num_draft_tokens
cpu                host_cpu host_processor processors
dram               host_memory host_mem host_dram
draft_model        speculative_model speculative_draft_model_path
full               sft finetune finetuning full_finetune full_finetuning fine_tune instruct dpo
lora               sft finetune finetuning fine_tune peft dora
qlora              sft peft
pretrain           pretraining pre_train train training pt cpt
adamw              adam adamw_torch fused_adam adam_w
fp16               float16 half fp16_mixed mixed
bf16               bfloat16 bf16_mixed mixed amp
fp32               float32 float full_precision single
tf32               tensorfloat32
fp8                float8 e4m3 fp8_e4m3 hybrid
flash              flash_attention_2 fa2 fa3 flash_attn sdpa
unfused            eager math
compiled           torch_compile inductor
graph              cuda_graph cuda_graphs
1f1b               one_f_one_b pipedream pipedream_flush
interleaved        interleaved_1f1b virtual_pipeline vpp
zb-v               zbv zero_bubble_v
zb-h1              zbh1 zero_bubble zero_bubble_h1
ring               ring_attention p2p
ulysses            a2a all_to_all deepspeed_ulysses
allgather          all_gather
none               disabled
"""
_ENDINGS = ("_size", "_degree")


def _read(table: str) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    here = ""
    for line in table.strip().splitlines():
        first, *others = line.split()
        here, others = (here, [first, *others]) if line.startswith(" ") else (first, others)
        for word in others:
            found[word] = (*found.get(word, ()), here)
    return found


_HERE = _read(_TABLE)


def called_here(word: str, known: Iterable[str]) -> tuple[str, ...]:
    """Which of the known words mean what other programs call `word`; none where no other program's is known.

    >>> called_here("tensor-parallel-size", ("tp", "pp"))
    ('tp',)
    """
    key = word.strip().casefold().lstrip("-").replace("-", "_").replace(" ", "_")
    for ending in ("", *_ENDINGS):
        meant = _HERE.get(key.removesuffix(ending), ())
        found = tuple(name for name in meant if name in set(known))
        if found:
            return found
    return ()
