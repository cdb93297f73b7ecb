#!/usr/bin/env python3
"""What sharing a prefix saves: requests that begin with the same text, with the prefix cache and without, over HTTP on
this machine. The answers must be identical. Needs a release build and the default model (./quickstart.sh makes both).

    scripts/bench_prefix.py [--requests 64] [--prefix-tokens 1000] [--max-tokens 16] [--quire BINARY] [--model MODEL]
"""

import argparse
import concurrent.futures
import pathlib
import statistics
import sys
import time

from bench_concurrency import ROOT, processor


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--model", default=None)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prefix-tokens", type=int, default=1000)
    parser.add_argument("--own-tokens", type=int, default=16)
    parser.add_argument("--max-tokens", type=int, default=16)
    options = parser.parse_args()

    sys.argv = [sys.argv[0], "--quire", options.quire]
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import harness

    prefix = [100 + (i * 37) % 20000 for i in range(options.prefix_tokens)]
    bodies = [{"prompt": prefix + [500 + 29 * number + i for i in range(options.own_tokens)], "temperature": 0,
               "max_tokens": options.max_tokens, "ignore_eos": True, "return_token_ids": True, "deterministic": True}
              for number in range(options.requests)]
    print(processor())
    print(f"{options.requests} requests at once: {options.prefix_tokens} common and {options.own_tokens} own prompt tokens, "
          f"{options.max_tokens} out")
    results = {}
    for name, flags in (("shared", ()), ("not shared", ("--no-enable-prefix-caching",))):
        with harness.Server("--max-num-seqs", options.requests, *flags, model=options.model) as server:
            server.answer("/v1/completions", {**bodies[0], "prompt": [1, 2, 3]})  # pages of the weights come in
            before = server.metrics()
            peak = 0

            def ask(body):
                begin = time.perf_counter()
                first = None
                text = []
                receipt = None
                for event in server.stream("/v1/completions", body):
                    first = first or time.perf_counter() - begin
                    for choice in event["choices"]:
                        text += choice.get("token_ids") or []
                        receipt = choice.get("receipt") or receipt
                return first, text, receipt

            begin = time.perf_counter()
            with concurrent.futures.ThreadPoolExecutor(options.requests) as threads:
                pending = [threads.submit(ask, body) for body in bodies]
                while not all(one.done() for one in pending):
                    peak = max(peak, server.metrics()["vllm:kv_cache_usage_perc"])
                    time.sleep(0.2)
                answers = [one.result() for one in pending]
            seconds = time.perf_counter() - begin
            after = server.metrics()
            blocks = int(server.get("/metrics").body.decode().split('num_gpu_blocks="')[1].split('"')[0])
        computed = after["vllm:iteration_tokens_total_sum"] - before["vllm:iteration_tokens_total_sum"]
        results[name] = (answers, seconds, computed, peak * blocks)
    for name, (answers, seconds, computed, blocks) in results.items():
        first = sorted(answer[0] for answer in answers)
        print(f"  {name:11} {seconds:7.2f} s, {computed:8.0f} tokens computed, first token after "
              f"{statistics.median(first):6.2f} s (median) {first[-1]:6.2f} s (last), {blocks:6.0f} KV blocks at the peak")
    (shared, shared_time, shared_work, shared_blocks), (plain, plain_time, plain_work, plain_blocks) = results.values()
    identical = [a[1:] for a in shared] == [a[1:] for a in plain]
    print(f"  work {plain_work / shared_work:.1f}x less, time {plain_time / shared_time:.1f}x, first token (median) "
          f"{statistics.median(a[0] for a in plain) / statistics.median(a[0] for a in shared):.1f}x sooner, blocks "
          f"{plain_blocks / max(shared_blocks, 1):.1f}x fewer, answers {'identical' if identical else 'DIFFERENT'}")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
