#!/usr/bin/env python3
"""Random adapters on random small models of every family under quire and under PEFT: log-probabilities of prompts and of
greedy answers, with weights and arithmetic of both in float32. Run by hand; needs torch, transformers, peft and a release
build.

    scripts/compare_adapters.py [--seed 1] [--count 36] [--adapters 8] [--families llama,gpt2] [--keep DIR]

A base is one that compare_models.py draws; of an adapter are drawn which modules it has and how that is said, ranks,
scales, rows and weights that are trained whole, lengths (DoRA), the format of the file, and whether it is a soft prompt.
All adapters of a base are asked for in one batch, beside the base itself, and once more one after the other, which has to
give the same bits. PEFT reads what is saved; a log-probability may differ as in compare_models.py, and a token of a greedy
answer has to be the reference's most likely one within that. Printed: what differs, what is refused with its reason, what
was taken that was to be refused, and a table by family. Exit code 1 where something differs.
"""

import argparse
import copy
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter

import peft
import torch
import transformers
from compare_models import NAMES, ROOT, TOLERANCE, Families, make_model
from peft import LoraConfig, PeftModel, PrefixTuningConfig, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file, save_file

ANSWER = 5  # tokens
DEADLINE = 300  # seconds of one start
MOST_RANK = 16
# Tokens of a soft prompt: none with which an answer crosses the length where longrope takes its other factors.
VIRTUAL = (1, 5, 17, 30)
FORMATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# What PEFT can be told and quire is to refuse, and what its sentence has to name.
TO_BE_REFUSED = (({"bias": "all"}, "bias"), ({"bias": "lora_only"}, "bias"), ({"lora_bias": True}, "lora_bias"),
                 ({"alora_invocation_tokens": [5]}, "alora_invocation_tokens"),
                 ({"layer_replication": [[0, 1], [0, 1]]}, "layer_replication"),
                 ({"init_lora_weights": "olora"}, "init_lora_weights"))


class Modules:
    """What of a model adapters may name."""

    def __init__(self, model):
        head = model.get_output_embeddings()
        linear = (torch.nn.Linear, transformers.pytorch_utils.Conv1D)
        named = dict(model.named_modules())
        self.head = next(name for name, module in named.items() if module is head)
        self.embedding = next(name for name, module in named.items() if module is model.get_input_embeddings())
        self.products = [name for name, module in named.items() if isinstance(module, linear) and module is not head]
        self.leaves = sorted({name.rsplit(".", 1)[-1] for name in self.products})
        self.tails = sorted({".".join(name.rsplit(".", 2)[-2:]) for name in self.products})
        self.list = next(part for part in ("layers", "h") if any(f".{part}.0." in name for name in self.products))
        self.num_layers = model.config.num_hidden_layers
        parameters = [name for name, _ in model.named_parameters()]
        self.stacks = sorted({name.split(".", 3)[-1] for name in parameters
                              if name.endswith(("experts.gate_up_proj", "experts.down_proj"))})
        self.routers = sorted({name.split(".", 3)[-1] for name in parameters
                               if re.search(r"mlp\.(gate|router)\.weight$", name)})
        self.norms = sorted({name.split(".")[-2] for name in parameters if "norm" in name or "ln_" in name})


