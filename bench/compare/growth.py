#!/usr/bin/env python3
"""How quire's costs grow, and what a long sequence does to short ones: curves, straight-line fits, idle CPU.

    bench/compare/growth.py [--rounds 3] [--only contexts,sequences,beside_long,idle]

contexts: prefill and decode of one sequence, prompts up to 8,000 tokens. sequences: decode of up to 256 at once. beside_long: over HTTP,
time per token of 31 short sequences without and with one of 8,000 tokens beside them. idle: processor time of a server that
nobody asks. No peer is needed.
"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import statistics
import tempfile
import threading
import time

import common
import svg_plot
from common import figure, median, say

CONTEXTS = (128, 512, 1024, 2048, 3072, 4096, 6144, 8000)
SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256)
LONG = 8000  # tokens of the long sequence
SHORT, SHORT_OUTPUT, OTHERS = 128, 128, 31
CONTEXT_OUTPUT = 150
SEQUENCES_INPUT, SEQUENCES_OUTPUT = 32, 32


def latency(options, *flags):
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "latency.json"
        common.run([*options.prefix, options.quire, "bench", "latency", "--model", options.model, "--threads", options.threads,
                    "--num-iters-warmup", 0, "--num-iters", 1, "--output-json", target, *flags])
        found = json.loads(target.read_text())
    return found["prefill_tokens_per_second"], found["decode_tokens_per_second"]


def line_through(points):
    """(slope, intercept, R squared) of the least-squares line."""
    xs, ys = zip(*points)
    fit = statistics.linear_regression(xs, ys)
    mean = statistics.fmean(ys)
    rest = sum((y - fit.slope * x - fit.intercept) ** 2 for x, y in points)
    whole = sum((y - mean) ** 2 for y in ys)
    return fit.slope, fit.intercept, 1 - rest / whole if whole else 1.0


def curve(options, name, unit, x_title, points):
    """Writes the plot; a line of text about the straight line through the points."""
    slope, intercept, straight = line_through(points)
    ends = [(x, slope * x + intercept) for x in (points[0][0], points[-1][0])]
    plot = svg_plot.lines(name, x_title, unit, {"measured": points, "line": ends})
    (options.out / f"growth-{name.replace(' ', '-').replace(',', '')}.svg").write_text(plot)
    return f"{figure(intercept)} {unit} + {slope:.3g} {unit} each; R² {straight:.4f}"


def contexts(options):
    """Medians of the rounds: prefill, ms a token, and decode, ms a step, by length of the prompt."""
    seen = {context: [] for context in CONTEXTS}
    for number in range(options.rounds):
        for context in CONTEXTS:
            seen[context].append(latency(options, "--input-len", context, "--output-len", CONTEXT_OUTPUT, "--batch-size", 1))
        say(f"contexts, round {number + 1}/{options.rounds}")
    prefill = [(context, 1000 / median([one[0] for one in seen[context]])) for context in CONTEXTS]
    decode = [(context, 1000 / median([one[1] for one in seen[context]])) for context in CONTEXTS]
    limits = common.machine_limits(options)
    facts = common.Models(common.Peers(options.peers), options.model).facts(common.DEFAULT_FORMAT)
    rows = []
    for (context, prefill_ms), (_, decode_ms) in zip(prefill, decode):
        moved = facts["weight_bytes"] + options.kv_bytes_per_token * (context + CONTEXT_OUTPUT / 2)
        share = f"{100 * moved / (decode_ms / 1000) / limits['bytes']:.0f} %" if limits else ""
        rows.append([str(context), figure(prefill_ms), figure(decode_ms), figure(moved / 1e6), share])
    table = common.markdown_table(["tokens", "prefill, ms a token", "decode, ms a step", "MB a step", "of memory's speed"], rows)
    lines = [f"prefill by length of the prompt: {curve(options, 'prefill per token', 'ms', 'tokens of the prompt', prefill)}",
             f"decode by context: {curve(options, 'decode step by context', 'ms', 'tokens of context', decode)}"]
    memory = f"memory {limits['bytes'] / 1e9:.1f} GB/s in the same run" if limits else ""
    return "\n\n".join([f"### One sequence ({memory})", table, *lines])


def sequences(options):
    seen = {count: [] for count in SEQUENCES}
    for number in range(options.rounds):
        for count in SEQUENCES:
            seen[count].append(latency(options, "--input-len", SEQUENCES_INPUT, "--output-len", SEQUENCES_OUTPUT,
                                       "--batch-size", count, "--max-num-seqs", count)[1])
        say(f"sequences, round {number + 1}/{options.rounds}")
    steps = [(count, 1000 * count / median(seen[count])) for count in SEQUENCES]
    table = common.markdown_table(["sequences", "decode, ms a step", "tokens/s"],
                                  [[str(count), figure(step), figure(1000 * count / step)] for count, step in steps])
    return "\n\n".join(["### Many sequences", table,
                        f"a step by sequences: {curve(options, 'decode step by sequences', 'ms', 'sequences', steps)}"])


def stream(port, ids, tokens, begun=None):
    """Times of the tokens of a streamed answer; `begun` is set at the first."""
    connection = http.client.HTTPConnection(common.HOST, port, timeout=900)
    connection.request("POST", "/v1/completions", json.dumps({
        "model": "model", "prompt": ids, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}),
        {"Content-Type": "application/json"})
    times = []
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            if b'"error"' in line:
                raise RuntimeError(line.decode())
            times.append(time.monotonic())
            if begun is not None:
                begun.set()
    connection.close()
    return times


def short_ones(port, pool, seed, vocab_size):
    """Time per output token of each of the short sequences, in ms."""
    chooser = random.Random(seed)
    prompts = [[chooser.randrange(100, vocab_size) for _ in range(SHORT)] for _ in range(OTHERS)]
    answers = [pool.submit(stream, port, prompt, SHORT_OUTPUT) for prompt in prompts]
    return [1000 * (times[-1] - times[0]) / (SHORT_OUTPUT - 1) for times in (answer.result() for answer in answers)]


def long_one(port, seed, vocab_size, output, begun=None):
    chooser = random.Random(seed)
    return stream(port, [chooser.randrange(100, vocab_size) for _ in range(LONG)], output, begun)


def serve(options, port):
    return [*options.prefix, options.quire, "serve", options.model, "--host", common.HOST, "--port", port, "--threads",
            options.threads, "--served-model-name", "model", "--max-num-seqs", OTHERS + 1, "--no-enable-prefix-caching",
            *options.quire_flags]


def percentile_95(values):
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def beside_long(options):
    vocab_size = common.Models(common.Peers(options.peers), options.model).facts(common.DEFAULT_FORMAT)["vocab_size"]
    seen = {"alone": [], "beside it": [], "beside its prompt, too": []}
    for number in range(options.rounds):
        port = common.free_port()
        with common.server(serve(options, port), port), concurrent.futures.ThreadPoolExecutor(OTHERS + 1) as pool:
            short_ones(port, pool, 0, vocab_size)  # a warm-up
            seen["alone"].append(percentile_95(short_ones(port, pool, 1, vocab_size)))
            # The long one's prompt is computed first, and it goes on for as long as the short ones take.
            begun = threading.Event()
            long = pool.submit(long_one, port, 2, vocab_size, 180, begun)
            if not begun.wait(300):
                raise RuntimeError("the long sequence gave no token in 300 s")
            seen["beside it"].append(percentile_95(short_ones(port, pool, 3, vocab_size)))
            if long.done():
                say("the long sequence ended before the short ones")
            long.result()
            # The long one comes when the short ones are under way.
            later = pool.submit(lambda: (time.sleep(2), long_one(port, 4, vocab_size, 64)))
            seen["beside its prompt, too"].append(percentile_95(short_ones(port, pool, 5, vocab_size)))
            later.result()
        say(f"beside_long, round {number + 1}/{options.rounds}: " + ", ".join(f"{key} {figure(values[-1])}" for key, values in seen.items()))
    rows = []
    for key, values in seen.items():
        times = [value / alone for value, alone in zip(values, seen["alone"])]
        rows.append([key, figure(median(values)), f"{median(times):.2f} x"])
    return "\n\n".join([f"### {OTHERS} short sequences and one of {LONG} tokens",
                        common.markdown_table([f"{SHORT} in, {SHORT_OUTPUT} out", "TPOT p95, ms", "of alone"], rows)])


def idle(options):
    port = common.free_port()
    ticks = os.sysconf("SC_CLK_TCK")

    def used(process):
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / ticks

    with common.server(serve(options, port), port) as process:
        stream(port, [1] * 32, 16)
        time.sleep(2)
        before, begin = used(process), time.monotonic()
        time.sleep(options.idle_seconds)
        share = (used(process) - before) / (time.monotonic() - begin)
        resident = next(line for line in pathlib.Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return f"### Idle\n\n{100 * share:.3f} % of one core over {options.idle_seconds} s; {int(resident.split()[1]) / 1000:.0f} MB resident"


def main():
    parser = common.parser_of(__doc__)
    common.add_arguments(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=common.list_of(str), default=["contexts", "sequences", "beside_long", "idle"])
    parser.add_argument("--kv-bytes-per-token", type=int, default=30 * 2 * 3 * 64 * 2, help="of the default model in float16")
    parser.add_argument("--idle-seconds", type=int, default=30)
    parser.add_argument("--quire-flags", type=lambda text: text.split(), default=[], help="more flags of quire serve")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    parts = {"contexts": contexts, "sequences": sequences, "beside_long": beside_long, "idle": idle}
    text = "\n\n".join([f"{common.processor()}, {options.threads} threads, {options.model.name}, medians of {options.rounds} rounds.",
                        *(parts[name](options) for name in options.only)]) + "\n"
    (options.out / "growth.md").write_text(text)
    print(text)
    say(f"written: {options.out}")


if __name__ == "__main__":
    main()
