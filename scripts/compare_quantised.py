#!/usr/bin/env python3
"""Random small models of every family in the codes of every camp under quire and under Hugging Face's transformers:
log-probabilities of prompts and of greedy answers, with the arithmetic of both in float32. Run by hand; needs torch,
transformers, safetensors and a release build.

    scripts/compare_quantised.py [--seed 1] [--count 180] [--camps gptq,awq] [--families llama,gpt2] [--keep DIR]

A model is one that compare_models.py draws. A camp's options, which modules are left whole and how that is told are
drawn too; quantised_layouts.py and quantised_camps.py pack matrices as the camp's files have them. The reference has
the same model with what codes stand for in their place and, where the format rounds inputs, rounds them before each
such product (but of kv_b_proj, whose inputs quire caches as they are). Models without such roundings are also cut by
two ranks. A log-probability may differ as in compare_models.py; where inputs are rounded the reference is also
compared with itself on inputs that are 1e-6 larger or smaller, since a number between two steps falls to either, and
a few tokens may differ by more. A token of a greedy answer has to be the reference's most likely one within that; one
sequence after the other has to give the same bits. Printed: what differs, what is refused with its reason, and a
table by camp. Exit code 1 where something differs.
"""

import argparse
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

import torch
import transformers
from compare_models import NAMES, ROOT, TOLERANCE, Families, make_model
from quantised_camps import CAMPS
from quantised_layouts import FLOATS
from safetensors.torch import load_file, save_file

ANSWER = 5  # tokens
DEADLINE = 300  # seconds of one start
JITTERS = 3
MOST = 0.8  # of the tokens: where inputs are rounded, what is wrong for all is wrong for these
ONE_STEP = 0.02  # of what rounding moves on the average: less is a number here and there that fell to the other side
NOT_CODED = re.compile(
    r"(embed_\w+|embeddings|wte|wpe|norm\w*|mlp\.gate|mixer\.gate|block_sparse_moe\.gate|router|shared_expert_gate)\.weight$"
)
EXPERT = re.compile(r"(.*)\.(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(w1|w3|gate_proj|up_proj|w2|down_proj)$")
# What quire is to refuse, and what its sentence has to name.
TO_BE_REFUSED = [
    ({"quant_method": method}, method)
    for method in ("quanto", "aqlm", "vptq", "higgs", "spqr", "bitnet", "eetq", "fp_quant")
]
TO_BE_REFUSED += [
    ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemv_fast"}, "gemv_fast"),
    ({"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": False}, "zero_point"),
    ({"quant_method": "gptq", "bits": 5, "group_size": 32}, "bits"),
    ({"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "bitblas"}, "bitblas"),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "W4A8_AWQ"),
    (
        {"quant_method": "compressed-tensors", "config_groups": {}, "transform_config": {"config_groups": {"u": {}}}},
        "transform_config",
    ),
    (
        {
            "quant_method": "compressed-tensors",
            "format": "marlin-24",
            "config_groups": {
                "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int", "group_size": 128}}
            },
        },
        "marlin-24",
    ),
    ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}}, "Int4WeightOnlyConfig"),
    (
        {
            "quant_method": "quark",
            "global_quant_config": {"weight": {"dtype": "fp6_e2m3", "qscheme": "per_group", "group_size": 32}},
        },
        "fp6_e2m3",
    ),
]


def read_tensors(folder):
    return {name: values for path in sorted(folder.glob("*.safetensors")) for name, values in load_file(path).items()}


def modules_of(tensors, family):
    """Matrices that may be stored in codes, [out, in] whatever the family."""
    found = {}
    for name, values in tensors.items():
        if values.dim() == 2 and name.endswith(".weight") and not NOT_CODED.search(name):
            is_turned = family == "gpt2" and ".h." in name
            found[name.removesuffix(".weight")] = values.T.contiguous() if is_turned else values
    return found


def save(folder, config, tensors, rng):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    names = [*tensors]
    rng.shuffle(names)
    parts = rng.choice([1, 1, 3])
    for i in range(parts):
        chosen = {name: tensors[name].contiguous() for name in names[i::parts]}
        save_file(
            chosen, folder / ("model.safetensors" if parts == 1 else f"model-{i + 1:05}-of-{parts:05}.safetensors")
        )
    if parts > 1:
        files = {name: f"model-{i + 1:05}-of-{parts:05}.safetensors" for i in range(parts) for name in names[i::parts]}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))


