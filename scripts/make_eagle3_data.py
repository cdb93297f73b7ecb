#!/usr/bin/env python3
"""Writes random EAGLE-3 heads for the tiny llama of the tests, and what they guess by a reference of its own.

    scripts/make_eagle3_data.py tests/data/e2e/tiny/llama tests/data/e2e/tiny_heads

Each head is a folder as they are published (config.json, model.safetensors) with golden.json beside it: texts, and of
each the guesses that follow it, with their probabilities and by how much the first logit leads. All is computed in
doubles, whole texts at a time, without a cache. Needs numpy.
"""

import json
import pathlib
import struct
import sys

import numpy as np

GUESSES = 4
TYPES = {"F32": np.float32, "I64": np.int64}


def read_tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: np.frombuffer(data, TYPES[entry["dtype"]], offset=8 + size + entry["data_offsets"][0],
                                count=int(np.prod(entry["shape"]))).reshape(entry["shape"]).astype(np.float64)
            for name, entry in header.items()}


def write_tensors(path, tensors):
    header, blob = {}, b""
    for name, (kind, values) in tensors.items():
        raw = values.tobytes()
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


def rms(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rotate(x, theta):
    """x: [rows, heads, size], row t at position t; pairs are (i, i + size / 2)."""
    rows, _, size = x.shape
    angles = np.outer(np.arange(rows), theta ** (-np.arange(0, size, 2) / size))[:, None, :]
    a, b = x[..., :size // 2], x[..., size // 2:]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)


def attend(x, weights, prefix, config):
    rows, size = len(x), config["head_dim"]
    heads, shared = config["num_attention_heads"], config["num_attention_heads"] // config["num_key_value_heads"]
    q, k, v = ((x @ weights[f"{prefix}.{name}_proj.weight"].T).reshape(rows, -1, size) for name in "qkv")
    theta = config["rope_theta"]
    q, k = rotate(q, theta), rotate(k, theta)
    out = np.empty((rows, heads, size))
    hidden = np.triu(np.full((rows, rows), -np.inf), 1)
    for head in range(heads):
        scores = q[:, head] @ k[:, head // shared].T / np.sqrt(size) + hidden
        out[:, head] = softmax(scores) @ v[:, head // shared]
    return out.reshape(rows, -1) @ weights[f"{prefix}.o_proj.weight"].T


def feed_forward(x, weights, prefix):
    gate, up, down = (weights[f"{prefix}.{name}_proj.weight"] for name in ("gate", "up", "down"))
    inner = x @ gate.T
    return inner / (1 + np.exp(-inner)) * (x @ up.T) @ down.T


class Target:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.config["rope_theta"] = self.config["rope_parameters"]["rope_theta"]
        self.weights = read_tensors(folder / "model.safetensors")

    def states(self, tokens):
        """Before each layer, and behind the last: a list of [rows, hidden_size]."""
        w, eps = self.weights, self.config["rms_norm_eps"]
        x = w["model.embed_tokens.weight"][tokens]
        all_states = [x]
        for i in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{i}"
            x = x + attend(rms(x, w[f"{layer}.input_layernorm.weight"], eps), w, f"{layer}.self_attn", self.config)
            x = x + feed_forward(rms(x, w[f"{layer}.post_attention_layernorm.weight"], eps), w, f"{layer}.mlp")
            all_states.append(x)
        return all_states

    def next_token(self, tokens):
        last = rms(self.states(tokens)[-1][-1], self.weights["model.norm.weight"], self.config["rms_norm_eps"])
        return int(np.argmax(self.weights["lm_head.weight"] @ last))


class Head:
    def __init__(self, config, tensors, target):
        self.config, self.target = config, target
        self.weights = {name: values.astype(np.float64) for name, (_, values) in tensors.items()}
        self.embeddings = self.weights.get("embed_tokens.weight", target.weights["model.embed_tokens.weight"])
        self.beyond = tensors["d2t"][1] if "d2t" in tensors else None

    def layer(self, embedded, states):
        w, eps = self.weights, self.config["rms_norm_eps"]
        normed = rms(states, w["midlayer.hidden_norm.weight"], eps)
        x = np.concatenate([rms(embedded, w["midlayer.input_layernorm.weight"], eps), normed], -1)
        residual = normed if self.config.get("norm_before_residual") else states
        residual = residual + attend(x, w, "midlayer.self_attn", self.config)
        return residual + feed_forward(rms(residual, w["midlayer.post_attention_layernorm.weight"], eps), w, "midlayer.mlp")

    def guesses(self, text):
        w = self.weights
        all_states = self.target.states(text[:-1])
        layers = self.config["eagle_aux_hidden_state_layer_ids"]
        states = np.concatenate([all_states[i] for i in layers], -1) @ w["fc.weight"].T
        tokens = list(text[1:])
        found = []
        while True:
            out = self.layer(self.embeddings[tokens], states)
            logits = rms(out[-1], w["norm.weight"], self.config["rms_norm_eps"]) @ w["lm_head.weight"].T
            best = int(np.argmax(logits))
            order = np.sort(logits)
            token = best if self.beyond is None else best + int(self.beyond[best])
            found.append({"token": token, "probability": float(softmax(logits)[best]), "margin": float(order[-1] - order[-2])})
            if len(found) == GUESSES:
                return found
            tokens.append(token)
            states = np.concatenate([states, out[-1:]])


def make(name, changes, own_vocabulary, target, out, seed):
    random = np.random.default_rng(seed)
    hidden = target.config["hidden_size"]
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": 96,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 1,
              "vocab_size": target.config["vocab_size"], "draft_vocab_size": own_vocabulary or target.config["vocab_size"],
              "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": False, **changes}
    queries, keys = config["num_attention_heads"] * config["head_dim"], config["num_key_value_heads"] * config["head_dim"]
    tensors = {}

    def add(tensor, *shape, mean=0.0, deviation=0.3):
        tensors[tensor] = ("F32", (mean + deviation * random.standard_normal(shape)).astype(np.float32))

    if own_vocabulary is None:
        add("embed_tokens.weight", config["vocab_size"], hidden)
    add("fc.weight", hidden, 3 * hidden, deviation=0.1)
    for norm in ("midlayer.hidden_norm", "midlayer.input_layernorm", "midlayer.post_attention_layernorm", "norm"):
        add(f"{norm}.weight", hidden, mean=1.0, deviation=0.1)
    for projection, rows in (("q", queries), ("k", keys), ("v", keys)):
        add(f"midlayer.self_attn.{projection}_proj.weight", rows, 2 * hidden, deviation=0.15)
    add("midlayer.self_attn.o_proj.weight", hidden, queries)
    add("midlayer.mlp.gate_proj.weight", config["intermediate_size"], hidden)
    add("midlayer.mlp.up_proj.weight", config["intermediate_size"], hidden)
    add("midlayer.mlp.down_proj.weight", hidden, config["intermediate_size"])
    add("lm_head.weight", config["draft_vocab_size"], hidden)
    if own_vocabulary is not None:
        ids = np.sort(random.choice(config["vocab_size"], own_vocabulary, replace=False))
        tensors["d2t"] = ("I64", (ids - np.arange(own_vocabulary)).astype(np.int64))
        known = np.zeros(config["vocab_size"], np.uint8)
        known[ids] = 1
        tensors["t2d"] = ("BOOL", known)
    head = Head(config, tensors, target)
    cases = []
    for length in (2, 3, 9, 23, 40):
        prompt = [int(token) for token in random.integers(3, 500, length)]
        text = list(prompt)
        for _ in range(12):
            text.append(target.next_token(text))
        # As the answer goes on, and what came of it.
        cases.append({"text": text, "num_prompt_tokens": length,
                      "guesses": {str(size): head.guesses(text[:size]) for size in range(max(2, length), len(text) + 1, 3)}})
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "golden.json").write_text(json.dumps({"cases": cases}) + "\n")


def main():
    target, out = Target(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2])
    make("eagle3_llama", {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}, 96, target, out, seed=1)
    make("eagle3_whole_vocabulary", {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "norm_before_residual": True,
                                     "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}, None, target, out, seed=5)


if __name__ == "__main__":
    main()
