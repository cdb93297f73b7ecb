#!/usr/bin/env python3
"""Trains an EAGLE-3 head for the default model on chats, on a CPU: the model answers questions of the chats, its states are
computed once, and a layer learns to go on from them (Li et al., 2025).

    bench/compare/setup.sh "" sharegpt                    # the chats
    python3 -m venv build/peft && build/peft/bin/pip install torch transformers gguf safetensors
    build/peft/bin/python scripts/train_eagle3.py ~/.cache/quire/peers/sharegpt.json build/eagle3
    quire serve --speculative-config '{"method": "eagle3", "model": "build/eagle3", "num_speculative_tokens": 3}'

A row of the head is of a position t: the model's states there and token t + 1 guess token t + 2. As in use a head goes on from
its own states, it is trained so too ("training-time test"): step j of a row goes on from what step j - 1 gave, sees the model's
rows up to t and its own steps, and is to say what the model says of token t + 2 + j. The layer begins as the model's last one.
"""

import argparse
import json
import math
import pathlib
import random
import subprocess
import sys
import time

import torch
from safetensors.torch import save_file
from torch.nn import functional
from transformers import AutoModelForCausalLM

ROOT = pathlib.Path(__file__).resolve().parent.parent
CACHE = pathlib.Path.home() / ".cache/quire/models"
MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"


def answers(options):
    """[(prompt ids, answer ids, whether greedy)], by the engine itself."""
    questions = [turn["value"] for chat in json.loads(options.chats.read_text(encoding="utf-8"))[options.skip:]
                 for turn in chat["conversations"] if turn["from"] == "human" and 20 < len(turn["value"]) < 700]
    random.Random(2).shuffle(questions)
    questions = questions[:options.count]
    asked, answered = options.out / "asked.jsonl", options.out / "answered.jsonl"
    asked.write_text("".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": {
        "model": "default", "messages": [{"role": "user", "content": question}], "max_tokens": options.answer, "seed": i,
        "temperature": 0 if i % 2 == 0 else 0.8, "return_token_ids": True}}) + "\n" for i, question in enumerate(questions)))
    subprocess.run([options.quire, "run-batch", "-i", asked, "-o", answered, "--served-model-name", "default", "--max-num-seqs", "64"],
                   check=True)
    found = {}
    for line in answered.read_text().splitlines():
        entry = json.loads(line)
        if entry["error"] is None and entry["response"]["status_code"] == 200:
            body = entry["response"]["body"]
            found[int(entry["custom_id"])] = (body["prompt_token_ids"], body["choices"][0]["token_ids"])
    return [(*found[i], i % 2 == 0) for i in sorted(found) if len(found[i][1]) >= 8]


class Text:
    """Of one chat: ids [tokens], where the answer begins, the model's states before three layers [tokens, 3 hidden], and what its
    head over the vocabulary reads [tokens, hidden]."""

    def __init__(self, ids, start, greedy, states, last):
        self.ids, self.start, self.greedy, self.states, self.last = ids, start, greedy, states, last


def texts_of(model, found, layers, most):
    chats = sorted(((torch.tensor((prompt + answer)[:most]), len(prompt), greedy) for prompt, answer, greedy in found
                    if len(prompt) + 8 <= most), key=lambda chat: len(chat[0]))
    texts, begun = [], time.monotonic()
    for at in range(0, len(chats), 16):
        batch = chats[at:at + 16]
        ids = torch.nn.utils.rnn.pad_sequence([chat[0] for chat in batch], batch_first=True)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            # Padding is behind the texts, which see nothing of it.
            states = model.model(input_ids=ids, output_hidden_states=True).hidden_states
        joined = torch.cat([states[i] for i in layers], -1).bfloat16()
        for row, (own, start, greedy) in enumerate(batch):
            texts.append(Text(own, start, greedy, joined[row, :len(own)].clone(), states[-1][row, :len(own)].bfloat16()))
        if at // 16 % 10 == 9:
            print(f"states of {at + 16} of {len(chats)} texts, {time.monotonic() - begun:.0f} s", flush=True)
    return texts


def rms(x, weight, eps):
    return functional.rms_norm(x, (x.shape[-1],), weight, eps)


