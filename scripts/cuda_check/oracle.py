"""oracle.py --quire BINARY --data FOLDER --model MODEL.gguf --output RESULT.json [--as-it-comes] [--cases N] [-- FLAGS]

The default model served with FLAGS beside an independent float32 implementation's record of it (smollm2.json): prompts,
log-probabilities, greedy tokens as far as the record's choice is clear. Ends with 1 where they differ by more than the
tolerances, which stand in RESULT.json. With --as-it-comes nothing is asked to be float32, and they are wider.
"""

import argparse
import dataclasses
import json
import pathlib
import sys

import harness
import recorded_answers

# Of the two best logits, of the mean log-probability of a prompt, of one token's.
EXACT = {"margin": 0.05, "mean": 0.005, "top": 0.02}
ROUNDED = {"margin": 0.1, "mean": 0.01, "top": 0.05}
FLOATS = ("--activation-dtype", "float32", "--kv-cache-dtype", "float32")


def main():
    parser = argparse.ArgumentParser()
    for name in ("--quire", "--data", "--model", "--output"):  # harness has read the first two
        parser.add_argument(name, type=pathlib.Path, required=True)
    parser.add_argument("--as-it-comes", action="store_true")
    parser.add_argument("--cases", type=int)
    parser.add_argument("flags", nargs="*")
    options = parser.parse_args()
    tolerances = ROUNDED if options.as_it_comes else EXACT
    record = json.loads((options.data / "e2e/smollm2.json").read_text())
    flags = [*([] if options.as_it_comes else FLOATS), *options.flags]
    found = []
    with harness.Server(*flags, model=options.model) as server:
        for case in record["cases"][: options.cases]:
            one = recorded_answers.compare(server, case, tolerances["margin"])
            passed = one.within(tolerances["mean"], tolerances["top"])
            found.append({"message": case["message"][:40], "passed": passed, **dataclasses.asdict(one)})
            print("as recorded" if passed else "NOT as recorded", one, flush=True)
    result = {
        "flags": flags,
        "tolerances": tolerances,
        "passed": sum(one["passed"] for one in found),
        "failed": sum(not one["passed"] for one in found),
        "greedy_tokens_compared": sum(one["steps"] for one in found),
        "largest_mean_prompt_logprob": max(one["mean_prompt_logprob"] for one in found),
        "largest_top_logprob": max(one["top_logprob"] for one in found),
        "cases": found,
    }
    options.output.write_text(json.dumps(result, indent=2))
    sys.exit(0 if result["failed"] == 0 else 1)


if __name__ == "__main__":
    main()
