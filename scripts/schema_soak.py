#!/usr/bin/env python3
"""The schemas of bench/data/schemas.jsonl through the real server and a real model, hot, against Python's jsonschema.

  build/venv/bin/python scripts/schema_soak.py [--answers 1] [--model MODEL] [-- flags of serve]

Every third answer is streamed. What ends by itself (finish_reason "stop") must satisfy its schema; what ends by length is
counted apart, as are schemas that are refused (400) and answers that end with an error. Fails on a violation and on an error
that is no 400. Needs a release build, the default model (./quickstart.sh makes both) and scripts/python_env.sh.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import sys
import time

from bench_concurrency import ROOT, processor


PATIENCE = 3600  # seconds: the machine may be busy, and no time is judged here


class Failed(Exception):
    """An answer that ended with an error: its status (0 in a stream that had begun) and what it says."""


def whole(server, body):
    reply = server.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}, PATIENCE)
    if reply.status != 200:
        raise Failed(reply.status, reply.json["error"]["message"])
    choice = reply.json["choices"][0]
    return choice["message"]["content"], choice["finish_reason"], reply.json["usage"]["completion_tokens"]


def streamed(server, body):
    import harness
    connection = server.connect(PATIENCE)
    try:
        connection.request("POST", "/v1/chat/completions",
                           json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise Failed(response.status, json.loads(response.read())["error"]["message"])
        text, reason, tokens = "", None, 0
        for event in harness.events(response):
            if "error" in event:
                raise Failed(0, event["error"]["message"])
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
        return text, reason, tokens
    finally:
        connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--model")
    parser.add_argument("--schemas", type=pathlib.Path, default=ROOT / "bench/data/schemas.jsonl")
    parser.add_argument("--answers", type=int, default=1, help="of each schema, each with a seed of its own")
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--temperature", type=float, default=1.5)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("flags", nargs="*", help="of serve, after --")
    options = parser.parse_args()
    sys.argv = [sys.argv[0], "--quire", options.quire]
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import harness
    import schema_judge

    lines = schema_judge.schemas_of(options.schemas)
    counts = collections.Counter()
    found = {"VIOLATION": [], "error": [], "refused": []}  # (index of the schema, why)

    def ask(server, number, answer):
        schema = json.loads(lines[number])
        body = {"messages": [{"role": "user", "content": "Give me a short example of JSON that fits: " + lines[number][:500]}],
                "max_tokens": options.max_tokens, "temperature": options.temperature, "seed": answer * len(lines) + number,
                "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}}
        in_pieces = (number + answer) % 3 == 0
        try:
            text, reason, tokens = (streamed if in_pieces else whole)(server, body)
        except Failed as error:
            status, message = error.args
            return "refused" if status == 400 else "error", number, f"{status or 'in a stream'}: {message}", 0
        if reason != "stop":
            return f"ended by {reason}", number, None, tokens
        why = schema_judge.fault(schema_judge.validator_of(schema), text)
        if why:
            return "VIOLATION", number, f"{text!r}: {why}", tokens
        return "satisfied, streamed" if in_pieces else "satisfied, whole", number, None, tokens

    print(f"{processor()}; load average {os.getloadavg()[0]:.1f}", flush=True)
    satisfied = set()
    tokens = 0
    begun = time.monotonic()
    with harness.Server("--disable-access-log", *options.flags, model=options.model) as server:
        with concurrent.futures.ThreadPoolExecutor(options.at_once) as pool:
            asked = [pool.submit(ask, server, number, answer) for answer in range(options.answers) for number in range(len(lines))]
            for done in concurrent.futures.as_completed(asked):
                what, number, why, length = done.result()
                counts[what] += 1
                if counts.total() % 50 == 0:
                    print(f"{counts.total()} of {len(asked)} after {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
                tokens += length
                if what in found:
                    found[what].append((number, why))
                    print(f"{what}: line {number + 1}: {lines[number][:200]} -- {why[:400]}", flush=True)
                if what.startswith("satisfied"):
                    satisfied.add(number)
        server.wait_until_idle()
    seconds = time.monotonic() - begun
    print(f"{len(lines)} schemas, {options.answers} answers each at temperature {options.temperature}, at most "
          f"{options.max_tokens} tokens, {options.at_once} at once: {tokens} tokens in {seconds:.0f} s; "
          f"load average {os.getloadavg()[0]:.1f}")
    for what in sorted({*counts, "VIOLATION"}):
        print(f"  {counts[what]:5} {what}")
    print(f"  {len(satisfied):5} schemas with a finished answer")
    sys.exit(1 if found["VIOLATION"] or found["error"] else 0)


if __name__ == "__main__":
    main()
