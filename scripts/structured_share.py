#!/usr/bin/env python3
"""What structured output costs a step: the processor time that constraints took beside the time of whole steps, and the phase
"sample" with constraints and without, turn about, from a running server's metrics.

  scripts/structured_share.py URL [--batch 32] [--tokens 200] [--rounds 5] [--threads 2]

THREADS is the server's: so many share a step's constraints.
"""

import argparse
import concurrent.futures
import json
import re
import statistics
import urllib.request

STRING = {"type": "string", "maxLength": 200}
PERSON = {"type": "object", "properties": {"name": STRING, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                                           "email": {"type": "string", "format": "email"}},
          "required": ["name", "age", "email"], "additionalProperties": False}
STRUCTURED = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "l", "schema": {
        "type": "array", "items": PERSON, "minItems": 3}}}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "m", "schema": {
        "type": "object", "additionalProperties": {"type": "number"}, "minProperties": 1}}}},
    {"structured_outputs": {"regex": "([A-Z][a-z]{2,12}[ ,.]){10,200}"}},
    {"tool_choice": "required", "tools": [
        {"type": "function", "function": {"name": "find", "parameters": PERSON}},
        {"type": "function", "function": {"name": "note", "parameters": {
            "type": "object", "properties": {"text": {"type": "string"}, "tags": {"type": "array", "items": STRING}},
            "required": ["text", "tags"]}}}]},
]


def post(url, body):
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        return json.load(response)["usage"]["completion_tokens"]


def phases(url):
    with urllib.request.urlopen(url + "/metrics", timeout=60) as response:
        text = response.read().decode()
    found = re.findall(r'^quire:step_phase_seconds_total\{[^}]*phase="(\w+)"[^}]*\} (\S+)', text, re.M)
    constraints = re.search(r"^quire:structured_output_seconds_total\S* (\S+)", text, re.M)
    return {**{name: float(value) for name, value in found}, "constraints": float(constraints[1])}


def round_of(url, args, constrained):
    before = phases(url)
    bodies = []
    for i in range(args.batch):
        body = {"messages": [{"role": "user", "content": f"Tell me about a few people of town {i}."}],
                "max_tokens": args.tokens, "temperature": 0.8, "seed": i}
        # Structured outputs that end early are asked for again, so that the batch stays full.
        bodies.append({**body, **STRUCTURED[i % len(STRUCTURED)]} if constrained else {**body, "ignore_eos": True})
    def client(body):
        made = 0
        while made < args.tokens:
            made += post(url, {**body, "max_tokens": args.tokens - made})
        return made
    with concurrent.futures.ThreadPoolExecutor(args.batch) as pool:
        tokens = sum(pool.map(client, bodies))
    after = phases(url)
    spent = {name: after[name] - before.get(name, 0) for name in after}
    return spent, tokens


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    round_of(args.url, argparse.Namespace(batch=len(STRUCTURED), tokens=8), True)  # compiled once
    shares = {True: [], False: []}
    of_constrained = []
    for _ in range(args.rounds):
        for constrained in (False, True):
            spent, tokens = round_of(args.url, args, constrained)
            constraints = spent.pop("constraints")
            whole = sum(spent.values())
            if constrained:
                of_constrained.append(constraints / args.threads / whole)
                print(f"constraints: {constraints / tokens * 1e6:.1f} us of a processor a token, {of_constrained[-1] * 100:.2f} % of the steps")
            shares[constrained].append(spent["sample"] / whole)
            print(f"{'with' if constrained else 'without'} constraints: {tokens} tokens, sample {spent['sample'] / tokens * 1e6:.0f} us "
                  f"a token, {spent['sample'] / whole * 100:.1f} % of the steps", flush=True)
    print(f"median constraints: {statistics.median(of_constrained) * 100:.2f} % of the steps")
    for constrained, values in shares.items():
        print(f"median {'with' if constrained else 'without'} constraints: {statistics.median(values) * 100:.1f} %")


if __name__ == "__main__":
    main()
