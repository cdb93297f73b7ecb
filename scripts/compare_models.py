#!/usr/bin/env python3
"""Random small models of every family under quire and under Hugging Face's transformers: the log-probability of each
token of a few prompts, with the weights and the arithmetic of both in float32. Run by hand; needs torch, transformers
and a release build.

    scripts/compare_models.py [--seed 1] [--count 360] [--families llama,gemma2] [--legacy] [--more=FLAGS] [--keep DIR]

A model's shape, rotation, windows, biases, activation and whatever else its family's configuration may say are drawn at
random; weights are normal, norms and biases too. `--legacy` rewrites config.json as transformers 4 spelled it
(rope_theta, rope_scaling, no layer_types), which the reference reads back as well. A log-probability may differ by 1e-3
and by eight times what the reference differs from itself in float64 at most: some random models magnify every rounding.
Printed: what differs, what quire refuses with its reason, and a table by family. Exit code 1 where something differs.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch  # noqa: E402
import transformers  # noqa: E402

# Which the automatic class does not know.
transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["mistral4"] = "Mistral4ForCausalLM"
ROOT = pathlib.Path(__file__).resolve().parent.parent
LENGTHS = (3, 20, 90, 150)  # of the prompts
POSITIONS = 512
TOLERANCE = 1e-3


class Families:
    """A method a family: its configuration as keywords."""

    def __init__(self, rng):
        self.rng = rng

    def one(self, *values):
        return self.rng.choice(values)

    def up_to(self, most, least=0):
        return self.rng.randint(least, most)

    def maybe(self, probability, **values):
        return values if self.rng.random() < probability else {}

    def rotation(self, kinds=("default", "default", "linear", "llama3", "yarn", "dynamic"), partial=None, dimension=0):
        kind = self.one(*kinds)
        found = {"rope_type": kind, "rope_theta": self.one(1000.0, 10000.0, 500000.0, 1e6)}
        if kind in ("linear", "dynamic"):
            found |= {"factor": self.one(1.5, 2.0, 4.0)}
        elif kind == "llama3":
            found |= {"factor": self.one(4.0, 8.0), "low_freq_factor": self.one(1.0, 2.0),
                      "high_freq_factor": self.one(4.0, 8.0),
                      "original_max_position_embeddings": self.one(64, 128, 8192)}
        elif kind == "yarn":
            found |= {"factor": self.one(1.0, 2.0, 8.0), "original_max_position_embeddings": self.one(64, 128)}
            found |= self.maybe(0.4, beta_fast=self.one(16.0, 32.0), beta_slow=self.one(1.0, 2.0))
            found |= self.maybe(0.3, attention_factor=self.one(1.0, 1.2))
            found |= self.maybe(0.3, mscale=self.one(0.707, 1.0), mscale_all_dim=self.one(0.5, 0.707, 1.0))
            found |= self.maybe(0.3, truncate=self.one(True, False))
        elif kind == "longrope":
            half = dimension // 2
            found |= {"short_factor": [round(1 + self.rng.random(), 3) for _ in range(half)],
                      "long_factor": [round(1 + 4 * self.rng.random(), 3) for _ in range(half)],
                      "original_max_position_embeddings": self.one(32, 64, POSITIONS)}
            found |= self.maybe(0.4, factor=self.one(4.0, 8.0))
            found |= self.maybe(0.3, attention_factor=self.one(1.0, 1.3))
        if partial is not None:
            found["partial_rotary_factor"] = partial
        return found

    def decoder(self, own_head_size=True, **more):
        kv_heads = self.one(1, 2, 3, 4)
        heads = kv_heads * self.one(1, 2, 3)
        hidden = heads * self.one(8, 16, 32)
        found = {"vocab_size": self.one(97, 512, 1000), "hidden_size": hidden,
                 "intermediate_size": self.one(32, 33, 50, 96, 128), "num_hidden_layers": self.up_to(4, 1),
                 "num_attention_heads": heads, "num_key_value_heads": kv_heads, "rms_norm_eps": self.one(1e-6, 1e-5, 1e-3),
                 "tie_word_embeddings": self.one(True, False), "rope_parameters": self.rotation(),
                 "hidden_act": self.one("silu", "silu", "silu", "gelu", "gelu_pytorch_tanh", "relu", "gelu_new")}
        if own_head_size:
            found["head_dim"] = self.one(8, 10, 16, 20, 24, 32, 64, 80, 128, 160, 256)
        return found | more

    def layer_types(self, layers):
        return [self.one("sliding_attention", "full_attention") for _ in range(layers)]

    def llama(self):
        return self.decoder(attention_bias=self.one(True, False), mlp_bias=self.one(True, False))

    def mistral(self):
        return self.decoder(sliding_window=self.one(None, 4, 16, 33))

    def mixtral(self):
        return self.decoder(hidden_act="silu", intermediate_size=self.one(32, 96), sliding_window=self.one(None, 16),
                            num_local_experts=self.one(2, 4, 5), num_experts_per_tok=self.one(1, 2))

    def qwen_windows(self, found):
        return found | {"use_sliding_window": self.one(True, False), "sliding_window": self.one(8, 32),
                        "max_window_layers": self.up_to(found["num_hidden_layers"])}

    def qwen2(self):
        return self.qwen_windows(self.decoder(own_head_size=self.one(True, False)))

    def qwen3(self):
        return self.qwen_windows(self.decoder(attention_bias=self.one(True, False)))

    def qwen_experts(self, found):
        experts = self.one(2, 4, 6)
        layers = range(found["num_hidden_layers"])
        return self.qwen_windows(found) | {
            "num_experts": experts, "num_experts_per_tok": self.up_to(experts, 1), "moe_intermediate_size": self.one(32, 48),
            "norm_topk_prob": self.one(True, False), "decoder_sparse_step": self.one(1, 2),
            "mlp_only_layers": [layer for layer in layers if self.rng.random() < 0.2]}

    def qwen2_moe(self):
        return self.qwen_experts(self.decoder(own_head_size=False)) | {
            "shared_expert_intermediate_size": self.one(32, 64), "qkv_bias": self.one(True, False)}

    def qwen3_moe(self):
        return self.qwen_experts(self.decoder(attention_bias=self.one(True, False)))

    def with_delta_nets(self):
        found = self.decoder(hidden_act="silu", attention_bias=self.one(True, False))
        heads = self.one(1, 2, 3)
        found |= {"linear_num_key_heads": heads, "linear_num_value_heads": heads * self.one(1, 2, 3),
                  "linear_key_head_dim": self.one(8, 12, 16, 33, 64, 128, 192), "linear_value_head_dim": self.one(8, 12, 20, 64, 128, 160),
                  "linear_conv_kernel_dim": self.one(2, 3, 4, 4, 4, 6),
                  "rope_parameters": self.rotation(("default", "linear", "yarn"), self.one(0.25, 0.5, 1.0))}
        if found["head_dim"] < 16:
            found["head_dim"] = 16
        layers = self.up_to(5, 1)
        kinds = [self.one("linear_attention", "linear_attention", "full_attention") for _ in range(layers)]
        return found | {"num_hidden_layers": layers, "layer_types": kinds}

    def with_many_experts(self, found):
        experts = self.one(2, 4, 6)
        return found | {"num_experts": experts, "num_experts_per_tok": self.up_to(experts, 1),
                        "moe_intermediate_size": self.one(32, 48), "shared_expert_intermediate_size": self.one(32, 64)}

    def qwen3_next(self):
        found = self.with_many_experts(self.with_delta_nets())
        return found | {"norm_topk_prob": self.one(True, False), "decoder_sparse_step": self.one(1, 1, 2),
                        "mlp_only_layers": [layer for layer in range(found["num_hidden_layers"]) if self.rng.random() < 0.2]}

    def qwen3_5_text(self):
        return self.with_delta_nets()

    def qwen3_5_moe_text(self):
        return self.with_many_experts(self.with_delta_nets())

    def lfm2(self):
        found = self.decoder(own_head_size=self.one(True, False, False))
        for key in ("hidden_act", "rms_norm_eps"):
            del found[key]
        layers = self.up_to(6, 1)
        found |= {"num_hidden_layers": layers, "norm_eps": self.one(1e-6, 1e-5, 1e-3), "conv_bias": self.one(True, False),
                  "conv_L_cache": self.one(2, 3, 3, 3, 4, 8), "block_auto_adjust_ff_dim": self.one(True, False),
                  "block_ffn_dim_multiplier": self.one(1.0, 1.3, None), "block_multiple_of": self.one(16, 24, 256)}
        if self.one(True, False):
            return found | {"layer_types": [self.one("conv", "conv", "full_attention") for _ in range(layers)]}
        return found | self.maybe(0.7, full_attn_idxs=[layer for layer in range(layers) if self.rng.random() < 0.4])

    def lfm2_moe(self):
        found = {key: value for key, value in self.lfm2().items() if not key.startswith(("block_", "full_"))}
        layers, experts = found["num_hidden_layers"], self.one(2, 4, 6)
        return {"layer_types": [self.one("conv", "conv", "full_attention") for _ in range(layers)]} | found | {
            "num_dense_layers": self.up_to(layers), "num_experts": experts, "num_experts_per_tok": self.up_to(experts, 1),
            "moe_intermediate_size": self.one(32, 48), "norm_topk_prob": self.one(True, False),
            "use_expert_bias": self.one(True, False), "routed_scaling_factor": self.one(1.0, 2.5)}

    def deepseek(self):
        found = self.decoder(own_head_size=False)
        groups = self.one(1, 2, 4)
        experts = groups * self.one(2, 4)
        kept = self.up_to(groups, 1)
        return found | {
            "num_key_value_heads": found["num_attention_heads"], "qk_nope_head_dim": self.one(8, 16, 24),
            "qk_rope_head_dim": self.one(4, 8, 16), "v_head_dim": self.one(8, 16, 32), "kv_lora_rank": self.one(8, 16, 32),
            "q_lora_rank": self.one(None, 16, 24), "n_routed_experts": experts, "n_shared_experts": self.one(1, 2),
            "first_k_dense_replace": self.up_to(found["num_hidden_layers"]), "moe_intermediate_size": self.one(16, 32),
            "n_group": groups, "topk_group": kept, "num_experts_per_tok": self.up_to(min(kept * experts // groups, 4), 1),
            "routed_scaling_factor": self.one(0.7, 1.0, 2.5), "attention_bias": self.one(True, False)}

    def deepseek_v2(self):
        return self.deepseek() | {"topk_method": self.one("greedy", "group_limited_greedy"),
                                  "norm_topk_prob": self.one(False, False, True)}

    def deepseek_v3(self):
        return self.deepseek() | {"norm_topk_prob": self.one(True, False), "rope_interleave": self.one(True, True, False)}

    def opt(self):
        heads = self.one(1, 2, 4)
        hidden = heads * self.one(8, 16)
        return {"vocab_size": self.one(97, 512), "hidden_size": hidden, "ffn_dim": self.one(64, 100),
                "num_hidden_layers": self.up_to(3, 1), "num_attention_heads": heads,
                "do_layer_norm_before": self.one(True, False), "enable_bias": self.one(True, False),
                "activation_function": self.one("relu", "gelu", "silu"),
                "word_embed_proj_dim": self.one(hidden, hidden, hidden // 2),
                "layer_norm_elementwise_affine": self.one(True, True, False),
                "_remove_final_layer_norm": self.one(False, False, True), "tie_word_embeddings": self.one(True, False)}

    def gpt2(self):
        heads = self.one(1, 2, 3, 4)
        return {"vocab_size": self.one(97, 512), "n_embd": heads * self.one(8, 16), "n_layer": self.up_to(3, 1),
                "n_head": heads, "n_positions": POSITIONS, "n_inner": self.one(None, 64, 100),
                "activation_function": self.one("gelu_new", "relu", "gelu", "silu", "tanh"),
                "scale_attn_weights": self.one(True, True, False),
                "scale_attn_by_inverse_layer_idx": self.one(True, False),
                "reorder_and_upcast_attn": self.one(True, False), "tie_word_embeddings": self.one(True, False),
                "layer_norm_epsilon": self.one(1e-5, 1e-3)}

    def gemma(self):
        found = self.decoder(attention_bias=self.one(True, False))
        return found | {"hidden_act": self.one("gelu_pytorch_tanh", "silu", "relu"), "hidden_activation": None}

    def with_gemmas_windows(self, **more):
        found = self.decoder(attention_bias=self.one(True, False), query_pre_attn_scalar=self.one(16, 24, 64),
                             sliding_window=self.one(8, 16, 33), **more)
        del found["hidden_act"]
        return found | {"layer_types": self.layer_types(found["num_hidden_layers"])}

    def gemma2(self):
        return self.with_gemmas_windows(hidden_activation=self.one("gelu_pytorch_tanh", "gelu", "silu"),
                          final_logit_softcapping=self.one(None, 10.0, 30.0),
                          attn_logit_softcapping=self.one(None, 5.0, 50.0))

    def gemma3_text(self):
        rotations = {"full_attention": self.rotation(("default", "linear", "yarn", "llama3")),
                     "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
        return self.with_gemmas_windows(hidden_activation=self.one("gelu_pytorch_tanh", "gelu"),
                          final_logit_softcapping=self.one(None, 30.0)) | {"rope_parameters": rotations}

    def gemma4_text(self):
        found = self.decoder(hidden_activation=self.one("gelu_pytorch_tanh", "gelu"), attention_bias=self.one(True, False),
                             sliding_window=self.one(8, 16, 33), final_logit_softcapping=self.one(None, 30.0))
        heads, kv_heads = found["num_attention_heads"], found["num_key_value_heads"]
        del found["hidden_act"]
        # Layers that share a cache need one of their kind before them.
        layers = self.up_to(7, 3)
        kinds = ["sliding_attention", "full_attention"] + self.layer_types(layers - 2)
        found |= {"num_hidden_layers": layers, "layer_types": kinds[:-1] + ["full_attention"],
                  "global_head_dim": self.one(16, 24, 64, 256), "attention_k_eq_v": self.one(True, False),
                  "num_kv_shared_layers": self.up_to(layers - 2), "use_double_wide_mlp": self.one(True, False),
                  "hidden_size_per_layer_input": self.one(0, 8, 20), "vocab_size_per_layer_input": found["vocab_size"],
                  "rope_parameters": {"sliding_attention": self.rotation(("default", "linear")),
                                      "full_attention": {"rope_type": "proportional", "rope_theta": self.one(1e4, 1e6),
                                                         "partial_rotary_factor": self.one(0.25, 0.5, 1.0)}}}
        found |= self.maybe(0.5, num_global_key_value_heads=self.one(*(n for n in (1, kv_heads, heads) if heads % n == 0)))
        experts = self.one(2, 4, 5)
        return found | self.maybe(0.4, enable_moe_block=True, num_experts=experts, top_k_experts=self.up_to(experts, 1),
                                  moe_intermediate_size=self.one(16, 33))

    def phi3(self):
        found = self.decoder(own_head_size=False, sliding_window=self.one(None, 16))
        partial = self.one(0.5, 0.75, 1.0, 1.0)
        size = found["hidden_size"] // found["num_attention_heads"]
        rotation = self.rotation(("default", "longrope", "longrope"), partial, int(size * partial))
        return found | {"rope_parameters": rotation, "partial_rotary_factor": partial,
                        "original_max_position_embeddings": rotation.get("original_max_position_embeddings", POSITIONS)}

    def olmo2(self):
        return self.decoder(own_head_size=False, attention_bias=self.one(True, False))

    def olmo3(self):
        rotations = {"full_attention": self.rotation(("default", "yarn", "llama3")),
                     "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}
        found = self.decoder(own_head_size=False, attention_bias=self.one(True, False))
        return found | {"sliding_window": self.one(4, 16, 33), "layer_types": self.layer_types(found["num_hidden_layers"]),
                        "rope_parameters": rotations}

    def olmoe(self):
        found = self.decoder(own_head_size=False, attention_bias=self.one(True, False), intermediate_size=self.one(32, 96))
        experts = self.one(2, 4, 6)
        return found | {"num_experts": experts, "num_experts_per_tok": self.up_to(experts, 1),
                        "norm_topk_prob": self.one(True, False)} | self.maybe(0.3, clip_qkv=self.one(0.5, 2.0))

    def olmo(self):
        found = self.decoder(own_head_size=False, attention_bias=self.one(True, False))
        del found["rms_norm_eps"]
        return found | self.maybe(0.5, clip_qkv=self.one(0.5, 2.0))

    def smollm3(self):
        found = self.decoder(attention_bias=self.one(True, False), mlp_bias=self.one(True, False))
        layers = found["num_hidden_layers"]
        found |= self.maybe(0.5, no_rope_layers=[self.one(0, 1) for _ in range(layers)])
        found |= self.maybe(0.5, no_rope_layer_interval=self.one(1, 2, 3))
        found |= self.maybe(0.5, use_sliding_window=True, sliding_window=self.one(8, 33))
        return found | self.maybe(0.3, layer_types=self.layer_types(layers))

    def seed_oss(self):
        return self.decoder(attention_bias=self.one(True, False), attention_out_bias=self.one(True, False),
                            mlp_bias=self.one(True, False), hidden_act="silu", attention_dropout=0.0, residual_dropout=0.0)

    def ernie4_5(self):
        return self.decoder(use_bias=self.one(True, False), rope_parameters=self.rotation(("default", "linear", "llama3", "yarn")))

    def exaone4(self):
        found = self.decoder()
        layers = found["num_hidden_layers"]
        found |= {"sliding_window": self.one(None, 4, 16, 33)}
        if found["sliding_window"] is None:
            return found
        return found | (self.maybe(1, layer_types=self.layer_types(layers)) if self.one(True, False) else
                        {"sliding_window_pattern": self.one(2, 3, 4)})

    def with_layer_norms(self, eps_key, **more):
        found = self.decoder(own_head_size=False, **more)
        return found | {eps_key: found.pop("rms_norm_eps")}

    def starcoder2(self):
        return self.with_layer_norms("norm_epsilon", use_bias=self.one(True, False), sliding_window=self.one(None, 8, 33))

    def stablelm(self):
        return self.with_layer_norms("layer_norm_eps", use_qkv_bias=self.one(True, False), use_parallel_residual=self.one(True, False),
                                     qk_layernorm=self.one(True, False),
                                     rope_parameters=self.rotation(("default", "linear", "llama3"), self.one(0.25, 0.5, 1.0)))

    def phi(self):
        return self.with_layer_norms("layer_norm_eps", tie_word_embeddings=False,
                                     rope_parameters=self.rotation(("default", "linear", "llama3"), self.one(0.25, 0.5, 1.0)))

    def cohere(self):
        return self.with_layer_norms("layer_norm_eps", attention_bias=self.one(True, False), logit_scale=self.one(0.0625, 0.5, 1.0),
                                     use_qk_norm=self.one(True, False))

    def cohere2(self):
        found = self.cohere()
        del found["use_qk_norm"]
        layers = found["num_hidden_layers"]
        found |= {"sliding_window": self.one(4, 16, 33)}
        return found | (self.maybe(1, layer_types=self.layer_types(layers)) if self.one(True, False) else
                        {"sliding_window_pattern": self.one(2, 3, 4)})

    def hunyuan_v1_dense(self):
        found = self.decoder(attention_bias=self.one(True, False))
        if found["rope_parameters"]["rope_type"] == "dynamic":
            found["rope_parameters"] |= self.maybe(0.7, alpha=self.one(1.5, 100.0, 1000.0))
        return found

    def hunyuan_v1_moe(self):
        found = self.hunyuan_v1_dense()
        experts = self.one(1, 2, 4, 5)
        chosen = self.up_to(experts, 1)
        return found | {"num_experts": experts, "moe_topk": self.one(chosen, [chosen] * found["num_hidden_layers"]),
                        "intermediate_size": self.one(32, 96)}

    def llama4_text(self):
        found = self.decoder(hidden_act="silu", attention_bias=self.one(True, False), intermediate_size=self.one(32, 96),
                             intermediate_size_mlp=self.one(32, 50), use_qk_norm=self.one(True, False),
                             num_local_experts=self.one(1, 2, 4, 5), attention_chunk_size=self.one(None, 160, 512),
                             floor_scale=self.one(1, 7, 32, 8192), attn_scale=self.one(0.1, 0.5),
                             attn_temperature_tuning=self.one(True, True, False))
        found["rope_parameters"] = self.rotation(("default", "llama3", "llama3", "linear"))
        if found["rope_parameters"]["rope_type"] == "llama3":  # as Scout has it: nothing between kept and divided
            found["rope_parameters"] |= self.maybe(0.5, low_freq_factor=1.0, high_freq_factor=1.0)
        layers = found["num_hidden_layers"]
        found |= self.maybe(0.4, moe_layers=[layer for layer in range(layers) if self.one(True, False)])
        found |= self.maybe(0.5, interleave_moe_layer_step=self.one(1, 2))
        found |= self.maybe(0.5, no_rope_layers=[self.one(0, 1) for _ in range(layers)])
        return found | self.maybe(0.5, no_rope_layer_interval=self.one(1, 2, 3))

    def apertus(self):
        return self.decoder(attention_bias=self.one(True, False), hidden_act=self.one("xielu", "xielu", "silu"), dtype="float32")

    def arcee(self):
        return self.decoder(attention_bias=self.one(True, False), mlp_bias=self.one(True, False),
                            hidden_act=self.one("relu2", "relu2", "silu"))

    def nemotron(self):
        found = self.decoder(attention_bias=self.one(True, False), mlp_bias=self.one(True, False),
                             hidden_act=self.one("relu2", "relu2", "gelu"),
                             rope_parameters=self.rotation(("default", "linear", "llama3"), self.one(0.5, 0.5, 1.0)))
        found["head_dim"] = self.one(16, 20, 32, 64)
        return found | {"norm_eps": found.pop("rms_norm_eps")}

    def helium(self):
        found = self.decoder(own_head_size=False, attention_bias=self.one(True, False), mlp_bias=self.one(True, False))
        return found | {"head_dim": found["hidden_size"] // found["num_attention_heads"]}

    def internlm3(self):
        biased = self.one(True, False)
        return self.decoder(attention_bias=biased, mlp_bias=biased)

    def cwm(self):
        found = self.decoder(mlp_bias=self.one(True, False), sliding_window=self.one(8, 16, 33))
        return found | self.maybe(0.5, layer_types=self.layer_types(found["num_hidden_layers"]))

    def gpt_neox(self):
        found = self.with_layer_norms("layer_norm_eps", attention_bias=self.one(True, False),
                                      use_parallel_residual=self.one(True, False),
                                      rope_parameters=self.rotation(("default", "linear", "llama3"), self.one(0.25, 0.5, 1.0)))
        del found["num_key_value_heads"]
        return found

    def falcon(self):
        found = self.with_layer_norms("layer_norm_epsilon", bias=self.one(True, False), activation=self.one("gelu", "relu", "gelu_new"))
        del found["hidden_act"]
        kv_heads = found.pop("num_key_value_heads")
        found |= self.maybe(0.6, ffn_hidden_size=found.pop("intermediate_size"))
        if self.one(True, False):
            return found | {"new_decoder_architecture": True, "num_kv_heads": kv_heads} | self.maybe(
                0.6, num_ln_in_parallel_attn=self.one(1, 2))
        return found | {"multi_query": self.one(True, False), "parallel_attn": self.one(True, False)}

    def gpt_bigcode(self):
        found = self.gpt2()
        for key in ("scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"):
            found.pop(key, None)
        return found | {"multi_query": self.one(True, True, False), "activation_function": self.one("gelu_pytorch_tanh", "relu", "gelu")}

    def ministral(self):
        found = self.decoder()
        return found | {"sliding_window": self.one(4, 16, 33), "layer_types": self.layer_types(found["num_hidden_layers"])}

    def ministral3(self):
        rotation = self.rotation(("yarn",)) | {"llama_4_scaling_beta": self.one(0.1, 0.1, 0.5)}
        return self.decoder(rope_parameters=rotation | {"original_max_position_embeddings": self.one(16, 64, 128)},
                            sliding_window=None)

    def glm4_moe(self):
        found = self.deepseek()
        for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank", "q_lora_rank"):
            del found[key]
        kv_heads = self.one(1, 2)
        return found | {"num_key_value_heads": kv_heads, "num_attention_heads": kv_heads * self.one(1, 2, 3),
                        "head_dim": self.one(16, 32, 64), "use_qk_norm": self.one(True, False),
                        "norm_topk_prob": self.one(True, False),
                        "rope_parameters": self.rotation(("default", "linear", "llama3"), self.one(0.25, 0.5, 1.0))}

    def mistral4(self):
        found = self.deepseek() | {"norm_topk_prob": self.one(True, False), "rope_interleave": self.one(True, True, False)}
        rotation = self.rotation(("yarn",)) | {"llama_4_scaling_beta": self.one(0.1, 0.1, 0.5)}
        return found | {"rope_parameters": rotation | {"original_max_position_embeddings": self.one(16, 64, 128)}}

    def afmoe(self):
        found, moe = self.decoder(attention_bias=self.one(True, False), hidden_act="silu"), self.glm4_moe()
        layers, experts = found["num_hidden_layers"], moe["n_routed_experts"]
        found |= {"num_experts": experts, "num_experts_per_tok": self.up_to(min(experts, 4), 1), "num_shared_experts": self.one(1, 2),
                  "moe_intermediate_size": self.one(16, 32), "num_dense_layers": self.up_to(layers), "route_scale": self.one(0.7, 1.0, 2.5),
                  "mup_enabled": self.one(True, False), "sliding_window": self.one(4, 16, 33)}
        return found | (self.maybe(1, layer_types=self.layer_types(layers)) if self.one(True, False) else
                        {"global_attn_every_n_layers": self.one(2, 3, 4)})

    def solar_open(self):
        found = self.glm4_moe() | {"rope_parameters": self.rotation()}
        for key in ("use_qk_norm", "first_k_dense_replace", "intermediate_size"):
            found.pop(key, None)
        return found

    def exaone_moe(self):
        found, moe = self.exaone4(), self.glm4_moe()
        found["sliding_window"] = found["sliding_window"] or 16
        experts = moe["n_routed_experts"]
        found |= {key: moe[key] for key in ("n_group", "topk_group", "num_experts_per_tok", "moe_intermediate_size",
                                            "routed_scaling_factor", "norm_topk_prob") if key in moe}
        found |= {"num_experts": experts, "num_shared_experts": self.one(1, 2)} | self.maybe(0.5, first_k_dense_replace=self.up_to(2))
        return found | self.maybe(0.3, mlp_layer_types=[self.one("dense", "sparse") for _ in range(found["num_hidden_layers"])])

    def flex_olmo(self):
        return self.olmo2() | {"intermediate_size": self.one(32, 96), "num_experts": self.one(4, 6), "num_experts_per_tok": self.up_to(4, 1),
                               "norm_topk_prob": self.one(True, False)}

    def dots1(self):
        found = self.glm4_moe()
        del found["use_qk_norm"]
        layers = found["num_hidden_layers"]
        found |= {"rope_parameters": self.rotation(), "sliding_window": self.one(None, 8, 33)}
        return found | (self.maybe(0.5, max_window_layers=self.up_to(layers)) if found["sliding_window"] else {})

    def glm4_moe_lite(self):
        found = self.deepseek()
        found.pop("first_k_dense_replace", None)
        found |= {"norm_topk_prob": self.one(True, False), "rope_interleave": self.one(True, False)}
        return found | self.maybe(0.5, mlp_layer_types=[self.one("dense", "sparse") for _ in range(found["num_hidden_layers"])])

    def minimax_m2(self):
        found = self.decoder(intermediate_size=self.one(32, 96))
        experts = self.one(2, 4, 6)
        return found | {"num_local_experts": experts, "num_experts_per_tok": self.up_to(experts, 1),
                        "rope_parameters": self.rotation(("default", "linear", "llama3", "yarn"), self.one(0.25, 0.5, 1.0))}

    def ernie4_5_moe(self):
        found = self.ernie4_5()
        experts, layers = self.one(2, 4, 6), found["num_hidden_layers"]
        return found | {"moe_num_experts": experts, "moe_k": self.up_to(experts, 1), "moe_intermediate_size": self.one(32, 96),
                        "moe_num_shared_experts": self.one(0, 1, 2), "moe_layer_start_index": self.up_to(layers),
                        "moe_layer_end_index": self.one(-1, self.up_to(layers)), "moe_layer_interval": self.one(1, 2)}

    def granitemoe(self):
        found = self.granite()
        del found["mlp_bias"]
        experts = self.one(2, 4, 5)
        return found | {"num_local_experts": experts, "num_experts_per_tok": self.up_to(experts, 1),
                        "intermediate_size": self.one(32, 96)}

    def granitemoeshared(self):
        return self.granitemoe() | {"shared_intermediate_size": self.one(32, 50)}

    def with_mamba(self, inner):
        heads = self.one(*(heads for heads in (2, 4, 8) if inner % heads == 0))
        return {"mamba_n_heads": heads, "mamba_d_head": self.one("auto", inner // heads), "mamba_d_state": self.one(8, 16, 33, 128),
                "mamba_n_groups": self.one(*(groups for groups in (1, 2) if heads % groups == 0)), "mamba_d_conv": self.one(2, 4),
                "mamba_conv_bias": self.one(True, False), "mamba_proj_bias": self.one(True, False), "mamba_chunk_size": 16}

    def granitemoehybrid(self):
        found = self.granitemoe() | {"shared_intermediate_size": self.one(32, 50), "hidden_act": "silu",
                                     "position_embedding_type": self.one("rope", "nope", None)}
        layers = found["num_hidden_layers"]
        found |= self.with_mamba(2 * found["hidden_size"])
        found |= {"layer_types": [self.one("linear_attention", "full_attention") for _ in range(layers)]}
        return found | self.maybe(0.3, num_local_experts=0)

    def bamba(self):
        found = self.decoder(own_head_size=self.one(True, False), hidden_act="silu", attention_bias=self.one(True, False),
                             mlp_bias=self.one(True, False), mamba_expand=self.one(1, 2, 2, 3))
        found |= {"rope_parameters": self.rotation(partial=self.one(None, 0.25, 0.5, 1.0))}
        found |= self.with_mamba(found["mamba_expand"] * found["hidden_size"])
        found |= self.maybe(0.4, time_step_limit=self.one([0.0, 0.5], [0.1, 1.0]))
        return found | self.maybe(0.9, attn_layer_indices=[layer for layer in range(found["num_hidden_layers"]) if self.one(True, False)])

    def falcon_h1(self):
        found = self.decoder(own_head_size=self.one(True, False), hidden_act="silu", attention_bias=self.one(True, False),
                             mlp_bias=self.one(True, False), projectors_bias=self.one(True, False),
                             mamba_rms_norm=self.one(True, False), mamba_norm_before_gate=self.one(True, False))
        inner = self.one(None, 32, 64, 96)
        found |= {"mamba_d_ssm": inner, "mamba_expand": 2} | self.with_mamba(inner or 2 * found["hidden_size"])
        found |= self.maybe(0.4, time_step_limit=self.one([0.0, 0.5], [0.1, 1.0]))
        for key in ("lm_head", "embedding", "key", "attention_in", "attention_out", "ssm_in", "ssm_out"):
            found |= self.maybe(0.5, **{f"{key}_multiplier": self.one(0.2, 0.9, 1.25, 3.0)})
        found |= self.maybe(0.7, mlp_multipliers=[self.one(0.5, 1.0, 1.5) for _ in range(2)])
        return found | self.maybe(0.7, ssm_multipliers=[self.one(0.25, 0.35, 0.5, 1.0, 1.5) for _ in range(5)])

    def nemotron_h(self):
        found = self.decoder(layer_norm_epsilon=self.one(1e-6, 1e-5, 1e-3), mlp_hidden_act=self.one("relu2", "relu2", "silu", "gelu"),
                             mlp_bias=self.one(True, False), use_bias=self.one(True, False), use_conv_bias=self.one(True, False),
                             tie_word_embeddings=False)
        layers = self.up_to(6, 1)
        for key in ("num_hidden_layers", "rms_norm_eps", "rope_parameters", "hidden_act"):
            del found[key]
        heads, groups = self.one(2, 4, 8), self.one(1, 2)
        experts = groups * self.one(2, 4)
        kept = self.up_to(groups, 1)
        found |= {"mamba_num_heads": heads, "mamba_head_dim": self.one(4, 8, 16), "ssm_state_size": self.one(8, 16, 33, 128),
                  "n_groups": self.one(1, 2), "conv_kernel": self.one(2, 4), "chunk_size": 16, "n_routed_experts": experts,
                  "moe_intermediate_size": self.one(16, 32), "moe_shared_expert_intermediate_size": self.one(24, 40),
                  "n_group": groups, "topk_group": kept, "num_experts_per_tok": self.up_to(min(kept * experts // groups, 4), 1),
                  "routed_scaling_factor": self.one(0.7, 1.0, 2.5), "norm_topk_prob": self.one(True, False),
                  "moe_latent_size": self.one(None, None, 16, 24)}
        found |= self.maybe(0.3, time_step_min=self.one(0.01, 0.3))
        kinds = ["linear_attention", "linear_attention", "full_attention", "mlp", "moe"]
        # A model without anything that remembers would be none of a text.
        types = [self.one("linear_attention", "full_attention")] + [self.one(*kinds) for _ in range(layers)]
        self.rng.shuffle(types)
        return found | self.one({"layers_block_type": types}, {"hybrid_override_pattern": "".join(
            {"linear_attention": "M", "full_attention": "*", "mlp": "-", "moe": "E"}[kind] for kind in types)})

    def olmo_hybrid(self):
        found = self.decoder(own_head_size=False, hidden_act="silu", attention_bias=self.one(True, False),
                             linear_allow_neg_eigval=self.one(True, False))
        heads, layers = self.one(1, 2, 4), found["num_hidden_layers"] + 1
        types = ["linear_attention", "full_attention"] + [self.one("linear_attention", "full_attention") for _ in range(layers - 2)]
        self.rng.shuffle(types)
        found |= {"num_hidden_layers": layers, "layer_types": types, "linear_num_key_heads": heads, "linear_num_value_heads": heads,
                  "linear_conv_kernel_dim": self.one(2, 4), "rms_norm_eps": self.one(1e-6, 1e-3)}
        found |= self.maybe(0.7, linear_key_head_dim=self.one(8, 12, 32)) | self.maybe(0.7, linear_value_head_dim=self.one(8, 12, 32))
        return found | self.maybe(0.6, rope_parameters={"rope_type": "default", "rope_theta": None})

    def granite(self):
        return self.decoder(own_head_size=False, attention_bias=self.one(True, False), mlp_bias=self.one(True, False),
                            embedding_multiplier=self.one(1.0, 6.0), residual_multiplier=self.one(0.22, 0.5, 1.0),
                            attention_multiplier=self.one(0.0625, 0.25, 1.0), logits_scaling=self.one(1.0, 4.0, 8.0))

    def glm4(self):
        return self.decoder(attention_bias=self.one(True, False)) | {
            "head_dim": self.one(16, 32, 64, 128),
            "rope_parameters": self.rotation(("default", "linear", "llama3"), self.one(0.25, 0.5, 1.0))}

    def gpt_oss(self):
        found = self.decoder(hidden_act="silu", intermediate_size=self.one(32, 96), attention_bias=self.one(True, False))
        experts = self.one(2, 4)
        return found | {"num_local_experts": experts, "num_experts_per_tok": self.up_to(experts, 1),
                        "sliding_window": self.one(8, 16, 33), "layer_types": self.layer_types(found["num_hidden_layers"]),
                        "rope_parameters": self.rotation(("yarn", "yarn", "default"))} | self.maybe(
                            0.5, swiglu_limit=self.one(1.0, 3.0, 7.0))


NAMES = [name for name in vars(Families) if name in transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES]


def randomise(model, rng):
    generator = torch.Generator().manual_seed(rng.randint(0, 1 << 30))
    corrections = [(name, buffer) for name, buffer in model.named_buffers() if re.search("e_score|expert_bias|layer_scalar", name)]
    with torch.no_grad():
        for name, values in [*model.named_parameters(), *corrections]:
            drawn = torch.randn(values.shape, generator=generator)
            if values.dim() >= 2:
                values.copy_(0.25 * drawn)
            elif re.search(r"norm|ln_|layer_scalar", name):
                values.copy_((1.0 if values.any() else 0.0) + 0.3 * drawn)
            else:
                values.copy_(0.3 * drawn)
    model.tie_weights()


def spell_as_before(folder, family):
    """config.json with the names of transformers 4."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rotation = config.pop("rope_parameters", None)
    if family == "gemma3_text":
        config["rope_local_base_freq"] = rotation["sliding_attention"]["rope_theta"]
        rotation = rotation["full_attention"]
    elif family == "olmo3":  # one base frequency for both types of layers; the reference takes another than its default for one alone
        rotation = rotation["full_attention"] | {"rope_theta": 500000.0}
    if rotation:
        config["rope_theta"] = rotation.pop("rope_theta")
        if "partial_rotary_factor" in rotation:
            config["partial_rotary_factor"] = rotation.pop("partial_rotary_factor")
        if rotation["rope_type"] != "default":
            config["rope_scaling"] = rotation
    if family == "gpt_neox":
        config |= {"rotary_emb_base": config.pop("rope_theta"), "rotary_pct": config.pop("partial_rotary_factor", 0.25)}
    if family in ("qwen2", "qwen3"):
        config.pop("layer_types", None)
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=1))


