#!/usr/bin/env python3
"""Makes the DoRA adapters of tests/data/e2e/lora that are not of a reference set: GPT-2's (Conv1D), OPT's (biases), and one of
an embedding. Needs torch, transformers and peft 0.21.2.

    scripts/make_dora_data.py
"""

import json
import pathlib

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

DATA = pathlib.Path(__file__).resolve().parents[1] / "tests/data/e2e"
ADAPTERS = {
    "gpt2/dora": dict(target_modules=["c_attn", "c_proj", "c_fc"]),
    "opt/dora": dict(target_modules="all-linear"),
    "llama/dora_embed": dict(target_modules=["embed_tokens", "q_proj"]),
}


def base_model(family):
    return AutoModelForCausalLM.from_pretrained(DATA / "tiny" / family, torch_dtype=torch.float32)


def write(folder, family, options):
    model = get_peft_model(base_model(family), LoraConfig(task_type="CAUSAL_LM", use_dora=True, r=4, lora_alpha=8, **options))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "magnitude" in name:
                parameter.mul_(torch.rand_like(parameter) * 0.8 + 0.6)
            elif "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.5 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = family  # not where it lay
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


@torch.no_grad()
def answers(model, prompt, steps):
    logits = model(torch.tensor([prompt])).logits[0]
    logprobs = torch.log_softmax(logits.double(), -1)
    tokens, margins = list(prompt), []
    for _ in range(steps):
        best = model(torch.tensor([tokens])).logits[0, -1].topk(2)
        margins.append((best.values[0] - best.values[1]).item())
        tokens.append(best.indices[0].item())
    return {"prompt": prompt, "greedy": tokens[len(prompt):], "greedy_margin": margins, "last_logits": logits[-1].tolist(),
            "logprob_of_prompt": [logprobs[i, token].item() for i, token in enumerate(prompt[1:])]}


def main():
    torch.manual_seed(5)
    for name, options in ADAPTERS.items():
        family = name.split("/")[0]
        folder = DATA / "lora" / name
        write(folder, family, options)
        model = PeftModel.from_pretrained(base_model(family), folder).eval()  # from the saved file alone
        asked = json.loads((DATA / "tiny" / family / "golden.json").read_text())["cases"]
        cases = [answers(model, case["prompt"], len(case["greedy"])) for case in asked]
        (folder / "golden.json").write_text(json.dumps({"base": family, "dtype": "float32", "cases": cases}))


if __name__ == "__main__":
    main()
