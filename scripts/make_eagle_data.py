#!/usr/bin/env python3
"""Writes random heads of EAGLE and of Medusa for the tiny llama of the tests, and what they guess by a reference of its own.

    scripts/make_eagle_data.py tests/data/e2e/tiny/llama tests/data/e2e/tiny_heads

Each head is a folder as they are published (config.json and a safetensors file) with golden.json beside it, as
make_eagle3_data.py writes it. All is computed in doubles, whole texts at a time, without a cache. Needs numpy.
"""

import json
import pathlib
import sys

import numpy as np

from make_eagle3_data import GUESSES, Target, attend, feed_forward, rms, softmax, write_tensors


def last_states(target, tokens):
    """Behind the last norm: what the head over the vocabulary reads."""
    return rms(target.states(tokens)[-1], target.weights["model.norm.weight"], target.config["rms_norm_eps"])


def told(logits, token):
    order = np.sort(logits)
    return {"token": token, "probability": float(softmax(logits)[np.argmax(logits)]), "margin": float(order[-1] - order[-2])}


class Eagle:
    def __init__(self, config, weights, target):
        self.config, self.weights, self.target = config, weights, target

    def norm(self, x, name):
        weight = self.weights.get(f"{name}.weight")
        return x if weight is None else rms(x, weight, self.config["rms_norm_eps"])

    def guesses(self, text):
        w, lent = self.weights, self.target.weights
        states, tokens, found = last_states(self.target, text[:-1]), list(text[1:]), []
        while True:
            embedded = self.norm(lent["model.embed_tokens.weight"][tokens], "embedding_layernorm")
            x = np.concatenate([embedded, self.norm(states, "hidden_states_layernorm")], -1) @ w["fc.weight"].T
            x = x + w.get("fc.bias", 0)
            x = x + attend(x, w, "layers.0.self_attn", self.config)
            x = x + feed_forward(self.norm(x, "layers.0.post_attention_layernorm"), w, "layers.0.mlp")
            logits = lent["lm_head.weight"] @ x[-1]
            found.append(told(logits, int(np.argmax(logits))))
            if len(found) == GUESSES:
                return found
            tokens.append(found[-1]["token"])
            states = np.concatenate([states, x[-1:]])


class Medusa:
    def __init__(self, names, weights, target, token_map=None):
        self.names, self.weights, self.target, self.token_map = names, weights, target, token_map

    def guesses(self, text):
        """The state of a position is of the token that follows; the first head is of the one behind that."""
        state, found = last_states(self.target, text[:-1])[-1], []
        for blocks, head in self.names:
            x = state
            for block in blocks:
                inner = self.weights[f"{block}.weight"] @ x + self.weights.get(f"{block}.bias", 0)
                x = x + inner / (1 + np.exp(-inner))
            logits = self.weights.get(f"{head}.weight", self.target.weights["lm_head.weight"]) @ x
            best = int(np.argmax(logits))
            found.append(told(logits, best if self.token_map is None else int(self.token_map[best])))
        return found


def write(folder, config, tensors, head, target, random, file="model.safetensors"):
    cases = []
    for length in (2, 3, 9, 23, 40):
        text = [int(token) for token in random.integers(3, 500, length)]
        for _ in range(12):
            text.append(target.next_token(text))
        # As the answer goes on, and what came of it.
        cases.append({"text": text, "num_prompt_tokens": length,
                      "guesses": {str(size): head.guesses(text[:size]) for size in range(max(2, length), len(text) + 1, 3)}})
    print(folder.name, "leads by", min(g["margin"] for c in cases for list_ in c["guesses"].values() for g in list_))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_tensors(folder / file, tensors)
    (folder / "golden.json").write_text(json.dumps({"cases": cases}) + "\n")


def numbers(random, *shape, mean=0.0, deviation=0.3):
    return "F32", (mean + deviation * random.standard_normal(shape)).astype(np.float32)


def doubles(tensors):
    return {name: values.astype(np.float64) for name, (_, values) in tensors.items()}


