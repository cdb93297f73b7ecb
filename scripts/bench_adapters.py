#!/usr/bin/env python3
"""What adapters cost, over HTTP, on this machine: a server without them and one with 32 of rank 16 of all linear layers in a step.
Each load stands between two of what it is compared with, by whose mean it is divided: a machine that is slower for a while is so for
all three.

    scripts/bench_adapters.py [--rounds 5] [--rows NAME ...] [--prompt 32] [--answer 64] [--quire BINARY] [-- flags of serve]

Of answers of 64 tokens to prompts of 32, or other lengths: the base at a server with adapters beside one without, one adapter for all,
32 for 32, names by Zipf's law out of 1,000 of which 128 are in memory, and one sequence with and without. Then 32 streams of the base's
answers while adapters are loaded: how long the longest wait between two tokens is beside the ordinary one. Needs a release build and
the default model (./quickstart.sh makes both); writes 300 MiB into a folder for temporary files. A round takes one to four minutes.
"""

import argparse
import functools
import json
import os
import pathlib
import re
import selectors
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import make_adapters
from adapter_storm import SHAPE
from bench_concurrency import ROOT, processor

DISTINCT, NAMES = 32, 1000
ADAPTERS = [f"a{i}" for i in range(DISTINCT)]
ZIPF = [f"z{i}" for i in range(NAMES)]
# What is compared: the server and the adapters of the load, the server of the base's loads before and after it, requests, at once.
ROWS = {"enabled": ("the base with --enable-lora, beside without", "lora", [], "plain", 32, 32),
        "one": ("32 on one adapter", "lora", ADAPTERS[:1], "lora", 32, 32),
        "distinct": ("32 on 32 adapters", "lora", ADAPTERS, "lora", 32, 32),
        "sequence": ("one sequence on an adapter", "lora", ADAPTERS[:1], "lora", 12, 1),
        "zipf": ("1,000 by Zipf's law, 32 at once", "lora", ZIPF, "lora", 96, 32)}


def make(folder):
    """32 adapters, and 1,000 names of these files."""
    shape = argparse.Namespace(rank=16, **SHAPE)
    for i, name in enumerate(ADAPTERS):
        make_adapters.write(folder / name, shape, i)
    for i, name in enumerate(ZIPF):
        (folder / name).mkdir()
        for file in (folder / ADAPTERS[i % DISTINCT]).iterdir():
            os.link(file, folder / name / file.name)


def load(quire, lengths, server, adapters, requests, at_once, seed):
    """Tokens a second and the 95th percentile of milliseconds to the first token."""
    with tempfile.TemporaryDirectory() as folder:
        command = [quire, "bench", "serve", "--port", str(server.port), "--model", "base", "--random-input-len", str(lengths[0]),
                   "--random-output-len", str(lengths[1]), "--ignore-eos", "--num-prompts", str(requests), "--max-concurrency",
                   str(at_once),
                   "--num-runs", "1", "--save-result", "--result-dir", folder, "--seed", str(seed)]
        if adapters:
            command += ["--lora-assignment", "zipf" if adapters is ZIPF else "round-robin", "--lora-modules", *adapters]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
        result = json.loads(next(pathlib.Path(folder).iterdir()).read_text())
    return result["output_throughput"], result["p95_ttft_ms"]


def between(loads):
    """Of three loads how the middle one compares with the mean of the others: of tokens a second, and of waits for the first token."""
    (rate, first), rates, firsts = loads[1], [loads[0][0], loads[2][0]], [loads[0][1], loads[2][1]]
    return rate / statistics.mean(rates), first / statistics.mean(firsts)


def compare(run, servers, rows, rounds):
    """run: load() of a program and lengths. Of each row its loads in threes, one three a round. The load after one row is that before the next where they are alike."""
    results = {name: [] for name in rows}
    last, loaded = {}, []
    for number in range(rounds):
        for name in rows:
            _, server, adapters, beside, requests, at_once = ROWS[name]
            base = (beside, requests, at_once)
            if adapters is ZIPF:
                loaded = []
            elif not set(adapters) <= set(loaded):  # to memory, again after the thousand
                run(servers[server], adapters, len(adapters), 32, 2)
                last, loaded = {}, loaded + adapters
            before = last.get(base) or run(servers[beside], [], requests, at_once, 10 + number)
            own = run(servers[server], adapters, requests, at_once, 10 + number)
            after = run(servers[beside], [], requests, at_once, 10 + number)
            last = {base: after}
            results[name].append((before, own, after))
        print(f"round {number + 1}: " + ", ".join(f"{name} {between(results[name][-1])[0]:.2f}" for name in rows), flush=True)
    return results


def tell(name, threes):
    rates, firsts = zip(*(between(three) for three in threes))
    base = statistics.median(three[0][0] for three in threes)
    own, wait = (statistics.median(three[1][i] for three in threes) for i in range(2))
    quarters = statistics.quantiles(rates, n=4) if len(rates) > 1 else rates * 3
    print(f"{ROWS[name][0]:44}{own:5.0f} tokens/s of {base:5.0f}: {statistics.median(rates):.3f} (half of the rounds {quarters[0]:.2f} to "
          f"{quarters[2]:.2f}); p95 of the first token {wait:4.0f} ms, {statistics.median(firsts):.2f} times", flush=True)


