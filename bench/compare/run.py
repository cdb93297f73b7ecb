#!/usr/bin/env python3
"""Quire beside llama.cpp, OpenVINO GenAI and vLLM on the same prompts, in turn, several rounds: table, CSV and plots.

    bench/compare/run.py [--rounds 3] [--only quire,llama.cpp] [--formats Q4_1,F16] [--batches 1,8,32,64]

Needs setup.sh's peers and a release build with bench_ops. Measured are the start to the first token, prefill, and decode after prompts of
--input random tokens, all different. Prompts are ids, the same for all peers; quire draws its own of the same lengths.
"""

import collections
import csv
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import common
import svg_plot
from common import figure, median, ratio, say

Measure = collections.namedtuple("Measure", "kind sequences input output")
OTHER_FORMATS_BATCHES = (1, 32)


def key(measure):
    """As the drivers take it."""
    if measure.kind == "decode":
        return f"decode:{measure.sequences}:{measure.input}:{measure.output}"
    return f"{measure.kind}:{measure.input}"


def title(measure):
    if measure.kind == "start":
        return "start to first token, s"
    return f"prefill, {measure.input} tokens" if measure.kind == "prefill" else f"decode, {measure.sequences}"


def plan(options, name, engine, last_round):
    """The measures of one engine and format in one round."""
    if engine == "vllm" and not last_round:
        return []
    first = name == options.formats[0]
    batches = options.batches if first else [batch for batch in options.batches if batch in OTHER_FORMATS_BATCHES]
    if engine == "vllm":
        batches = [batch for batch in batches if batch <= 32]
    chosen = [Measure("start", 1, options.input, 1)]
    chosen += [Measure("prefill", 1, length, 1) for length in (options.prefills if first else options.prefills[-1:])]
    chosen += [Measure("decode", batch, options.input, options.output) for batch in batches]
    return chosen


class Runner:
    def __init__(self, options, peers, models, folder):
        self.options, self.peers, self.models, self.folder = options, peers, models, folder
        longest = max([options.input, *options.prefills])
        vocab_size = models.facts(options.formats[0])["vocab_size"]
        self.prompts = folder / "prompts.txt"
        lines = common.random_prompts(max([2, *options.batches]), longest, vocab_size)
        self.prompts.write_text("".join(" ".join(map(str, ids)) + "\n" for ids in lines))

    def quire(self, engine, name, measures):
        """One process a measure."""
        for measure in measures:
            target = self.folder / "latency.json"
            warmups, iterations = (1, 3) if measure.kind == "prefill" else (0, 1)
            common.run([*self.options.prefix, self.options.quire, "bench", "latency", "--model", self.models.gguf(name),
                        "--input-len", measure.input, "--output-len", measure.output, "--batch-size", measure.sequences,
                        "--num-iters-warmup", warmups, "--num-iters", iterations, "--threads", self.options.threads,
                        "--output-json", target, *common.quire_flags(engine)])
            result = json.loads(target.read_text())
            yield measure, result[{"start": "start_to_first_token_seconds", "prefill": "prefill_tokens_per_second",
                                   "decode": "decode_tokens_per_second"}[measure.kind]]

    def driver(self, engine, name):
        options = self.options
        if engine == "llama.cpp":
            return [self.peers.llama / "llama-driver", "speed", self.models.gguf(name), options.threads, options.llama_ubatch,
                    options.llama_flash, options.llama_kv, self.prompts]
        if engine == "openvino":
            return [self.peers.python(engine), common.HERE / "openvino_driver.py", "speed", self.models.gguf(name),
                    options.threads, self.prompts, options.openvino_kv, options.openvino_group]
        return [self.peers.python(engine), common.HERE / "vllm_driver.py", "speed", self.models.huggingface(), options.threads,
                self.prompts, options.vllm_dtype]

    def peer(self, engine, name, measures):
        """One process; the start is from its beginning to its first line."""
        by_key = {key(measure): measure for measure in measures}
        command = list(map(str, [*self.options.prefix, *self.driver(engine, name), *by_key]))
        with tempfile.TemporaryFile("w+", errors="replace") as log:
            begin = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=self.folder)
            for line in process.stdout:
                what, *numbers = line.split() or [""]
                if what not in by_key:
                    continue  # a word of the engine's own
                measure = by_key[what]
                yield measure, (time.monotonic() - begin if measure.kind == "start" else int(numbers[1]) / float(numbers[0]))
            if process.wait() != 0:
                log.seek(0)
                raise RuntimeError(f"{engine}, {name}: ended with {process.returncode}: {log.read().strip()[-600:]}")

    def values(self, engine, name, measures):
        return self.quire(engine, name, measures) if engine.startswith("quire") else self.peer(engine, name, measures)


def engines_of(options, peers, name):
    """The engines that run this format."""
    for engine in options.only:
        if engine == "vllm" and name != options.formats[0]:
            continue  # one format: the same weights in float32
        if engine == "openvino" and name not in options.openvino_formats:
            continue
        if peers.has(engine):
            yield engine