class Coded:
    """A model in codes in folder / coded, and what it stands for in folder / plain."""

    def __init__(self, folder, family, camp_class, rng):
        tensors = read_tensors(folder / "base")
        modules = modules_of(tensors, family)
        self.camp = camp_class(
            rng,
            {name: tuple(values.shape) for name, values in modules.items()},
            [name for name in modules if self.is_turned(family, f"{name}.weight")],
        )
        self.roundings, self.count = {}, 0
        dtype = FLOATS[rng.choice(["float32", "float32", "bfloat16", "float16"])]
        coded = {name: values.to(dtype) for name, values in tensors.items()}
        plain = {name: values.float() for name, values in coded.items()}
        is_faint = rng.random() < 0.2  # some matrices are next to nothing, as experts that nothing has trained are
        for name, values in modules.items():
            key = f"{name}.weight"
            if is_faint and rng.random() < 0.2:
                values = values * rng.choice([1e-4, 1e-6])
            stored = self.camp.store(name, values, f"{name}.bias" in tensors)
            if stored is None:
                continue
            self.count += 1
            del coded[key]
            coded |= stored.tensors
            plain[key] = (
                stored.values.T
                if tensors[key].shape != stored.values.shape or self.is_turned(family, key)
                else stored.values
            )
            if stored.rounding and not name.endswith("kv_b_proj"):
                self.roundings[name] = stored.rounding
        for name in [
            name for name, values in tensors.items() if values.dim() == 3 and hasattr(self.camp, "store_stack")
        ]:
            stored = self.camp.store_stack(name, tensors[name])
            if stored is not None:
                self.count += 1
                del coded[name]
                coded |= stored.tensors
                plain[name] = stored.values
        config = json.loads((folder / "base" / "config.json").read_text())
        save(folder / "plain", config, plain, rng)
        said = self.configuration = self.camp.configuration()
        save(
            folder / "coded",
            config if self.camp.beside or not said else config | {"quantization_config": said},
            coded,
            rng,
        )
        if self.camp.beside:
            (folder / "coded" / self.camp.beside).write_text(json.dumps(said))

    @staticmethod
    def is_turned(family, key):
        return family == "gpt2" and ".h." in key


class Rounded:
    """Products of a model that round their inputs: weights are known by where they lie."""

    def __init__(self, model, roundings, jitter=None):
        self.by_place, self.jitter = {}, jitter
        parameters = dict(model.named_parameters())
        for name, rounding in roundings.items():
            expert = EXPERT.match(name)
            if not expert:
                self.by_place[parameters[f"{name}.weight"].data_ptr()] = [rounding]
                continue
            is_down = expert[3] in ("w2", "down_proj")
            weight = parameters[f"{expert[1]}.mlp.experts.{'down_proj' if is_down else 'gate_up_proj'}"][int(expert[2])]
            # Of gate and up, which are one matrix here, each its own.
            parts = self.by_place.setdefault(weight.data_ptr(), [None] if is_down else [None, None])
            parts[expert[3] in ("w3", "up_proj")] = rounding

    def product(self, of, x, weight):
        parts = self.by_place.get(weight.data_ptr(), [None])
        if self.jitter is not None and any(parts):
            x = x * (1 + 1e-6 * torch.randn(x.shape, generator=self.jitter, dtype=x.dtype))
        if len(parts) == 1:
            return of(parts[0](x) if parts[0] else x, weight)
        halves = [of(rounding(x) if rounding else x, half) for rounding, half in zip(parts, weight.chunk(2))]
        return torch.cat(halves, -1)

    def __enter__(self):
        linear, addmm = self.saved = torch.nn.functional.linear, torch.addmm
        if self.by_place:
            torch.nn.functional.linear = lambda x, weight, bias=None: self.product(
                lambda x, w: linear(x, w, bias), x, weight
            )  # experts have no bias
            torch.addmm = lambda bias, x, weight: self.product(lambda x, w: addmm(bias, x, w), x, weight)  # Conv1D

    def __exit__(self, *_):
        torch.nn.functional.linear, torch.addmm = self.saved


