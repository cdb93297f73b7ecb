#!/usr/bin/env python3
"""Ten times as many requests as the server can answer: what it answers meanwhile, beside what it answers at its best, and how
soon it refuses the rest. Needs a release build and the default model (./quickstart.sh makes both).

    scripts/overload.py [--rounds 3] [--seconds 20] [--times 10] [--sequences 32] [--quire BINARY] [--model MODEL] [-- flags of serve]

In turn, in each round: as many clients as sequences, each asking again when it is answered, which is the peak; and a Poisson
process of --times as many requests a second as were answered then, each on a connection that is free or a new one. The
server has as much room in its queue as in its batch. Tokens are the server's own count. The clients run on the same cores:
what they use of a processor is told. Exit code 1 unless 0.9 of the peak's tokens are made (median of rounds), 99 of 100
refusals take 100 ms at most, every answer has the tokens that it has alone, and no block is held in the end.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time

from bench_concurrency import ROOT, processor

KINDS = 32  # different requests
ANSWER_TOKENS = 48


class Outcomes:
    def __init__(self):
        self.answered, self.refused, self.wrong = [], [], []  # seconds each; wrong: what came

    def add(self, kind, status, body, seconds, alone):
        if status == 429:
            self.refused.append(seconds)
        elif status == 200 and tokens_of(body) == alone[kind]:
            self.answered.append(seconds)
        else:
            self.wrong.append((kind, status, body[:200]))


def tokens_of(body):
    return json.loads(body)["choices"][0]["token_ids"]


def percentile(seconds, share):
    return sorted(seconds)[min(len(seconds) - 1, int(share * len(seconds)))] * 1e3 if seconds else float("nan")


def make_kinds():
    draw = random.Random(1)
    return [json.dumps({"prompt": [draw.randrange(300, 40000) for _ in range(draw.randrange(16, 160))],
                        "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
                        "deterministic": True}).encode() for _ in range(KINDS)]


class Connections:
    """Kept open between requests, as clients' pools keep them."""

    def __init__(self, port):
        self.port, self.free = port, []

    async def ask(self, body):
        """Returns status, body and seconds from sending, or connecting, to the last byte."""
        begun = time.perf_counter()
        reader, writer = self.free.pop() if self.free else await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(maxsplit=1)[0])
        text = await reader.readexactly(length)
        self.free.append((reader, writer))
        return int(head.split(maxsplit=2)[1]), text, time.perf_counter() - begun

    def close(self):
        for _, writer in self.free:
            writer.close()


async def measured(server, seconds, load):
    """Runs load() beside a clock; returns tokens a second of the server, and what this process used of a processor,
    behind the first quarter."""
    def counted():
        return server.metrics()["vllm:generation_tokens_total"], time.monotonic(), time.process_time()

    running = asyncio.create_task(load())
    await asyncio.sleep(seconds / 4)
    tokens, begun, used = await asyncio.to_thread(counted)
    await asyncio.sleep(seconds * 3 / 4)
    tokens_after, ended, used_after = await asyncio.to_thread(counted)
    await running
    return (tokens_after - tokens) / (ended - begun), (used_after - used) / (ended - begun)


async def closed_loop(server, kinds, alone, clients, seconds):
    outcomes, connections, until = Outcomes(), Connections(server.port), time.monotonic() + seconds

    async def client(number):
        kind = number
        while time.monotonic() < until:
            kind = (kind + 1) % KINDS
            outcomes.add(kind, *await connections.ask(kinds[kind]), alone)

    async def load():
        await asyncio.gather(*map(client, range(clients)))
        connections.close()

    return await measured(server, seconds, load), outcomes


async def flood(server, kinds, alone, rate, seconds):
    outcomes, connections, draw = Outcomes(), Connections(server.port), random.Random(2)

    async def one():
        kind = draw.randrange(KINDS)
        outcomes.add(kind, *await connections.ask(kinds[kind]), alone)

    async def load():
        begun, at, under_way = time.monotonic(), 0.0, set()
        while at < seconds:
            await asyncio.sleep(max(0, begun + at - time.monotonic()))
            task = asyncio.create_task(one())
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            at += draw.expovariate(rate)
        await asyncio.gather(*under_way)
        connections.close()

    return await measured(server, seconds, load), outcomes


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--model", default=None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--times", type=float, default=10)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("flags", nargs="*", help="flags of quire serve")
    options = parser.parse_args()

    sys.argv = [sys.argv[0], "--quire", options.quire]
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import harness

    kinds = make_kinds()
    flags = ("--max-num-seqs", options.sequences, "--max-num-queued-reqs", options.sequences, *options.flags)
    with harness.Server(*flags, model=options.model) as server:
        async def ask_alone():
            connections = Connections(server.port)
            return [tokens_of((await connections.ask(body))[1]) for body in kinds]

        alone = asyncio.run(ask_alone())
        rounds = []
        for _ in range(options.rounds):
            (peak, _), calm = asyncio.run(closed_loop(server, kinds, alone, options.sequences, options.seconds))
            rate = options.times * len(calm.answered) / options.seconds
            (flooded, used), storm = asyncio.run(flood(server, kinds, alone, rate, options.seconds))
            rounds.append((peak, calm, rate, flooded, used, storm))
        values = server.wait_until_idle(seconds=120)
    return report(options, rounds, values)


def report(options, rounds, values):
    print(f"{processor()}; {options.sequences} sequences, rounds of {options.seconds:g} s")
    for peak, calm, rate, flooded, used, storm in rounds:
        print(f"  peak {peak:.0f} tokens/s, an answer after {percentile(calm.answered, 0.5):.0f} ms (median); {rate:.0f} requests/s: "
              f"{flooded:.0f} tokens/s ({flooded / peak:.3f}), an answer after {percentile(storm.answered, 0.5):.0f} ms; "
              f"the clients used {used:.2f} of a processor")
    answered = sum(len(storm.answered) for *_, storm in rounds)
    refused = [seconds for *_, storm in rounds for seconds in storm.refused]
    wrong = [one for _, calm, *_, storm in rounds for one in calm.wrong + storm.wrong]
    share, slowest = statistics.median(flooded / peak for peak, _, _, flooded, *_ in rounds), percentile(refused, 0.99)
    print(f"{share:.3f} of the peak (median); {answered} answered, {len(refused)} refused, after {percentile(refused, 0.5):.1f} ms (median), "
          f"{slowest:.1f} (p99), {percentile(refused, 1):.1f} (slowest); {len(wrong)} wrong, "
          f"{values['vllm:kv_cache_usage_perc']:g} of the blocks held in the end")
    for one in wrong[:5]:
        print(f"  {one}")
    return 0 if share >= 0.9 and slowest <= 100 and not wrong and refused else 1


if __name__ == "__main__":
    sys.exit(main())