def measure_all(options, runner):
    """[(round, format, engine, Measure, value)] and the machine's limits, one a round."""
    rows, limits = [], []
    for number in range(options.rounds):
        limits.append(common.machine_limits(options))
        for name in options.formats:
            for engine in engines_of(options, runner.peers, name):
                measures = plan(options, name, engine, number == options.rounds - 1)
                # What takes long is measured in the first rounds only.
                measures = [one for one in measures if one.sequences < 32 or number < options.large_rounds or engine == "vllm"]
                if not measures:
                    continue
                begin = time.monotonic()
                try:
                    for measure, value in runner.values(engine, name, measures):
                        rows.append((number, name, engine, measure, value))
                except (RuntimeError, OSError, subprocess.TimeoutExpired, KeyError, TypeError) as problem:
                    say(f"  {engine}, {name}: {problem}")
                say(f"round {number + 1}/{options.rounds}, {name}, {engine}: {time.monotonic() - begin:.0f} s")
    return rows, limits


def limit_of(measure, facts, limits):
    """Tokens a second that the machine allows in float32: weights read once a step, every multiply-add once. The cache is not counted."""
    if not limits or measure.kind == "start":
        return None
    if measure.kind == "prefill":  # the head for one row only
        return limits["flop"] * measure.input / (facts["flop_per_token"] * measure.input + facts["flop_of_head"])
    by_memory = limits["bytes"] / facts["weight_bytes"] * measure.sequences
    return min(by_memory, limits["flop"] / (facts["flop_per_token"] + facts["flop_of_head"]))


class Results:
    def __init__(self, rows, limits, facts, engines):
        self.values = collections.defaultdict(list)
        for _, name, engine, measure, value in rows:
            if value is not None:
                self.values[name, engine, measure].append(value)
        self.limits = {what: median([one[what] for one in limits if what in one]) for what in ("bytes", "flop", "int8")
                       if any(what in one for one in limits)}
        self.facts, self.all_engines = facts, engines

    def formats(self):
        return list(dict.fromkeys(name for name, _, _ in self.values))

    def measures(self, name):
        order = {"start": 0, "prefill": 1, "decode": 2}
        return sorted({measure for one, _, measure in self.values if one == name},
                      key=lambda one: (order[one.kind], one.sequences, one.input))

    def engines(self, name):
        return [engine for engine in self.all_engines if any((name, engine) == key[:2] for key in self.values)]

    def median(self, name, engine, measure):
        return median(self.values.get((name, engine, measure), []))

    def limit(self, name, measure):
        return limit_of(measure, self.facts[name], self.limits)


def cell(results, name, engine, measure):
    values = results.values.get((name, engine, measure), [])
    if not values:
        return ""
    middle = figure(median(values))
    return middle if len(values) == 1 else f"{middle} ({figure(min(values))} to {figure(max(values))})"


def format_table(results, name):
    engines = results.engines(name)
    peers = [engine for engine in engines if engine != "quire"] if "quire" in engines else []
    header = ["", *engines, *(f"quire / {peer}" for peer in peers), "limit", "quire / limit"]
    rows = []
    for measure in results.measures(name):
        mine = results.median(name, "quire", measure)
        limit = results.limit(name, measure)
        ratios = []
        for peer in peers:
            theirs = results.median(name, peer, measure)
            of = ratio(theirs, mine) if measure.kind == "start" else ratio(mine, theirs)
            ratios.append(f"{of:.2f} x" if of else "")
        share = ratio(mine, limit)
        rows.append([title(measure), *(cell(results, name, engine, measure) for engine in engines), *ratios, figure(limit),
                     f"{100 * share:.0f} %" if share else ""])
    return common.markdown_table(header, rows)


def best_of_peers(results):
    """Quire's first format against each peer's best format: what a user who may choose the weights would see."""
    name = results.formats()[0]
    rows = []
    for measure in results.measures(name):
        row = [title(measure)]
        mine = results.median(name, "quire", measure)
        for peer in results.all_engines:
            if peer.startswith("quire"):
                continue
            found = [(results.median(one, peer, measure), one) for one in results.formats() if results.median(one, peer, measure)]
            if not found:
                row.append("")
                continue
            value, theirs = min(found) if measure.kind == "start" else max(found)
            of = ratio(value, mine) if measure.kind == "start" else ratio(mine, value)
            row.append(f"{figure(value)} ({theirs})" + (f", {of:.2f} x" if of else ""))
        rows.append(row)
    peers = [peer for peer in results.all_engines if not peer.startswith("quire")]
    return common.markdown_table([f"best format of each peer; quire ({name}) / it", *peers], rows)


def report(options, results, versions):
    limits = results.limits
    lines = [f"{common.processor()}, {options.threads} threads, {options.model.name}. Medians of {options.rounds} rounds in turn "
             f"({options.large_rounds} at 32 sequences and more; vLLM 1), with smallest and largest. Tokens a second unless "
             f"said otherwise; {options.input} random tokens in, {options.output} out. "
             + ", ".join(f"{engine} {version}" for engine, version in versions.items() if version) + "."]
    if limits:
        int8 = f" and {limits['int8'] / 1e9:.0f} Gop/s of 8-bit multiply-add" if "int8" in limits else ""
        lines.append(f"The machine read {limits['bytes'] / 1e9:.1f} GB/s, did {limits['flop'] / 1e9:.0f} GFLOP/s in float32{int8} "
                     "(medians of the rounds). Limit: the weights' bytes once a step, or every multiply-add in float32, "
                     "whichever is less.")
    for name in results.formats():
        lines += [f"## {name}", format_table(results, name)]
    if any(not engine.startswith("quire") for engine in results.all_engines) and len(results.formats()) > 1:
        lines += ["## Each peer with the weights it likes best", best_of_peers(results)]
    return "\n\n".join(lines) + "\n"