def ask_quire(quire, folder, prompts, *more):
    """What is answered to each prompt, or None and why."""
    lines = [
        {
            "custom_id": str(i),
            "method": "POST",
            "url": "/v1/completions",
            "body": {
                "model": "m",
                "prompt": prompt,
                "max_tokens": ANSWER,
                "temperature": 0,
                "ignore_eos": True,
                "prompt_logprobs": 0,
                "logprobs": 0,
                "return_token_ids": True,
                "return_tokens_as_token_ids": True,
            },
        }
        for i, prompt in enumerate(prompts)
    ]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = subprocess.run(
        [
            quire,
            "run-batch",
            "-i",
            folder / "in.jsonl",
            "-o",
            folder / "out.jsonl",
            "--model",
            folder / "coded",
            "--served-model-name",
            "m",
            "--skip-tokenizer-init",
            "--activation-dtype",
            "float32",
            "--kv-cache-dtype",
            "float32",
            "--kv-cache-memory-bytes",
            "64M",
            "--max-num-batched-tokens",
            "64",
            *more,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
    )
    if run.returncode != 0:
        return None, (run.stdout.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
    found = {}
    for line in (folder / "out.jsonl").read_text().splitlines():
        answer = json.loads(line)
        i, choice = int(answer["custom_id"]), answer["response"]["body"]["choices"][0]
        scored = zip(choice["prompt_logprobs"][1:], prompts[i][1:])
        found[i] = (
            [entry[str(token)]["logprob"] for entry, token in scored] + choice["logprobs"]["token_logprobs"],
            choice["token_ids"],
        )
    return found, None


def reference(model, prompts, answers, roundings, jitter=None):
    """The logprobs of a prompt's tokens and of the answer's, and by how much the latter are behind the best."""
    rows, behind = [], 0.0
    for i, prompt in enumerate(prompts):
        tokens = prompt + answers[i][1]
        with torch.no_grad(), Rounded(model, roundings, jitter):
            logprobs = torch.log_softmax(model(torch.tensor([tokens]), use_cache=False).logits[0].double(), -1)
        rows += [logprobs[k, token].item() for k, token in enumerate(tokens[1:])]
        for k in range(len(prompt) - 1, len(tokens) - 1):
            behind = max(behind, (logprobs[k].max() - logprobs[k, tokens[k + 1]]).item())
    return torch.tensor(rows, dtype=torch.float64), behind


def verdict(folder, prompts, answers, roundings, exact):
    """How far apart quire is from the reference, and the reference from itself; on the average, less what is unsure,
    and what rounding of inputs moves."""

    def load(dtype):
        return transformers.AutoModelForCausalLM.from_pretrained(
            folder / "plain", attn_implementation="eager", experts_implementation="eager", dtype=dtype
        ).eval()

    model = load(torch.float32)
    expected, behind = reference(model, prompts, answers, roundings)
    others = [reference(load(torch.float64), prompts, answers, roundings)[0]] if exact else []
    if roundings:
        jitter = torch.Generator().manual_seed(1)
        others += [reference(model, prompts, answers, roundings, jitter)[0] for _ in range(JITTERS)]
    apart = [(expected - other).abs() for other in others]
    unsure = max([one.max().item() for one in apart], default=0.0)
    found = torch.tensor(sum((answers[i][0] for i in range(len(prompts))), []), dtype=torch.float64)
    without = reference(model, prompts, answers, {})[0] if roundings else expected
    if roundings and (found - expected).abs().quantile(MOST).item() <= TOLERANCE:
        return 0.0, 0.0, 0.0, 0.0
    mean = (found - expected).abs().mean().item() - 2 * max([one.mean().item() for one in apart], default=0.0)
    return max((found - expected).abs().max().item(), behind), unsure, mean, (without - expected).abs().mean().item()


def with_whole_groups(configuration, rng):
    """Sizes that more groups fit than those of compare_models.py."""
    for key in ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "ffn_dim", "n_inner"):
        if configuration.get(key) and rng.random() < 0.6:
            configuration[key] = rng.choice([32, 64, 96, 128, 192, 256])
    for key in ("kv_lora_rank", "q_lora_rank", "v_head_dim"):
        if configuration.get(key) and rng.random() < 0.5:
            configuration[key] = rng.choice([32, 64])
    if "vocab_size" in configuration:
        configuration["vocab_size"] = rng.choice([97, 512, 1000])
    return configuration


class Campaign:
    def __init__(self, options):
        self.options = options
        self.equal, self.different, self.refused = Counter(), Counter(), Counter()
        self.reasons, self.impossible, self.nothing, self.by_ranks = Counter(), Counter(), Counter(), Counter()

    def report(self, camp, family, number, what, coded, folder):
        self.different[camp] += 1
        print(f"{camp} {family} {number}: {what}: {json.dumps(coded.configuration)}", flush=True)
        if self.options.keep:
            shutil.copytree(folder, self.options.keep / f"{camp}_{family}_{number}", dirs_exist_ok=True)

    def model(self, folder, number, camp, family):
        # By its number alone, so that one can be drawn again by itself.
        rng = random.Random(f"{self.options.seed} {number} {camp} {family}")
        configuration = with_whole_groups(getattr(Families(rng), family)(), rng)
        try:
            prompts = make_model(folder / "base", family, configuration, rng, False)[:3]
        except Exception as error:  # the reference has its own limits
            self.impossible[f"{family}: {str(error).strip().splitlines()[-1][:160]}"] += 1
            return
        coded = Coded(folder, family, CAMPS[camp], rng)
        if coded.count == 0:
            self.nothing[camp] += 1
            return
        answers, reason = ask_quire(self.options.quire, folder, prompts)
        if answers is None:
            reason = re.sub(r"\d+", "N", re.sub(r"\S*/coded", "", reason))
            if "config: the activation" in reason:  # the family's, not the camp's
                self.impossible[f"{family}: {reason}"] += 1
                return
            self.refused[camp] += 1
            self.reasons[f"{camp}: {family}: {reason}"] += 1
            if self.options.keep and self.reasons[f"{camp}: {family}: {reason}"] == 1:
                shutil.copytree(folder, self.options.keep / f"refused_{camp}_{family}_{number}", dirs_exist_ok=True)
            return
        alone = ask_quire(self.options.quire, folder, prompts, "--max-num-seqs", "1")[0]
        if alone != answers:
            return self.report(camp, family, number, "other bits alone", coded, folder)
        exact = not configuration.get("reorder_and_upcast_attn")
        what = self.compare(folder, prompts, answers, coded, exact, family)
        # Where inputs are rounded, each rank rounds its own.
        if what == "" and not coded.roundings and rng.random() < 0.3:
            answers, reason = ask_quire(self.options.quire, folder, prompts, "--tensor-parallel-size", "2")
            self.by_ranks["equal" if answers else re.sub(r"\d+", "N", reason)] += 1
            what = self.compare(folder, prompts, answers, coded, exact, family) if answers else ""
            what = what and f"by two ranks {what}"
        if what == "":
            self.equal[camp] += 1
        elif what:
            self.report(camp, family, number, what, coded, folder)

    def compare(self, folder, prompts, answers, coded, exact, family):
        """What differs; nothing where nothing does; None where the reference fails."""
        try:
            off, unsure, mean, rounds = verdict(folder, prompts, answers, coded.roundings, exact)
        except Exception as error:
            self.impossible[f"{family}: {str(error).strip().splitlines()[-1][:160]}"] += 1
            return None
        near = off <= TOLERANCE + 8 * unsure and (not coded.roundings or mean <= TOLERANCE + 0.5 * rounds)
        if near or coded.roundings and mean <= ONE_STEP * rounds:
            return ""
        what = f"{off:.2e} apart, the reference {unsure:.2e} from itself"
        if coded.roundings:
            what += f", {mean:.2e} on the average, {rounds:.2e} for what is rounded"
        return what

    def refusals(self, folder):
        make_model(folder / "coded", "llama", Families(random.Random(1)).llama(), random.Random(1), False)
        path = folder / "coded" / "config.json"
        config = json.loads(path.read_text())
        for said, names in TO_BE_REFUSED:
            path.write_text(json.dumps(config | {"quantization_config": said}))
            answers, reason = ask_quire(self.options.quire, folder, [[3, 4, 5]])
            if answers is None and names in reason:
                self.refused["to be refused"] += 1
                continue
            self.different["to be refused"] += 1
            print(f"to be refused: {reason or 'taken'}: {json.dumps(said)}", flush=True)

    def summary(self, camps):
        for reasons, verb in (
            (self.reasons, "refused"),
            (self.impossible, "impossible for the reference"),
            (self.nothing, "no matrix fits"),
            (self.by_ranks, "by two ranks"),
        ):
            for reason, count in reasons.most_common():
                print(f"{verb} {count}: {reason}")
        print("| camp | equal | refused | different |\n|---|---|---|---|")
        for camp in [*dict.fromkeys(camps), "to be refused"]:
            print(f"| {camp} | {self.equal[camp]} | {self.refused[camp]} | {self.different[camp]} |")
        print(f"| all | {self.equal.total()} | {self.refused.total()} | {self.different.total()} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first model")
    parser.add_argument("--count", type=int, default=180, help="of models")
    parser.add_argument("--camps", default=",".join(CAMPS))
    parser.add_argument("--families", default=",".join(NAMES))
    parser.add_argument(
        "--keep", type=pathlib.Path, help="where models that differ, and one of each that is refused, are left"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    campaign = Campaign(options)
    camps, families = options.camps.split(","), options.families.split(",")
    with tempfile.TemporaryDirectory() as place:
        campaign.refusals(pathlib.Path(place))
    for number in range(options.first, options.first + options.count):
        draw = random.Random(f"{options.seed} {number}")
        with tempfile.TemporaryDirectory() as place:
            camp = camps[number % len(camps)]
            campaign.model(pathlib.Path(place), number, camp, draw.choice(CAMPS[camp].families or families))
    campaign.summary(camps)
    sys.exit(1 if campaign.different else 0)


if __name__ == "__main__":
    main()