def reference(folder, prompts, dtype):
    """Of each prompt the logprobs of its tokens from the second on."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager",
                                                              experts_implementation="eager", dtype=dtype).eval()
    found = []
    for prompt in prompts:
        with torch.no_grad():
            logits = model(torch.tensor([prompt]), use_cache=False).logits[0]
        logprobs = torch.log_softmax(logits.double(), -1)
        found.append([logprobs[i, token].item() for i, token in enumerate(prompt[1:])])
    return found


def make_model(folder, family, configuration, rng, legacy):
    config = transformers.AutoConfig.for_model(family, max_position_embeddings=POSITIONS, bos_token_id=1, eos_token_id=2,
                                               pad_token_id=0, **configuration)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    randomise(model, rng)
    model.save_pretrained(folder, max_shard_size=rng.choice(["1GB", "40KB"]))
    if legacy:
        spell_as_before(folder, family)
    return [[rng.randrange(config.vocab_size) for _ in range(length)] for length in LENGTHS]


def logprobs_of_quire(quire, folder, prompts, more=()):
    """The same of quire, or why it refuses the model."""
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions",
              "body": {"model": "m", "prompt": prompt, "max_tokens": 1, "prompt_logprobs": 0}}
             for i, prompt in enumerate(prompts)]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = subprocess.run([quire, "run-batch", "-i", folder / "in.jsonl", "-o", folder / "out.jsonl", "--model", folder,
                          "--served-model-name", "m", "--skip-tokenizer-init", "--activation-dtype", "float32", "--kv-cache-dtype", "float32",
                          "--kv-cache-memory-bytes", "64M", "--max-num-batched-tokens", "64", *more],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if run.returncode != 0:
        return None, run.stdout.strip().splitlines()[-1]
    found = {}
    for line in (folder / "out.jsonl").read_text().splitlines():
        answer = json.loads(line)
        choice = answer["response"]["body"]["choices"][0]
        i = int(answer["custom_id"])
        found[i] = [entry[str(token)]["logprob"] for entry, token in zip(choice["prompt_logprobs"][1:], prompts[i][1:])]
    return [found[i] for i in range(len(prompts))], None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=360)
    parser.add_argument("--families", default=",".join(NAMES))
    parser.add_argument("--legacy", action="store_true")
    parser.add_argument("--keep", type=pathlib.Path, help="where the models that differ are left")
    parser.add_argument("--more", default="", help="further flags of quire: --more='--tensor-parallel-size 2'")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    rng = random.Random(options.seed)
    families = options.families.split(",")
    equal, refused, impossible, different = Counter(), Counter(), Counter(), Counter()
    for number in range(options.count):
        family = families[number % len(families)]
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place)
            configuration = getattr(Families(rng), family)()
            try:
                prompts = make_model(folder, family, configuration, rng, options.legacy)
                expected = reference(folder, prompts, torch.float32)
                # GPT-2's "upcast" has no float64.
                exact = expected if configuration.get("reorder_and_upcast_attn") else reference(folder, prompts, torch.float64)
            except Exception as error:  # the reference has its own limits, which are no result
                impossible[f"{family}: {str(error).strip().splitlines()[-1]}"] += 1
                continue
            found, reason = logprobs_of_quire(options.quire, folder, prompts, options.more.split())
            if found is None:
                refused[f"{family}: {reason}"] += 1
                continue
            rows = [sum(rows, []) for rows in (found, expected, exact)]
            off = max(abs(a - b) for a, b in zip(rows[0], rows[1], strict=True))
            unsure = max(abs(a - b) for a, b in zip(rows[1], rows[2], strict=True))
            if off <= TOLERANCE + 8 * unsure:
                equal[family] += 1
                continue
            different[family] += 1
            print(f"{family} {number}: {off:.2e} apart, where the reference is {unsure:.2e} from itself: {configuration}")
            if options.keep:
                shutil.copytree(folder, options.keep / f"{family}_{number}", dirs_exist_ok=True)
    for reasons, verb in ((refused, "refused"), (impossible, "impossible for the reference")):
        for reason, count in reasons.most_common():
            print(f"{verb} {count}: {reason}")
    print("| family | equal | different |\n|---|---|---|")
    for family in families:
        print(f"| {family} | {equal[family]} | {different[family]} |")
    print(f"| all | {equal.total()} | {different.total()} |")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