class Adapters:
    """Draws configurations as keywords of PEFT's classes."""

    def __init__(self, rng, modules, vocabulary):
        self.rng = rng
        self.modules = modules
        self.vocabulary = vocabulary

    def one(self, *values):
        return self.rng.choice(values)

    def maybe(self, probability):
        return self.rng.random() < probability

    def some(self, values, most=None):
        count = self.rng.randint(1, min(len(values), most or len(values)))
        return self.rng.sample(sorted(values), count)

    def expression(self):
        leaves = "|".join(self.some(self.modules.leaves))
        layers = "".join(str(i) for i in self.some(range(self.modules.num_layers)))
        place = self.modules.list
        return self.one(rf".*\.({leaves})", rf".*{place}\.[{layers}]\..*({leaves})$", rf"^.*\.{place}\.\d+\.\w+\.({leaves})",
                        rf"(?!.*lm_head).*\.(?:{leaves})", rf".*\.(?:self_attn|attn|mlp)\.({leaves})",
                        rf"(.*?)\.(?:{leaves})\Z", rf"[a-z_]+\.[\w.]*\.(?P<leaf>{leaves})")

    def targets(self):
        modules = self.modules
        kind = self.one("linear", "leaves", "leaves", "tails", "whole", "expression", "ends")
        if kind == "linear":
            return "all-linear"
        if kind == "leaves":
            return self.some(modules.leaves)
        if kind == "tails":
            return self.some(modules.tails)
        if kind == "whole":
            return self.some(modules.products)
        if kind == "expression":
            return self.expression()
        ends = self.some([modules.embedding.rsplit(".", 1)[-1], modules.head])
        return ends + (self.some(modules.leaves) if self.maybe(0.7) else [])

    def pattern(self, draw):
        modules = self.modules
        keys = {"leaf": lambda: self.one(*modules.leaves), "tail": lambda: self.one(*modules.tails),
                "whole": lambda: self.one(*modules.products),
                "layer": lambda: rf"{modules.list}\.{self.rng.randrange(modules.num_layers)}\..*",
                "any": lambda: rf".*\.\d+\..*{self.one(*modules.leaves)}",
                "begin": lambda: "^" + re.escape(self.one(*modules.products)),
                "either": lambda: f"({'|'.join(self.some(modules.leaves, 2))})",
                "stack": lambda: self.one(*modules.stacks or modules.leaves),
                "end": lambda: self.one(modules.head, modules.embedding.rsplit(".", 1)[-1])}
        found = {keys[self.one(*keys)](): draw() for _ in range(self.rng.randint(1, 3))}
        return dict(sorted(found.items()))  # the first that matches counts, and PEFT saves them so

    def rank(self):
        return self.rng.randint(1, MOST_RANK)

    def scale(self):
        return self.one(1, 2, 3, 7, 8, 16, 24, 0.5, 5.5)

    def low_rank(self):
        modules = self.modules
        found = {"r": self.rank(), "lora_alpha": self.scale(), "target_modules": self.targets(),
                 "use_rslora": self.maybe(0.25)}
        if self.maybe(0.3):
            found["rank_pattern"] = self.pattern(self.rank)
        if self.maybe(0.3):
            found["alpha_pattern"] = self.pattern(self.scale)
        if isinstance(found["target_modules"], list) and self.maybe(0.3):
            layers = self.some(range(modules.num_layers))
            found["layers_to_transform"] = self.one(layers, layers[0])
            if self.maybe(0.5):
                found["layers_pattern"] = self.one(modules.list, [modules.list], ["blocks", modules.list])
        if self.maybe(0.25):
            found["exclude_modules"] = self.one(self.some(modules.leaves, 2), self.some(modules.products, 2),
                                                self.some(modules.tails, 2), self.expression())
        if self.maybe(0.15):
            found["modules_to_save"] = self.some([modules.head, modules.embedding.rsplit(".", 1)[-1]])
        elif self.maybe(0.15):
            rows = [self.tokens() for _ in range(2)]
            ends = [modules.embedding.rsplit(".", 1)[-1], modules.head]
            found["trainable_token_indices"] = self.one(rows[0], {ends[0]: rows[0]}, dict(zip(ends, rows)),
                                                        {ends[0]: rows[0], ends[1]: rows[0]})
        parameters = [*modules.stacks, *modules.routers]
        if parameters and self.maybe(0.4):
            found["target_parameters"] = self.some(parameters)
            if self.maybe(0.3):
                found["target_modules"] = []
                found = {key: value for key, value in found.items() if not key.startswith("layers_")}
        elif self.maybe(0.2):
            found["use_dora"] = True
        elif self.maybe(0.05):
            found["target_parameters"] = [self.one(*modules.leaves, *modules.tails) + ".weight"]
        if "c_attn" in modules.leaves:
            found["fan_in_fan_out"] = self.one(True, False)
        return found

    def tokens(self):
        return self.rng.sample(range(self.vocabulary), self.rng.randint(1, self.vocabulary // 3))

    def draw(self):
        """A configuration, and what a refusal has to name, or None."""
        kind = self.rng.random()
        if kind < 0.08:
            return PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=self.one(*VIRTUAL)), None
        if kind < 0.16:
            return PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=self.one(*VIRTUAL)), None
        keywords, names = self.low_rank(), None
        if kind < 0.22:
            more, names = self.one(*TO_BE_REFUSED)
            keywords = {"r": 4, "lora_alpha": 4, "target_modules": self.some(self.modules.leaves)} | more
        elif kind < 0.24 and self.modules.norms:
            keywords["modules_to_save"], names = [self.one(*self.modules.norms)], "modules_to_save"
            keywords.pop("trainable_token_indices", None)
        return LoraConfig(task_type="CAUSAL_LM", **keywords), names


