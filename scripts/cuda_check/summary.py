"""summary.py: what check.py knows so far, as one object beside roofs and targets.

Roofs and targets are an H200's (docs/performance.md, "On a card"); "of_this_card" is them times what the card that is
there was measured to do, as a share of what an H200 does.
"""

# What an H200 moves and multiplies, measured; the roofs are arithmetic with them.
BYTES_PER_SECOND = 4.3e12
FLOPS = 788e12

DECODE, PREFILL, OUTPUT = "decode_tokens_per_second", "time_to_first_token", "output_tokens_per_second"
# Figure: its part, the case (None: of the whole report), what it measures, its roof, its target, and what the roof is
# made of. Tokens a second, or milliseconds.
TARGETS = {
    "llama_8b_1": ("llama_8b", "1x1024x64", DECODE, 284, 227, "memory"),
    "llama_8b_32": ("llama_8b", "32x1024x64", DECODE, 7128, 5346, "memory"),
    "llama_8b_128": ("llama_8b", "128x1024x64", DECODE, 17099, 12311, "memory"),
    "llama_8b_256": ("llama_8b", "256x1024x64", DECODE, 22297, 15608, "memory"),
    "llama_8b_prefill_2k": ("llama_8b", "1x2048x1", PREFILL, 37.7, 50.2, "products"),
    "llama_8b_prefill_8k": ("llama_8b", "1x8192x1", PREFILL, 167, 223, "products"),
    "llama_8b_1_eager": ("llama_8b_eager", "1x1024x64", DECODE, 284, None, "memory"),
    "llama_8b_32_no_overlap": ("llama_8b_no_overlap", "32x1024x64", DECODE, 7128, None, "memory"),
    "llama_8b_prefill_8k_fa3": ("llama_8b_fa3", "1x8192x1", PREFILL, 167, 223, "products"),
    "llama_8b_prefill_8k_flashinfer": ("llama_8b_flashinfer", "1x8192x1", PREFILL, 167, 223, "products"),
    "llama_8b_32_flashinfer": ("llama_8b_flashinfer", "32x1024x64", DECODE, 7128, None, "memory"),
    "llama_8b_32_lora": ("llama_8b_lora", "32x1024x64_adapted", DECODE, 6260, 4544, "memory"),
    "llama_8b_32_beside_lora": ("llama_8b_lora", "32x1024x64", DECODE, 7128, 5346, "memory"),
    "llama_8b_prefill_2k_lora": ("llama_8b_lora", "1x2048x1_adapted", PREFILL, 37.7, None, "products"),
    "llama_8b_fp8": ("llama_8b_fp8", None, OUTPUT, 25838, 19500, "memory"),
    "qwen3_06b_nano": ("qwen3_06b_nano", None, OUTPUT, 36500, 27000, "memory"),
    "qwen3_30b_a3b_64": ("qwen3_30b_a3b", "64x512x32", DECODE, 4387, 2413, "memory"),
    "deepseek_v2_lite_64": ("deepseek_v2_lite", "64x512x32", DECODE, 8611, 4736, "memory"),
    "deepseek_v2_lite_64_flashinfer": ("deepseek_v2_lite_flashinfer", "64x512x32", DECODE, 8611, None, "memory"),
}
# Milliseconds of the host in a step of 256 sequences that the card stands still for: part, case, overlap.
HOST_TARGET = 0.1
HOST_STEPS = {"qwen3_06b_256": ("qwen3_06b", "256x512x256", True),
              "qwen3_06b_256_no_overlap": ("qwen3_06b_no_overlap", "256x512x256", False),
              "llama_8b_256": ("llama_8b", "256x1024x64", True)}
TESTS = ("ops", "tiny_models_float32", "tiny_models_bfloat16", "recorded_steps", "runner", "engine", "adapters",
         "adapted_engine", "sanitizer_model", "sanitizer_attention")
ORACLES = ("smollm2_float32", "smollm2")
AGAIN = "_eager_again"


def rounded(number):
    return None if number is None else float(f"{number:.4g}")