def make_eagle(out, target, seed, norms):
    random = np.random.default_rng(seed)
    hidden, inner, heads, shared, size = target.config["hidden_size"], 96, 4, 2, 16
    config = {"architectures": ["EagleLlamaForCausalLM" if norms else "LlamaForCausalLM"], "model_type": "llama",
              "hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": heads, "num_key_value_heads": shared,
              "head_dim": size, "num_hidden_layers": 1, "vocab_size": target.config["vocab_size"],
              "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu"}
    tensors = {"fc.weight": numbers(random, hidden, 2 * hidden, deviation=0.15)}
    if norms:
        for name in ("embedding_layernorm", "hidden_states_layernorm"):
            tensors[f"{name}.weight"] = numbers(random, hidden, mean=1.0, deviation=0.1)
    else:
        tensors["fc.bias"] = numbers(random, hidden)
    for name, rows in (("q", heads * size), ("k", shared * size), ("v", shared * size)):
        tensors[f"layers.0.self_attn.{name}_proj.weight"] = numbers(random, rows, hidden)
    tensors["layers.0.self_attn.o_proj.weight"] = numbers(random, hidden, heads * size)
    for name in ("gate", "up"):
        tensors[f"layers.0.mlp.{name}_proj.weight"] = numbers(random, inner, hidden)
    tensors["layers.0.mlp.down_proj.weight"] = numbers(random, hidden, inner)
    tensors["layers.0.post_attention_layernorm.weight"] = numbers(random, hidden, mean=1.0, deviation=0.1)
    head = Eagle(config, doubles(tensors), target)
    if not norms:  # published ones repeat what they share with the model
        tensors["embed_tokens.weight"] = ("F32", target.weights["model.embed_tokens.weight"].astype(np.float32))
    write(out / ("eagle_normed" if norms else "eagle_llama"), config, tensors, head, target, random)


def make_medusa(out, target, seed):
    """As those who made it store it: blocks with biases and a head of its own for each token."""
    random = np.random.default_rng(seed)
    hidden, vocabulary, layers = target.config["hidden_size"], target.config["vocab_size"], 2
    config = {"medusa_num_heads": GUESSES, "medusa_num_layers": layers, "base_model_name_or_path": "tiny/llama"}
    tensors, names = {}, []
    for i in range(GUESSES):
        for j in range(layers):
            tensors[f"{i}.{j}.linear.weight"] = numbers(random, hidden, hidden, deviation=0.15)
            tensors[f"{i}.{j}.linear.bias"] = numbers(random, hidden)
        tensors[f"{i}.{layers}.weight"] = numbers(random, vocabulary, hidden)
        names.append(([f"{i}.{j}.linear" for j in range(layers)], f"{i}.{layers}"))
    write(out / "medusa_llama", config, tensors, Medusa(names, doubles(tensors), target), target, random,
          "medusa_lm_head.safetensors")


def make_medusa_with_few_tokens(out, target, seed):
    """As vLLM stores it, with heads over some tokens alone."""
    random = np.random.default_rng(seed)
    hidden, vocabulary, few = target.config["hidden_size"], target.config["vocab_size"], 96
    config = {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": hidden, "vocab_size": vocabulary,
              "num_heads": GUESSES, "num_hidden_layers": 1, "truncated_vocab_size": few}
    token_map = np.sort(random.choice(vocabulary, few, replace=False)).astype(np.int64)
    tensors, names = {"token_map": ("I64", token_map)}, []
    for i in range(GUESSES):
        tensors[f"blocks.{i}.layers.0.weight"] = numbers(random, hidden, hidden)
        tensors[f"lm_heads.{i}.weight"] = numbers(random, few, hidden)
        names.append(([f"blocks.{i}.layers.0"], f"lm_heads.{i}"))
    write(out / "medusa_few_tokens", config, tensors, Medusa(names, doubles(tensors), target, token_map), target, random)


def make_medusa_over_the_models_head(out, target, seed):
    """Blocks alone, whose output the model's own head over the vocabulary reads."""
    random = np.random.default_rng(seed)
    hidden = target.config["hidden_size"]
    config = {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": hidden,
              "vocab_size": target.config["vocab_size"], "num_heads": GUESSES, "num_hidden_layers": 1, "original_lm_head": True}
    tensors = {f"blocks.{i}.layers.0.weight": numbers(random, hidden, hidden) for i in range(GUESSES)}
    names = [([f"blocks.{i}.layers.0"], "of the model") for i in range(GUESSES)]
    write(out / "medusa_blocks", config, tensors, Medusa(names, doubles(tensors), target), target, random)


def main():
    target, out = Target(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2])
    make_eagle(out, target, seed=11, norms=False)
    make_eagle(out, target, seed=12, norms=True)
    make_medusa(out, target, seed=13)
    make_medusa_with_few_tokens(out, target, seed=21)
    make_medusa_over_the_models_head(out, target, seed=15)


if __name__ == "__main__":
    main()