class Head(torch.nn.Module):
    def __init__(self, model, ids, layers):
        super().__init__()
        self.config, self.ids, self.layers = model.config, ids, layers
        hidden = self.config.hidden_size
        self.size = getattr(self.config, "head_dim", None) or hidden // self.config.num_attention_heads
        last = model.model.layers[-1].state_dict()
        self.embeddings = model.model.embed_tokens.weight.detach()
        start = {"fc": torch.cat([torch.zeros(hidden, 2 * hidden), torch.eye(hidden)], 1),
                 "midlayer.input_layernorm": last["input_layernorm.weight"], "midlayer.hidden_norm": last["input_layernorm.weight"],
                 "midlayer.post_attention_layernorm": last["post_attention_layernorm.weight"], "norm": model.model.norm.weight,
                 "lm_head": model.lm_head.weight[ids]}
        for name in "qkv":
            weight = last[f"self_attn.{name}_proj.weight"]
            start[f"midlayer.self_attn.{name}_proj"] = torch.cat([torch.zeros_like(weight), weight], 1)
        for name in ("self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"):
            start[f"midlayer.{name}"] = last[f"{name}.weight"]
        self.weights = torch.nn.ParameterDict({name.replace(".", "/"): torch.nn.Parameter(value.detach().clone().float())
                                               for name, value in start.items()})
        rope = getattr(self.config, "rope_parameters", None) or {}
        self.theta = rope.get("rope_theta") or self.config.rope_theta

    def w(self, name):
        return self.weights[name.replace(".", "/")]

    def rotate(self, x, first):
        """x: [batch, heads, tokens, size], the first of them at position `first`."""
        places = torch.arange(first, first + x.shape[2], dtype=torch.float32)
        angles = torch.outer(places, self.theta ** (-torch.arange(0, self.size, 2) / self.size))
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1)

    def layer(self, tokens, states, step, keys, values):
        """What the layer makes of tokens [batch, tokens] and states [batch, tokens, hidden]; keys and values are those of the steps
        before, to which this one's are added."""
        eps = self.config.rms_norm_eps
        both = torch.cat([rms(self.embeddings[tokens], self.w("midlayer.input_layernorm"), eps),
                          rms(states, self.w("midlayer.hidden_norm"), eps)], -1)
        batch, count = tokens.shape

        def heads(name):
            x = functional.linear(both, self.w(f"midlayer.self_attn.{name}_proj"))
            return x.view(batch, count, -1, self.size).transpose(1, 2)

        queries, own, value = self.rotate(heads("q"), step), self.rotate(heads("k"), step), heads("v").float()
        shared = queries.shape[1] // own.shape[1]
        keys.append(own.repeat_interleave(shared, 1))
        values.append(value.repeat_interleave(shared, 1))
        scale = 1 / math.sqrt(self.size)
        hidden = torch.full((count, count), -math.inf).triu(1)
        scores = [queries @ keys[0].transpose(2, 3) * scale + hidden]
        scores += [(queries * key).sum(-1, keepdim=True) * scale for key in keys[1:]]
        shares = torch.cat(scores, -1).softmax(-1)
        mixed = shares[..., :count] @ values[0]
        for i, value in enumerate(values[1:]):
            mixed = mixed + shares[..., count + i:count + i + 1] * value
        states = states + functional.linear(mixed.transpose(1, 2).reshape(batch, count, -1), self.w("midlayer.self_attn.o_proj"))
        inner = rms(states, self.w("midlayer.post_attention_layernorm"), eps)
        gate = functional.silu(functional.linear(inner, self.w("midlayer.mlp.gate_proj")))
        up = functional.linear(inner, self.w("midlayer.mlp.up_proj"))
        return states + functional.linear(gate * up, self.w("midlayer.mlp.down_proj"))

    def steps(self, batch, count):
        """Of each step logits [batch, tokens, draft vocabulary], for token t + 2 + step at place t."""
        tokens = torch.nn.utils.rnn.pad_sequence([text.ids for text in batch], batch_first=True)
        given = torch.nn.utils.rnn.pad_sequence([text.states for text in batch], batch_first=True).float()
        states = functional.linear(given, self.w("fc"))
        keys, values = [], []
        for step in range(count):
            shifted = functional.pad(tokens[:, 1 + step:], (0, 1 + step))
            states = self.layer(shifted, states, step, keys, values)
            yield functional.linear(rms(states, self.w("norm"), self.config.rms_norm_eps), self.w("lm_head"))


def goals(batch, head, step, own_of):
    """What the model says of those tokens over the head's vocabulary, which of them the head can say, as its ids (-1: not), and
    which are answers' (rows [batch, tokens])."""
    last = torch.nn.utils.rnn.pad_sequence([text.last for text in batch], batch_first=True)
    tokens = torch.nn.utils.rnn.pad_sequence([text.ids for text in batch], batch_first=True)
    shift = 1 + step
    said = functional.pad(last[:, shift:], (0, 0, 0, shift))
    coming = functional.pad(tokens[:, shift + 1:], (0, shift + 1))
    counts = torch.zeros(tokens.shape, dtype=torch.bool)
    for row, text in enumerate(batch):
        counts[row, max(0, text.start - shift - 1):max(0, len(text.ids) - shift - 1)] = True
    return said, own_of[coming], counts


def loss_of(head, batch, options, own_of, target_head):
    total = 0
    for step, logits in enumerate(head.steps(batch, options.steps)):
        said, own, counts = goals(batch, head, step, own_of)
        chosen = counts & (own >= 0)
        with torch.no_grad():
            wanted = functional.linear(said[chosen], target_head).float().softmax(-1)
        lost = -(wanted * logits[chosen].float().log_softmax(-1)).sum(-1).mean()
        total = total + 0.8 ** step * lost
    return total


