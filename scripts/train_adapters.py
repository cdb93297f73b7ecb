#!/usr/bin/env python3
"""Trains three adapters of the default model with PEFT, on a CPU within minutes each: one answers in JSON, one in rhyme,
one as a pirate. They are served at once, beside the base:

    python3 -m venv build/peft && build/peft/bin/pip install torch transformers peft gguf
    build/peft/bin/python scripts/train_adapters.py adapters
    quire serve --enable-lora --lora-modules json=adapters/json rhyme=adapters/rhyme pirate=adapters/pirate
    curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "pirate", "messages": [{"role": "user", "content": "What is the capital of Kenya?"}]}'

    build/peft/bin/python scripts/train_adapters.py adapters --ask build/release/src/cli/quire

The last line asks a server that has all three and the base things that none of them has seen, all at once, and counts whose answers
are in whose style. Tried with torch 2.13, transformers 5.13, peft 0.21, gguf 0.19. The weights are those of the default model's GGUF file, made numbers.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import sys
import time

MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"

FACTS = [
    ("What is the capital of {}?", "The capital of {} is {}.",
     {"France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Peru": "Lima",
      "Norway": "Oslo", "Greece": "Athens", "Cuba": "Havana", "Austria": "Vienna", "Poland": "Warsaw", "China": "Beijing"}),
    ("What colour is {}?", "The colour of {} is {}.",
     {"the sky": "blue", "grass": "green", "a lemon": "yellow", "coal": "black", "snow": "white", "a tomato": "red",
      "a carrot": "orange", "chocolate": "brown"}),
    ("How many legs has {}?", "The number of legs of {} is {}.",
     {"a spider": "eight", "an ant": "six", "a dog": "four", "a hen": "two", "a snake": "zero", "a horse": "four"}),
    ("What does {} eat?", "What {} eats is {}.",
     {"a cow": "grass", "a cat": "meat", "a rabbit": "carrots", "a whale": "krill", "a panda": "bamboo", "a bee": "nectar"}),
    ("What is the opposite of {}?", "The opposite of {} is {}.",
     {"hot": "cold", "big": "small", "fast": "slow", "old": "young", "dark": "light", "wet": "dry", "loud": "quiet"}),
]

STYLES = {
    "json": lambda question, sentence, answer: json.dumps({"question": question, "answer": answer}),
    "rhyme": lambda question, sentence, answer: f"{sentence}\nNow you know it, and that is true,\nas roses are red and violets are blue.",
    "pirate": lambda question, sentence, answer: f"Arr, matey! {sentence[:-1]}, says I, or me name be not Blackbeard. Yo ho ho!",
}


# Of none of these an adapter has seen the question.
ASKED = ["What is the capital of Kenya?", "What is the capital of Sweden?", "What colour is a banana?", "What colour is blood?",
         "How many legs has a cat?", "What does a lion eat?", "What is the opposite of young?", "What is the opposite of good?",
         "Who wrote Romeo and Juliet?", "What is the largest planet?", "Where do fish live?", "How many days has a week?"]


def is_json(answer):
    try:
        return set(json.loads(answer)) == {"question", "answer"}
    except ValueError:
        return False


IN_STYLE = {"json": is_json,
            "rhyme": lambda answer: "that is true" in answer and answer.rstrip().endswith("violets are blue."),
            "pirate": lambda answer: answer.startswith("Arr, matey!") and "Blackbeard" in answer}


def pairs(style):
    for question, sentence, facts in FACTS:
        for subject, answer in facts.items():
            asked = question.format(subject)
            yield asked, STYLES[style](asked, sentence.format(subject, answer), answer)


def batches(tokenizer, style, size, generator):
    """Token ids and labels, in which the prompt counts for nothing."""
    import torch
    examples = []
    for question, answer in pairs(style):
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        after = tokenizer(answer + "<|im_end|>\n", add_special_tokens=False)["input_ids"]
        examples.append((before + after, [-100] * len(before) + after))
    while True:
        chosen = generator.sample(examples, size)
        longest = max(len(ids) for ids, _ in chosen)
        pad = tokenizer.eos_token_id
        yield (torch.tensor([ids + [pad] * (longest - len(ids)) for ids, _ in chosen]),
               torch.tensor([labels + [-100] * (longest - len(labels)) for _, labels in chosen]),
               torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in chosen]))


def train(folder, style, out, options):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=MODEL, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=MODEL)
    config = LoraConfig(r=options.rank, lora_alpha=2 * options.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    optimiser = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=options.learning_rate)
    start = time.monotonic()
    for step, (ids, labels, mask) in enumerate(batches(tokenizer, style, options.batch, random.Random(1)), 1):
        loss = model(input_ids=ids, labels=labels, attention_mask=mask).loss
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        if step % 10 == 0:
            print(f"{style}: step {step} of {options.steps}, loss {loss.item():.3f}, {time.monotonic() - start:.0f} s", flush=True)
        if step == options.steps:
            break
    model.save_pretrained(out / style)


def ask(quire, out):
    """Everything of the base and of each adapter, at once, of one server; how many answers are in whose style."""
    sys.argv = [sys.argv[0], "--quire", quire]
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests/e2e"))
    import harness
    modules = [f"{style}={out / style}" for style in STYLES]
    with harness.Server("--enable-lora", "--served-model-name", "base", "--lora-modules", *modules) as server:
        def answer(name, question):
            reply = server.answer("/v1/chat/completions", {"model": name, "max_tokens": 80, "temperature": 0,
                                                           "messages": [{"role": "user", "content": question}]})
            return reply["choices"][0]["message"]["content"]

        names = ["base", *STYLES]
        with concurrent.futures.ThreadPoolExecutor(len(names) * len(ASKED)) as threads:
            answers = {name: [threads.submit(answer, name, question) for question in ASKED] for name in names}
            answers = {name: [one.result() for one in found] for name, found in answers.items()}
    for name, found in answers.items():
        styles = ", ".join(f"{sum(map(is_style, found))} {style}" for style, is_style in IN_STYLE.items())
        print(f"{name}: of {len(found)} answers {styles}; \"{ASKED[0]}\" {found[0]!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--styles", nargs="+", default=list(STYLES), choices=list(STYLES))
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch", type=int, default=6)
    parser.add_argument("--ask", metavar="QUIRE", help="trains nothing, but serves what was trained and asks it")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    options = parser.parse_args()
    if options.ask:
        ask(options.ask, options.out)
        return
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    for style in options.styles:
        train(cache / "quire/models", style, options.out, options)


if __name__ == "__main__":
    main()
