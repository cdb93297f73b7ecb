#!/usr/bin/env python3
"""Servers under the load of real chats, in turn on the same weights, by one command that goes on where it was stopped.

    bench/compare/setup.sh && bench/serve_all.py            # a subset, one hour on two cores
    bench/serve_all.py --full                               # 1,000 chats a load, answers as long as recorded, 50 warm-up requests
    bench/serve_all.py --minutes 5 --engines quire          # quire alone, and no peer is needed
    bench/serve_all.py --report                             # tables and plots of what was measured, and nothing is run

ShareGPT's chats over HTTP: closed loop (so many clients, each with one request at a time), open loop (a Poisson process of so many
requests a second), and a burst (all at once). Every engine is asked the same. What is measured is appended to OUT/runs.jsonl, a line a run; a second
call measures what is missing there. The tables and plots are made of that file alone. docs/benchmarking.md says what each figure means.
"""

import collections
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "compare"))

import common
import serve_report
import servers
from common import say

Load = collections.namedtuple("Load", "kind value")  # closed: clients, open: requests a second, burst: requests
SWEEPS = {"--block-size": (8, 16, 32, 64, 128), "--max-num-seqs": (8, 16, 32, 64, 128),
          "--max-num-batched-tokens": (128, 256, 512, 1024, 2048)}
LATENCIES = "ttft,tpot,itl,e2el"


def text_of(load):
    return f"{load.kind}:{load.value:g}"


def requests_of(options, load):
    """How many requests a run of this load has, the same for every engine."""
    if load.kind == "burst":
        return int(load.value)
    if options.full:
        return options.prompts
    if load.kind == "closed":
        return max(options.least_requests, int(options.requests_per_client * load.value))
    return max(options.least_requests, math.ceil(options.open_seconds * load.value))