def read_streams(server, count, tokens):
    """Answers of so many streams of the base, read by one thread: 32 would wait for each other. The waits between two
    tokens of each, as their begins and ends, and what ended otherwise than it should: lists that fill until all have
    ended. Each token makes an event, of its id, also where its text waits for the rest of a character."""
    waits, failed, connections, selector = [], [], [], selectors.DefaultSelector()
    for number in range(count):
        body = {"model": "base", "prompt": [300 + number] * 32, "max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True,
                "return_token_ids": True}
        connections.append(server.connect())
        connections[-1].request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        selector.register(connections[-1].sock, selectors.EVENT_READ, {"last": None, "tail": b""})

    def read():
        while selector.get_map():
            for key, _ in selector.select():
                got, now = key.fileobj.recv(65536), time.perf_counter()
                stream = key.data
                if not stream["tail"] and not got.startswith(b"HTTP/1.1 200"):
                    failed.append(got[:500])
                    selector.unregister(key.fileobj)
                    continue
                if b"data: {" in got:
                    if stream["last"] is not None:
                        waits.append((stream["last"], now))
                    stream["last"] = now
                stream["tail"] = (stream["tail"] + got)[-32:]
                if not got:
                    failed.append(b"ended without [DONE]: " + stream["tail"])
                if not got or b"[DONE]" in stream["tail"]:
                    selector.unregister(key.fileobj)
        for connection in connections:
            connection.close()

    thread = threading.Thread(target=read)
    thread.start()
    return waits, failed, thread


def gaps(server, loads):
    """Of 32 streams: the median of the waits between two tokens, and the longest while adapters are loaded and while not, in ms."""
    loading = []
    waits, failed, reading = read_streams(server, 32, 400)
    time.sleep(3)
    for number in range(loads):
        begin = time.perf_counter()
        server.answer_text("/v1/load_lora_adapter", {"lora_name": f"new{number}", "lora_path": ADAPTERS[number], "load_inplace": True})
        loading.append((begin, time.perf_counter()))
        time.sleep(0.4)
    reading.join()
    if failed:
        sys.exit(f"{len(failed)} streams failed: {failed[0]!r}")
    begin, end = loading[0][0] - 2, loading[-1][1] + 0.4  # all streams run
    waits = [(a, b) for a, b in waits if begin <= a and b <= end]
    beside = [b - a for a, b in waits if any(a < to and b > since for since, to in loading)]
    others = [b - a for a, b in waits if not any(a < to and b > since for since, to in loading)]
    return (1e3 * statistics.median(others), 1e3 * max(others), 1e3 * max(beside),
            [1e3 * (to - since) for since, to in loading])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--answer", type=int, default=64, help="tokens of an answer")
    parser.add_argument("flags", nargs="*", help="flags of quire serve")
    options = parser.parse_args()
    run = functools.partial(load, options.quire, (options.prompt, options.answer))
    sys.argv = [sys.argv[0], "--quire", options.quire]
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import harness

    class Server(harness.Server):
        def answer_text(self, path, body):
            reply = self.post(path, body)
            if reply.status != 200:
                raise AssertionError(f"POST {path}: {reply.status} {reply.body[:500]!r}")

    common = ["--max-num-seqs", "32", "--no-enable-prefix-caching", "--served-model-name", "base", "--kv-cache-memory-bytes", "2G",
              *options.flags]
    with tempfile.TemporaryDirectory(prefix="quire-adapters-") as folder:
        make(pathlib.Path(folder))
        lora = ["--enable-lora", "--max-loras", "32", "--max-cpu-loras", "128", "--lora-dir", folder, "--enable-admin-endpoints"]
        with Server(*common) as plain, Server(*common, *lora) as with_adapters:
            servers = {"plain": plain, "lora": with_adapters}
            print(processor(), flush=True)
            for server in servers.values():
                run(server, [], 32, 32, 1)
            for name, threes in compare(run, servers, options.rows, options.rounds).items():
                tell(name, threes)
            usual, longest, beside, loading = gaps(with_adapters, 10)
            print(f"32 streams: {usual:.1f} ms between tokens (median), at most {longest:.1f}, {beside:.1f} while an adapter is loaded "
                  f"({beside / usual:.2f} ordinary ones); {len(loading)} loads of {statistics.median(loading):.0f} ms (median), at most "
                  f"{max(loading):.0f}")
            log = pathlib.Path(with_adapters.log.name).read_text(errors="replace")
            took = sorted(float(one) for one in re.findall(r"adapter \S+: rank 16, .* in ([0-9.]+) ms", log))
            print(f"{len(took)} adapters read in {statistics.median(took):.1f} ms (median), 95 % within {took[len(took) * 95 // 100]:.1f} ms, "
                  "beside everything above")


if __name__ == "__main__":
    main()
