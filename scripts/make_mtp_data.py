#!/usr/bin/env python3
"""Writes a tiny DeepSeek V3 with a random next-token layer behind its own, and what that guesses by a reference of its own.

    scripts/make_mtp_data.py tests/data/e2e/tiny/deepseek_v3 tests/data/e2e/tiny_heads/deepseek_v3_mtp

The folder is a checkpoint as they are published (config.json, model.safetensors) with golden.json beside it: texts, and
of each the guesses that follow it, with their probabilities and by how much the first logit leads. All is computed in
doubles, whole texts at a time, without a cache; that the model's own part says what its golden.json says is checked.
Needs numpy.
"""

import json
import pathlib
import shutil
import sys

import numpy as np

from make_eagle3_data import GUESSES, feed_forward, read_tensors, rms, softmax, write_tensors


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def rotate_neighbours(x, theta):
    """x: [rows, heads, size], row t at position t; pairs are (2i, 2i + 1)."""
    rows, _, size = x.shape
    angles = np.outer(np.arange(rows), theta ** (-np.arange(0, size, 2) / size))[:, None, :]
    a, b = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2] = a * np.cos(angles) - b * np.sin(angles)
    out[..., 1::2] = b * np.cos(angles) + a * np.sin(angles)
    return out


class Model:
    def __init__(self, config, weights):
        self.config, self.weights = config, weights

    def norm(self, x, name, eps=None):
        return rms(x, self.weights[f"{name}.weight"], eps or self.config["rms_norm_eps"])

    def attend(self, x, prefix):
        w, c, rows = self.weights, self.config, len(x)
        heads, nope, rope = c["num_attention_heads"], c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        theta = c["rope_parameters"]["rope_theta"]
        low = self.norm(x @ w[f"{prefix}.q_a_proj.weight"].T, f"{prefix}.q_a_layernorm", 1e-6)
        q = (low @ w[f"{prefix}.q_b_proj.weight"].T).reshape(rows, heads, nope + rope)
        both = x @ w[f"{prefix}.kv_a_proj_with_mqa.weight"].T
        low = self.norm(both[:, :c["kv_lora_rank"]], f"{prefix}.kv_a_layernorm", 1e-6)
        kv = (low @ w[f"{prefix}.kv_b_proj.weight"].T).reshape(rows, heads, nope + c["v_head_dim"])
        turned = rotate_neighbours(both[:, None, c["kv_lora_rank"]:], theta)
        q = np.concatenate([q[..., :nope], rotate_neighbours(q[..., nope:], theta)], -1)
        k = np.concatenate([kv[..., :nope], np.broadcast_to(turned, (rows, heads, rope))], -1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(nope + rope) + np.triu(np.full((rows, rows), -np.inf), 1)
        out = np.einsum("hij,jhd->ihd", softmax(scores), kv[..., nope:])
        return out.reshape(rows, -1) @ w[f"{prefix}.o_proj.weight"].T

    def experts(self, x, prefix):
        w, c = self.weights, self.config
        scores = sigmoid(x @ w[f"{prefix}.gate.weight"].T)
        out = feed_forward(x, w, f"{prefix}.shared_experts")
        size = c["n_routed_experts"] // c["n_group"]
        for row, own in enumerate(scores):
            judged = own + w[f"{prefix}.gate.e_score_correction_bias"]
            groups = np.sort(judged.reshape(-1, size), -1)[:, -2:].sum(-1)
            kept = np.argsort(-groups)[:c["topk_group"]]
            judged[~np.isin(np.arange(len(judged)) // size, kept)] = -np.inf
            chosen = np.argsort(-judged)[:c["num_experts_per_tok"]]
            shares = own[chosen] / own[chosen].sum() * c["routed_scaling_factor"]
            for expert, share in zip(chosen, shares):
                out[row] += share * feed_forward(x[row:row + 1], w, f"{prefix}.experts.{expert}")[0]
        return out

    def layer(self, x, index):
        prefix = f"model.layers.{index}"
        x = x + self.attend(self.norm(x, f"{prefix}.input_layernorm"), f"{prefix}.self_attn")
        normed = self.norm(x, f"{prefix}.post_attention_layernorm")
        dense = index < self.config["first_k_dense_replace"]
        return x + (feed_forward(normed, self.weights, f"{prefix}.mlp") if dense else self.experts(normed, f"{prefix}.mlp"))

    def states(self, tokens):
        """Behind the last norm, which is what the head over the vocabulary reads: [rows, hidden_size]."""
        x = self.weights["model.embed_tokens.weight"][tokens]
        for index in range(self.config["num_hidden_layers"]):
            x = self.layer(x, index)
        return self.norm(x, "model.norm")

    def logits(self, tokens):
        return self.states(tokens) @ self.weights["lm_head.weight"].T

    def guesses(self, text):
        """DeepSeek-AI, 2024, section 2.2: a row of position t is of the states there and the token at t + 1. What the
        layer itself gives goes on as a state, before the norm in front of the shared head."""
        prefix = f"model.layers.{self.config['num_hidden_layers']}"
        w = self.weights
        states, tokens, found = self.states(text[:-1]), list(text[1:]), []
        while True:
            embedded = self.norm(w["model.embed_tokens.weight"][tokens], f"{prefix}.enorm")
            both = np.concatenate([embedded, self.norm(states, f"{prefix}.hnorm")], -1)
            out = self.layer(both @ w[f"{prefix}.eh_proj.weight"].T, self.config["num_hidden_layers"])
            logits = w["lm_head.weight"] @ self.norm(out[-1], f"{prefix}.shared_head.norm")
            best, order = int(np.argmax(logits)), np.sort(logits)
            found.append({"token": best, "probability": float(softmax(logits)[best]), "margin": float(order[-1] - order[-2])})
            if len(found) == GUESSES:
                return found
            tokens.append(best)
            states = np.concatenate([states, out[-1:]])


def next_layer(config, weights, random):
    """As the layer before it, with numbers of its own, and what joins states and tokens."""
    count, hidden = config["num_hidden_layers"], config["hidden_size"]
    prefix, tensors = f"model.layers.{count}.", {}
    for name, like in weights.items():
        if name.startswith(f"model.layers.{count - 1}."):
            norm, bias = "norm" in name, name.endswith("bias")
            values = (1 if norm else 0) + (0.1 if norm or bias else 0.4) * random.standard_normal(like.shape)
            tensors[prefix + name.split(".", 3)[3]] = values
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{prefix}{norm}.weight"] = 1 + 0.1 * random.standard_normal(hidden)
    tensors[f"{prefix}eh_proj.weight"] = 0.15 * random.standard_normal((hidden, 2 * hidden))
    # Published checkpoints repeat what the layer shares with the model.
    tensors[f"{prefix}embed_tokens.weight"] = weights["model.embed_tokens.weight"]
    tensors[f"{prefix}shared_head.head.weight"] = weights["lm_head.weight"]
    return {name: values.astype(np.float32) for name, values in tensors.items()}


def main():
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    config = json.loads((source / "config.json").read_text())
    weights = read_tensors(source / "model.safetensors")
    random = np.random.default_rng(3)
    weights.update({name: values.astype(np.float64) for name, values in next_layer(config, weights, random).items()})
    model = Model(config, weights)
    for case in json.loads((source / "golden.json").read_text())["cases"]:
        assert np.allclose(model.logits(case["prompt"])[-1], case["last_logits"], atol=1e-3), "not the model of the golden file"
    cases = []
    for length in (2, 3, 9, 23, 40):
        text = [int(token) for token in random.integers(3, 500, length)]
        for _ in range(12):
            text.append(int(np.argmax(model.logits(text)[-1])))
        # As the answer goes on, and what came of it.
        cases.append({"text": text, "num_prompt_tokens": length,
                      "guesses": {str(size): model.guesses(text[:size]) for size in range(max(2, length), len(text) + 1, 3)}})
    print("closest guess leads by", min(g["margin"] for c in cases for list_ in c["guesses"].values() for g in list_))
    out.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(source / name, out / name)
    write_tensors(out / "model.safetensors", {name: ("F32", values.astype(np.float32)) for name, values in weights.items()})
    (out / "golden.json").write_text(json.dumps({"cases": cases}) + "\n")


if __name__ == "__main__":
    main()