def dataset(options):
    """ShareGPT as it is, or with answers cut at about --most-answer tokens, kept beside the results."""
    if options.full or options.most_answer == 0:
        return options.dataset
    target = options.out / f"sharegpt-{options.most_answer}.json"
    if target.exists():
        return target
    chats = []
    for chat in json.loads(options.dataset.read_text(encoding="utf-8")):
        turns = chat["conversations"][:2]
        if len(turns) == 2 and turns[0]["from"] == "human" and turns[1]["from"] == "gpt":
            chats.append([turns[0]["value"], turns[1]["value"]])
    lines = "".join(json.dumps({"text": answer}) + "\n" for _, answer in chats)
    tokenized = common.run([options.quire, "tokenize", options.model, "--jsonl"], text_input=lines).splitlines()
    for chat, line in zip(chats, tokenized):
        count = len(json.loads(line).get("ids", ()))
        if count > options.most_answer:
            chat[1] = chat[1][:len(chat[1]) * options.most_answer // count]
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps([{"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}
                                   for question, answer in chats]), encoding="utf-8")
    partial.rename(target)
    return target


def put_load(options, load, seed, port, target, warmups):
    """One run by `quire bench serve`; its JSON."""
    chosen = {"closed": ["--max-concurrency", f"{load.value:g}"], "open": ["--request-rate", f"{load.value:g}"], "burst": []}
    common.run([*options.prefix, options.quire, "bench", "serve", "--base-url", f"http://{common.HOST}:{port}",
                "--endpoint", "/v1/completions", "--model", "model", "--tokenizer", options.tokenizer or options.model,
                "--dataset-name", "sharegpt", "--dataset-path", options.load_file, "--ignore-eos",
                "--num-prompts", requests_of(options, load), *chosen[load.kind], "--num-warmups", warmups, "--num-runs", 1,
                "--percentile-metrics", LATENCIES, "--metric-percentiles", "50,95,99", "--seed", seed, "--timeout", 300,
                "--save-result", *(["--save-detailed"] if load.kind == "burst" else []), "--result-filename", target], timeout=7200)
    return json.loads(target.read_text())


class Measured:
    """What OUT/runs.jsonl has, and what is added to it."""

    def __init__(self, path, settings):
        self.path, self.settings = path, settings
        self.rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        others = {row["settings"] for row in self.rows} - {settings}
        if others:
            raise SystemExit(f"error: {path} was measured with other settings ({', '.join(sorted(others))}; now {settings}): "
                             "choose another --out, or remove it")

    def has(self, server, load, run):
        """Whether it was measured. What failed is tried again by the next call."""
        return any((row["server"], row["load"], row["run"]) == (server, text_of(load), run) for row in self.rows if "problem" not in row)

    def add(self, row):
        self.rows.append({"settings": self.settings, **row})
        with self.path.open("a") as file:
            file.write(json.dumps(self.rows[-1]) + "\n")

    def of(self, server, load=None):
        return [row for row in self.rows if row["server"] == server and "problem" not in row
                and (load is None or row["load"] == text_of(load))]

    def most_requests(self, server):
        """Requests a second of its best closed loop."""
        return max((row["request_throughput"] for row in self.of(server) if row["load"].startswith("closed")), default=None)


class Session:
    def __init__(self, options, peers, models, measured):
        self.options, self.peers, self.models, self.measured = options, peers, models, measured
        self.end = math.inf if options.full else time.monotonic() + 60 * options.minutes
        self.server, self.kept_name = None, None

    def seconds_of(self, server, load):
        """What a run will take, by what is known of this server."""
        past = [row["seconds"] for row in self.measured.of(server, load)]
        if past:
            return max(past)
        rate = self.measured.most_requests(server)
        if load.kind == "open":
            return requests_of(self.options, load) / min(load.value, rate or load.value) + 20
        return requests_of(self.options, load) / rate * (2 if load.value < 8 else 1) + 10 if rate else 60

    def start(self, server, clients):
        if self.server is not None and self.kept_name == server:
            return self.server
        self.stop()
        port = common.free_port()
        command = servers.command_of(self.options, self.peers, self.models, server, clients, port)
        self.server = servers.Server([*self.options.prefix, *command], port, servers.environment_of(self.options, server))
        self.kept_name = server if servers.parts(server)[0] in servers.KEPT else None
        return self.server

    def stop(self):
        if self.server is not None:
            self.server.stop()
        self.server, self.kept_name = None, None

    def measure(self, server, load, run):
        """One run, unless it is there already or does not fit into the time left."""
        if self.measured.has(server, load, run):
            return
        need = self.seconds_of(server, load)
        if time.monotonic() + need > self.end:
            say(f"  left out: run {run} of {server}, {text_of(load)}: would take {need:.0f} s")
            return
        begin = time.monotonic()
        row = {"server": server, "load": text_of(load), "run": run, "requests": requests_of(self.options, load)}
        try:
            most = int(load.value) if load.kind != "open" else max(map(int, self.options.clients))
            if servers.parts(server)[0] in servers.KEPT:  # one process for all loads
                most = max(most, max(map(int, self.options.clients)))
            one = self.start(server, most)
            warmups = self.options.num_warmups if self.options.full else min(self.options.num_warmups, 4 if load.value < 8 else 8)
            with tempfile.TemporaryDirectory() as folder:
                found = put_load(self.options, load, 1000 + run, one.port, pathlib.Path(folder) / "result.json", warmups)
            row |= serve_report.kept(found) | {"start_s": one.start, "first_answer_s": one.first, "peak_mb": one.memory.peak_mb()}
        except (RuntimeError, OSError, subprocess.TimeoutExpired, KeyError, json.JSONDecodeError) as problem:
            row["problem"] = str(problem)[:500]
            self.stop()
        finally:
            if self.kept_name is None:
                self.stop()
        row["seconds"] = time.monotonic() - begin
        self.measured.add(row)
        figures = row.get("problem") or f"{row['output_throughput']:.1f} tok/s, TTFT p95 {row['p95_ttft_ms']:.0f} ms, {row['failed']} failed"
        say(f"{time.strftime('%H:%M:%S')} run {run}, {server}, {text_of(load)}: {figures} ({row['seconds']:.0f} s)")

    def rounds(self, loads):
        """Run by run, load by load, the engines one after the other; those that start slowly have all loads of a run at its end."""
        options = self.options
        for run in range(1, options.runs + 1):
            for load in loads:
                for server in options.engines:
                    if servers.parts(server)[0] not in servers.KEPT:
                        self.measure(server, load, run)
            for server in options.engines:
                if servers.parts(server)[0] in servers.KEPT and run <= options.kept_runs:
                    for load in loads:
                        self.measure(server, load, run)
                    self.stop()

    def open_loops(self):
        """Rates up to the first that is more than what the server does in a closed loop."""
        for run in range(1, (self.options.runs if self.options.full else 1) + 1):
            for server in self.options.engines:
                most = self.measured.most_requests(server)
                for rate in sorted(self.options.rates):
                    if most is None:
                        break
                    self.measure(server, Load("open", rate), run)
                    if rate > most:
                        break
                self.stop()

    def sweeps(self):
        for flag, values in SWEEPS.items():
            for value in values:
                self.measure(f"quire+{flag}_{value}", Load("closed", self.options.sweep_clients), 1)

    def all(self):
        closed = sorted((Load("closed", clients) for clients in self.options.clients), key=lambda load: load.value != 32)
        burst = [Load("burst", self.options.burst)] if self.options.burst else []
        parts = self.options.parts
        try:
            if "closed" in parts or "burst" in parts:
                self.rounds((closed if "closed" in parts else []) + (burst if "burst" in parts else []))
            if "open" in parts:
                self.open_loops()
            if "sweeps" in parts:
                self.sweeps()
        finally:
            self.stop()


def arguments():
    parser = common.parser_of(__doc__)
    common.add_arguments(parser)
    words, numbers = common.list_of(str), common.list_of(float)
    parser.set_defaults(out=pathlib.Path("serve-results"))
    parser.add_argument("--engines", type=words, default=["quire", "llama.cpp", "llama.cpp:F16", "openvino", "vllm"],
                        help="the first is what the others are compared with; those whose programs are not here are left out")
    parser.add_argument("--clients", type=numbers, default=[1, 8, 16, 32, 64], help="of the closed loops")
    parser.add_argument("--rates", type=numbers, default=[0.25, 0.5, 1, 1.5, 2, 3, 4, 6, 8], help="requests a second of the open loops")
    parser.add_argument("--burst", type=int, default=64, help="requests that come at once; 0: none")
    parser.add_argument("--parts", type=words, default=["closed", "burst", "open", "sweeps"])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--kept-runs", type=int, default=1, help="runs of engines that take minutes to start (vLLM)")
    parser.add_argument("--minutes", type=float, default=60, help="no run begins that would end later; all of it with --full")
    parser.add_argument("--full", action="store_true", help="--prompts chats a load, recorded answers, no limit of time")
    parser.add_argument("--prompts", type=int, default=1000, help="with --full")
    parser.add_argument("--num-warmups", type=int, default=50, help="without --full at most 8")
    parser.add_argument("--requests-per-client", type=float, default=2)
    parser.add_argument("--least-requests", type=int, default=8)
    parser.add_argument("--open-seconds", type=float, default=40, help="in which an open loop's requests come")
    parser.add_argument("--most-answer", type=int, default=128, help="recorded answers are cut there; 0: never. Not with --full")
    parser.add_argument("--sweep-clients", type=int, default=32)
    parser.add_argument("--dataset", type=pathlib.Path, help="ShareGPT's JSON instead of the one that setup.sh made")
    parser.add_argument("--tokenizer", type=pathlib.Path, help="of the load, where it is not the model's")
    parser.add_argument("--vllm", type=pathlib.Path, help="another vllm program than the one that setup.sh installed")
    parser.add_argument("--vllm-dtype", default="bfloat16" if "avx512_bf16" in common.processor() else "float32")
    for engine in ("quire", "llama", "openvino", "vllm"):
        parser.add_argument(f"--{engine}-flags", type=lambda text: text.split(), default=[], help=f"more flags of {engine}'s server")
    parser.add_argument("--report", action="store_true", help="tables and plots of what is there; nothing is run")
    parser.add_argument("--plots", type=pathlib.Path, help="folder of the plots, instead of one in --out")
    parser.add_argument("--page", type=pathlib.Path, help="write the whole report as a page of docs/, with the pictures of --plots")
    parser.add_argument("--readme", type=pathlib.Path, help="put the table between the marks of this file")
    return parser.parse_args()


def settings_of(options):
    """What must be the same in all runs of one file."""
    shape = f"{options.prompts} prompts" if options.full else (
        f"{options.requests_per_client:g} a client, {options.open_seconds:g} s, answers to {options.most_answer}")
    flags = " ".join(options.quire_flags + options.llama_flags + options.openvino_flags + options.vllm_flags)
    return f"{options.model.name}, {options.threads} threads, {shape}" + (f", {flags}" if flags else "")


def main():
    options = arguments()
    options.output_len = servers.MOST_TOKENS - servers.LONGEST_PROMPT if options.full else options.most_answer or 1024
    options.out.mkdir(parents=True, exist_ok=True)
    measured = Measured(options.out / "runs.jsonl", settings_of(options))
    if not options.report:
        options.dataset = options.dataset or options.peers / "sharegpt.json"
        for needed in (options.quire, options.dataset):
            if not needed.exists():
                sys.exit(f"error: {needed} is not here (bench/compare/setup.sh '' sharegpt makes the chats)")
        peers = common.Peers(options.peers)
        missing = [server for server in options.engines if not servers.is_here(options, peers, server)]
        for server in missing:
            say(f"{server}: left out: not installed (bench/compare/setup.sh)")
        options.engines = [server for server in options.engines if server not in missing]
        models = common.Models(peers, options.model)
        for server in options.engines:
            servers.prepare(options, models, server)  # converted before anything is timed
        options.load_file = dataset(options)
        facts, path = serve_report.machine(options, peers), options.out / "machine.json"
        if path.exists():  # of engines that only an earlier call measured, too
            facts["versions"] = json.loads(path.read_text())["versions"] | facts["versions"]
        path.write_text(json.dumps(facts, indent=1) + "\n")
        Session(options, peers, models, measured).all()
    if not any("problem" not in row for row in measured.rows):
        sys.exit("error: nothing was measured")
    print(serve_report.write(options, measured.rows))
    say(f"written: {options.out}")


if __name__ == "__main__":
    main()
