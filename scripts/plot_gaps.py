#!/usr/bin/env python3
"""The pictures of docs/gap_analysis.md that are drawn of figures, which stand here with where they are from:

    scripts/plot_gaps.py [--out docs/plots]

Needs nothing but Python. Flame graphs are made by scripts/flame_graph.py.
"""

import argparse
import pathlib

import svg_plot

ROOT = pathlib.Path(__file__).resolve().parent.parent

# bench/results/2026-11-23-avx512.md, "Growth": AMD EPYC (Zen 4), 2 cores; milliseconds.
STEP_BY_SEQUENCES = [(1, 3.89), (2, 4.27), (4, 5.32), (8, 6.84), (16, 13.4), (32, 21.9), (64, 54.9), (128, 96.7), (256, 176)]
DECODE_BY_CONTEXT = [(128, 3.62, 101), (512, 3.89, 110), (1024, 4.72, 122), (2048, 6.38, 145), (3072, 7.36, 169), (4096, 8.24, 193),
                     (6144, 11.8, 240), (8000, 12.2, 283)]  # tokens, ms a step, MB a step
MEMORY = 33.9e9          # bytes a second, in the same run
WEIGHTS = 96.6e6         # bytes that a step reads
OPERATIONS_MS = 0.60     # a sequence: layers' products, the head's, its cache, in minutes of 945 Gop/s; "What bounds it" there

# bench/results/2026-11-24-host-step.md: 256 sequences of Qwen3 0.6B's shape, an emulated device that computes nothing; microseconds.
HOST = {"schedule": 14, "prepare": 10, "forward": 21, "sample": 22, "commit": 27, "deliver": 53}
EAGER_FORWARD = 290
CARD_STEP = 2000         # what such a step takes an H200 by its memory, at least (docs/performance.md)


def lined_up(parts, begin=0.0):
    row = []
    for what, length in parts:
        row.append((what, begin, begin + length))
        begin += length
    return row


def batch():
    roof = [(n, max(1e3 * WEIGHTS / MEMORY, OPERATIONS_MS * n)) for n, _ in STEP_BY_SEQUENCES]
    gained = {"measured": [(n, n / ms * 1e3) for n, ms in STEP_BY_SEQUENCES],
              "what memory and arithmetic allow": [(n, n / ms * 1e3) for n, ms in roof]}
    return svg_plot.lines("Decoding: tokens a second by sequences", "sequences", "tok/s", gained, logarithmic_x=True)


def context():
    return svg_plot.lines("Decoding one sequence: a step by context", "tokens before", "ms", {
        "measured": [(tokens, ms) for tokens, ms, _ in DECODE_BY_CONTEXT],
        "weights and cache at the memory's speed": [(tokens, 1e9 * mb / MEMORY) for tokens, _, mb in DECODE_BY_CONTEXT]})


def request():
    """One ShareGPT request of 250 tokens in and 64 out, and one of 110 and 301, alone and its share of a full batch."""
    rows = {}
    for prompt, answer in ((250, 64), (110, 301)):
        rows[f"{prompt} in, {answer} out, alone"] = lined_up([("prompt", 0.60 * prompt), ("answer", 3.6 * answer)])
        rows[f"{prompt} in, {answer} out, of 32"] = lined_up([("prompt", 0.60 * prompt), ("answer", 0.95 * answer)])
    return svg_plot.spans("What a request takes the engine", "ms of the engine", rows)


def host_step():
    after = [("commit", HOST["commit"]), ("schedule", HOST["schedule"]), ("prepare", HOST["prepare"]), ("take tokens", 24)]
    gap = sum(length for _, length in after)
    tail = [("forward", HOST["forward"]), ("sample", HOST["sample"]), ("deliver", HOST["deliver"])]
    eager = [("forward", EAGER_FORWARD), ("sample", HOST["sample"]), ("deliver", HOST["deliver"])]
    return svg_plot.spans("The host's part of two steps of 256 sequences; a step takes the card 2,000 us", "microseconds", {
        "card, graph": lined_up(2 * [("card idle", gap), ("card computes", CARD_STEP)]),
        "host": lined_up(after + tail) + lined_up(after + tail, gap + CARD_STEP),
        "card, eager": lined_up(2 * [("card idle", gap + 8), ("card computes", CARD_STEP)]),
        "host, eager": lined_up(after + eager) + lined_up(after + eager, gap + 8 + CARD_STEP),
        "card, overlapped": lined_up([("card idle", gap), ("card computes", CARD_STEP), ("card computes", CARD_STEP)]),
        "host, overlapped": lined_up(after + tail) + lined_up(after + tail, gap + 200.0)})


def layer():
    """A layer of Llama 3.1 8B decoding one sequence on an H200: by arithmetic (docs/performance.md), not measured."""
    five = [("norm", 2), ("QKV", 11.7), ("heads", 2), ("attention", 6), ("fold", 2), ("output", 7.8), ("norm", 2),
            ("gate and up", 54.6), ("down", 27.3)]
    twelve = [("norm", 2), ("QKV", 11.7), ("bias, norm of heads", 4), ("rotation", 2), ("cache", 2), ("attention", 6), ("fold", 2),
              ("output", 7.8), ("add", 2), ("norm", 2), ("gate and up", 54.6), ("activation", 2), ("down", 27.3), ("add", 2)]
    return svg_plot.spans("One layer of an 8B model, one sequence, by arithmetic", "microseconds", {
        "an op a kernel": lined_up(twelve), "as it is": lined_up(five),
        "products alone": lined_up([(what, length) for what, length in five if what in ("QKV", "output", "gate and up", "down")])})


def shares():
    """Shares of a step's time: vLLM 0.5.3 as its authors measured it (not ours), and quire's host beside a card's step of 2 ms."""
    return svg_plot.spans("Who has the time", "% of it", {
        "vLLM 0.5.3, Llama 3 8B, H100 (cited)": lined_up([("HTTP server", 33), ("scheduling, preparing", 29), ("model", 38)]),
        "quire's host, 256 sequences, card 2 ms": lined_up([("scheduling, preparing", 100 * 75 / (75 + CARD_STEP)),
                                                            ("model", 100 * CARD_STEP / (75 + CARD_STEP))]),
        # 30 of 5,798 samples of `perf record` are of other threads than the engine's and the one that computes with it.
        "quire serve, 2 cores, 32 clients": lined_up([("HTTP server", 0.5), ("model", 99.5)])})


def sampling():
    """docs/design.md, a row of 49,152 logits on one core; microseconds. A step of 64 sequences takes some 60 ms on two."""
    groups = {"greedy": 9, "top_k 50, top_p 0.9": 39, "temperature": 132, "greedy, 5 logprobs": 144}
    shown = {"% of a step of 64 sequences": [100 * 64 * us / 2 / 60e3 for us in groups.values()]}
    return svg_plot.bars("Sampling's share of a step", "%", list(groups), shown)


DRAWN = {"gap-batch": batch, "gap-context": context, "gap-request": request, "gap-host-step": host_step, "gap-layer": layer,
         "gap-shares": shares, "gap-sampling": sampling}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs/plots")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWN.items():
        (options.out / f"{name}.svg").write_text(draw())
        print(options.out / f"{name}.svg")


if __name__ == "__main__":
    main()