def write_plots(results, folder):
    for name in results.formats():
        engines = results.engines(name)
        for kind, called in (("decode", "Decode"), ("prefill", "Prefill")):
            measures = [measure for measure in results.measures(name) if measure.kind == kind]
            if not measures:
                continue
            groups = [f"{one.sequences} sequence{'s' * (one.sequences > 1)}" if kind == "decode" else f"{one.input} tokens"
                      for one in measures]
            series = {engine: [results.median(name, engine, one) for one in measures] for engine in engines}
            text = svg_plot.bars(f"{called}, {name}", "tokens/s", groups, series, [results.limit(name, one) for one in measures])
            (folder / f"{kind}-{name}.svg").write_text(text)
    names = results.formats()
    if len(names) < 2:
        return
    for measure in results.measures(names[-1]):
        engines = [engine for engine in results.all_engines if any(results.median(name, engine, measure) for name in names)]
        series = {engine: [results.median(name, engine, measure) for name in names] for engine in engines}
        text = svg_plot.bars(f"{title(measure)}, by format", "s" if measure.kind == "start" else "tokens/s", names, series,
                             [results.limit(name, measure) for name in names])
        (folder / f"formats-{measure.kind}-{measure.sequences}.svg").write_text(text)


def write_csv(rows, limits, path):
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["round", "format", "engine", "measure", "sequences", "input", "output", "unit", "value"])
        for number, one in enumerate(limits):
            for what, value in one.items():
                writer.writerow([number, "", "machine", what, "", "", "", f"{what}/s", f"{value:.6g}"])
        for number, name, engine, measure, value in rows:
            writer.writerow([number, name, engine, measure.kind, measure.sequences, measure.input, measure.output,
                             "s" if measure.kind == "start" else "tokens/s", "" if value is None else f"{value:.6g}"])


def arguments():
    parser = common.parser_of(__doc__)
    common.add_arguments(parser)
    words, numbers = common.list_of(str), common.list_of(int)
    parser.add_argument("--only", type=words, default=["quire", "llama.cpp", "openvino", "vllm"],
                        help="engines; quire:int8 is quire with --activation-dtype int8")
    parser.add_argument("--formats", type=words, default=["Q4_1", "F16", "Q8_0", "Q4_K_M"],
                        help="the first is measured in full, of the others 1 and 32 sequences and the longest prefill")
    parser.add_argument("--openvino-formats", type=words, default=["Q4_1"], help="that OpenVINO GenAI is measured with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large-rounds", type=int, default=2, help="rounds of 32 sequences and more")
    parser.add_argument("--batches", type=numbers, default=[1, 8, 32, 64])
    parser.add_argument("--prefills", type=numbers, default=[128, 512])
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--bench-ops", type=pathlib.Path, default=common.ROOT / "build/release/bench/bench_ops")
    parser.add_argument("--llama-ubatch", type=int, default=512)
    parser.add_argument("--llama-flash", choices=("on", "off"), default="on")
    parser.add_argument("--llama-kv", choices=("f16", "f32", "q8_0"), default="f16")
    parser.add_argument("--openvino-kv", default="default", help="default, u8, f16, f32")
    parser.add_argument("--openvino-group", default="default", help="activations that share an 8-bit scale; 0: float")
    parser.add_argument("--vllm-dtype", default="float32")
    options = parser.parse_args()
    if min([options.rounds, options.output - 1, options.input, *options.batches, *options.prefills]) < 1:
        parser.error("rounds, batches, prefills and input must be at least 1, output at least 2")
    return options


def main():
    options = arguments()
    peers = common.Peers(options.peers)
    models = common.Models(peers, options.model)
    for engine in list(options.only):
        if not peers.has(engine):
            say(f"{engine} is not in {options.peers} (setup.sh): left out")
            options.only.remove(engine)
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {name: models.facts(name) for name in options.formats}  # makes the files before anything is timed
    if "vllm" in options.only:
        models.huggingface()
    versions = {engine: peers.version(engine) for engine in options.only if not engine.startswith("quire")}
    with tempfile.TemporaryDirectory() as folder:
        rows, limits = measure_all(options, Runner(options, peers, models, pathlib.Path(folder)))
    if not rows:
        sys.exit("error: nothing was measured")
    results = Results(rows, limits, facts, options.only)
    write_csv(rows, limits, options.out / "compare.csv")
    (options.out / "compare.md").write_text(report(options, results, versions))
    write_plots(results, options.out)
    print(report(options, results, versions))
    say(f"written: {options.out}")


if __name__ == "__main__":
    main()
