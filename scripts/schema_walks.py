#!/usr/bin/env python3
"""Random answers of the schemas of bench/data/schemas.jsonl, without a model, against Python's jsonschema.

  PYTHON scripts/schema_walks.py [--walks 100] [--tokenizer FILE --end TOKEN]

By default with both kinds of tokenizers in tests/data. Prints every violation and fails on one; apart from them, the
schemas of which some walk had no way on, or of which none ended (those were not checked). PYTHON is one of your own with
jsonschema 4.26.0, which is not among the pinned packages. Needs the program quire_grammar_walk (a build with benchmarks).
"""

import argparse
import collections
import datetime
import ipaddress
import json
import pathlib
import re
import statistics
import subprocess
import sys
import uuid

import jsonschema

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENIZERS = [("qwen_style_bpe_nfc.json", "<|im_end|>"), ("llama2_style_spm_bpe.json", "</s>")]


def formats():
    """Checks of our own, for what jsonschema only checks with further packages."""
    checker = jsonschema.FormatChecker(formats=())

    def parses(parse):
        def check(text):
            try:
                parse(text)
            except ValueError:
                return False
            return True

        return check

    def date_time(text):
        assert text[10] == "T"
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))

    def uuid_of(text):
        return uuid.UUID(text) if len(text) == 36 else uuid.UUID("")

    checks = {
        "date": parses(datetime.date.fromisoformat),
        "time": parses(lambda text: date_time("2000-01-01T" + text)),
        "date-time": parses(date_time),
        "ipv4": parses(ipaddress.IPv4Address),
        "ipv6": parses(ipaddress.IPv6Address),
        "uuid": parses(uuid_of),
        "email": lambda text: re.fullmatch(r"[^@\s\"\\]{1,64}@([a-z0-9-]{1,63}\.)+[a-z]{2,}", text),
        "hostname": lambda text: len(text) < 254 and re.fullmatch(r"(?!-)[a-z0-9-]{1,63}(?<!-)(\.(?!-)[a-z0-9-]{1,63}(?<!-))*", text),
        "uri": lambda text: re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\"<>\\^`{|}]*", text),
        "uri-reference": lambda text: re.fullmatch(r"[^\s\"<>\\^`{|}]*", text),
        "uri-template": lambda text: re.fullmatch(r"([^\s\"<>\\^`{|}]|\{[^{}\s]+\})*", text),
        "json-pointer": lambda text: re.fullmatch(r"(/([^/~]|~[01])*)*", text, re.S),
        "relative-json-pointer": lambda text: re.fullmatch(r"(0|[1-9]\d*)(#|(/([^/~]|~[01])*)*)", text, re.S),
        "duration": lambda text: re.fullmatch(r"P(?!$)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?|P\d+W", text),
    }
    checks["idn-email"] = checks["email"]
    for name, check in checks.items():
        checker.checks(name)(lambda value, check=check: not isinstance(value, str) or bool(check(value)))
    return checker


def python_pattern(pattern):
    """ECMA-262's notation where Python has another."""
    pattern = re.sub(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([0-9a-fA-F]{4})",
                     lambda m: bytes.fromhex(m[1] + m[2]).decode("utf-16-be"), pattern)
    pattern = re.sub(r"\(\?<(\w+)>", r"(?P<\1>", pattern)
    pattern = re.sub(r"\\c([A-Za-z])", lambda m: f"\\x{ord(m[1]) % 32:02x}", pattern)
    return pattern.replace("\\/", "/")


def for_python(schema):
    if isinstance(schema, list):
        return [for_python(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    out = {}
    for name, value in schema.items():
        if name in ("enum", "const"):
            out[name] = value
        elif name == "pattern" and isinstance(value, str):
            out[name] = python_pattern(value)
        else:
            out[name] = for_python(value)
    return out


BOUNDS = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


def strict_json(text):
    def constant(name):
        raise ValueError(name)

    value = json.loads(text, parse_constant=constant)
    text.encode()  # no lone surrogates
    json.dumps(value, ensure_ascii=False).encode()
    return value


def check_tokenizer(args, tokenizer, end, lines):
    command = [args.program, str(tokenizer), end, str(args.walks)]
    done = subprocess.run(command, input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    results = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(results) == len(lines), (len(results), len(lines))
    counts = collections.Counter()
    bad = []
    dead = []
    unchecked = []
    refused = []
    for line, result in zip(lines, results):
        if "refused" in result:
            refused.append((line, result["refused"]))
            continue
        if "failed" in result:
            # Without a token that may follow, an answer ends with an error: no violation, but no answer either.
            (dead if result["failed"].startswith("no token is allowed") else bad).append((line, result["failed"]))
            continue
        validator = jsonschema.Draft202012Validator(for_python(json.loads(line)), format_checker=formats())
        counts["unended"] += result["unended"]
        if not result["texts"]:
            unchecked.append((line, "no walk ended, so that nothing was checked"))
        for text in result["texts"]:
            counts["texts"] += 1
            try:
                validator.validate(strict_json(text))
            except (ValueError, jsonschema.ValidationError) as error:
                bad.append((line, f"{text!r}: {str(error).splitlines()[0]}"))
    ran = [result for result in results if "texts" in result]
    compile_ms = sorted(result["compile_us"] / 1000 for result in ran)
    mask_us = sorted(result["mask_us"] for result in ran)
    print(f"{tokenizer.name}: {len(lines)} schemas, {len(refused)} refused, {counts['texts']} texts, "
          f"{counts['unended']} unended, {len(bad)} violations, {len(dead)} schemas with dead ends, {len(unchecked)} unchecked; compile median {statistics.median(compile_ms):.1f} ms, "
          f"largest {compile_ms[-1]:.0f} ms; mask and accept median {statistics.median(mask_us):.1f} us, "
          f"largest {mask_us[-1]:.0f} us")
    if args.verbose:
        for line, why in refused:
            print("  refused:", line[:150], "--", why[:200])
    for name, found in (("VIOLATION", bad), ("dead end", dead), ("unchecked", unchecked)):
        for line, why in found[:60]:
            print(f"  {name}:", line[:200], "--", repr(why[:300]))
    return not bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--walks", type=int, default=100)
    parser.add_argument("--tokenizer", type=pathlib.Path)
    parser.add_argument("--end")
    parser.add_argument("--schemas", type=pathlib.Path, default=ROOT / "bench/data/schemas.jsonl")
    parser.add_argument("--program", default=str(ROOT / "build/release/bench/quire_grammar_walk"))
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    # split("\n"): a schema may have other characters that Python takes for ends of lines.
    lines = [line for line in args.schemas.read_text().split("\n") if line]
    pairs = TOKENIZERS
    if args.tokenizer:
        pairs = [(args.tokenizer, args.end)]
    good = [check_tokenizer(args, ROOT / "tests/data/tokenizers" / name, end, lines) for name, end in pairs]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
