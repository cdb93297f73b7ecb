#!/usr/bin/env python3
"""quire serve beside llama-server under the same load over HTTP: ShareGPT prompts, closed loop, several concurrencies.

    bench/compare/serve.py [--concurrencies 1,8,16,32,64] [--servers quire,llama.cpp,llama.cpp:F16] [--rounds 1]

The load comes from `quire bench serve` for all. A server is a name and, after a colon, the weights' format; each is started anew for every
concurrency, llama-server with as many slots as there are clients. Answers have --output-len tokens whatever they say.
"""

import collections
import csv
import json
import pathlib
import subprocess
import sys
import tempfile

import common
import servers
import svg_plot
from common import figure, median, ratio, say

# column, its title, key in the load's JSON, whether more is better (None: no ratio)
COLUMNS = (("output", "output tok/s", "output_throughput", True), ("ttft_p50", "TTFT p50, ms", "p50_ttft_ms", False),
           ("ttft_p95", "TTFT p95, ms", "p95_ttft_ms", False), ("tpot_p50", "TPOT p50, ms", "p50_tpot_ms", False),
           ("tpot_p95", "TPOT p95, ms", "p95_tpot_ms", False), ("failed", "failed", "failed", None),
           ("retried", "retried", "retried", None))

Row = collections.namedtuple("Row", "round concurrency server values")


def load(options, concurrency, port, target):
    """The JSON of one run of the load."""
    prompts = max(options.least_requests, options.requests_per_client * concurrency)
    common.run([*options.prefix, options.quire, "bench", "serve", "--base-url", f"http://{common.HOST}:{port}",
                "--endpoint", "/v1/completions", "--model", "model", "--tokenizer", options.model, "--dataset-name", "sharegpt",
                "--dataset-path", options.dataset, "--sharegpt-output-len", options.output_len, "--ignore-eos",
                "--num-prompts", prompts, "--max-concurrency", concurrency,
                "--num-warmups", min(options.num_warmups, 2 * concurrency), "--num-runs", 1,
                "--percentile-metrics", "ttft,tpot",
                "--metric-percentiles", "50,95", "--seed", 1, "--save-result", "--result-filename", target], timeout=1800)
    found = json.loads(target.read_text())
    values = {column: found.get(key) for column, _, key, _ in COLUMNS}
    values["requests"] = prompts
    return values


def measure_all(options, peers, models):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for concurrency in options.concurrencies:
                for server in options.servers:
                    port = common.free_port()
                    command = [*options.prefix, *servers.command_of(options, peers, models, server, concurrency, port)]
                    try:
                        with common.server(command, port):
                            values = load(options, concurrency, port, pathlib.Path(folder) / "result.json")
                    except (RuntimeError, OSError, subprocess.TimeoutExpired, KeyError, json.JSONDecodeError) as problem:
                        say(f"  {server}, {concurrency} clients: {problem}")
                        continue
                    rows.append(Row(number, concurrency, server, values))
                    say(f"round {number + 1}/{options.rounds}, {concurrency} clients, {server}: "
                        f"{figure(values['output'])} tok/s, TTFT p50 {figure(values['ttft_p50'])} ms, {values['failed']} failed")
    return rows


class Results:
    def __init__(self, rows):
        self.rows = rows

    def value(self, concurrency, server, column):
        """Median of the rounds; of failures and retries the sum."""
        found = [row.values[column] for row in self.rows
                 if (row.concurrency, row.server) == (concurrency, server) and row.values.get(column) is not None]
        return (sum(found) if column in ("failed", "retried") else median(found)) if found else None


def table(options, results):
    lines = []
    mine = options.servers[0]
    for concurrency in options.concurrencies:
        for server in options.servers:
            row = [str(concurrency), server]
            for column, _, _, more_is_better in COLUMNS:
                value = results.value(concurrency, server, column)
                if more_is_better is None:
                    row.append("" if value is None else str(value))
                    continue
                text = figure(value)
                if server != mine and value is not None:
                    ours = results.value(concurrency, mine, column)
                    of = ratio(ours, value) if more_is_better else ratio(value, ours)
                    text += f" ({of:.2f} x)" if of else ""
                row.append(text)
            lines.append(row)
    return common.markdown_table(["clients", "server", *(title for _, title, _, _ in COLUMNS)], lines)


def main():
    parser = common.parser_of(__doc__)
    common.add_arguments(parser)
    words, numbers = common.list_of(str), common.list_of(int)
    parser.add_argument("--servers", type=words, default=["quire", "llama.cpp", "llama.cpp:F16"],
                        help="the first is what the others are compared with")
    parser.add_argument("--concurrencies", type=numbers, default=[1, 8, 16, 32, 64])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--dataset", type=pathlib.Path, help="ShareGPT's JSON instead of the one that setup.sh made")
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--requests-per-client", type=int, default=2)
    parser.add_argument("--least-requests", type=int, default=12, help="whatever the concurrency")
    parser.add_argument("--num-warmups", type=int, default=4)
    parser.add_argument("--quire-flags", type=lambda text: text.split(), default=[], help="more flags of quire serve")
    parser.add_argument("--llama-flags", type=lambda text: text.split(), default=[], help="more flags of llama-server")
    options = parser.parse_args()
    options.dataset = options.dataset or options.peers / "sharegpt.json"
    if not options.dataset.exists():
        sys.exit(f"error: {options.dataset} is not here; setup.sh makes it")
    peers = common.Peers(options.peers)
    models = common.Models(peers, options.model)
    for server in options.servers:
        servers.prepare(options, models, server)  # made before anything is timed
    rows = measure_all(options, peers, models)
    if not rows:
        sys.exit("error: nothing was measured")
    results = Results(rows)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "serve.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [*(column for column, _, _, _ in COLUMNS), "requests"]
        writer.writerow(["round", "clients", "server", *names])
        for row in rows:
            writer.writerow([row.round, row.concurrency, row.server,
                             *(f"{row.values[name]:.6g}" if row.values.get(name) is not None else "" for name in names)])
    text = (f"{common.processor()}, {options.threads} threads, {options.model.name} unless a format is named, ShareGPT prompts, "
            f"{options.output_len} tokens out, {options.requests_per_client} requests a client (at least {options.least_requests}), "
            f"medians of {options.rounds} rounds. In brackets how many times better {options.servers[0]} is.\n\n"
            f"{table(options, results)}\n")
    (options.out / "serve.md").write_text(text)
    for column, title, _, more_is_better in COLUMNS:
        if more_is_better is not None:
            series = {server: [(concurrency, results.value(concurrency, server, column)) for concurrency in options.concurrencies
                               if results.value(concurrency, server, column) is not None] for server in options.servers}
            (options.out / f"serve-{column.replace('_', '-')}.svg").write_text(
                svg_plot.lines(title, "clients", title.rsplit(" ", 1)[-1], series, logarithmic_x=True))
    print(text)
    say(f"written: {options.out}")


if __name__ == "__main__":
    main()