def fill(model, rng):
    generator = torch.Generator().manual_seed(rng.randint(0, 1 << 30))
    with torch.no_grad():
        for name, values in model.named_parameters():
            drawn = torch.randn(values.shape, generator=generator)
            if "magnitude" in name:
                values.mul_(0.6 + 0.8 * torch.rand(values.shape, generator=generator))
            elif "lora_" in name:
                values.copy_(0.2 * drawn)
            elif "trainable_tokens_delta" in name or "modules_to_save" in name:
                values.add_(0.25 * drawn)
            elif "prompt_encoder" in name:
                values.copy_(0.3 * drawn)


def make_adapter(folder, base, config, rng):
    model = get_peft_model(copy.deepcopy(base), config)
    fill(model, rng)
    model.save_pretrained(folder)
    dtype = FORMATS[rng.choice([*FORMATS])]
    path = folder / "adapter_model.safetensors"
    # Copies of the base's own weights, which PEFT would read back, stay what they are.
    stored = {name: values if "base_layer.weight" in name else values.to(dtype) for name, values in load_file(path).items()}
    save_file(stored, path, metadata={"format": "pt"})


def ask_quire(quire, folder, names, prompts, *more):
    """By name what is answered to each prompt, or why the adapter is refused; None and why where there is no start."""
    lines = [{"custom_id": f"{name}/{i}", "method": "POST", "url": "/v1/completions",
              "body": {"model": name, "prompt": prompt, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True,
                       "prompt_logprobs": 0, "logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}}
             for i, prompt in enumerate(prompts) for name in names]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = subprocess.run(
        [quire, "run-batch", "-i", folder / "in.jsonl", "-o", folder / "out.jsonl", "--model", folder / "base",
         "--served-model-name", "base", "--skip-tokenizer-init", "--activation-dtype", "float32", "--kv-cache-dtype",
         "float32", "--kv-cache-memory-bytes", "64M", "--max-num-batched-tokens", "64", "--enable-lora", "--lora-dir",
         folder / "adapters", "--max-lora-rank", str(2 * MOST_RANK), "--enable-prompt-adapter", "--max-prompt-adapters", "8",
         *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE)
    if run.returncode not in (0, 1) or not (folder / "out.jsonl").exists() or not (folder / "out.jsonl").stat().st_size:
        return None, f"exit code {run.returncode}: {run.stdout.strip()[-400:]}"
    reasons = dict(re.findall(r"adapter (\w+)\b[^\n]*?: ([^\n]*)", run.stdout))
    found = {}
    for line in (folder / "out.jsonl").read_text().splitlines():
        answer = json.loads(line)
        name, i = answer["custom_id"].split("/")
        if answer["response"]["status_code"] != 200:
            found[name] = reasons.get(name, json.dumps(answer["response"]["body"]))
            continue
        choice = answer["response"]["body"]["choices"][0]
        scored = zip(choice["prompt_logprobs"][1:], prompts[int(i)][1:])
        found.setdefault(name, {})[int(i)] = (
            [entry[str(token)]["logprob"] for entry, token in scored] + choice["logprobs"]["token_logprobs"],
            choice["token_ids"])
    (folder / "out.jsonl").unlink()
    return found, run.stdout


def reference(model, prompts, answers):
    """The logprobs of a prompt's tokens and of the answer's, and by how much the latter are less likely than the best."""
    rows, behind = [], 0.0
    for i, prompt in enumerate(prompts):
        tokens = prompt + answers[i][1]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens])).logits[0]
        logprobs = torch.log_softmax(logits[logits.shape[0] - len(tokens):].double(), -1)
        rows += [logprobs[k, token].item() for k, token in enumerate(tokens[1:])]
        for k in range(len(prompt) - 1, len(tokens) - 1):
            behind = max(behind, (logprobs[k].max() - logprobs[k, tokens[k + 1]]).item())
    return torch.tensor(rows, dtype=torch.float64), behind


