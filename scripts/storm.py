#!/usr/bin/env python3
"""A storm: thousands of requests on a server whose KV pool holds a tenth of them, half cancelled at random moments.
Every answer that is not cancelled must be the one the request gets alone (tokens and log-probabilities, by receipt), no
block may be left, memory must stay flat. Needs a release build and the default model (./quickstart.sh makes both).

    scripts/storm.py [--requests 2000] [--minutes 0] [--seed 1] [--quire BINARY] [--model MODEL] [-- flags of serve]

With --minutes the storm repeats until they are over.
"""

import argparse
import http.client
import json
import random
import sys
import threading
import time

from bench_concurrency import ROOT, processor

KINDS = 64  # different requests; each comes many times


def resident_mib(process):
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) / 1024


def make_kinds(random_source):
    kinds = []
    for number in range(KINDS):
        shared = [200 + 31 * (number % 4) + i for i in range(random_source.choice((0, 48, 120)))]
        prompt = shared + [random_source.randrange(300, 40000) for _ in range(random_source.randrange(4, 60))]
        kinds.append({"prompt": prompt, "max_tokens": random_source.randrange(4, 96), "ignore_eos": True,
                      "temperature": random_source.choice((0, 0.8)), "seed": number, "deterministic": True,
                      "stream": True})
    return kinds


class Client(threading.Thread):
    """Takes request after request off the list; cancels some by closing the connection."""

    def __init__(self, port, work, lock, outcomes):
        super().__init__(daemon=True)
        self.port, self.work, self.lock, self.outcomes = port, work, lock, outcomes

    def run(self):
        while True:
            with self.lock:
                if not self.work:
                    return
                kind, body, patience = self.work.pop()
            outcome = self.ask(kind, body, patience)
            with self.lock:
                self.outcomes.append(outcome)

    def ask(self, kind, body, patience):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1800)
        receipt, events = None, 0
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                return kind, f"status {response.status}: {response.read(300)!r}"
            for line in response:
                if patience is not None and events >= patience:
                    return kind, "cancelled"
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                events += 1
                event = json.loads(line[6:])
                if "error" in event:
                    return kind, f"error {event['error']}"
                for choice in event["choices"]:
                    receipt = choice.get("receipt") or receipt
            return kind, ("receipt", receipt)
        except OSError as error:
            return kind, f"connection: {error}"
        finally:
            connection.close()


def storm(server, kinds, alone, options, random_source):
    work = []
    for number in range(options.requests):
        kind = number % KINDS
        patience = random_source.randrange(0, kinds[kind]["max_tokens"]) if random_source.random() < 0.5 else None
        work.append((kind, kinds[kind], patience))
    random_source.shuffle(work)
    lock, outcomes = threading.Lock(), []
    clients = [Client(server.port, work, lock, outcomes) for _ in range(options.clients)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    wrong = [(kind, outcome) for kind, outcome in outcomes
             if outcome != "cancelled" and outcome != ("receipt", alone[kind])]
    cancelled = sum(outcome == "cancelled" for _, outcome in outcomes)
    return len(outcomes), cancelled, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--model", default=None)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=256)
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="flags of quire serve")
    options = parser.parse_args()

    sys.argv = [sys.argv[0], "--quire", options.quire]
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import harness

    random_source = random.Random(options.seed)
    kinds = make_kinds(random_source)
    lock, alone = threading.Lock(), {}
    with harness.Server(model=options.model) as server:
        for kind, body in enumerate(kinds):
            alone[kind] = Client(server.port, [], lock, []).ask(kind, body, None)[1][1]
    assert all(alone.values()), alone

    blocks_each = sum(-(-(len(k["prompt"]) + k["max_tokens"]) // 16) for k in kinds) / KINDS
    blocks = int(blocks_each * options.clients / 10)
    print(processor())
    print(f"{options.requests} requests by {options.clients} clients, {blocks} KV blocks "
          f"(the {options.clients} at once would take {blocks_each * options.clients:.0f}), seed {options.seed}")
    flags = ["--num-gpu-blocks-override", blocks, "--max-num-seqs", options.clients, "--preemption-mode", "auto",
             "--swap-space", "0.05", *options.flags]
    failed = False
    with harness.Server(*flags, model=options.model) as server:
        begin = time.monotonic()
        while True:
            total, cancelled, wrong = storm(server, kinds, alone, options, random_source)
            values = server.wait_until_idle(seconds=300)
            print(f"  {time.monotonic() - begin:6.0f} s: {total} requests, {cancelled} cancelled, {len(wrong)} wrong, "
                  f"{values['vllm:num_preemptions_total']:.0f} preemptions, "
                  f"{values['vllm:prefix_cache_hits_total']:.0f} of {values['vllm:prefix_cache_queries_total']:.0f} "
                  f"prompt tokens from the cache, resident {resident_mib(server.process):.0f} MiB, 0 blocks held",
                  flush=True)
            for kind, outcome in wrong[:5]:
                print(f"    request {kind}: {outcome}, alone {alone[kind]}")
            failed = failed or bool(wrong)
            if time.monotonic() - begin >= options.minutes * 60:
                break
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
