#!/usr/bin/env python3
"""Writes random heads of the default model's size: proposers that are always wrong, to measure what guesses in vain cost.

    scripts/make_random_heads.py build/random_heads        # folders eagle, medusa, dflash
    scripts/bench_speculation.py --heads build/random_heads --modes plain,eagle,medusa,dflash ...

Needs numpy.
"""

import json
import pathlib
import sys

import numpy as np

from make_eagle3_data import write_tensors

HIDDEN, INNER, HEADS, KV_HEADS, SIZE, VOCABULARY = 576, 1536, 9, 3, 64, 49152
CONFIG = {"model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
          "num_key_value_heads": KV_HEADS, "head_dim": SIZE, "num_hidden_layers": 1, "vocab_size": VOCABULARY,
          "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "hidden_act": "silu"}
random = np.random.default_rng(7)


def numbers(*shape):
    return "F32", (0.05 * random.standard_normal(shape)).astype(np.float32)


def ones(size):
    return "F32", np.ones(size, np.float32)


def layer(prefix):
    tensors = {f"{prefix}.self_attn.{name}_proj.weight": numbers(rows, HIDDEN)
               for name, rows in (("q", HEADS * SIZE), ("k", KV_HEADS * SIZE), ("v", KV_HEADS * SIZE))}
    tensors[f"{prefix}.self_attn.o_proj.weight"] = numbers(HIDDEN, HEADS * SIZE)
    for name in ("gate", "up"):
        tensors[f"{prefix}.mlp.{name}_proj.weight"] = numbers(INNER, HIDDEN)
    tensors[f"{prefix}.mlp.down_proj.weight"] = numbers(HIDDEN, INNER)
    tensors[f"{prefix}.post_attention_layernorm.weight"] = ones(HIDDEN)
    return tensors


def write(folder, config, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_tensors(folder / "model.safetensors", tensors)


def main():
    out = pathlib.Path(sys.argv[1])
    write(out / "eagle", {**CONFIG, "architectures": ["LlamaForCausalLM"]}, {"fc.weight": numbers(HIDDEN, 2 * HIDDEN), **layer("layers.0")})
    write(out / "medusa", {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": HIDDEN, "vocab_size": VOCABULARY,
                           "num_heads": 3, "num_hidden_layers": 1, "original_lm_head": True},
          {f"blocks.{i}.layers.0.weight": numbers(HIDDEN, HIDDEN) for i in range(3)})
    dflash = {"fc.weight": numbers(HIDDEN, 3 * HIDDEN), "hidden_norm.weight": ones(HIDDEN), "norm.weight": ones(HIDDEN)}
    for index in range(2):
        dflash.update(layer(f"layers.{index}"))
        dflash[f"layers.{index}.input_layernorm.weight"] = ones(HIDDEN)
        for name in "qk":
            dflash[f"layers.{index}.self_attn.{name}_norm.weight"] = ones(SIZE)
    write(out / "dflash", {**CONFIG, "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 2,
                           "attention_bias": False, "tie_word_embeddings": False, "num_target_layers": 30, "block_size": 8,
                           "dflash_config": {"mask_token_id": 0, "target_layer_ids": [1, 15, 28]}}, dflash)


if __name__ == "__main__":
    main()
