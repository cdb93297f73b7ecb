"""summary.py RESULTS: what run.sh wrote, as one JSON object on standard output."""

import json
import pathlib
import sys

results = pathlib.Path(sys.argv[1])


def tests(name):
    path = results / f"{name}.json"
    if not path.exists():
        return None
    whole = json.loads(path.read_text())
    cases = [case for suite in whole["testsuites"] for case in suite["testsuite"]]
    return {
        "run": whole["tests"],
        "failed": [f"{case['classname']}.{case['name']}" for case in cases if case.get("failures")],
        "skipped": sum(case.get("result") == "SKIPPED" for case in cases),
    }


def latency(path):
    whole = json.loads(path.read_text())
    keys = ("time_to_first_token", "prefill_tokens_per_second", "decode_tokens_per_second", "start_to_first_token_seconds")
    of_throughput = ("elapsed_time", "requests_per_second", "tokens_per_second", "output_tokens_per_second")
    return {key: whole[key] for key in (*keys, *of_throughput) if key in whole}


parts = [line.split() for line in (results / "parts.txt").read_text().splitlines()]
card = results / "card.txt"
commit = pathlib.Path(__file__).parent / "commit"
print(
    json.dumps(
        {
            "card": card.read_text().strip() if card.exists() else None,
            "commit": commit.read_text().strip() if commit.exists() else None,
            "parts": {name: {"exit_code": int(code), "seconds": int(seconds)} for name, code, seconds in parts},
            "tests": {name: tests(name) for name in ("ops", "tiny_models")},
            "latency": {
                path.stem: latency(path) for path in sorted(results.glob("*.json")) if path.stem not in ("ops", "tiny_models", "summary")
            },
        },
        indent=2,
    )
)
