#!/usr/bin/env python3
"""A storm of adapters: clients ask for the base and for adapters by name while operators load, replace and unload them, and
there is room for a few of them in a step and in memory. Every answer must be, by receipt, one that its adapter gives alone
(of a name that is replaced, the one before or the one after); at the end nothing is held, and every place for an adapter is free.
Needs a release build and the default model (./quickstart.sh makes both).

    scripts/adapter_storm.py [--minutes 10] [--clients 64] [--seed 1] [--quire BINARY] [-- flags of serve]
"""

import argparse
import pathlib
import random
import sys
import tempfile
import threading
import time

import make_adapters
from bench_concurrency import ROOT, processor
from storm import Client, resident_mib

KINDS = 6  # of requests, to each of the names
KEPT, REMOVED, REPLACED = 12, 6, 4  # names that stay, that are unloaded now and then, that change what they stand for
IN_A_STEP, IN_MEMORY = 6, 12
SHAPE = {"hidden_size": 576, "intermediate_size": 1536, "layers": 30, "heads": 9, "kv_heads": 3, "head_dim": 64}  # SmolLM2-135M


def make_kinds(source):
    return [{"prompt": [source.randrange(300, 40000) for _ in range(source.randrange(4, 60))],
             "max_tokens": source.randrange(4, 48), "ignore_eos": True, "temperature": source.choice((0, 0.8)), "seed": number,
             "deterministic": True, "stream": True} for number in range(KINDS)]


class Operators(threading.Thread):
    """Unloads and replaces until it is told to stop."""

    def __init__(self, server, source):
        super().__init__(daemon=True)
        self.server, self.source, self.ended, self.done, self.failures = server, source, threading.Event(), {}, []

    def run(self):
        while not self.ended.wait(self.source.uniform(0.02, 0.3)):
            if self.source.random() < 0.5:
                # One that nobody has asked for since is not there: 404.
                self.send("unload", {"lora_name": f"removed{self.source.randrange(REMOVED)}"}, (200, 404))
            else:
                replace(self.server, self.source.randrange(REPLACED), self.source.choice("ab"), self.send)

    def send(self, what, body, expected=(200,)):
        reply = self.server.post(f"/v1/{what}_lora_adapter", body)
        self.done[f"{what} {reply.status}"] = self.done.get(f"{what} {reply.status}", 0) + 1
        if reply.status not in expected:
            self.failures.append(f"{what} {body}: {reply.status} {reply.body[:200]!r}")


def replace(server, number, version, send=None):
    body = {"lora_name": f"replaced{number}", "lora_path": f"{version}{number}", "load_inplace": True}
    if send is not None:
        return send("load", body)
    reply = server.post("/v1/load_lora_adapter", body)
    assert reply.status == 200, reply.body
    return None


def alone(server, kinds):
    """{(name, kind): receipts that are right}, each request by itself."""
    client, right = Client(server.port, [], threading.Lock(), []), {}

    def ask(name):
        for kind, body in enumerate(kinds):
            outcome = client.ask(kind, {**body, "model": name}, None)[1]
            assert outcome[0] == "receipt" and outcome[1], (name, outcome)
            right.setdefault((name, kind), set()).add(outcome[1])

    for name in names():
        if not name.startswith("replaced"):
            ask(name)
    for number in range(REPLACED):
        for version in "ab":
            replace(server, number, version)
            ask(f"replaced{number}")
    assert all(len(right[f"replaced{number}", 0]) == 2 for number in range(REPLACED)), "two adapters give the same answer"
    return right


def names():
    return ["base", *(f"kept{i}" for i in range(KEPT)), *(f"removed{i}" for i in range(REMOVED)),
            *(f"replaced{i}" for i in range(REPLACED))]


def all_places_are_free(server, kinds):
    """As many adapters as memory has places for, and no more, in one batch each of as many as a step takes: none waits for good."""
    work = [(0, {**kinds[0], "model": name}, None) for name in names()[1:IN_MEMORY + 1]]
    outcomes = []
    clients = [Client(server.port, work, threading.Lock(), outcomes) for _ in range(IN_MEMORY)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(timeout=120)
    return len(outcomes) == IN_MEMORY and all(outcome[1][0] == "receipt" for outcome in outcomes)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--model", default=None)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="flags of quire serve")
    options = parser.parse_args()
    sys.argv = [sys.argv[0], "--quire", options.quire]
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import harness

    source = random.Random(options.seed)
    kinds = make_kinds(source)
    with tempfile.TemporaryDirectory(prefix="quire-adapters-") as folder:
        root = pathlib.Path(folder)
        stored = [name for name in names()[1:] if not name.startswith("replaced")]
        stored += [f"{version}{number}" for version in "ab" for number in range(REPLACED)]
        for number, name in enumerate(stored):
            make_adapters.write(root / name, argparse.Namespace(rank=source.choice((4, 8, 16)), **SHAPE), seed=number)
        flags = ["--served-model-name", "base", "--enable-lora", "--lora-dir", root, "--enable-admin-endpoints", "--max-loras", IN_A_STEP,
                 "--max-cpu-loras", IN_MEMORY, "--max-num-seqs", options.clients, *options.flags]
        with harness.Server(*flags, model=options.model) as server:
            right = alone(server, kinds)
        print(processor())
        print(f"{options.clients} clients, {len(names()) - 1} names, {IN_A_STEP} in a step, {IN_MEMORY} in memory, {options.minutes:g} minutes, "
              f"seed {options.seed}", flush=True)
        with harness.Server(*flags, model=options.model) as server:
            for number in range(REPLACED):
                replace(server, number, "a")
            operators = [Operators(server, random.Random(options.seed + i)) for i in range(2)]
            for operator in operators:
                operator.start()
            begin, total, cancelled, wrong = time.monotonic(), 0, 0, []
            while time.monotonic() - begin < options.minutes * 60:
                work = []
                for _ in range(20 * options.clients):
                    name, kind = source.choice(names()), source.randrange(KINDS)
                    patience = source.randrange(kinds[kind]["max_tokens"]) if source.random() < 0.2 else None
                    work.append(((name, kind), {**kinds[kind], "model": name}, patience))
                lock, outcomes = threading.Lock(), []
                clients = [Client(server.port, work, lock, outcomes) for _ in range(options.clients)]
                for client in clients:
                    client.start()
                for client in clients:
                    client.join()
                total += len(outcomes)
                cancelled += sum(outcome == "cancelled" for _, outcome in outcomes)
                wrong += [(what, outcome) for what, outcome in outcomes
                          if outcome != "cancelled" and not (outcome[0] == "receipt" and outcome[1] in right[what])]
                print(f"  {time.monotonic() - begin:6.0f} s: {total} requests, {cancelled} cancelled, {len(wrong)} wrong, resident "
                      f"{resident_mib(server.process):.0f} MiB", flush=True)
            for operator in operators:
                operator.ended.set()
                operator.join()
            server.wait_until_idle(seconds=300)
            free = all_places_are_free(server, kinds)
            server.wait_until_idle()
    for what, outcome in wrong[:5]:
        print(f"    {what}: {outcome}")
    done = {}
    for operator in operators:
        for key, count in operator.done.items():
            done[key] = done.get(key, 0) + count
    failures = [failure for operator in operators for failure in operator.failures]
    print(f"operators: {', '.join(f'{count} x {key}' for key, count in sorted(done.items()))}; {len(failures)} refused: {failures[:3]}")
    print(f"0 blocks held; {'all' if free else 'NOT ALL'} places for adapters are free")
    return 0 if free and not wrong and not failures else 1


if __name__ == "__main__":
    sys.exit(main())
