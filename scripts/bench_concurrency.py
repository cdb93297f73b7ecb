#!/usr/bin/env python3
"""What batching gains: 32 requests at once against the same requests one at a time, over HTTP, on this machine. The
answers must be identical. Needs a release build and the default model (./quickstart.sh makes both).

    scripts/bench_concurrency.py [--requests 32] [--max-tokens 128] [--quire BINARY] [--model MODEL] [-- flags of serve]
"""

import argparse
import concurrent.futures
import os
import pathlib
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


def processor():
    with open("/proc/cpuinfo") as info:
        name = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown processor")
    return f"{name}, {len(os.sched_getaffinity(0))} cores used"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--model", default=None)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("flags", nargs="*", help="flags of quire serve")
    options = parser.parse_args()

    sys.argv = [sys.argv[0], "--quire", options.quire]
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import harness

    bodies = [{"messages": [{"role": "user", "content": f"Write a story about the number {number}."}], "temperature": 0,
               "max_tokens": options.max_tokens, "ignore_eos": True, "return_token_ids": True}
              for number in range(options.requests)]
    with harness.Server("--max-num-seqs", max(options.requests, 1), *options.flags, model=options.model) as server:
        def ask(body):
            return server.answer("/v1/chat/completions", body)["choices"][0]["token_ids"]

        ask({**bodies[0], "max_tokens": 4})  # pages of the weights come in with the first use
        results = {}
        for name, workers in (("one at a time", 1), (f"{options.requests} at once", options.requests)):
            begin = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(workers) as threads:
                answers = list(threads.map(ask, bodies))
            results[name] = (answers, time.perf_counter() - begin)

    (alone, alone_time), (together, together_time) = results.values()
    print(processor())
    print(f"{options.requests} requests of {options.max_tokens} tokens")
    for name, (answers, seconds) in results.items():
        tokens = sum(map(len, answers))
        print(f"  {name:16} {seconds:8.2f} s  {tokens / seconds:8.1f} tokens/s")
    identical = alone == together
    print(f"  ratio {alone_time / together_time:.2f}, answers {'identical' if identical else 'DIFFERENT'}")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