def verdict(base, folder, prompts, answers, exact):
    """How far apart quire is from the reference, and the reference from itself."""
    def read(dtype):
        model = copy.deepcopy(base)
        if folder is not None:
            model = PeftModel.from_pretrained(model, folder, low_cpu_mem_usage=False)
        return reference(model.to(dtype).eval(), prompts, answers)

    expected, behind = read(torch.float32)
    unsure = (expected - read(torch.float64)[0]).abs().max().item() if exact else 0.0
    found = torch.tensor(sum((answers[i][0] for i in range(len(prompts))), []), dtype=torch.float64)
    off = max((found - expected).abs().max().item(), behind)
    return off, unsure


def why_unread(base, folder):
    """What PEFT says when it cannot read its own file, or compute with it; nothing where it can."""
    try:
        PeftModel.from_pretrained(copy.deepcopy(base), folder, low_cpu_mem_usage=False)(input_ids=torch.tensor([[3, 4, 5]]))
    except Exception as error:
        return str(error).strip().splitlines()[0][:160]
    return ""


def described(config):
    said = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    plain = type(config)(task_type="CAUSAL_LM").to_dict()
    return {key: value for key, value in said.items() if value != plain.get(key) and key != "base_model_name_or_path"}


def kinds(config):
    """What an adapter counts as in the summary."""
    if config is None:
        return ["the base"]
    found = ["DoRA"] if getattr(config, "use_dora", False) else []
    found += [field for field in ("target_parameters", "modules_to_save", "trainable_token_indices", "rank_pattern",
                                  "alpha_pattern", "layers_to_transform", "exclude_modules") if getattr(config, field, None)]
    return [config.peft_type.value, *found]


