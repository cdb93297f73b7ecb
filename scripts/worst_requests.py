#!/usr/bin/env python3
"""Two clients send the worst requests that are known, one after the other without a pause, beside 32 ordinary clients; each of
the 34 has an API key of its own (--one-key: the 32 share one). The ordinary ones' time to the first token with and without the two, and the server's
memory. Needs a release build and the default model (./quickstart.sh makes both).

    scripts/worst_requests.py [--seconds 60] [--pause 10] [--one-key] [--only NAME ...] [--quire BINARY] [--model MODEL] [-- flags of serve]

Exit code 1 where the ordinary ones' 95th percentile is more than 1.5 times what it is alone, one of them fails, or the server
holds more than its plan and 256 MiB.
"""

import argparse
import http.client
import itertools
import json
import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time

from bench_concurrency import ROOT, processor
from storm import resident_mib

CONTEXT = 8192
VOCABULARY = 49152
CLIENTS = 32
KEYS = {name: f"secret-of-{name}" for name in ["first", "second", *(f"ordinary-{number}" for number in range(CLIENTS))]}
MIB = 1 << 20


def completion(**fields):
    return "/v1/completions", json.dumps({"max_tokens": 1, **fields})


def chat(**fields):
    return "/v1/chat/completions", json.dumps({"max_tokens": 1, **fields})


def words(count):
    return "word " * count


# Each: a path and a body, made anew each time so that no cache of answers or prefixes helps.
def many_members():
    return completion(prompt="a", metadata={f"k{i}": i for i in range(131_072)})


def members_of_a_schema():
    return completion(prompt="a", guided_json={"type": "object", "properties": {f"k{i}": {"type": "integer"} for i in range(50_000)}})


def unfinished_message():
    return chat(messages=[{"role": "user", "content": "a" * (18 * MIB)}, {"role": "assistant", "content": "a" * (2 * MIB)}],
                continue_final_message=True, add_generation_prompt=False)


def breakers_for_every_prompt():
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + [chr(c) for c in range(ord("A"), ord("Z") + 1)]
    return completion(prompt=[[300 + i] for i in range(1024)], dry_multiplier=1, dry_sequence_breakers=letters)


def breakers_for_every_answer():
    return completion(prompt="a", n=128, dry_multiplier=1, dry_sequence_breakers=list("abcde"), max_tokens=64)


def bad_words_for_every_prompt():
    return completion(prompt=[[300 + i] for i in range(1024)], bad_words=[f"bad {i}" for i in range(500)])


def text_beyond_the_context():
    return chat(messages=[{"role": "user", "content": words(4 * MIB)}])


def scores_of_the_prompt():
    return completion(prompt=random.choices(range(300, VOCABULARY), k=CONTEXT - 1), n=128, prompt_logprobs=20, echo=True)


def beams_with_many_ends():
    return completion(prompt="a", use_beam_search=True, n=128, best_of=128, max_tokens=64, min_tokens=32,
                      stop_token_ids=list(range(100, VOCABULARY)))


def beams_of_nothing():
    return completion(prompt="a", use_beam_search=True, n=2, max_tokens=0, echo=True)


def lists_for_every_answer():
    return completion(prompt="a", n=128, max_tokens=32, allowed_token_ids=list(range(300, VOCABULARY)),
                      logit_bias={str(i): 1 for i in range(300, VOCABULARY, 4)}, repetition_penalty=1.1, presence_penalty=0.5)


def everything_about_every_token():
    return completion(prompt="a", n=128, max_tokens=256, logprobs=20, ignore_eos=True, repetition_penalty=1.1, dry_multiplier=1,
                      typical_p=0.9, top_n_sigma=1, stop=["zzzz" * 64, "yyyy" * 64])


def long_enumeration():
    return completion(prompt="a", guided_json={"enum": [f"value {i} {random.random()}" for i in range(70_000)]})


def exponential_expression():
    return completion(prompt="a", guided_regex=f"({random.randrange(1 << 30)}|[ab]*a[ab]{{14}})" + "(a|aa|b{2,50}|[a-z ]{1,300})*")


def nested_loops():
    loops = "".join(f"{{% for i{n} in range(1000) %}}" for n in range(4)) + "x" + "{% endfor %}" * 4
    return chat(messages=[{"role": "user", "content": "a"}], chat_template=loops)


