#!/usr/bin/env python3
"""Writes how well ArcticInference's suffix decoding guesses some texts, for a test that holds ours against it.

    pip download --no-deps --no-binary :all: arctic-inference==0.3.0    # its sources; csrc/suffix_decoding is one module
    g++ -std=c++20 -O2 -shared -fPIC ...                                # _C of bindings.cc and suffix_tree.cc, with nanobind
    scripts/make_suffix_data.py FOLDER_WITH_THE_MODULE tests/data/suffix_drafts.json

Texts are words of this repository's documents, numbered; three tasks of several requests each, one after the other, so
that later answers know the earlier ones. A step takes a guess and as much of it as is right, and one token more.
"""

import importlib
import json
import pathlib
import random
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DEPTH, FACTOR, LEAST = 24, 1.0, 0.1  # vLLM's for this method


def words_of(name, numbers):
    words = re.findall(r"\w+|[^\w\s]", (ROOT / "docs" / name).read_text())
    return [numbers.setdefault(word, len(numbers)) for word in words]


def changed(tokens, share, generator, vocabulary):
    out = []
    for token in tokens:
        if generator.random() < share:
            kind = generator.randrange(3)
            out += [] if kind == 0 else [generator.randrange(vocabulary)] + ([token] if kind == 1 else [])
        else:
            out.append(token)
    return out


def tasks():
    numbers, generator = {}, random.Random(20261125)
    pages = [words_of(name, numbers) for name in ("server.md", "scheduling.md", "design.md", "performance.md", "glossary.md")]
    pieces = [page[at:at + 300] for page in pages for at in (0, 900)]
    edits = [(piece, changed(piece, 0.05, generator, len(numbers))) for piece in pieces[:6]]
    fresh = [(page[1500:1600], page[1600:1900]) for page in pages]
    recurring = []
    for _ in range(10):  # tool outputs and files that come again, between others
        parts = generator.sample(pieces, 2)
        recurring.append((parts[0][:40], changed(parts[0][40:200] + parts[1][:120], 0.02, generator, len(numbers))))
    return {"edits": edits, "fresh": fresh, "recurring": recurring}


def run(module, requests):
    everybody = module.SuffixTree(DEPTH)
    counts = {"steps": 0, "tokens": 0, "drafted": 0, "accepted": 0}
    for number, (prompt, answer) in enumerate(requests):
        own = module.SuffixTree(DEPTH)
        own.extend(0, prompt)
        text, done = list(prompt), 0
        while done < len(answer):
            drafts = [tree.speculate(text[-DEPTH:], DEPTH, FACTOR, 0.0, LEAST, False) for tree in (own, everybody)]
            guess = (drafts[0] if drafts[0].score >= drafts[1].score else drafts[1]).token_ids[:len(answer) - done - 1]
            right = 0
            while right < len(guess) and guess[right] == answer[done + right]:
                right += 1
            new = answer[done:done + right + 1]
            own.extend(0, new)
            everybody.extend(number, new)
            text += new
            done += len(new)
            counts["steps"] += 1
            counts["tokens"] += len(new)
            counts["drafted"] += len(guess)
            counts["accepted"] += right
    return counts


def main():
    sys.path.insert(0, sys.argv[1])
    module = importlib.import_module("_C")
    out = {name: {"requests": [{"prompt": prompt, "answer": answer} for prompt, answer in requests], "reference": run(module, requests)}
           for name, requests in tasks().items()}
    pathlib.Path(sys.argv[2]).write_text(json.dumps(out, separators=(",", ":")) + "\n")
    for name, task in out.items():
        print(name, task["reference"])


if __name__ == "__main__":
    main()
