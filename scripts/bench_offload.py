#!/usr/bin/env python3
"""What blocks of the prefix cache beyond the pool bring: the first token after a restart, conversations of several turns
with a pool that is too small, and what the copies cost steps. Over HTTP on this machine; every answer must be the one of
a server without any of it (receipts). Needs a release build and the default model (./quickstart.sh makes both).

    scripts/bench_offload.py [--only restart|turns|steps] [--prefix-tokens 1000,8000] [--cold-files]
                             [--chats 24] [--turns 5] [--quire BINARY] [--model MODEL]
"""

import argparse
import os
import pathlib
import random
import shutil
import statistics
import sys
import tempfile
import time

from bench_concurrency import ROOT, processor

MESSAGE_TOKENS = (20, 160)  # of a user's turn
ANSWER_TOKENS = 48


def tokens(draw, count):
    return [draw.randrange(300, 40000) for _ in range(count)]


def ask(server, prompt, max_tokens=16):
    """Returns seconds to the first token, the answer and its receipt."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True,
            "deterministic": True}
    begin = time.perf_counter()
    first, answer, receipt = None, [], None
    for event in server.stream("/v1/completions", body):
        first = first or time.perf_counter() - begin
        for choice in event["choices"]:
            answer += choice.get("token_ids") or []
            receipt = choice.get("receipt") or receipt
    return first, answer, receipt


def wait_for_disk(server, blocks):
    while server.metrics()["quire:kv_offload_disk_blocks"] < blocks:
        time.sleep(0.05)


def out_of_page_cache(folder):
    """So that the next to read the files reads the disk."""
    for file in folder.rglob("*.kv"):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def restart(options, harness, folder):
    print("\na prefix after a restart, first token in ms (cold; disk; disk / cold)")
    for length in options.prefix_tokens:
        prompt = tokens(random.Random(length), length) + [100, 101, 102]
        flags = ("--kv-offload-dir", folder, "--kv-offloading-size", 1, "--kv-offload-disk-bandwidth", 0)
        colds, warms = [], []
        for _ in range(options.rounds):
            shutil.rmtree(folder, ignore_errors=True)
            with harness.Server(*flags, model=options.model) as server:
                ask(server, [1, 2, 3])  # pages of the weights come in
                cold, answer, receipt = ask(server, prompt)
                colds.append(cold)
                wait_for_disk(server, length // 16)
            if options.cold_files:
                out_of_page_cache(folder)
            with harness.Server(*flags, model=options.model) as server:
                ask(server, [1, 2, 3])
                warm, again, receipt_again = ask(server, prompt)
                warms.append(warm)
                if (again, receipt_again) != (answer, receipt):
                    sys.exit("the answers differ")
        cold, warm = statistics.median(colds), statistics.median(warms)
        print(f"{length:6} tokens: {cold * 1e3:8.1f}; {warm * 1e3:7.1f}; {warm / cold:.4f}   equal answers, "
              f"median of {options.rounds}")


def converse(options, server):
    """The chats take turns, each goes on from all that was said; returns first-token times and receipts."""
    draw = random.Random(5)
    system = tokens(draw, 100)
    chats = [list(system) for _ in range(options.chats)]
    firsts, receipts = [], []
    for turn in range(options.turns):
        for chat in chats:
            chat += tokens(draw, draw.randrange(*MESSAGE_TOKENS))
            first, answer, receipt = ask(server, chat, ANSWER_TOKENS)
            chat += answer
            receipts.append(receipt)
            if turn > 0:
                firsts.append(first)
    return firsts, receipts, sum(len(chat) for chat in chats)


def turns(options, harness, folder):
    print(f"\n{options.chats} chats of {options.turns} turns, one after the other in rounds, a pool of a tenth of what they need")
    needed = options.chats * (100 + options.turns * (sum(MESSAGE_TOKENS) // 2 + ANSWER_TOKENS)) // 16
    pool = ("--num-gpu-blocks-override", max(needed // 10, 80), "--max-model-len", 1200, "--max-num-seqs", 4)
    kept = None
    for name, flags in (("pool alone", ()), ("host memory", ("--kv-offloading-size", 2)),
                        ("host memory of a tenth, and disk", ("--kv-offloading-size", needed * 0.36e6 / 10 / 2**30,
                                                            "--kv-offload-dir", folder,
                                                            "--kv-offload-disk-bandwidth", 0))):
        shutil.rmtree(folder, ignore_errors=True)
        with harness.Server(*pool, *flags, model=options.model) as server:
            ask(server, [1, 2, 3])
            before = server.metrics()
            begin = time.perf_counter()
            firsts, receipts, total = converse(options, server)
            seconds = time.perf_counter() - begin
            after = server.metrics()
        if kept is not None and receipts != kept:
            sys.exit("the answers differ")
        kept = receipts
        prompt = after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"]
        cached = after["vllm:prompt_tokens_cached_total"] - before["vllm:prompt_tokens_cached_total"]
        print(f"{name:34} {int(prompt - cached):8} of {int(prompt)} prompt tokens computed; first token p50 "
              f"{statistics.median(firsts) * 1e3:7.1f} ms; {seconds:6.1f} s in all")


def steps(options, harness, folder):
    print("\nwhat the copies cost: 8 answers of 192 tokens at once, tokens a second (median of rounds)")
    import concurrent.futures
    rates = {"without": [], "host memory": [], "host memory and disk": []}
    kinds = [("without", ()), ("host memory", ("--kv-offloading-size", 1)),
             ("host memory and disk", ("--kv-offloading-size", 1, "--kv-offload-dir", folder))]
    for round_number in range(options.rounds):
        kinds = kinds[1:] + kinds[:1]  # none is always the first
        for name, flags in kinds:
            shutil.rmtree(folder, ignore_errors=True)
            with harness.Server(*flags, model=options.model) as server:
                ask(server, [1, 2, 3])
                prompts = [tokens(random.Random(100 * round_number + i), 64) for i in range(8)]
                begin = time.perf_counter()
                with concurrent.futures.ThreadPoolExecutor(8) as threads:
                    list(threads.map(lambda prompt: ask(server, prompt, 192), prompts))
                rates[name].append(8 * 192 / (time.perf_counter() - begin))
    base = statistics.median(rates["without"])
    for name, values in rates.items():
        rate = statistics.median(values)
        print(f"{name:22} {rate:8.1f} tokens/s ({min(values):.1f} to {max(values):.1f}); a step takes {base / rate:.3f} of those without")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--model", default=None)
    parser.add_argument("--only", choices=("restart", "turns", "steps"))
    parser.add_argument("--prefix-tokens", default="1000,8000")
    parser.add_argument("--cold-files", action="store_true", help="drop the files from the page cache before they are read")
    parser.add_argument("--chats", type=int, default=24)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.prefix_tokens = [int(part) for part in options.prefix_tokens.split(",")]

    sys.argv = [sys.argv[0], "--quire", options.quire]
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import harness

    print(processor())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="quire-offload-"))
    try:
        for part in (restart, turns, steps):
            if options.only in (None, part.__name__):
                part(options, harness, folder / "kv")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
