#!/usr/bin/env python3
"""quire beside llama.cpp, one sequence, the same file, in turn on the same machine: prefill of a long prompt and decode.
Needs a release build, the default model (./quickstart.sh makes both) and a llama-bench built with -DGGML_NATIVE=ON.

    scripts/bench_llama_cpp.py LLAMA_BENCH [--rounds 5] [--quire BINARY] [--model MODEL]
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
DECODED = 128


def quire_rates(binary, model, prompt_words):
    """Tokens a second of prefill and decode, from the line that `quire complete` ends with."""
    prompt = " ".join(str(number) for number in range(prompt_words))
    command = [binary, "complete", model, "--prompt", "-", "--temperature", "0", "--ignore-eos", "--max-tokens"]
    rates = []
    for tokens in (1, DECODED):
        # Decode is measured after a short prompt, as llama-bench does: its cache begins empty.
        text = prompt if tokens == 1 else "Once upon a time"
        shown = subprocess.run([*command, str(tokens)], input=text, text=True, capture_output=True, check=True).stderr
        found = re.search(r"\[(\d+) prompt tokens, ([\d.]+) s to the first token; \d+ tokens, ([\d.]+) tok/s\]", shown)
        rates.append(int(found[1]) / float(found[2]) if tokens == 1 else float(found[3]))
    return rates


def llama_rates(binary, model, prompt_tokens, threads):
    shown = subprocess.run([binary, "-m", model, "-p", str(prompt_tokens), "-n", str(DECODED), "-t", str(threads), "-r", "1",
                            "-o", "json"], text=True, capture_output=True, check=True).stdout
    rates = {("prefill" if row["n_prompt"] else "decode"): row["avg_ts"] for row in json.loads(shown)}
    return [rates["prefill"], rates["decode"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("llama_bench")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    parser.add_argument("--model", default=str(cache / "quire/models/SmolLM2-135M-Instruct.Q4_1.gguf"))
    options = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    with open("/proc/cpuinfo") as info:
        name = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))

    ours, theirs = [], []
    for _ in range(options.rounds):
        ours.append(quire_rates(options.quire, options.model, 155))
        theirs.append(llama_rates(options.llama_bench, options.model, 512, threads))
    print(f"{name}, {threads} threads, {pathlib.Path(options.model).name}, median of {options.rounds} rounds in turn")
    print(f"{'':24}{'quire':>10}{'llama.cpp':>12}{'ratio':>8}")
    for index, what in enumerate(("prefill, 500 tokens", f"decode, {DECODED} tokens")):
        mine = statistics.median(rates[index] for rates in ours)
        other = statistics.median(rates[index] for rates in theirs)
        print(f"{what:24}{mine:10.1f}{other:12.1f}{mine / other:8.2f}   tokens/s")


if __name__ == "__main__":
    main()
