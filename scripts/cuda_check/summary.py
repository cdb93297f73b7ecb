"""summary.py RESULTS: what run.sh wrote, as one JSON object on standard output."""

import json
import pathlib
import sys

# What an H200 moves and multiplies, measured; the roofs are arithmetic with them (docs/performance.md, "On a card").
BYTES_PER_SECOND = 4.3e12
FLOPS = 788e12

DECODE, PREFILL, OUTPUT = "decode_tokens_per_second", "time_to_first_token", "output_tokens_per_second"
# Part: what it measures, its roof, its target, and what the roof is made of. Tokens a second, or milliseconds.
TARGETS = {
    "llama_8b_1": (DECODE, 284, 227, "memory"),
    "llama_8b_1_eager": (DECODE, 284, None, "memory"),
    "llama_8b_32": (DECODE, 7128, 5346, "memory"),
    "llama_8b_32_overlap": (DECODE, 7128, 5346, "memory"),
    "llama_8b_128": (DECODE, 17099, 12311, "memory"),
    "llama_8b_256": (DECODE, 22297, 15608, "memory"),
    "llama_8b_prefill_2k": (PREFILL, 37.7, 50.2, "products"),
    "llama_8b_prefill_8k": (PREFILL, 167, 223, "products"),
    "llama_8b_prefill_8k_flashinfer": (PREFILL, 167, 223, "products"),
    "llama_8b_prefill_8k_fa3": (PREFILL, 167, 223, "products"),
    "llama_8b_fp8": (OUTPUT, 25838, 19500, "memory"),
    "qwen3_06b_nano": (OUTPUT, 36500, 27000, "memory"),
    "qwen3_30b_a3b_64": (DECODE, 4387, 2413, "memory"),
    "deepseek_v2_lite_64": (DECODE, 8611, 4736, "memory"),
}
# Milliseconds of the host in a step of 256 sequences that the card stands still for.
HOST_TARGET = 0.1
TESTS = ("ops", "tiny_models_float32", "tiny_models_bfloat16", "recorded_steps", "runner", "engine", "sanitizer_model",
         "sanitizer_attention")
ORACLES = ("smollm2_float32", "smollm2")


def rounded(number):
    return None if number is None else float(f"{number:.4g}")


def tests(report):
    """What became of a program's tests, and of the figures that they noted (RecordProperty) the worst."""
    cases = [case for suite in report["testsuites"] for case in suite["testsuite"]]
    noted = {}
    for case in cases:
        for key, value in case.items():
            if key.endswith(("_difference", "_tolerance")):
                noted[key] = max(noted.get(key, 0.0), float(value))
    skipped = [case for case in cases if case.get("result") == "SKIPPED"]
    return {
        "selected": len(cases),
        "ran": len(cases) - len(skipped),
        "failed": [f"{case['classname']}.{case['name']}" for case in cases if case.get("failures")],
        "skipped": [f"{case['classname']}.{case['name']}" for case in skipped][:20],
        **({"worst": noted} if noted else {}),
    }


def benchmark(name, report, limits):
    """One part's figure beside its roof, its target, and the roof with what this card was measured to do."""
    metric, roof, target, bound = TARGETS[name]
    value = report.get(metric)
    is_time = metric == PREFILL
    if value is None:
        return {"metric": metric, "value": None, "roof": roof, "target": target}
    value *= 1e3 if is_time else 1
    machine = {"memory": limits.get("read_bytes_per_second", 0) / BYTES_PER_SECOND,
               "products": limits.get("bf16_flops", 0) / FLOPS}[bound]
    share = roof / value if is_time else value / roof
    return {
        "metric": "prefill" if is_time else "decode" if metric == DECODE else "output",
        "unit": "ms" if is_time else "tok/s",
        "value": rounded(value),
        "roof": roof,
        "target": target,
        "share_of_roof": rounded(share),
        "reaches_target": None if target is None else (value <= target if is_time else value >= target),
        "share_of_this_cards_roof": rounded(share / machine) if machine > 0 else None,
    }


def host_step(report):
    """Milliseconds of a step of decoding: the host's, and what of it the card stands still for."""
    steps = report.get("decode_steps") or {}
    if not steps.get("count"):
        return None
    host = steps["seconds_of_host"] * 1e3
    return {
        "steps": steps["count"],
        "share_replayed": steps["share_replayed"],
        "step_ms": rounded(steps["seconds"] * 1e3),
        "waited_for_card_ms": rounded(steps["seconds_waited"] * 1e3),
        "host_ms": rounded(host),
        "phases_ms": {name: rounded(seconds * 1e3) for name, seconds in steps["phases"].items()},
    }


def on_critical_path(step, overlaps):
    """With overlap the next step is launched before this one's tokens are waited for: what is waited for was no delay."""
    if step is None:
        return None
    value = 0.0 if overlaps and step["waited_for_card_ms"] > 0 else step["host_ms"]
    return {**step, "critical_path_ms": value, "target_ms": HOST_TARGET, "reaches_target": value < HOST_TARGET}


def parts(text):
    all_parts = {}
    for line in text.splitlines():
        name, code, seconds, *reason = line.split(" ", 3)
        status = {"0": "passed", "skipped": "skipped"}.get(code, "failed")
        all_parts[name] = {"status": status, "seconds": int(seconds)}
        if status == "failed":
            all_parts[name]["exit_code"] = int(code)
        if reason and reason[0]:
            all_parts[name]["reason"] = reason[0]
    return all_parts


def summary(results, commit):
    def read(name):
        path = results / f"{name}.json"
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, ValueError):  # a part that was cut off
            return None

    limits = (read("limits") or {}).get("machine", {})
    found = {name: read(name) for name in (*TESTS, *ORACLES, *TARGETS, "qwen3_06b_256", "qwen3_06b_256_overlap")}
    found = {name: report for name, report in found.items() if report is not None}
    all_parts = {"card": {"status": "skipped"}, **parts((results / "parts.txt").read_text())}
    return {
        "passed": all(part["status"] == "passed" for part in all_parts.values()),
        "card": (results / "card.txt").read_text().strip() if all_parts["card"]["status"] == "passed" else None,
        "commit": commit.read_text().strip() if commit.exists() else None,
        "seconds": sum(part.get("seconds", 0) for part in all_parts.values()),
        "parts": all_parts,
        "limits": limits,
        "limits_of_the_roofs": {"read_bytes_per_second": BYTES_PER_SECOND, "bf16_flops": FLOPS},
        "tests": {name: tests(found[name]) for name in TESTS if name in found},
        "oracle": {name: {key: value for key, value in found[name].items() if key != "cases"}
                   for name in ORACLES if name in found},
        "benchmark": {name: benchmark(name, found[name], limits) for name in TARGETS if name in found},
        "host_of_a_step_of_256": {
            name: on_critical_path(host_step(found[name]), overlaps)
            for name, overlaps in (("qwen3_06b_256", False), ("qwen3_06b_256_overlap", True), ("llama_8b_256", True))
            if name in found
        },
    }


if __name__ == "__main__":
    print(json.dumps(summary(pathlib.Path(sys.argv[1]), pathlib.Path(__file__).parent / "commit"), indent=2))
