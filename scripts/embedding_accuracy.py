#!/usr/bin/env python3
"""Vectors of real models by the real server beside sentence-transformers (float32): 1,000 texts, 1,000 pairs of them.

    embedding_accuracy.py QUIRE MODEL...

Texts are sentences of this repository's documents, some in other scripts, with accents, emoji, and a word of 150 letters.
For each way of computing: the least and the mean cosine, the largest difference of the pairs' cosines, and how many pairs
of neighbours in the reference's ranking, further apart than the margin, stand in another order. Needs numpy,
sentence-transformers.
"""
import contextlib
import json
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import time
import urllib.request

import numpy

os.environ.setdefault("HF_HUB_OFFLINE", "1")
DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
OTHERS = ["今日はいい天気ですね", "Привет, как дела?", "Café au lait, s'il vous plaît", "naïve façade coöperate", "🎉 emoji 🚀 everywhere 👍🏽",
          "a" * 150, "مرحبا بالعالم", "नमस्ते दुनिया", "한국어 문장입니다", "MiXeD CaSe AND 12345.678 numbers", "<b>html</b> &amp; entities",
          "def f(x):\n\treturn x ** 2", "https://example.com/a?b=c&d=e#f", "  spaces   and\ttabs  ", "Zürich — “quotes” … ellipsis"]
# What is measured, and how far apart pairs must be for their order to count.
WAYS = [(("--dtype", "float32"), 1e-5), ((), 5e-3), (("--quantization", "int8"), 1e-2),
        (("--quantization", "int8", "--activation-dtype", "int8"), 1e-2)]


def texts():
    found = []
    for file in sorted(DOCS.glob("*.md")):
        body = re.sub(r"\s+", " ", file.read_text())
        found += [one.strip() for one in re.split(r"(?<=[.:;]) ", body) if 20 < len(one) < 400]
    random.Random(1).shuffle(found)
    return (OTHERS * 4 + found)[:1000]


@contextlib.contextmanager
def server(quire, model, flags):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    process = subprocess.Popen([quire, "serve", model, "--port", str(port), "--device", "cpu", *flags],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
                break
            if process.poll() is not None:
                sys.exit("the server does not start")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}/v1/embeddings"
    finally:
        process.terminate()
        process.wait()


def ask(url, given):
    body = json.dumps({"input": given, "truncate_prompt_tokens": -1}).encode()
    answer = json.load(urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})))
    return numpy.array([one["embedding"] for one in answer["data"]])


def unit(rows):
    return rows / numpy.linalg.norm(rows, axis=1, keepdims=True)


def turned(reference, found, margin):
    """Pairs of pairs that the reference has further apart than the margin, in the other order here."""
    order = numpy.argsort(reference)
    reference, found = reference[order], found[order]
    later_least = numpy.minimum.accumulate(found[::-1])[::-1]
    count = 0
    for i in range(len(reference)):
        j = numpy.searchsorted(reference, reference[i] + margin, side="right")
        if j < len(reference) and later_least[j] < found[i]:
            count += int((found[j:] < found[i]).sum())
    return count


def main():
    from sentence_transformers import SentenceTransformer
    quire = sys.argv[1]
    given = texts()
    draw = numpy.random.default_rng(0)
    pairs = draw.integers(0, len(given), (1000, 2))
    for folder in sys.argv[2:]:
        reference = unit(SentenceTransformer(folder, device="cpu").encode(given, batch_size=32))
        wanted = (reference[pairs[:, 0]] * reference[pairs[:, 1]]).sum(1)
        print(f"{folder}: {len(given)} texts, vectors of {reference.shape[1]}", flush=True)
        for flags, margin in WAYS:
            with server(quire, folder, flags) as url:
                found = unit(ask(url, given))
            cosines = (reference * found).sum(1)
            scores = (found[pairs[:, 0]] * found[pairs[:, 1]]).sum(1)
            print(f"  {' '.join(flags) or 'default':50} least cosine {cosines.min():.7f}, mean {cosines.mean():.7f}, largest difference "
                  f"{abs(scores - wanted).max():.7f}, turned beyond {margin:g}: {turned(wanted, scores, margin)}", flush=True)


if __name__ == "__main__":
    main()
