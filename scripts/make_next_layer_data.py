#!/usr/bin/env python3
"""Writes a tiny model with a random layer that predicts further tokens, and what that guesses by a reference made of
transformers' own layers.

    scripts/make_next_layer_data.py tests/data/e2e/tiny/qwen3_5 tests/data/e2e/tiny_heads/qwen3_5_mtp
    scripts/make_next_layer_data.py tests/data/e2e/tiny/glm4_moe tests/data/e2e/tiny_heads/glm4_moe_mtp

The folder is a checkpoint as they are published (config.json, model.safetensors) with golden.json beside it, as
make_mtp_data.py has it: texts, and of each the guesses that follow it. All is computed in doubles, whole texts at a
time, without a cache. Of a third argument the same model is written there as a GGUF file, as llama.cpp's converter
does it (needs gguf):

    scripts/make_next_layer_data.py tests/data/e2e/tiny/qwen3_5 tests/data/e2e/tiny_heads/qwen3_5_mtp \\
        tests/data/e2e/tiny_heads/qwen3_5_mtp.gguf

Needs torch, transformers and safetensors; qwen3_5, qwen3_5_moe and qwen3_next have their layer
apart ("mtp.*"), glm4_moe behind its last.
"""

import copy
import json
import os
import pathlib
import random
import shutil
import sys

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

GUESSES = 4


class Model:
    def __init__(self, source):
        self.whole = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float64, attn_implementation="eager",
                                                                       experts_implementation="eager")
        self.whole.eval()
        self.config = self.whole.config
        self.apart = self.config.model_type.startswith("qwen3")
        like = self.whole.model.layers
        place = self.config.layer_types.index("full_attention") if self.apart else len(like) - 1
        self.layer = copy.deepcopy(like[place])
        norm = self.whole.model.norm
        self.token_norm, self.state_norm, self.norm = (copy.deepcopy(norm) for _ in range(3))
        self.join = torch.nn.Linear(2 * self.config.hidden_size, self.config.hidden_size, bias=False, dtype=torch.float64)
        torch.manual_seed(7)
        with torch.no_grad():
            for name, values in self.layer.named_parameters():
                values += (0.1 if "norm" in name or "bias" in name else 0.3) * torch.randn_like(values)
            for one in (self.token_norm, self.state_norm, self.norm):
                one.weight += 0.2 * torch.randn_like(one.weight)
            self.join.weight.copy_(0.3 * torch.randn_like(self.join.weight))
            # As they are stored.
            for part in (self.layer, self.token_norm, self.state_norm, self.norm, self.join):
                for values in part.parameters():
                    values.copy_(values.float())

    def tensors(self):
        behind = f"model.layers.{self.config.num_hidden_layers}."
        names = ({"layer": "mtp.layers.0.", "join": "mtp.fc", "token": "mtp.pre_fc_norm_embedding", "state": "mtp.pre_fc_norm_hidden",
                  "norm": "mtp.norm"} if self.apart else
                 {"layer": behind, "join": behind + "eh_proj", "token": behind + "enorm", "state": behind + "hnorm",
                  "norm": behind + "shared_head.norm"})
        out = {names["layer"] + name: values for name, values in self.layer.state_dict().items()}
        for part, module in (("join", self.join), ("token", self.token_norm), ("state", self.state_norm), ("norm", self.norm)):
            out[names[part] + ".weight"] = module.weight
        # Experts are stacks in transformers' layers, and apart in checkpoints.
        for name in [name for name in out if name.endswith((".experts.gate_up_proj", ".experts.down_proj"))]:
            root, kind = name.rsplit(".", 1)
            for expert, values in enumerate(out.pop(name)):
                halves = values.chunk(2) if kind == "gate_up_proj" else (values,)
                for half, part in zip(halves, ("gate_proj", "up_proj") if len(halves) == 2 else ("down_proj",)):
                    out[f"{root}.{expert}.{part}.weight"] = half
        return {name: values.detach().float().contiguous().clone() for name, values in out.items()}

    def states(self, tokens):
        return self.whole.model(torch.tensor([tokens]), use_cache=False).last_hidden_state[0]

    def logits(self, tokens):
        return self.whole.lm_head(self.states(tokens))

    def run(self, x):
        rows = x.shape[0]
        places = torch.arange(rows)[None]
        if self.apart:
            rotation = self.whole.model.rotary_emb(x[None], places)
        else:
            rotation = self.whole.model.rotary_emb(x[None], position_ids=places)
        mask = torch.triu(torch.full((rows, rows), float("-inf"), dtype=torch.float64), 1)[None, None]
        out = self.layer(x[None], position_embeddings=rotation, attention_mask=mask, position_ids=places)
        return (out[0] if isinstance(out, tuple) else out).reshape(rows, -1)

    def guesses(self, text):
        """A row of position t is of the states there, behind the last norm, and the token at t + 1. What goes on as a
        state is what is read by the head over the vocabulary, or what the layer gives before that norm."""
        states, tokens, found = self.states(text[:-1]), list(text[1:]), []
        while True:
            embedded = self.whole.model.embed_tokens(torch.tensor(tokens))
            x = self.join(torch.cat([self.token_norm(embedded), self.state_norm(states)], -1))
            out = self.run(x)
            normed = self.norm(out)
            logits = self.whole.lm_head(normed[-1])
            best, order = int(logits.argmax()), logits.sort().values
            found.append({"token": best, "probability": float(logits.softmax(-1)[best]), "margin": float(order[-1] - order[-2])})
            if len(found) == GUESSES:
                return found
            tokens.append(best)
            states = torch.cat([states, (normed if self.apart else out)[-1:]])


