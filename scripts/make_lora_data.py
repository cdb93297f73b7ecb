#!/usr/bin/env python3
"""Makes the adapters of tests/data/e2e/lora that are of latent attention, of stacks of experts, of a gate of shared experts, of
rows of embeddings, and Gemma's soft prompts, with the answers of PEFT to them. Made with torch 2.15.0, transformers 5.24.0 and peft 0.21.2; those of "old_stacks" with peft 0.18.1.

    scripts/make_lora_data.py [NAME...]
"""

import json
import sys
import types

import peft
import torch
from make_dora_data import DATA, answers, base_model
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model

TOKENS = [*range(380, 20, -3)]
LATENT = ["kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]
ADAPTERS = {
    "deepseek_v2/kv_b": dict(r=4, lora_alpha=8, target_modules=["kv_b_proj"]),
    "deepseek_v2/latent": dict(r=8, lora_alpha=4, use_rslora=True, target_modules=[*LATENT, "q_proj", "q_a_proj", "q_b_proj"]),
    "deepseek_v3/latent": dict(r=5, lora_alpha=6, target_modules=[*LATENT, "q_a_proj", "q_b_proj"], rank_pattern={"kv_b_proj": 7},
                               alpha_pattern={"kv_b_proj": 3}),
    "mixtral/stacks": dict(r=4, lora_alpha=8, target_modules=["q_proj"],
                           target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj", "mlp.gate.weight"]),
    "qwen3_moe/stacks": dict(r=4, lora_alpha=8, target_modules=[], target_parameters=["experts.down_proj"]),
    "deepseek_v3/stacks": dict(r=3, lora_alpha=8, use_rslora=True, target_modules=["kv_b_proj"],
                               target_parameters=["experts.gate_up_proj", "experts.down_proj"],
                               rank_pattern={"experts.down_proj": 2}, alpha_pattern={"experts.gate_up_proj": 5}),
    "gpt_oss/stacks": dict(r=4, lora_alpha=8, target_modules=[],
                           target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]),
    "llama/tokens": dict(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"],
                         trainable_token_indices={"lm_head": [7, 401, 12], "embed_tokens": [300, 1, 12, 40]}),
    "qwen2/tokens": dict(r=4, lora_alpha=8, target_modules=["q_proj"], trainable_token_indices=TOKENS),
    "gemma3/tokens": dict(r=4, lora_alpha=8, target_modules=["v_proj"], trainable_token_indices=TOKENS),
    "mixtral/old_stacks": dict(r=4, lora_alpha=8, target_modules=[],
                               target_parameters=["experts.gate_up_proj", "experts.down_proj"]),
    "qwen2_moe/shared": dict(r=3, lora_alpha=3, target_modules=["shared_expert_gate"]),
}
PROMPTS = {"gemma2/prompt_tuning": 5, "gemma3/prompt_tuning": 5}  # virtual tokens


def config_of(name):
    if name in PROMPTS:
        return PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=PROMPTS[name])
    return LoraConfig(task_type="CAUSAL_LM", **ADAPTERS[name])


def write(folder, family, config):
    model = get_peft_model(base_model(family), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn_like(parameter) * 0.5 / parameter.shape[-1] ** 0.5)
            elif "trainable_tokens_delta" in name:
                parameter.add_(torch.randn_like(parameter) * parameter.std())
            elif "prompt_encoder" in name:
                parameter.copy_(torch.randn_like(parameter))
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    (folder / "adapter_model.safetensors").chmod(0o644)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = family
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def of_tokens(model, num_virtual):
    """The model without the logits of its soft prompt."""
    return lambda tokens: types.SimpleNamespace(logits=model(input_ids=tokens).logits[:, num_virtual:])


def check_base(family, asked):
    """That this release of transformers computes the base as the one did that its answers are of."""
    model = base_model(family).eval()
    for case in asked:
        found = answers(model, case["prompt"], 0)["logprob_of_prompt"]
        worst = max((abs(a - b) for a, b in zip(found, case["logprob_of_prompt"])), default=0)
        assert worst < 5e-5, f"{family}: the base's log-probabilities differ by {worst}"


def main():
    old = int(peft.__version__.split(".")[1]) < 19
    for name in sys.argv[1:] or [name for name in (*ADAPTERS, *PROMPTS) if ("old" in name) == old]:
        torch.manual_seed(5)
        family = name.split("/")[0]
        asked = json.loads((DATA / "tiny" / family / "golden.json").read_text())["cases"]
        check_base(family, asked)
        folder = DATA / "lora" / name
        write(folder, family, config_of(name))
        model = PeftModel.from_pretrained(base_model(family), folder).eval()  # from the saved file alone
        model = of_tokens(model, PROMPTS.get(name, 0))
        cases = [answers(model, case["prompt"], len(case["greedy"])) for case in asked]
        (folder / "golden.json").write_text(json.dumps({"base": family, "dtype": "float32", "cases": cases}))


if __name__ == "__main__":
    main()
