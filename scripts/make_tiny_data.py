#!/usr/bin/env python3
"""Writes small random checkpoints of families into tests/data/e2e/tiny, with what transformers says of them in float32
(golden.json), and the same models as GGUF files into tests/data/e2e/tiny_gguf, with the names of the package gguf and
what llama.cpp's converter does to weights and metadata. Run by hand; needs torch, transformers and gguf.

    scripts/make_tiny_data.py [--families smollm3,olmo3]
"""

import argparse
import json
import pathlib
import random
import sys

import gguf
import numpy as np
import safetensors.numpy
import torch
import transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from compare_models import randomise  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "tests/data/e2e"
PROMPTS = (1, 5, 23, 60)  # lengths
ANSWER = 10
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2,
         "pad_token_id": 0}
WINDOWS = ["sliding_attention", "sliding_attention", "full_attention"]
ROUTED = {"moe_intermediate_size": 24, "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 1,
          "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "routed_scaling_factor": 1.5, "norm_topk_prob": True}
WHOLE_HEADS = {"head_dim": 8}  # hidden_size / num_attention_heads, as the class has no key for it
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
GROWING = {**YARN, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.5}  # queries do
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
THIRDS = {"hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}  # two ranks share a kv head
GEMMA4 = {"num_hidden_layers": 6, "head_dim": 8, "global_head_dim": 16, "sliding_window": 9, "layer_types": WINDOWS * 2,
          "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0}
DELTA_NETS = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
              "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
              "linear_conv_kernel_dim": 4, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}
MANY_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 16}
SHORT_CONVS = {**WHOLE_HEADS, "num_hidden_layers": 4, "layer_types": ["conv", "conv", "full_attention", "conv"], "rope_parameters": PLAIN}
FAMILIES = {
    "granitemoehybrid": {**WHOLE_HEADS, "intermediate_size": 24, "num_local_experts": 6, "num_experts_per_tok": 2,
                         "shared_intermediate_size": 20, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 12,
                         "mamba_n_groups": 1, "mamba_expand": 2, "embedding_multiplier": 6.0, "residual_multiplier": 0.5,
                         "attention_multiplier": 0.25, "logits_scaling": 4.0, "position_embedding_type": "nope",
                         "layer_types": ["linear_attention", "full_attention", "linear_attention"]},
    "bamba": {**WHOLE_HEADS, "num_hidden_layers": 4, "attn_layer_indices": [2], "mamba_n_heads": 4, "mamba_d_state": 12,
              "mamba_n_groups": 2, "mamba_expand": 2, "mamba_proj_bias": True, "rope_parameters": PLAIN},
    "falcon_h1": {**WHOLE_HEADS, "mamba_d_ssm": 48, "mamba_n_heads": 4, "mamba_d_state": 12, "mamba_n_groups": 2,
                  "mamba_rms_norm": True, "mamba_norm_before_gate": False, "embedding_multiplier": 4.0, "lm_head_multiplier": 0.5,
                  "key_multiplier": 0.4, "attention_in_multiplier": 1.25, "attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.5,
                  "ssm_out_multiplier": 0.5, "mlp_multipliers": [0.9, 0.6], "ssm_multipliers": [0.35, 0.5, 0.75, 0.5, 1.25],
                  "rope_parameters": PLAIN},
    "nemotron_h": {"layers_block_type": ["linear_attention", "mlp", "full_attention", "linear_attention", "moe"],
                   "mamba_num_heads": 4, "mamba_head_dim": 12, "n_groups": 2, "ssm_state_size": 12, "n_routed_experts": 6,
                   "num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 20, "n_group": 2,
                   "routed_scaling_factor": 1.5, "num_hidden_layers": None},
    "nemotron_h_narrow": {"hybrid_override_pattern": "ME*", "mamba_num_heads": 4, "mamba_head_dim": 8, "n_groups": 1,
                          "ssm_state_size": 12, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                          "moe_shared_expert_intermediate_size": 20, "moe_latent_size": 16, "mlp_bias": True, "use_bias": True,
                          "num_hidden_layers": None},
    "olmo_hybrid": {**{key: value for key, value in DELTA_NETS.items() if key != "rope_parameters"}, **WHOLE_HEADS,
                    "linear_num_key_heads": 4, "linear_value_head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": None}},
    # 58 stands for a feed-forward block of 40: two thirds, rounded up.
    "lfm2": {**SHORT_CONVS, "intermediate_size": 58, "block_multiple_of": 8},
    "lfm2_moe": {**SHORT_CONVS, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_dense_layers": 1},
    "qwen3_next": {**DELTA_NETS, **MANY_EXPERTS},
    "qwen3_5": {**DELTA_NETS, "vocab_size": 512},
    "qwen3_5_moe": {**DELTA_NETS, **MANY_EXPERTS},
    "gemma": {"hidden_act": "gelu_pytorch_tanh", "rope_parameters": PLAIN},
    # What Gemma 4's smaller, dense and sparse models have each.
    "gemma4": {**GEMMA4, "hidden_size": 64, "vocab_size": 512, "vocab_size_per_layer_input": 512,
               "num_key_value_heads": 1, "hidden_size_per_layer_input": 12, "num_kv_shared_layers": 3,
               "use_double_wide_mlp": True},
    "gemma4_dense": {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    "gemma4_moe": {**GEMMA4, "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 24},
    "olmo3": {**WHOLE_HEADS, "sliding_window": 9, "layer_types": WINDOWS, "num_key_value_heads": 4,
              "rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}},
    "olmoe": {**WHOLE_HEADS, "intermediate_size": 24, "num_experts": 6, "num_experts_per_tok": 2, "rope_parameters": PLAIN},
    "smollm3_thirds": {**THIRDS, "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "rope_parameters": PLAIN},
    "olmo3_thirds": {**THIRDS, "sliding_window": 9, "layer_types": WINDOWS, "rope_parameters": {"full_attention": YARN, "sliding_attention": PLAIN}},
    "falcon_thirds": {**THIRDS, "num_key_value_heads": None, "head_dim": None, "intermediate_size": None, "num_kv_heads": 3,
                      "new_decoder_architecture": True, "rope_parameters": PLAIN},
    "smollm3": {**WHOLE_HEADS, "num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "rope_parameters": PLAIN},
    "seed_oss": {"attention_bias": True, "attention_dropout": 0.0, "residual_dropout": 0.0, "rope_parameters": PLAIN},
    "ernie4_5": {"use_bias": False, "rope_parameters": PLAIN},
    "ernie4_5_moe": {**WHOLE_HEADS, "use_bias": False, "moe_intermediate_size": 24, "moe_num_experts": 6, "moe_k": 2,
                     "moe_num_shared_experts": 2, "rope_parameters": PLAIN},
    "exaone4": {**WHOLE_HEADS, "sliding_window": 9, "layer_types": WINDOWS, "rope_parameters": PLAIN},
    "exaone_moe": {**{key: value for key, value in ROUTED.items() if key not in ("n_routed_experts", "n_shared_experts")}, **WHOLE_HEADS,
                   "num_experts": 6, "num_shared_experts": 2, "sliding_window": 9, "layer_types": WINDOWS, "rope_parameters": PLAIN},
    "starcoder2": {**WHOLE_HEADS, "use_bias": True, "sliding_window": 9, "norm_epsilon": 1e-5, "rope_parameters": PLAIN},
    "stablelm": {**WHOLE_HEADS, "use_qkv_bias": True, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.25}},
    "stablelm_parallel": {**WHOLE_HEADS, "use_parallel_residual": True, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
    "phi": {**WHOLE_HEADS, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
    "cohere": {**WHOLE_HEADS, "logit_scale": 0.5, "rope_parameters": PLAIN},
    "cohere_plus": {**WHOLE_HEADS, "logit_scale": 0.5, "use_qk_norm": True, "rope_parameters": PLAIN},
    "stablelm_12b": {**WHOLE_HEADS, "use_parallel_residual": True, "qk_layernorm": True, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
    "hunyuan_v1_dense": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0}},
    "hunyuan_v1_moe": {"intermediate_size": 24, "num_experts": 6, "moe_topk": [2, 2, 2], "rope_parameters": PLAIN},
    # Queries of layers without positions grow from the 5th token on, where llama.cpp has a number that no file says.
    "llama4": {"num_hidden_layers": 4, "intermediate_size": 24, "intermediate_size_mlp": 40, "num_local_experts": 6,
               "interleave_moe_layer_step": 2, "attention_chunk_size": 128, "floor_scale": 5, "attn_scale": 0.5, "rope_parameters": PLAIN},
    "llama4_scout": {"num_hidden_layers": 4, "intermediate_size": 24, "intermediate_size_mlp": 40, "num_local_experts": 6, "rope_parameters": PLAIN},
    "apertus": {**WHOLE_HEADS, "dtype": "float32", "rope_parameters": PLAIN},
    "arcee": {**WHOLE_HEADS, "rope_parameters": PLAIN},
    "nemotron": {**WHOLE_HEADS, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
    "olmo": {**WHOLE_HEADS, "clip_qkv": 0.75, "rope_parameters": PLAIN},
    "gpt_neox": {"num_key_value_heads": None, "head_dim": None, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.25}},
    "gpt_neox_serial": {"num_key_value_heads": None, "head_dim": None, "use_parallel_residual": False,
                        "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
    "falcon": {"num_key_value_heads": None, "head_dim": None, "intermediate_size": None, "rope_parameters": PLAIN},
    "falcon_new": {"num_key_value_heads": None, "head_dim": None, "intermediate_size": None, "num_kv_heads": 2, "new_decoder_architecture": True, "rope_parameters": PLAIN},
    "gpt_bigcode": {"num_key_value_heads": None, "head_dim": None, "intermediate_size": None},
    "cohere2": {**WHOLE_HEADS, "sliding_window": 9, "layer_types": WINDOWS, "attention_bias": True, "logit_scale": 0.5,
                "rope_parameters": PLAIN},
    "ministral3": {"sliding_window": None, "rope_parameters": {**GROWING, "factor": 8.0}},
    "mistral4": {**{key: value for key, value in ROUTED.items() if key != "first_k_dense_replace"}, "num_key_value_heads": 4, "head_dim": None,
                 "q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10, "first_k_dense_replace": 1,
                 "rope_parameters": {**GROWING, "factor": 8.0}},
    "afmoe": {**WHOLE_HEADS, "num_hidden_layers": 4, "num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 1, "num_dense_layers": 1,
              "moe_intermediate_size": 24, "route_scale": 1.5, "sliding_window": 9, "mup_enabled": True, "rope_parameters": PLAIN},
    "ministral": {"sliding_window": 9, "layer_types": WINDOWS, "rope_parameters": PLAIN},
    "glm4_moe": {**ROUTED, "use_qk_norm": True, "attention_bias": True, "num_mtp_layers": 0,
                 "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
    "glm4_moe_lite": {**{key: value for key, value in ROUTED.items() if key != "first_k_dense_replace"}, "num_key_value_heads": 4,
                      "q_lora_rank": 12, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10,
                      "rope_parameters": PLAIN},
    "minimax_m2": {"intermediate_size": 24, "num_local_experts": 6, "num_experts_per_tok": 2,
                   "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}},
    "dots1": {**ROUTED, **WHOLE_HEADS, "sliding_window": None, "layer_types": ["full_attention"] * 3, "rope_parameters": PLAIN},
    "granitemoe": {**WHOLE_HEADS, "intermediate_size": 24, "num_local_experts": 6, "num_experts_per_tok": 2,
                   "embedding_multiplier": 6.0, "residual_multiplier": 0.5, "attention_multiplier": 0.25,
                   "logits_scaling": 4.0, "rope_parameters": PLAIN},
}
# Whose model_type is another.
GEMMA4S = {"gemma4", "gemma4_dense", "gemma4_moe"}
LFM2S = {"lfm2", "lfm2_moe"}
CLASSES = {"smollm3_thirds": "smollm3", "olmo3_thirds": "olmo3", "falcon_thirds": "falcon",
           "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
           "nemotron_h_narrow": "nemotron_h", "stablelm_parallel": "stablelm", "stablelm_12b": "stablelm", "cohere_plus": "cohere", "llama4": "llama4_text",
           "llama4_scout": "llama4_text", "gpt_neox_serial": "gpt_neox", "falcon_new": "falcon",
           "gemma4": "gemma4_text", "gemma4_dense": "gemma4_text", "gemma4_moe": "gemma4_text"}
# As llama.cpp calls them, and which of its converter's turns of queries and keys they have.
ARCHITECTURES = {"nemotron_h_narrow": "NEMOTRON_H_MOE", "gemma": "GEMMA", "gemma4": "GEMMA4", "gemma4_dense": "GEMMA4", "gemma4_moe": "GEMMA4",
                 "olmo3": "OLMO2", "olmoe": "OLMOE", "smollm3": "SMOLLM3", "seed_oss": "SEED_OSS",
                 "ernie4_5": "ERNIE4_5", "exaone4": "EXAONE4", "glm4_moe": "GLM4_MOE", "dots1": "DOTS1",
                 "ernie4_5_moe": "ERNIE4_5_MOE", "minimax_m2": "MINIMAXM2", "starcoder2": "STARCODER2", "stablelm": "STABLELM",
                 "stablelm_parallel": "STABLELM", "phi": "PHI2", "cohere": "COMMAND_R", "cohere2": "COHERE2",
                 "granitemoe": "GRANITE_MOE", "qwen3_next": "QWEN3NEXT", "qwen3_5": "QWEN35", "qwen3_5_moe": "QWEN35MOE",
                 "lfm2": "LFM2", "lfm2_moe": "LFM2MOE", "granitemoehybrid": "GRANITE_HYBRID", "falcon_h1": "FALCON_H1", "exaone_moe": "EXAONE_MOE", "ministral3": "MISTRAL3",
                 "mistral4": "MISTRAL4", "apertus": "APERTUS", "afmoe": "AFMOE",
                 "cohere_plus": "COMMAND_R", "stablelm_12b": "STABLELM", "hunyuan_v1_dense": "HUNYUAN_DENSE",
                 "hunyuan_v1_moe": "HUNYUAN_MOE", "llama4_scout": "LLAMA4", "arcee": "ARCEE", "nemotron": "NEMOTRON", "olmo": "OLMO",
                 "gpt_neox": "GPTNEOX", "gpt_neox_serial": "GPTNEOX", "falcon": "FALCON", "falcon_new": "FALCON", "gpt_bigcode": "STARCODER"}
HYBRIDS = {"qwen3_next", "qwen3_5", "qwen3_5_moe"}
TURNED = {"smollm3", "ministral3", "granitemoe", "granitemoehybrid", "arcee", "olmo"}
# Whose projections of queries, keys and values are one, each group's beside each other.
GROUPED = {"gpt_neox", "gpt_neox_serial", "falcon", "falcon_new"}


def make_checkpoint(family, folder):
    """Returns its configuration."""
    keywords = {key: value for key, value in {**SIZES, **FAMILIES[family]}.items() if value is not None}
    config = transformers.AutoConfig.for_model(CLASSES.get(family, family), **keywords)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    randomise(model, random.Random(family))
    model.save_pretrained(folder)
    return config


def golden(folder, rng, vocab_size):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32).eval()

    def logits_of(tokens):
        with torch.no_grad():
            return model(torch.tensor([tokens]), use_cache=False).logits[0].double()

    cases = []
    for length in PROMPTS:
        prompt = [rng.randrange(3, vocab_size) for _ in range(length)]
        logits = logits_of(prompt)
        logprobs = torch.log_softmax(logits, -1)
        case = {"prompt": prompt, "last_logits": [round(x, 7) for x in logits[-1].tolist()],
                "logprob_of_prompt": [logprobs[i, token].item() for i, token in enumerate(prompt[1:])], "greedy": [],
                "greedy_margin": []}
        while len(case["greedy"]) < ANSWER:
            best = torch.topk(logits_of(prompt + case["greedy"])[-1], 2)
            case["greedy"].append(best.indices[0].item())
            case["greedy_margin"].append((best.values[0] - best.values[1]).item())
        cases.append(case)
    return {"reference": f"transformers {transformers.__version__}", "cases": cases}


def metadata(writer, config, family):
    config.allow_global_per_layer_attribute_access = True  # where layers differ: those of layers with a window
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rotation = getattr(config, "rope_parameters", None) or PLAIN
    full = rotation.get("full_attention", rotation)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    if family == "llama4_scout":
        writer.add_feed_forward_length(config.intermediate_size_mlp)
    elif hasattr(config, "intermediate_size"):
        writer.add_feed_forward_length(config.intermediate_size)
    else:
        writer.add_feed_forward_length(4 * config.hidden_size)
    writer.add_head_count(config.num_attention_heads)
    if family == "falcon":
        writer.add_head_count_kv(1)
    else:
        writer.add_head_count_kv(getattr(config, "num_key_value_heads", None) or getattr(config, "num_kv_heads", config.num_attention_heads))
    if family in ("olmo", "nemotron"):
        writer.add_layer_norm_eps(1e-5)
    elif hasattr(config, "rms_norm_eps") or hasattr(config, "norm_eps"):
        writer.add_layer_norm_rms_eps(getattr(config, "rms_norm_eps", None) or config.norm_eps)
    else:
        writer.add_layer_norm_eps(next(getattr(config, key) for key in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
                                       if hasattr(config, key)))
    if hasattr(config, "logit_scale"):
        writer.add_logit_scale(config.logit_scale)
    if hasattr(config, "use_parallel_residual"):
        writer.add_parallel_residual(config.use_parallel_residual)
    writer.add_vocab_size(config.vocab_size)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_freq_base(full["rope_theta"])
    writer.add_rope_dimension_count(int(head * full.get("partial_rotary_factor", 1)))
    if full["rope_type"] == "dynamic":  # the converter works the base frequency out
        writer.add_rope_freq_base(full["rope_theta"] * full["alpha"] ** (head / (head - 2)))
    if family == "olmo":
        writer.add_clamp_kqv(config.clip_qkv)
    if family == "hunyuan_v1_moe":
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.moe_topk[0])
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.intermediate_size)
        writer.add_expert_shared_count(1)
    if family == "llama4_scout":
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_interleave_moe_layer_step(config.interleave_moe_layer_step)
    if full["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(full["factor"])
        writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
    if family in ("olmo3", "exaone4", "exaone_moe", "afmoe", "starcoder2", "cohere2"):
        writer.add_sliding_window(config.sliding_window)
    if family in ("olmo3", "exaone4", "exaone_moe", "cohere2"):
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
    experts = {"olmoe": "num_experts", "ernie4_5_moe": "num_experts", "granitemoe": "num_local_experts", "granitemoehybrid": "num_local_experts",
               "minimax_m2": "num_local_experts", "lfm2_moe": "num_experts", "exaone_moe": "num_experts", "afmoe": "num_experts"}.get(family, "n_routed_experts")
    if hasattr(config, experts):
        writer.add_expert_count(getattr(config, experts))
        writer.add_expert_used_count(config.num_experts_per_tok)
    if family in ("ministral3", "mistral4"):
        writer.add_attn_temperature_scale(full["llama_4_scaling_beta"])
    if family == "afmoe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_count(config.num_shared_experts)
        writer.add_expert_weights_scale(config.route_scale)
        writer.add_expert_weights_norm(True)
        writer.add_leading_dense_block_count(config.num_dense_layers)
    if family == "mistral4":
        writer.add_value_length(config.v_head_dim)
        writer.add_rope_dimension_count(config.qk_rope_head_dim)
        writer.add_kv_lora_rank(config.kv_lora_rank)
        writer.add_q_lora_rank(config.q_lora_rank)
    if family in ("glm4_moe", "dots1", "exaone_moe", "mistral4"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_count(config.num_shared_experts if family == "exaone_moe" else config.n_shared_experts)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    if family == "ernie4_5_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_count(config.moe_num_shared_experts)
        writer.add_leading_dense_block_count(config.moe_layer_start_index)
        writer.add_interleave_moe_layer_step(config.moe_layer_interval)
    if family in GEMMA4S:
        gemma4_metadata(writer, config)
    if family in HYBRIDS:
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_inner_size(config.linear_value_head_dim * config.linear_num_value_heads)
        writer.add_full_attention_interval(config.layer_types.index("full_attention") + 1)
    if family in HYBRIDS and hasattr(config, "num_experts"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if family == "minimax_m2":
        writer.add_expert_feed_forward_length(config.intermediate_size)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if family in LFM2S:
        lfm2_metadata(writer, config)
    if family == "granitemoehybrid":
        writer.add_expert_shared_feed_forward_length(config.shared_intermediate_size)
        writer.add_ssm_conv_kernel(config.mamba_d_conv)
        writer.add_ssm_state_size(config.mamba_d_state)
        writer.add_ssm_group_count(config.mamba_n_groups)
        writer.add_ssm_inner_size(config.mamba_expand * config.hidden_size)
        writer.add_ssm_time_step_rank(config.mamba_n_heads)
        writer.add_head_count_kv([config.num_key_value_heads * (kind == "full_attention") for kind in config.layer_types])
        writer.add_rope_scaling_finetuned(config.position_embedding_type == "rope")
    if family == "nemotron_h_narrow":
        nemotron_metadata(writer, config)
    if family == "falcon_h1":
        writer.add_ssm_conv_kernel(config.mamba_d_conv)
        writer.add_ssm_state_size(config.mamba_d_state)
        writer.add_ssm_group_count(config.mamba_n_groups)
        writer.add_ssm_inner_size(config.mamba_d_ssm)
        writer.add_ssm_time_step_rank(config.mamba_n_heads)
    if family in ("granitemoe", "granitemoehybrid"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)


def lfm2_metadata(writer, config):
    writer.add_head_count_kv([0 if kind == "conv" else config.num_key_value_heads for kind in config.layer_types])
    writer.add_shortconv_l_cache(config.conv_L_cache)
    if hasattr(config, "num_experts"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_leading_dense_block_count(config.num_dense_layers)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    else:
        writer.add_feed_forward_length(config.block_multiple_of * -(-int(2 * config.intermediate_size / 3) // config.block_multiple_of))


def gemma4_metadata(writer, config):
    windows = [kind == "sliding_attention" for kind in config.layer_types]
    full = config.per_layer_config[windows.index(False)]
    writer.add_shared_kv_layers(config.num_kv_shared_layers)
    writer.add_embedding_length_per_layer_input(config.hidden_size_per_layer_input)
    writer.add_sliding_window(config.sliding_window)
    writer.add_sliding_window_pattern(windows)
    writer.add_key_length(full.head_dim)
    writer.add_value_length(full.head_dim)
    writer.add_key_length_swa(config.head_dim)
    writer.add_value_length_swa(config.head_dim)
    writer.add_rope_dimension_count(full.head_dim)
    writer.add_rope_dimension_count_swa(config.head_dim)
    writer.add_rope_freq_base_swa(config.rope_parameters["sliding_attention"]["rope_theta"])
    writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if full.num_key_value_heads != config.num_key_value_heads:
        writer.add_head_count_kv([config.num_key_value_heads if window else full.num_key_value_heads for window in windows])
    if config.use_double_wide_mlp:
        first = config.num_hidden_layers - config.num_kv_shared_layers
        writer.add_feed_forward_length([config.intermediate_size * (1 + (layer >= first)) for layer in range(config.num_hidden_layers)])
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)


def gemma4_tensors(tensors, config):
    """Those that are called by whole names; the others are left, as the package's map knows them."""
    head = config.per_layer_config[config.layer_types.index("full_attention")].head_dim
    turning = int(head * config.rope_parameters["full_attention"]["partial_rotary_factor"] / 2)
    own = {"rope_freqs.weight": np.array([1.0] * turning + [1e30] * (head // 2 - turning), dtype=np.float32)}
    for name in list(tensors):
        for end, stored in (("router.scale", "ffn_gate_inp.scale"), ("router.per_expert_scale", "ffn_down_exps.scale"),
                            ("layer_scalar", "layer_output_scale.weight"), ("experts.gate_up_proj", "ffn_gate_up_exps.weight"),
                            ("experts.down_proj", "ffn_down_exps.weight")):
            if name.endswith("." + end):
                own[f"blk.{name.split('.')[2]}.{stored}"] = tensors.pop(name)
    return own


def in_turns(values, config, axis, head):
    """Value heads of one key head, which are neighbours, come to lie as far apart as there are key heads."""
    keys, each = config.linear_num_key_heads, config.linear_num_value_heads // config.linear_num_key_heads
    shape = values.shape
    split = values.reshape(*shape[:axis], keys, each, head, *shape[axis + 1:])
    return split.swapaxes(axis, axis + 1).reshape(shape)


def hybrid_tensors(tensors, config, family):
    """What the converter makes of gated delta nets and of norms, by the checkpoint's names."""
    keys = config.linear_num_key_heads * config.linear_key_head_dim
    value = config.linear_value_head_dim
    moves = family != "qwen3_next"
    out = {}
    for name, values in tensors.items():
        stem = name.split("linear_attn.")[-1]
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            values = values + 1
        elif stem == "A_log":
            values = -np.exp(values)
        elif stem == "conv1d.weight":
            values = values[:, 0]
        elif stem == "in_proj_qkvz.weight":
            each = config.linear_num_value_heads // config.linear_num_key_heads * value
            heads = values.reshape(config.linear_num_key_heads, -1, values.shape[1])
            cuts = np.cumsum([config.linear_key_head_dim, config.linear_key_head_dim, each])
            q, k, v, z = (part.reshape(-1, values.shape[1]) for part in np.split(heads, cuts, axis=1))
            out[name.replace("in_proj_qkvz", "in_proj_z")] = z
            name, values = name.replace("in_proj_qkvz", "in_proj_qkv"), np.concatenate([q, k, v])
        if moves and stem in ("in_proj_qkv.weight", "conv1d.weight"):
            values = np.concatenate([values[:2 * keys], in_turns(values[2 * keys:], config, 0, value)])
        elif moves and stem == "in_proj_z.weight":
            values = in_turns(values, config, 0, value)
        elif moves and stem in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
            values = in_turns(values, config, 0, 1)
        elif moves and stem == "out_proj.weight":
            values = in_turns(values, config, 1, value)
        out[name.replace("dt_bias", "dt_proj.bias")] = values
    return out


def nemotron_metadata(writer, config):
    """Layers are told apart by what they have none of."""
    kinds = config.layers_block_type
    writer.add_head_count_kv([config.num_key_value_heads * (kind == "full_attention") for kind in kinds])
    writer.add_feed_forward_length([config.moe_intermediate_size * (kind == "moe") for kind in kinds])
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_expert_shared_feed_forward_length(config.moe_shared_expert_intermediate_size)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    writer.add_expert_group_count(config.n_group)
    writer.add_moe_latent_size(config.moe_latent_size)
    writer.add_ssm_conv_kernel(config.conv_kernel)
    writer.add_ssm_state_size(config.ssm_state_size)
    writer.add_ssm_group_count(config.n_groups)
    writer.add_ssm_inner_size(config.mamba_num_heads * config.mamba_head_dim)
    writer.add_ssm_time_step_rank(config.mamba_num_heads)


def nemotron_tensors(tensors, config):
    """The layers of Mamba as the converter makes them, by the names that the package knows."""
    out = {}
    for name, values in tensors.items():
        stem = name.split("mixer.")[-1]
        if stem == "conv1d.weight":
            values = values[:, 0]
        elif stem in ("A_log", "D"):
            values = (-np.exp(values) if stem == "A_log" else values)[:, None]
        elif stem == "norm.weight" and "mixer." in name:
            values = values.reshape(config.n_groups, -1)
        out[name.replace("model.", "backbone.", 1).replace("mixer.dt_bias", "mixer.dt_proj.bias")] = values
    return out


def mamba_tensors(tensors, config):
    """What the converter makes of layers of Mamba and of the block beside experts, by the checkpoint's names."""
    out = {}
    for name, values in tensors.items():
        stem = name.split(".", 3)[-1]
        if stem == "mamba.conv1d.weight":
            values = values[:, 0]
        elif stem in ("mamba.A_log", "mamba.D"):
            values = (-np.exp(values) if stem == "mamba.A_log" else values)[:, None]
        elif stem == "mamba.norm.weight":
            values = values.reshape(config.mamba_n_groups, -1)
        elif stem == "shared_mlp.input_linear.weight":
            for part, other in zip(np.split(values, 2), ("gate", "up")):
                out[name.replace("shared_mlp.input_linear", f"mlp.shared_expert.{other}_proj")] = part
            continue
        out[name.replace("mamba.dt_bias", "mamba.dt_proj.bias")] = values
    return out


def falcon_multiplier(name, config):
    """What the converter multiplies a tensor of Falcon-H1 by."""
    gate, down = config.mlp_multipliers
    if name.endswith("mamba.in_proj.weight"):
        keys = config.mamba_n_groups * config.mamba_d_state
        sizes = (config.mamba_d_ssm, config.mamba_d_ssm, keys, keys, config.mamba_n_heads)
        return config.ssm_in_multiplier * np.repeat(config.ssm_multipliers, sizes)[:, None]
    for part, factor in (("down_proj", down), ("gate_proj", gate), ("k_proj", config.key_multiplier * config.attention_in_multiplier),
                         ("q_proj", config.attention_in_multiplier), ("v_proj", config.attention_in_multiplier),
                         ("o_proj", config.attention_out_multiplier), ("out_proj", config.ssm_out_multiplier),
                         ("lm_head", config.lm_head_multiplier), ("embed_tokens", config.embedding_multiplier)):
        if f".{part}." in f".{name}":
            return factor
    return 1.0


def turned(matrix, heads):
    """Pairs that rotate together become neighbours."""
    return matrix.reshape(heads, 2, matrix.shape[0] // heads // 2, *matrix.shape[1:]).swapaxes(1, 2).reshape(matrix.shape)


def parted(values, config):
    """Groups of heads that share keys, each with its queries, its key and its value: all queries, all keys, all values."""
    size = config.hidden_size // config.num_attention_heads
    kv_heads = values.shape[0] // size - config.num_attention_heads
    groups = values.reshape(kv_heads // 2, -1, size, *values.shape[1:])
    return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])])


def experts_apart(tensors):
    """Llama 4's stacks, whose matrices lie the other way round, gate and up in one."""
    out = {}
    for name, values in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for part, other in zip(np.split(values.swapaxes(1, 2), 2, axis=1), ("gate", "up")):
                out[name.replace("gate_up_proj", f"{other}_proj.weight")] = part
        elif name.endswith("experts.down_proj"):
            out[name + ".weight"] = values.swapaxes(1, 2)
        else:
            out[name] = values
    return out


def norms_together(tensors):
    """StableLM's norms of each head, as one tensor."""
    out, norms = {}, {}
    for name, values in tensors.items():
        if ".norms." in name:
            stem, head = name.removesuffix(".weight").split(".norms.")
            norms.setdefault(stem + ".weight", {})[int(head)] = values
        else:
            out[name] = values
    return out | {name: np.stack([heads[i] for i in range(len(heads))]) for name, heads in norms.items()}


def converted(tensors, config, family):
    """The converter's tensors by the checkpoint's names, experts in stacks."""
    out, stacks = {}, {}
    if family in HYBRIDS:
        tensors = hybrid_tensors(tensors, config, family)
    if family in ("granitemoehybrid", "falcon_h1"):
        tensors = mamba_tensors(tensors, config)
    if family == "nemotron_h_narrow":
        tensors = nemotron_tensors(tensors, config)
    if family == "falcon_h1":
        tensors = {name: values * falcon_multiplier(name, config) for name, values in tensors.items()}
    if family == "llama4_scout":
        tensors = experts_apart(tensors)
    tensors = norms_together(tensors)
    for name, values in tensors.items():
        if family in ("gemma", "nemotron") and name.endswith("norm.weight"):
            values = values + 1
        if family in GROUPED and ".query_key_value." in name:
            values = parted(values, config)
        if family in TURNED and ".q_proj." in name:
            values = turned(values, config.num_attention_heads)
        if family in TURNED and ".k_proj." in name:
            values = turned(values, config.num_key_value_heads)
        if name.endswith("conv.conv.weight"):
            values = values.squeeze(1)
        if family == "mistral4" and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            name += ".weight"
        parts = name.split(".")
        if "act_fn" in parts:  # numbers of the metadata
            continue
        if "experts" in parts and parts[parts.index("experts") + 1].isdigit():
            at = parts.index("experts")
            stacks.setdefault(".".join(parts[:at + 1] + parts[at + 2:]), {})[int(parts[at + 1])] = values
        elif name.endswith("block_sparse_moe.input_linear.weight"):
            for part, stem in zip(np.split(values, 2, axis=1), ("gate", "up")):
                out[name.replace("input_linear", f"experts.{stem}_proj")] = part
        else:
            out[name.replace("e_score_correction_bias", "e_score_correction.bias").replace("expert_bias", "expert_bias.bias")] = values
    return out | {name: np.stack([parts[e] for e in range(len(parts))]) for name, parts in stacks.items()}


def write_gguf(path, folder, config, family):
    architecture = gguf.MODEL_ARCH[ARCHITECTURES[family]]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    metadata(writer, config, family)
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    if family == "apertus":
        for key, add in (("alpha_p", writer.add_xielu_alpha_p), ("alpha_n", writer.add_xielu_alpha_n), ("beta", writer.add_xielu_beta),
                         ("eps", writer.add_xielu_eps)):
            add([float(tensors[f"model.layers.{layer}.mlp.act_fn.{key}"].item()) for layer in range(config.num_hidden_layers)])
    for name, values in (gemma4_tensors(tensors, config) if family in GEMMA4S else {}).items():
        writer.add_tensor(name, np.ascontiguousarray(values, dtype=np.float32))
    for name, values in converted(tensors, config, family).items():
        stem = name.replace("block_sparse_moe.experts.gate_proj", "mlp.experts.gate_proj").replace(
            "block_sparse_moe.experts.up_proj", "mlp.experts.up_proj")
        if family == "lfm2_moe":  # the converter's names of the stacks
            stem = stem.removeprefix("model.") if ".experts." in stem else stem
        if family == "nemotron_h_narrow" and ".experts." in stem:
            stem = stem.replace("backbone.", "model.").replace(".mixer.", ".mlp.")
        stored = names.get_name(stem, try_suffixes=(".weight", ".bias"))
        if stored is None:
            raise SystemExit(f"{family}: the package gguf has no name for {name}")
        writer.add_tensor(stored, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(FAMILIES))
    for family in parser.parse_args().families.split(","):
        folder = DATA / "tiny" / family
        config = make_checkpoint(family, folder)
        found = golden(folder, random.Random(family), config.vocab_size)
        (folder / "golden.json").write_text(json.dumps(found) + "\n")
        if family in ARCHITECTURES:
            write_gguf(DATA / "tiny_gguf" / f"{family}.gguf", folder, config, family)


if __name__ == "__main__":
    main()
