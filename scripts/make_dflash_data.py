#!/usr/bin/env python3
"""Writes random heads of DFlash for the tiny llama of the tests, and what they guess by a reference of its own.

    scripts/make_dflash_data.py tests/data/e2e/tiny/llama tests/data/e2e/tiny_heads

Each head is a folder as they are published (config.json and a safetensors file) with golden.json beside it, as
make_eagle3_data.py writes it. All is computed in doubles, whole texts at a time, without a cache. Needs numpy.
"""

import pathlib
import sys

import numpy as np

from make_eagle3_data import GUESSES, Target, feed_forward, rms, rotate, softmax
from make_eagle_data import doubles, numbers, told, write


def visible(queries, keys, window, causal):
    """Whether the token at a position sees another: [queries, keys]."""
    ahead = keys[None, :] - queries[:, None]
    seen = ahead <= 0 if causal else np.ones(ahead.shape, bool)
    if window is not None:
        seen = seen & (ahead > -window) & (ahead < window)
    return seen


class Dflash:
    def __init__(self, config, weights, target):
        self.config, self.weights, self.target = config, weights, target
        self.own = {**config, **config["dflash_config"]}

    def project(self, x, layer, name):
        prefix = f"layers.{layer}.self_attn.{name}_proj"
        return x @ self.weights[f"{prefix}.weight"].T + self.weights.get(f"{prefix}.bias", 0)

    def heads_of(self, x, layer, name):
        """Queries or keys, normalised head by head, of rows from position 0 on: [rows, heads, size]."""
        split = self.project(x, layer, name).reshape(len(x), -1, self.config["head_dim"])
        split = rms(split, self.weights[f"layers.{layer}.self_attn.{name}_norm.weight"], self.config["rms_norm_eps"])
        return rotate(split, self.config["rope_theta"])

    def attend(self, context, block, layer):
        kind = self.config.get("layer_types", ["full_attention"] * self.config["num_hidden_layers"])[layer]
        window = self.config["sliding_window"] if kind == "sliding_attention" else None
        causal = self.own.get("is_causal", self.own.get("causal", window is not None))
        rows = np.concatenate([context, block])
        keys, positions = self.heads_of(rows, layer, "k"), np.arange(len(rows))
        queries = self.heads_of(rows, layer, "q")[len(context):]
        values = self.project(rows, layer, "v").reshape(len(rows), -1, self.config["head_dim"])
        shared = self.config["num_attention_heads"] // self.config["num_key_value_heads"]
        hidden = np.where(visible(positions[len(context):], positions, window, causal), 0.0, -np.inf)
        out = np.empty_like(queries)
        for head in range(queries.shape[1]):
            scores = queries[:, head] @ keys[:, head // shared].T / np.sqrt(self.config["head_dim"])
            out[:, head] = softmax(scores + hidden) @ values[:, head // shared]
        return self.project(out.reshape(len(block), -1), layer, "o")

    def context(self, tokens):
        """The rows of what is known: states behind the named layers, behind the last of all with the norm after it."""
        w, eps, states = self.weights, self.config["rms_norm_eps"], self.target.states(tokens)
        behind = states[1:-1] + [rms(states[-1], self.target.weights["model.norm.weight"], self.target.config["rms_norm_eps"])]
        joined = np.concatenate([behind[i] for i in self.own["target_layer_ids"]], -1)
        return rms(joined @ w["fc.weight"].T, w["hidden_norm.weight"], eps)

    def guesses(self, text):
        w, eps, lent = self.weights, self.config["rms_norm_eps"], self.target.weights
        context = self.context(text[:-1])
        x = lent["model.embed_tokens.weight"][[text[-1]] + [self.own["mask_token_id"]] * (self.own["block_size"] - 1)]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{layer}"
            x = x + self.attend(context, rms(x, w[f"{prefix}.input_layernorm.weight"], eps), layer)
            x = x + feed_forward(rms(x, w[f"{prefix}.post_attention_layernorm.weight"], eps), w, f"{prefix}.mlp")
        logits = rms(x[1:1 + GUESSES], w["norm.weight"], eps) @ lent["lm_head.weight"].T
        return [told(row, int(np.argmax(row))) for row in logits]


def make(out, name, target, seed, changes):
    random = np.random.default_rng(seed)
    hidden, inner = target.config["hidden_size"], 96
    config = {"architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": inner,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2,
              "vocab_size": target.config["vocab_size"], "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
              "rope_theta": 100000.0, "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False,
              "num_target_layers": target.config["num_hidden_layers"], **changes}
    layers, queries = config["num_hidden_layers"], config["num_attention_heads"] * config["head_dim"]
    keys, bias = config["num_key_value_heads"] * config["head_dim"], config["attention_bias"]
    tensors = {"fc.weight": numbers(random, hidden, len(config["dflash_config"]["target_layer_ids"]) * hidden, deviation=0.15)}
    for norm in ("hidden_norm", "norm"):
        tensors[f"{norm}.weight"] = numbers(random, hidden, mean=1.0, deviation=0.1)
    for layer in range(layers):
        prefix = f"layers.{layer}"
        for norm, size in (("input_layernorm", hidden), ("post_attention_layernorm", hidden),
                           ("self_attn.q_norm", config["head_dim"]), ("self_attn.k_norm", config["head_dim"])):
            tensors[f"{prefix}.{norm}.weight"] = numbers(random, size, mean=1.0, deviation=0.1)
        for projection, rows, columns in (("q", queries, hidden), ("k", keys, hidden), ("v", keys, hidden), ("o", hidden, queries)):
            tensors[f"{prefix}.self_attn.{projection}_proj.weight"] = numbers(random, rows, columns)
            if bias:
                tensors[f"{prefix}.self_attn.{projection}_proj.bias"] = numbers(random, rows)
        for projection in ("gate", "up"):
            tensors[f"{prefix}.mlp.{projection}_proj.weight"] = numbers(random, inner, hidden)
        tensors[f"{prefix}.mlp.down_proj.weight"] = numbers(random, hidden, inner)
    write(out / name, config, tensors, Dflash(config, doubles(tensors), target), target, random)


def main():
    target, out = Target(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2])
    make(out, "dflash_llama", target, 31, {
        "block_size": 8, "dflash_config": {"mask_token_id": 511, "target_layer_ids": [0, 1]}})
    # Windows, which are causal, biases, the members of the later form.
    make(out, "dflash_windows", target, 32, {
        "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "attention_bias": True,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 6,
        "use_sliding_window": True, "max_window_layers": 3,
        "dflash_config": {"block_size": 6, "mask_token_id": 0, "target_layer_ids": [0]}})
    # Windows that are seen both ways.
    make(out, "dflash_both_ways", target, 33, {
        "layer_types": ["sliding_attention", "sliding_attention"], "sliding_window": 5, "use_sliding_window": True,
        "is_causal": False, "dflash_config": {"block_size": 9, "mask_token_id": 4, "target_layer_ids": [1]}})


if __name__ == "__main__":
    main()
