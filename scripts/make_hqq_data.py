#!/usr/bin/env python3
"""Makes the HQQ checkpoints of tests/data/e2e/quant from the tiny ones beside them, by the library itself (hqq 0.2.8.post1) on a CPU:
tensors as its HQQLinear.state_dict() has them, quantization_config as transformers' HqqConfig writes it. golden.json: what transformers
answers in float32 with weights that are (code - zero) * scale in float32, unpacked by the library. Needs torch, transformers and hqq.

    scripts/make_hqq_data.py [TARGET]
"""

import json
import pathlib
import sys
import tempfile

import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear, Quantizer
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

DATA = pathlib.Path(__file__).resolve().parents[1] / "tests/data/e2e"
# Name: family, what HqqConfig is given, the type of scales and zeros.
CASES = {
    "llama_hqq_4bit_g64": ("llama", dict(nbits=4, group_size=64, axis=1), torch.float16),
    "llama_hqq_8bit_g64": ("llama", dict(nbits=8, group_size=64, axis=1), torch.float16),
    "llama_hqq_3bit_g64_bf16": ("llama", dict(nbits=3, group_size=64, axis=1), torch.bfloat16),
    "llama_hqq_2bit_g16": ("llama", dict(nbits=2, group_size=16, axis=1), torch.float16),
    "llama_hqq_4bit_axis0": ("llama", dict(nbits=4, group_size=64, axis=0), torch.float16),
    "qwen2_hqq_4bit_g64_f32": ("qwen2", dict(nbits=4, group_size=64, axis=1, view_as_float=True), torch.float32),
    "mixtral_hqq_4bit_g64": ("mixtral", dict(nbits=4, group_size=64, axis=1), torch.float16),
}
MATRICES = ("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight")


def quantised(weight, options, dtype):
    """The library's tensors of a matrix, and what they stand for."""
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight.float()
    layer = HQQLinear(linear, BaseQuantizeConfig(**options), compute_dtype=dtype, device="cpu")
    tensors = {key: value.detach().clone().contiguous() for key, value in layer.state_dict().items() if value is not None}
    meta = dict(layer.meta, compute_dtype=torch.float32, scale=layer.meta["scale"].float(), zero=layer.meta["zero"].float())
    return tensors, Quantizer.dequantize(layer.W_q.data, meta)


def make(folder, family, options, dtype):
    source = load_file(DATA / "tiny" / family / "model.safetensors")
    config = json.loads((DATA / "tiny" / family / "config.json").read_text())
    tensors, plain = {}, {}
    for name, value in source.items():
        if value.ndim == 2 and name.endswith(MATRICES):
            parts, plain[name] = quantised(value, options, dtype)
            tensors |= {name.removesuffix("weight") + key: part for key, part in parts.items()}
        else:
            tensors[name] = value.half()
            plain[name] = value.half().float()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    coded = dict(config, quantization_config={"quant_config": BaseQuantizeConfig(**options), "quant_method": "hqq",
                                              "skip_modules": ["lm_head"]})
    (folder / "config.json").write_text(json.dumps(coded, indent=1, sort_keys=True) + "\n")
    return config, plain


@torch.no_grad()
def answers(model, prompt, steps):
    logits = model(torch.tensor([prompt])).logits[0]
    logprobs = torch.log_softmax(logits.double(), -1)
    tokens, margins = list(prompt), []
    for _ in range(steps):
        best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
        margins.append(round((best.values[0] - best.values[1]).item(), 5))
        tokens.append(best.indices[0].item())
    return {"prompt": prompt, "greedy": tokens[len(prompt):], "greedy_margin": margins,
            "last_logits": [round(x, 5) for x in logits[-1].tolist()],
            "logprob_of_prompt": [round(logprobs[i, token].item(), 6) for i, token in enumerate(prompt[1:])]}


def main():
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else DATA / "quant"
    for name, (family, options, dtype) in CASES.items():
        config, plain = make(target / name, family, options, dtype)
        with tempfile.TemporaryDirectory() as folder:
            save_file(plain, pathlib.Path(folder) / "model.safetensors", metadata={"format": "pt"})
            (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        prompts = [(one["prompt"], len(one["greedy"])) for one in
                   json.loads((DATA / "tiny" / family / "golden.json").read_text())["cases"]]
        (target / name / "golden.json").write_text(json.dumps(
            {"base": family, "dtype": "float32", "reference": "scripts/make_hqq_data.py",
             "cases": [answers(model, prompt, steps) for prompt, steps in prompts]}) + "\n")


if __name__ == "__main__":
    main()
