#!/usr/bin/env python3
"""golden.json of a tiny checkpoint of bitsandbytes, in float64 with numpy: an unpacking and a forward pass that share nothing with quire.

    make_coded_golden.py DIRECTORY PROMPTS.json > golden.json

DIRECTORY: a Llama or a Qwen2 (config.json, model.safetensors); PROMPTS.json: another golden.json, for its prompts. The library itself is
no reference for these files: on a processor with AVX-512 BF16 its products of 4 bits are bfloat16's, whatever compute dtype it is given, and
LLM.int8() takes a column for an outlier once any row of a batch has one there. Here weights are what codes stand for, and outliers a row's.
"""

import json
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file


def four_bits(tensors, name):
    state = json.loads(bytes(next(value for key, value in tensors.items() if key.startswith(f"{name}.quant_state"))))
    codes = np.stack([tensors[name].ravel() >> 4, tensors[name].ravel() & 15], 1).ravel()
    scales = tensors[f"{name}.absmax"]
    if "nested_blocksize" in state:
        shared = np.repeat(tensors[f"{name}.nested_absmax"], state["nested_blocksize"])[:scales.size]
        scales = tensors[f"{name}.nested_quant_map"][scales] * shared + np.float32(state["nested_offset"])
    return (tensors[f"{name}.quant_map"][codes].reshape(-1, state["blocksize"]) * scales[:, None]).reshape(state["shape"])


def rounded_but_outliers(x, threshold):
    half = x.astype(np.float16).astype(np.float32)
    is_outlier = np.abs(half) >= threshold
    largest = np.where(is_outlier, 0, np.abs(half)).max(-1, keepdims=True)
    return np.where(is_outlier, x, np.rint(half * (np.float32(127) / largest)) * (largest / np.float64(127)))


class Model:
    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = load_file(folder / "model.safetensors")
        self.weights = {}

    def product(self, name, x):
        stored = self.tensors[f"{name}.weight"]
        if stored.dtype == np.int8:
            weight = stored * (self.tensors[f"{name}.SCB"][:, None] * np.float64(1 / 127))
            x = rounded_but_outliers(x, self.config["quantization_config"]["llm_int8_threshold"])
        elif stored.dtype == np.uint8:
            weight = self.weights.setdefault(name, four_bits(self.tensors, f"{name}.weight").astype(np.float64))
        else:
            weight = stored.astype(np.float64)
        bias = self.tensors.get(f"{name}.bias")
        return x @ weight.T + (0 if bias is None else bias)

    def norm(self, name, x):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.tensors[f"{name}.weight"]

    def logits(self, ids):
        config = self.config
        heads, kv_heads, size = config["num_attention_heads"], config["num_key_value_heads"], config.get("head_dim")
        size = size or config["hidden_size"] // heads
        theta = config.get("rope_parameters", config)["rope_theta"]
        angles = np.outer(np.arange(len(ids)), theta ** (-np.arange(0, size, 2) / size))
        cosines, sines = (np.concatenate([f(angles)] * 2, 1)[:, None] for f in (np.cos, np.sin))

        def rotated(x):
            return x * cosines + np.concatenate([-x[..., size // 2:], x[..., :size // 2]], -1) * sines

        x = self.tensors["model.embed_tokens.weight"][ids].astype(np.float64)
        mask = np.tril(np.ones((len(ids), len(ids)), bool))
        for layer in range(config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}."
            normed = self.norm(prefix + "input_layernorm", x)
            query, key, value = (self.product(f"{prefix}self_attn.{part}_proj", normed).reshape(len(ids), count, size)
                                 for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
            query, key = rotated(query), np.repeat(rotated(key), heads // kv_heads, 1)
            scores = np.where(mask, np.einsum("qhd,khd->hqk", query, key) / np.sqrt(size), -np.inf)
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            context = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), np.repeat(value, heads // kv_heads, 1))
            x = x + self.product(f"{prefix}self_attn.o_proj", context.reshape(len(ids), -1))
            normed = self.norm(prefix + "post_attention_layernorm", x)
            gate, up = (self.product(f"{prefix}mlp.{part}_proj", normed) for part in ("gate", "up"))
            x = x + self.product(f"{prefix}mlp.down_proj", gate / (1 + np.exp(-gate)) * up)
        head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
        return self.product(head, self.norm("model.norm", x))


def case(model, prompt, steps):
    logits = model.logits(prompt)
    logprobs = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)) - logits.max(-1, keepdims=True)
    ids, margins = list(prompt), []
    for _ in range(steps):
        last = model.logits(ids)[-1]
        first, second = np.sort(last)[[-1, -2]]
        margins.append(round(float(first - second), 5))
        ids.append(int(last.argmax()))
    return {"prompt": prompt, "greedy": ids[len(prompt):], "greedy_margin": margins,
            "last_logits": [round(float(x), 5) for x in logits[-1]],
            "logprob_of_prompt": [round(float(logprobs[i, token]), 6) for i, token in enumerate(prompt[1:])]}


def main():
    model = Model(pathlib.Path(sys.argv[1]))
    prompts = [(one["prompt"], len(one["greedy"])) for one in json.loads(pathlib.Path(sys.argv[2]).read_text())["cases"]]
    print(json.dumps({"dtype": "float64", "reference": "scripts/make_coded_golden.py",
                      "cases": [case(model, prompt, steps) for prompt, steps in prompts]}))


if __name__ == "__main__":
    main()
