#!/usr/bin/env python3
"""What a smaller KV cache costs in accuracy: the default model's answers to the recorded chats, each token scored once
more under every --kv-cache-dtype with the same tokens before it, against float32. Run by hand; needs a release build
and the default model (./quickstart.sh makes both).

    scripts/kv_accuracy.py [--quire BINARY] [--model MODEL] [--top 5] [DTYPE ...]

For every position of prompt and answer, the float32 run's likeliest tokens (--top of them) are looked up in the other
run's likeliest 20. Printed: mean and largest |difference| of their logprobs; how many were not among the 20; the mean
over positions of the difference of the actual token's logprob, which is what perplexity moves by; of the answers'
tokens, how many the greedy choice differs for given the same text before it; how many answers, generated freely, differ.
"""

import argparse
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DTYPES = ("float32", "bfloat16", "float16", "fp8_e4m3", "fp8_e5m2", "int8")
SEEN = 20  # tokens asked for at a position


def answer_of(server, prompt, count):
    reply = server.answer("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": count,
                                              "ignore_eos": True, "return_token_ids": True})
    return reply["choices"][0]["token_ids"]


def scores_of(server, tokens):
    """For each position from 1 on: {token id: logprob} of the likeliest tokens and the actual one."""
    reply = server.answer("/v1/completions", {"prompt": tokens, "max_tokens": 1, "temperature": 0,
                                              "prompt_logprobs": SEEN})
    entries = reply["choices"][0].get("prompt_logprobs") or reply["prompt_logprobs"]
    return [{int(token): one["logprob"] for token, one in entry.items()} for entry in entries[1:]]


def best(scores):
    return max(scores, key=scores.get)


def compare(exact, other, texts, top):
    """exact, other: per text (scores per position, free answer); texts: per text (tokens, length of the prompt)."""
    differences, actual, missing, flipped, answered = [], [], 0, 0, 0
    for (tokens, prompt), (expected, _), (got, _) in zip(texts, exact, other, strict=True):
        for position, (a, b) in enumerate(zip(expected, got, strict=True), start=1):
            for token in sorted(a, key=a.get, reverse=True)[:top]:
                if token in b:
                    differences.append(abs(a[token] - b[token]))
                else:
                    missing += 1
            actual.append(b[tokens[position]] - a[tokens[position]])
            if position >= prompt:
                answered += 1
                flipped += best(a) != best(b)
    return {"mean": sum(differences) / len(differences), "max": max(differences), "missing": missing,
            "bias": sum(actual) / len(actual), "flipped": flipped, "answered": answered,
            "answers": sum(a[1] != b[1] for a, b in zip(exact, other)), "texts": len(texts), "compared": len(differences)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--model", default=None)
    parser.add_argument("--top", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48, help="length of an answer")
    parser.add_argument("dtypes", nargs="*", default=DTYPES)
    options = parser.parse_args()
    dtypes = ["float32", *(dtype for dtype in options.dtypes if dtype != "float32")]

    sys.argv = [sys.argv[0], "--quire", options.quire]
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import harness

    cases = json.loads((ROOT / "tests/data/e2e/smollm2.json").read_text())["cases"]
    texts, exact = None, None
    print("| kv_cache_dtype | mean abs | max abs | not in 20 | logprob of the text | greedy tokens that differ | free answers that differ |")
    print("|---|---|---|---|---|---|---|")
    for dtype in dtypes:
        with harness.Server("--kv-cache-dtype", dtype, "--kv-cache-memory-bytes", "256M", model=options.model) as server:
            answers = [answer_of(server, case["prompt_ids"], options.tokens) for case in cases]
            if texts is None:
                texts = [(case["prompt_ids"] + answer, len(case["prompt_ids"]))
                         for case, answer in zip(cases, answers, strict=True)]
            measured = [(scores_of(server, tokens), answer) for (tokens, _), answer in zip(texts, answers, strict=True)]
        if exact is None:
            exact = measured
        result = compare(exact, measured, texts, options.top)
        print(f"| {dtype} | {result['mean']:.5f} | {result['max']:.4f} | {result['missing']} of "
              f"{result['compared'] + result['missing']} | {result['bias']:+.5f} | {result['flipped']} of "
              f"{result['answered']} | {result['answers']} of {result['texts']} |", flush=True)


if __name__ == "__main__":
    main()
