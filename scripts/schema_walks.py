#!/usr/bin/env python3
"""Random answers of the schemas of bench/data/schemas.jsonl, without a model, against Python's jsonschema.

  PYTHON scripts/schema_walks.py [--walks 100] [--tokenizer FILE --end TOKEN]

By default with both kinds of tokenizers in tests/data. Prints every violation and fails on one; apart from them, the
schemas of which some walk had no way on, or of which none ended (those were not checked). PYTHON is that of the end-to-end
tests, build/venv/bin/python. Needs the program quire_grammar_walk (a build with benchmarks).
"""

import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
import schema_judge

TOKENIZERS = [("qwen_style_bpe_nfc.json", "<|im_end|>"), ("llama2_style_spm_bpe.json", "</s>")]


def check_tokenizer(args, tokenizer, end, lines):
    command = [args.program, str(tokenizer), end, str(args.walks)]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    results = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(results) == len(lines), (len(results), len(lines))
    counts = collections.Counter()
    bad = []
    dead = []
    unchecked = []
    refused = []
    for line, result in zip(lines, results):
        if "refused" in result:
            refused.append((line, result["refused"]))
            continue
        if "failed" in result:
            # Without a token that may follow, an answer ends with an error: no violation, but no answer either.
            (dead if result["failed"].startswith("no token is allowed") else bad).append((line, result["failed"]))
            continue
        validator = schema_judge.validator_of(json.loads(line))
        counts["unended"] += result["unended"]
        if not result["texts"]:
            unchecked.append((line, "no walk ended, so that nothing was checked"))
        for text in result["texts"]:
            counts["texts"] += 1
            why = schema_judge.fault(validator, text)
            if why:
                bad.append((line, f"{text!r}: {why}"))
    ran = [result for result in results if "texts" in result]
    compile_ms = sorted(result["compile_us"] / 1000 for result in ran)
    mask_us = sorted(result["mask_us"] for result in ran)
    print(f"{tokenizer.name}: {len(lines)} schemas, {len(refused)} refused, {counts['texts']} texts, "
          f"{counts['unended']} unended, {len(bad)} violations, {len(dead)} schemas with dead ends, {len(unchecked)} unchecked; compile median {statistics.median(compile_ms):.1f} ms, "
          f"largest {compile_ms[-1]:.0f} ms; mask and accept median {statistics.median(mask_us):.1f} us, "
          f"largest {mask_us[-1]:.0f} us")
    if args.verbose:
        for line, why in refused:
            print("  refused:", line[:150], "--", why[:200])
    for name, found in (("VIOLATION", bad), ("dead end", dead), ("unchecked", unchecked)):
        for line, why in found[:60]:
            print(f"  {name}:", line[:200], "--", repr(why[:300]))
    return not bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--walks", type=int, default=100)
    parser.add_argument("--tokenizer", type=pathlib.Path)
    parser.add_argument("--end")
    parser.add_argument("--schemas", type=pathlib.Path, default=ROOT / "bench/data/schemas.jsonl")
    parser.add_argument("--program", default=str(ROOT / "build/release/bench/quire_grammar_walk"))
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    lines = schema_judge.schemas_of(args.schemas)
    pairs = TOKENIZERS
    if args.tokenizer:
        pairs = [(args.tokenizer, args.end)]
    good = [check_tokenizer(args, ROOT / "tests/data/tokenizers" / name, end, lines) for name, end in pairs]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