def long_prompts():
    return completion(prompt=[random.choices(range(300, VOCABULARY), k=CONTEXT - 8) for _ in range(16)])


def deep_array():
    return "/v1/completions", '{"prompt":' + "[" * 1_000_000 + "]" * 1_000_000 + "}"


ATTACKS = (many_members, members_of_a_schema, unfinished_message, breakers_for_every_prompt, breakers_for_every_answer,
           bad_words_for_every_prompt, text_beyond_the_context, scores_of_the_prompt, beams_with_many_ends, beams_of_nothing,
           lists_for_every_answer, everything_about_every_token, long_enumeration, exponential_expression, nested_loops,
           long_prompts, deep_array)


def ask(port, key, path, body, timeout):
    """(status, seconds, bytes of the answer); a status of 0: no answer in time."""
    begun = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json", "Authorization": f"Bearer {KEYS[key]}"})
        response = connection.getresponse()
        size = 0
        while piece := response.read(1 << 16):
            size += len(piece)
            if time.monotonic() - begun > timeout:
                raise TimeoutError
        return response.status, time.monotonic() - begun, size
    except (OSError, http.client.HTTPException):
        return 0, time.monotonic() - begun, 0
    finally:
        connection.close()


class Ordinary(threading.Thread):
    """A client that asks, reads its stream, and thinks a while."""

    def __init__(self, port, key, until, pause):
        super().__init__(daemon=True)
        # Prompts are never the same again: one that is cached says nothing.
        self.port, self.key, self.random, self.until, self.pause = port, key, random.Random(), until, pause
        self.first_token, self.begun, self.failures = [], [], []

    def run(self):
        time.sleep(self.random.uniform(0, self.pause))
        while not self.until.is_set():
            self.ask()
            self.until.wait(self.random.expovariate(1 / self.pause))

    def ask(self):
        body = {"prompt": self.random.choices(range(300, VOCABULARY), k=self.random.randrange(16, 160)), "max_tokens": 24,
                "ignore_eos": True, "stream": True}
        begun = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        first = None
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {
                "Content-Type": "application/json", "Authorization": f"Bearer {KEYS[self.key]}"})
            response = connection.getresponse()
            if response.status != 200:
                self.failures.append(f"{response.status} {response.read(200)!r}")
                return
            for line in response:
                if first is None and line.startswith(b"data: {"):
                    first = time.monotonic() - begun
            self.first_token.append(first)
            self.begun.append(begun)
        except (OSError, http.client.HTTPException) as error:
            self.failures.append(repr(error))
        finally:
            connection.close()


class Bad(multiprocessing.Process):
    """Sends each attack in turn until it is told to end; all of them at least once. A process, and bodies written beforehand:
    what it costs to write them is the attacker's, and not to be felt by the clients that are measured."""

    def __init__(self, port, key, attacks, until, rounds=4):
        super().__init__(daemon=True)
        self.port, self.key, self.until, self.results = port, key, until, multiprocessing.Queue()
        self.requests = [(attack.__name__, *attack()) for _ in range(rounds) for attack in attacks]
        self.once = len(attacks)
        self.went_round = multiprocessing.Event()

    def run(self):
        for number in itertools.count():
            if number >= self.once:
                self.went_round.set()
                if self.until.is_set():
                    return
            name, path, body = self.requests[number % len(self.requests)]
            begun = time.monotonic()
            self.results.put((name, begun, ask(self.port, self.key, path, body, timeout=60)))


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("nan")


