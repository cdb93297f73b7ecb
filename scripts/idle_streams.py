#!/usr/bin/env python3
"""What waiting costs: the server's memory with thousands of open streams that wait behind one long answer, and the time from
a request's arrival until it is ready for the engine. Needs a release build and the default model (./quickstart.sh makes both).

    scripts/idle_streams.py [--streams 5000] [--quire BINARY] [--model MODEL] [-- flags of serve]

The second figure is taken from outside: a prompt of 1,000 tokens with more max_tokens than the context holds is parsed, checked,
tokenized and then refused, in the place from which others go into the engine's inbox; what a GET of /health takes is
the connection's own share. Medians; a busy machine adds to both. Fails if a stream is lost.
"""

import argparse
import json
import os
import resource
import socket
import statistics
import sys
import time

from bench_concurrency import ROOT, processor
from storm import resident_mib

WAITING = "vllm:num_requests_waiting"


def open_stream(port, number):
    body = json.dumps({"prompt": [300 + number % 1000, 400, 500], "max_tokens": 4, "stream": True, "temperature": 0}).encode()
    client = socket.socket()
    client.settimeout(600)
    client.connect(("127.0.0.1", port))
    client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                   + str(len(body)).encode() + b"\r\n\r\n" + body)
    return client


def until(holds, what, seconds=900):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.2)


def memory(server, count):
    """Resident MiB before, with `count` streams that wait, and when they have gone."""
    long = {"prompt": [300, 400], "max_tokens": 8000, "ignore_eos": True}
    body = json.dumps({**long, "stream": True}).encode()
    blocker = server.connect()
    blocker.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    until(lambda: server.metrics()["vllm:num_requests_running"] == 1, "the long answer runs")
    before = resident_mib(server.process)
    clients = [open_stream(server.port, number) for number in range(count)]
    until(lambda: server.metrics()[WAITING] == count, f"{count} wait, not {server.metrics()[WAITING]}")
    waiting = resident_mib(server.process)
    for client in clients:
        client.close()
    until(lambda: server.metrics()[WAITING] == 0, "nothing waits")
    after = resident_mib(server.process)
    blocker.close()
    server.wait_until_idle()
    return before, waiting, after


def median_us(repeats, ask):
    times = []
    for _ in range(repeats):
        begun = time.perf_counter_ns()
        ask()
        times.append((time.perf_counter_ns() - begun) / 1000)
    return statistics.median(times), min(times)


def arrival(server, repeats=500):
    """(median, least) microseconds of a request that is refused when it is ready for the engine, by kind."""
    text = "The sailor told a long story about the sea and the wind. " * 80
    tokens = server.answer("/tokenize", {"prompt": text})["tokens"][:1000]
    text = server.answer("/detokenize", {"tokens": tokens})["prompt"]
    connection = server.connect()

    def ask(method, path, body, expected):
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        said = response.read()
        if response.status != expected or expected == 400 and b"cannot be greater than max_model_len" not in said:
            raise AssertionError(f"{path}: {response.status} {said[:300]}")

    kinds = {"GET /health": ("GET", "/health", None, 200)}
    for name, prompt in (("1 token", tokens[:1]), ("1,000 token ids", tokens), ("a text of 1,000 tokens", text)):
        body = json.dumps({"prompt": prompt, "max_tokens": 1 << 20}).encode()
        kinds[name] = ("POST", "/v1/completions", body, 400)
    return {name: median_us(repeats, lambda: ask(*kind)) for name, kind in kinds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--model")
    parser.add_argument("--streams", type=int, default=5000)
    parser.add_argument("flags", nargs="*", help="of serve, after --")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    sys.argv = [sys.argv[0], "--quire", options.quire]
    import harness
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 3 * options.streams + 1000), hard))  # the server inherits it

    print(f"{processor()}; load average {os.getloadavg()[0]:.1f}")
    flags = ("--disable-access-log", "--max-num-seqs", 1, "--max-num-queued-reqs", options.streams + 10, *options.flags)
    with harness.Server(*flags, model=options.model) as server:
        times = arrival(server)
        before, waiting, after = memory(server, options.streams)
    for name, (median, least) in times.items():
        print(f"{name}: {median:.0f} us (least {least:.0f})")
    print(f"{options.streams} waiting streams: {before:.0f} MiB before, {waiting:.0f} with them (+{waiting - before:.0f}, "
          f"{(waiting - before) * 1024 / options.streams:.1f} KiB each), {after:.0f} when they have gone; "
          f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