class Campaign:
    def __init__(self, options):
        self.options = options
        self.rng = random.Random(options.seed)
        self.equal, self.different, self.refused = Counter(), Counter(), Counter()
        self.reasons, self.impossible, self.kinds = Counter(), Counter(), Counter()

    def report(self, family, number, name, config, what, folder):
        self.different[family] += 1
        print(f"{family} {number} {name}: {what}: {described(config) if config else 'the base'}", flush=True)
        if self.options.keep:
            shutil.copytree(folder, self.options.keep / f"{family}_{number}", dirs_exist_ok=True)

    def base(self, folder, number, family):
        configuration = getattr(Families(self.rng), family)()
        try:
            prompts = make_model(folder / "base", family, configuration, self.rng, False)[:3]
            base = transformers.AutoModelForCausalLM.from_pretrained(
                folder / "base", attn_implementation="eager", experts_implementation="eager", dtype=torch.float32).eval()
            base(torch.tensor([prompts[0]]))
        except Exception as error:  # the reference has its own limits
            self.impossible[f"{family}: {str(error).strip().splitlines()[-1][:160]}"] += 1
            return
        configs, to_be_refused = {}, {}
        draws = Adapters(self.rng, Modules(base), base.config.vocab_size)
        for index in range(self.options.adapters):
            config, names = draws.draw()
            name = f"a{index}"
            try:
                make_adapter(folder / "adapters" / name, base, config, self.rng)
            except Exception as error:
                self.impossible[f"{family}: {type(config).__name__}: {str(error).strip().splitlines()[0][:160]}"] += 1
                shutil.rmtree(folder / "adapters" / name, ignore_errors=True)
                continue
            configs[name], to_be_refused[name] = config, names
        (folder / "adapters").mkdir(exist_ok=True)
        self.ask(folder, number, family, base, prompts, configs, to_be_refused,
                 not configuration.get("reorder_and_upcast_attn"))

    def ask(self, folder, number, family, base, prompts, configs, to_be_refused, exact):
        names = ["base", *configs]
        room = ["--max-loras", str(self.rng.choice([2, 8])), "--max-cpu-loras", "16"]
        found, log = ask_quire(self.options.quire, folder, names, prompts, *room, *self.options.more.split())
        if found is None or any(name not in found for name in names):
            if log and "quire: config: " in log:  # the base's own, not the adapters'
                self.impossible[f"{family}: {log.splitlines()[-1]}"] += 1
            else:
                self.report(family, number, "all", None, log[-400:], folder)
            return
        alone, log = ask_quire(self.options.quire, folder, names, prompts, *room, *self.options.more.split(), "--max-num-seqs", "1")
        for name in names:
            config = configs.get(name)
            if isinstance(found[name], str):
                error = why_unread(base, folder / "adapters" / name)
                if error:  # its patterns have another order in the file than they were given in, say
                    self.impossible[f"{family}: {type(config).__name__}: {error}"] += 1
                    continue
                self.refused[family] += 1
                reason = re.sub(r"\S*/a\d: ", "", found[name])
                self.reasons[f"{family}: {reason}"] += 1
                if not to_be_refused.get(name):
                    print(f"{family} {number} {name}: refused: {reason}: {described(config)}", flush=True)
                if to_be_refused.get(name) and to_be_refused[name] not in found[name]:
                    self.report(family, number, name, config, f"refused with {found[name]!r}", folder)
                continue
            if alone is None or found[name] != alone[name]:
                self.report(family, number, name, config, "other bits alone", folder)
                continue
            if to_be_refused.get(name):
                self.report(family, number, name, config, f"taken, with {to_be_refused[name]}", folder)
                continue
            try:
                path = None if name == "base" else folder / "adapters" / name
                off, unsure = verdict(base, path, prompts, found[name], exact)
            except Exception as error:
                self.impossible[f"{family}: {type(config).__name__}: {str(error).strip().splitlines()[0][:160]}"] += 1
                continue
            if off <= TOLERANCE + 8 * unsure:
                self.equal[family] += 1
                self.kinds.update(kinds(config))
                continue
            self.report(family, number, name, config, f"{off:.2e} apart, the reference {unsure:.2e} from itself", folder)

    def summary(self, families):
        for reasons, verb in ((self.reasons, "refused"), (self.impossible, "impossible for the reference")):
            for reason, count in reasons.most_common():
                print(f"{verb} {count}: {reason}")
        print("equal, by kind:", ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common()))
        print("| family | equal | refused | different |\n|---|---|---|---|")
        for family in families:
            print(f"| {family} | {self.equal[family]} | {self.refused[family]} | {self.different[family]} |")
        print(f"| all | {self.equal.total()} | {self.refused.total()} | {self.different.total()} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=36, help="of bases")
    parser.add_argument("--adapters", type=int, default=8, help="of each base")
    parser.add_argument("--families", default=",".join(NAMES))
    parser.add_argument("--keep", type=pathlib.Path, help="where bases and adapters that differ are left")
    parser.add_argument("--more", default="", help="further flags of quire: --more='--tensor-parallel-size 2'")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    campaign = Campaign(options)
    families = options.families.split(",")
    for number in range(options.count):
        with tempfile.TemporaryDirectory() as place:
            campaign.base(pathlib.Path(place), number, families[number % len(families)])
    campaign.summary(families)
    sys.exit(1 if campaign.different else 0)


if __name__ == "__main__":
    main()