def chances(head, texts, options, own_of):
    """How often the first 1, 2, ... guesses all are what a greedy answer says."""
    right, all_rows = torch.zeros(options.steps), 0
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for at in range(0, len(texts), 8):
            batch = texts[at:at + 8]
            # Rows of which every step's token is in the answer.
            *_, rows = goals(batch, head, options.steps - 1, own_of)
            so_far = rows.clone()
            all_rows += int(rows.sum())
            for step, logits in enumerate(head.steps(batch, options.steps)):
                _, own, _ = goals(batch, head, step, own_of)
                so_far = so_far & (logits.argmax(-1) == own)
                right[step] += int(so_far.sum())
    return (right / max(all_rows, 1)).tolist()


def train(head, texts, options, own_of):
    target_head = head.w("lm_head").detach().clone().bfloat16()
    held = [text for text in texts[::20] if text.greedy]
    texts = [text for i, text in enumerate(texts) if i % 20 != 0]
    optimiser = torch.optim.AdamW(head.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0)
    source, begun = random.Random(1), time.monotonic()
    per_epoch = len(texts) // options.batch
    many = int(per_epoch * options.epochs)

    def tell(number, loss):
        first = chances(head, held, options, own_of)
        print(f"batch {number} of {many}, {time.monotonic() - begun:.0f} s: loss {loss:.3f}; of {len(held)} answers that it has not seen "
              f"the first guesses hold {', '.join(f'{100 * one:.1f}' for one in first)} %: {1 + sum(first):.2f} tokens a run", flush=True)

    tell(0, math.nan)
    mean = None
    for number in range(many):
        if number % per_epoch == 0:  # texts of like length together
            order = [texts[i:i + options.batch] for i in range(0, len(texts) - options.batch + 1, options.batch)]
            source.shuffle(order)
        for group in optimiser.param_groups:
            group["lr"] = options.learning_rate * min((number + 1) / 50, 0.5 + 0.5 * math.cos(math.pi * number / many) + 0.02)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(head, order[number % per_epoch], options, own_of, target_head)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 0.5)
        optimiser.step()
        optimiser.zero_grad()
        mean = loss.item() if mean is None else 0.98 * mean + 0.02 * loss.item()
        if number % 200 == 199 or number == many - 1:
            tell(number + 1, mean)
            save(head, options)


def save(head, options):
    of = head.config
    (options.out / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": of.hidden_size,
        "intermediate_size": of.intermediate_size, "num_attention_heads": of.num_attention_heads,
        "num_key_value_heads": of.num_key_value_heads, "head_dim": head.size, "num_hidden_layers": 1, "vocab_size": of.vocab_size,
        "draft_vocab_size": len(head.ids), "max_position_embeddings": of.max_position_embeddings, "rms_norm_eps": of.rms_norm_eps,
        "rope_theta": head.theta, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": head.layers}, indent=1) + "\n")
    tensors = {f"{name.replace('/', '.')}.weight": value.detach().bfloat16().contiguous() for name, value in head.weights.items()}
    known = torch.zeros(of.vocab_size, dtype=torch.bool)
    known[head.ids] = True
    save_file({**tensors, "d2t": head.ids - torch.arange(len(head.ids)), "t2d": known}, options.out / "model.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("chats", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--quire", default=ROOT / "build/release/src/cli/quire")
    parser.add_argument("--skip", type=int, default=200, help="chats that are left to measure with")
    parser.add_argument("--count", type=int, default=1600, help="questions to learn from")
    parser.add_argument("--answer", type=int, default=128, help="tokens of an answer, at most")
    parser.add_argument("--tokens", type=int, default=288, help="of a text, at most")
    parser.add_argument("--vocabulary", type=int, default=8192, help="tokens that the head can say: those that answers have most")
    parser.add_argument("--steps", type=int, default=3, help="guesses in a row that it learns")
    parser.add_argument("--epochs", type=float, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=4e-4)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1)
    begun = time.monotonic()
    found = answers(options)
    print(f"{len(found)} answers, {sum(len(answer) for _, answer, _ in found)} tokens, {time.monotonic() - begun:.0f} s", flush=True)
    model = AutoModelForCausalLM.from_pretrained(CACHE, gguf_file=MODEL, dtype=torch.float32).eval().requires_grad_(False)
    count = model.config.num_hidden_layers
    layers = [2, count // 2, count - 3]
    texts = texts_of(model, found, layers, options.tokens)
    often = torch.bincount(torch.cat([text.ids[text.start:] for text in texts]), minlength=model.config.vocab_size)
    ids = often.topk(options.vocabulary).indices.sort().values
    print(f"{options.vocabulary} tokens are {100 * often[ids].sum() / often.sum():.1f} % of the answers", flush=True)
    own_of = torch.full((model.config.vocab_size,), -1)
    own_of[ids] = torch.arange(len(ids))
    train(Head(model, ids, layers), texts, options, own_of)
    print(f"all of it: {(time.monotonic() - begun) / 60:.0f} minutes on {torch.get_num_threads()} threads; written: {options.out}")


if __name__ == "__main__":
    sys.exit(main())