def measure(server, seconds, pause, attacks, one_key):
    """The ordinary clients' times and failures, the most resident memory, what the attacks came to, and who waited longest beside what."""
    ordinary_until, bad_until, results, spans = threading.Event(), multiprocessing.Event(), {}, []
    ordinary = [Ordinary(server.port, f"ordinary-{0 if one_key else number}", ordinary_until, pause) for number in range(CLIENTS)]
    # The second begins in the middle of the list.
    bad = [Bad(server.port, key, attacks[turn:] + attacks[:turn], bad_until)
           for key, turn in (("first", 0), ("second", len(attacks) // 2))] if attacks else []
    for client in bad + ordinary:
        client.start()
    most, begun = 0.0, time.monotonic()

    def look():
        nonlocal most
        most = max(most, resident_mib(server.process))
        for client in bad:
            while not client.results.empty():
                name, sent, outcome = client.results.get()
                results.setdefault(name, []).append(outcome)
                spans.append((name, sent - begun, sent - begun + outcome[1]))
        time.sleep(0.1)

    while time.monotonic() - begun < seconds or not all(client.went_round.is_set() for client in bad):
        look()
    bad_until.set()
    ordinary_until.set()
    while any(client.is_alive() for client in bad + ordinary):
        look()
    times = [seconds for thread in ordinary for seconds in thread.first_token]
    waits = sorted(((first, sent - begun) for thread in ordinary for first, sent in zip(thread.first_token, thread.begun)), reverse=True)
    longest = [(first, sent, [f"{name} since {sent - start:.1f} s" for name, start, end in spans if start < sent + first and end > sent])
               for first, sent in waits[:5]]
    failures = [failure for thread in ordinary for failure in thread.failures]
    return times, failures, max(most, resident_mib(server.process)), results, longest


def planned_mib(quire, model, flags):
    plan = json.loads(subprocess.run([quire, "plan", "--json", *([model] if model else []), *flags], capture_output=True,
                                     text=True, check=True).stdout.splitlines()[-1])
    return (plan["weight_bytes"] + plan["workspace_bytes"] + plan["kv_bytes"]) / MIB


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--model")
    parser.add_argument("--seconds", type=float, default=60, help="of each of the two measurements, at least")
    parser.add_argument("--pause", type=float, default=10, help="seconds that an ordinary client thinks, on the mean")
    parser.add_argument("--one-key", action="store_true", help="the ordinary clients share a key")
    parser.add_argument("--only", nargs="*", choices=[attack.__name__ for attack in ATTACKS])
    parser.add_argument("flags", nargs="*", help="of serve, after --")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    sys.argv = [sys.argv[0], "--quire", options.quire, "--data", str(ROOT / "tests/data")]
    import harness

    attacks = [attack for attack in ATTACKS if not options.only or attack.__name__ in options.only]
    memory = ["--kv-cache-memory-bytes", "1G"]
    keys = [argument for key in KEYS.values() for argument in ("--api-key", key)]
    planned = planned_mib(options.quire, options.model, memory)
    print(f"{processor()}; load average {os.getloadavg()[0]:.1f}")
    with harness.Server("--disable-access-log", *memory, *keys, *options.flags, model=options.model) as server:
        measure(server, 5, 1, [], options.one_key)  # pages of the weights come in with the first use
        alone, alone_failures, alone_most, _, _ = measure(server, options.seconds, options.pause, [], options.one_key)
        beside, failures, most, results, longest = measure(server, options.seconds, options.pause, attacks, options.one_key)

    print("\n| request | times | statuses | slowest, s | largest answer |\n|---|---:|---|---:|---:|")
    for name, outcomes in results.items():
        statuses = ", ".join(str(status or "none in 60 s") for status in sorted({outcome[0] for outcome in outcomes}))
        print(f"| {name.replace('_', ' ')} | {len(outcomes)} | {statuses} | {max(outcome[1] for outcome in outcomes):.1f} | "
              f"{max(outcome[2] for outcome in outcomes) / MIB:.1f} MiB |")
    print("\n| 32 ordinary clients | answers | failures | first token p50, s | p95, s | most, s | MiB resident, most |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, times, failed, resident in (("alone", alone, alone_failures, alone_most), ("beside the two", beside, failures, most)):
        print(f"| {name} | {len(times)} | {len(failed)} | {percentile(times, 0.5):.3f} | {percentile(times, 0.95):.3f} | "
              f"{percentile(times, 1):.3f} | {resident:.0f} |")
    ratio = percentile(beside, 0.95) / percentile(alone, 0.95)
    print(f"\np95: {ratio:.2f} times; planned {planned:.0f} MiB, most resident {most - planned:+.0f} MiB beside that.")
    print("\nThose who waited longest for a first token, and what ran then:")
    for first, sent, ran in longest:
        print(f"  {first:.3f} s from {sent:.1f} s on: {'; '.join(ran)}")
    for failure in failures[:5]:
        print(f"  failed: {failure}")
    sys.exit(1 if ratio > 1.5 or failures or most > planned + 256 else 0)


if __name__ == "__main__":
    main()