def case_of(report, case):
    """A case's own report. Where the CPU tries, sizes are smaller: the one in its place."""
    if case is None:
        return report
    cases = (report or {}).get("cases", {})
    if case in cases or not cases:
        return cases.get(case)
    answer = case.rsplit("x", 1)[1]
    return next((one for name, one in cases.items() if name.rsplit("x", 1)[1] == answer), None)


def benchmark(name, report, limits):
    """One figure beside its roof and target, an H200's and this card's."""
    _, case, metric, roof, target, bound = TARGETS[name]
    value = (case_of(report, case) or {}).get(metric)
    is_time = metric == PREFILL
    if value is None:
        return None
    value *= 1e3 if is_time else 1
    machine = {"memory": max(limits.get("read_bytes_per_second", 0), limits.get("copy_bytes_per_second", 0)) / BYTES_PER_SECOND,
               "products": limits.get("bf16_flops", 0) / FLOPS}[bound]
    scale = (1 / machine if is_time else machine) if machine > 0 else None

    def reached(goal):
        return None if goal is None else (value <= goal if is_time else value >= goal)

    of_this_card = None
    if scale is not None:
        here = None if target is None else target * scale
        of_this_card = {"roof": rounded(roof * scale), "target": rounded(here), "reaches_target": reached(here),
                        "share_of_roof": rounded(roof * scale / value if is_time else value / (roof * scale))}
    return {
        "metric": "prefill" if is_time else "decode" if metric == DECODE else "output",
        "unit": "ms" if is_time else "tok/s",
        "value": rounded(value),
        "of_an_h200": {"roof": roof, "target": target, "reaches_target": reached(target),
                       "share_of_roof": rounded(roof / value if is_time else value / roof)},
        "of_this_card": of_this_card,
    }


def host_step(report):
    """Milliseconds of a step of decoding: the host's, and what of it the card stands still for."""
    steps = (report or {}).get("decode_steps") or {}
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


def names(parts, status):
    return [name for name, part in parts.items() if part["status"] == status]


def verdict(parts):
    failed, skipped, no_card = names(parts, "failed"), names(parts, "skipped"), names(parts, "no card")
    told = [f"FAILED: {', '.join(failed)}" if failed else "passed" if names(parts, "passed") else "nothing ran"]
    if no_card:
        told.append(f"no card for {', '.join(no_card)}")
    if skipped:
        told.append(f"skipped: {', '.join(skipped)}")
    return "; ".join(told)


def summary(state, tree, commit):
    parts, reports = state["parts"], state["reports"]
    limits = reports.get("limits", {}).get("machine", {})

    def report(name):
        return reports.get(name) or reports.get(name + AGAIN)

    figures = {name: benchmark(name, report(TARGETS[name][0]), limits) for name in TARGETS}
    steps = {name: host_step(case_of(report(part), case)) for name, (part, case, _) in HOST_STEPS.items()}
    # A part that failed and then did its work without graphs has failed all the same.
    return {
        "verdict": verdict(parts),
        "passed": not names(parts, "failed"),
        "complete": all(part["status"] == "passed" for part in parts.values()) and not state.get("cut_off", False),
        "skipped": {name: parts[name].get("reason", "") for name in names(parts, "skipped")},
        "no_card": names(parts, "no card"),
        "mode": state["mode"],
        "card": state.get("card"),
        "commit": commit.read_text().strip() if commit.exists() else None,
        "seconds": round(sum(part["seconds"] for part in parts.values()), 1),
        "parts": parts,
        "limits": limits,
        "limits_of_the_roofs": {"read_bytes_per_second": BYTES_PER_SECOND, "bf16_flops": FLOPS},
        "tests": {name: reports[name] for name in TESTS if name in reports},
        "oracle": {name: {key: value for key, value in report(name).items() if key != "cases"}
                   for name in ORACLES if report(name)},
        "benchmark": {name: figure for name, figure in figures.items() if figure is not None},
        "host_of_a_step_of_256": {name: on_critical_path(step, HOST_STEPS[name][2])
                                  for name, step in steps.items() if step is not None},
        "kernels": reports.get("kernels", {}).get("kernels"),
        "torch": reports.get("torch"),
    }