# The layer's own tensors by llama.cpp's names behind "blk.<n>.nextn.".
NEXT_NAMES = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm"}
APART = {"mtp.fc": "eh_proj", "mtp.pre_fc_norm_embedding": "enorm", "mtp.pre_fc_norm_hidden": "hnorm", "mtp.norm": "shared_head.norm"}


def write_gguf(path, tensors, config):
    import gguf
    import numpy as np
    from make_tiny_data import ARCHITECTURES, converted, metadata

    family = config.model_type.removesuffix("_text")
    count = config.num_hidden_layers
    behind = f"model.layers.{count}."
    named = {}
    for name, values in tensors.items():
        stem = name.removesuffix(".weight")
        if stem in APART:
            name = f"{behind}{APART[stem]}.weight"
        named[name.replace("mtp.layers.0.", behind)] = values.numpy()
    architecture = gguf.MODEL_ARCH[ARCHITECTURES[family]]
    names = gguf.get_tensor_name_map(architecture, count + 1)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    config.num_hidden_layers = count + 1
    metadata(writer, config, family)
    config.num_hidden_layers = count
    writer.add_uint32(f"{gguf.MODEL_ARCH_NAMES[architecture]}.nextn_predict_layers", 1)
    for name, values in converted(named, config, family).items():
        own = name.removeprefix(behind).removesuffix(".weight")
        stored = (f"blk.{count}.nextn.{NEXT_NAMES[own]}.weight" if name.startswith(behind) and own in NEXT_NAMES
                  else names.get_name(name, try_suffixes=(".weight", ".bias")))
        writer.add_tensor(stored, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def main():
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    model = Model(source)
    rng = random.Random(3)
    cases = []
    for length in (2, 3, 9, 23, 40):
        text = [rng.randrange(3, model.config.vocab_size) for _ in range(length)]
        for _ in range(12):
            text.append(int(model.logits(text)[-1].argmax()))
        cases.append({"text": text, "num_prompt_tokens": length,
                      "guesses": {str(size): model.guesses(text[:size]) for size in range(max(2, length), len(text) + 1, 3)}})
    print("closest guess leads by", min(g["margin"] for c in cases for list_ in c["guesses"].values() for g in list_))
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / "generation_config.json", out / "generation_config.json")
    config = json.loads((source / "config.json").read_text())
    config["mtp_num_hidden_layers" if model.apart else "num_nextn_predict_layers"] = 1
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = {**load_file(source / "model.safetensors"), **model.tensors()}
    save_file(tensors, out / "model.safetensors")
    if len(sys.argv) > 3:
        write_gguf(sys.argv[3], tensors, model.config)
    (out / "golden.json").write_text(json.dumps({"cases": cases}) + "\n")


if __name__ == "__main__":
    main()
