#!/usr/bin/env python3
"""A run of conversations split between two instances, as a router for prefill and decode does it: turns of the lengths of
ShareGPT's (of a file of it, or drawn), each asked of the first instance with one token and then of the second with what
that answered. Over HTTP and TCP on this machine; every answer must be the one of a single instance (receipts). Needs a
release build and the default model (./quickstart.sh makes both).

    scripts/bench_transfer.py [--chats 8] [--turns 3] [--at-once 4] [--sharegpt FILE] [--quire BINARY] [--model MODEL]
"""

import argparse
import concurrent.futures
import json
import random
import statistics
import sys
import time

from bench_concurrency import ROOT, processor

COMPLETIONS = "/v1/completions"
ASKED = {"do_remote_decode": True, "do_remote_prefill": False}


def drawn_turns(draw, count):
    """Words of a user's turns and of answers, about as long as ShareGPT's."""
    return [(max(4, min(400, int(draw.lognormvariate(3.6, 1.1)))), max(8, min(96, int(draw.lognormvariate(3.8, 0.6)))))
            for _ in range(count)]


def conversations(options):
    """For each chat, its turns: (token ids of the user's, tokens of the answer)."""
    draw = random.Random(30)
    lengths = [drawn_turns(draw, options.turns) for _ in range(options.chats)]
    if options.sharegpt:
        with open(options.sharegpt) as file:
            texts = [one["conversations"] for one in json.load(file) if len(one["conversations"]) >= 2 * options.turns]
        lengths = [[(min(400, 1 + len(turns[2 * i]["value"]) // 4), max(8, min(96, len(turns[2 * i + 1]["value"]) // 4)))
                    for i in range(options.turns)] for turns in texts[:options.chats]]
    return [[([draw.randrange(300, 40000) for _ in range(asked)], answered) for asked, answered in chat]
            for chat in lengths]


def ask(server, prompt, max_tokens, **more):
    """Seconds to the first token, the answer and its receipt."""
    begin = time.perf_counter()
    first, answer, receipt = None, [], None
    for event in server.stream(COMPLETIONS, {"prompt": prompt, "temperature": 0, "max_tokens": max_tokens,
                                             "ignore_eos": True, "return_token_ids": True, "deterministic": True, **more}):
        first = first or time.perf_counter() - begin
        for choice in event["choices"]:
            answer += choice.get("token_ids") or []
            receipt = choice.get("receipt") or receipt
    return first, answer, receipt


def run(chats, at_once, one_turn):
    """All chats, so many at once; for each turn what one_turn(prompt, max_tokens) gave."""
    def one(chat):
        text, results = [], []
        for asked, answered in chat:
            text = text + asked
            results.append(one_turn(text, answered))
            text = text + results[-1][1]
        return results

    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        results = [turn for chat in pool.map(one, chats) for turn in chat]
    return results, time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chats", type=int, default=8)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--sharegpt", help="a JSON file of its conversations")
    parser.add_argument("--quire", default=ROOT / "build/release/src/cli/quire")
    parser.add_argument("--model", default=None)
    options = parser.parse_args()
    sys.argv = [sys.argv[0], "--quire", str(options.quire), "--data", str(ROOT / "tests/data")]
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import harness

    def config(role, **more):
        return json.dumps({"kv_connector": "QuireConnector", "kv_role": role, **more})

    chats = conversations(options)
    print(processor())
    with harness.Server("--kv-offloading-size", 1, model=options.model) as alone:
        expected, seconds = run(chats, options.at_once, lambda prompt, count: ask(alone, prompt, count))
    print(f"one instance: {seconds:.1f} s, first token {1000 * statistics.median(one[0] for one in expected):.0f} ms (p50)")

    port = harness.free_port()
    peers = {"peers": [f"127.0.0.1:{port}"], "timeout_seconds": 30}
    with harness.Server("--kv-offloading-size", 1, "--kv-transfer-config", config("kv_producer", kv_port=port),
                        model=options.model) as first, \
         harness.Server("--kv-offloading-size", 1, "--kv-transfer-config",
                        config("kv_consumer", kv_connector_extra_config=peers), model=options.model) as second:
        def split(prompt, count):
            body = {"prompt": prompt, "temperature": 0, "max_tokens": 1, "kv_transfer_params": ASKED}
            begin = time.perf_counter()
            params = first.answer(COMPLETIONS, body)["kv_transfer_params"]
            before = time.perf_counter() - begin
            token, answer, receipt = ask(second, prompt, count, kv_transfer_params=params)
            return before + token, answer, receipt, token

        got, seconds = run(chats, options.at_once, split)
        text = second.get("/metrics").body.decode()
        print(f"split: {seconds:.1f} s, first token {1000 * statistics.median(one[0] for one in got):.0f} ms (p50), "
              f"{1000 * statistics.median(one[3] for one in got):.0f} ms of them the second instance's")
        for line in text.splitlines():
            if line.startswith("quire:kv_transfer_") and not line.endswith(" 0"):
                print("  " + line)
    wrong = sum(a[1:3] != b[1:3] for a, b in zip(expected, got))
    print(f"{len(got)} answers, {len(got) - wrong} equal to one instance's by tokens and receipt")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
