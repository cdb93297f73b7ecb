#!/usr/bin/env python3
"""Perplexity of one text under quire and under llama.cpp, of any GGUF file, with the same tokens for both.

    bench/compare/perplexity.py MODEL.gguf [--engines llama.cpp,quire:float32,quire:auto] [--tokens 20000]

accuracy.py has more to say, but of the default model alone. The text is cut into windows that are read by themselves, each behind the
token that the model begins with.
"""

import math
import pathlib
import time

import accuracy
import common

AT_ONCE = 4  # windows in one request


def serve(options, engine, port):
    return common.server([options.quire, "serve", options.model, "--host", common.HOST, "--port", port, "--threads", options.threads,
                          "--max-num-seqs", AT_ONCE, "--no-enable-prefix-caching", "--max-model-len", 2 * options.window,
                          *common.quire_flags(engine)], port)


def tokenize(port, text, special):
    return common.ask(port, "/tokenize", {"prompt": text, "add_special_tokens": special})["tokens"]


def windows_of(options):
    """[[first token, window of the text...]]"""
    port = common.free_port()
    with serve(options, "quire:auto", port):
        first = tokenize(port, "", True)
        ids = tokenize(port, accuracy.fixed_text(options), False)[:options.tokens]
    step = options.window - len(first)
    return [first + ids[begin:begin + step] for begin in range(0, len(ids), step)]


def score_quire(options, engine, windows):
    """Log-probabilities of all tokens but each window's first."""
    port = common.free_port()
    found = []
    with serve(options, engine, port):
        for begin in range(0, len(windows), AT_ONCE):
            reply = common.ask(port, "/v1/completions", {"prompt": windows[begin:begin + AT_ONCE], "max_tokens": 1, "temperature": 0,
                                                         "echo": True, "logprobs": 1, "ignore_eos": True}, timeout=3600)
            for choice in reply["choices"]:
                found.append(choice["logprobs"]["token_logprobs"][1:-1])
    return found


def score_llama(options, windows):
    scorer = accuracy.LlamaScorer([*options.prefix, common.Peers(options.peers).llama / "llama-driver", "score", options.model,
                                   options.threads])
    return [score.logprobs for score in scorer.score([(len(window), window) for window in windows], 0)]


def main():
    parser = common.parser_of(__doc__)
    common.add_arguments(parser)
    parser.set_defaults(model=None)
    parser.add_argument("gguf", type=pathlib.Path, metavar="MODEL.gguf")
    parser.add_argument("--text", type=pathlib.Path, nargs="*", help="instead of ShareGPT's answers")
    parser.add_argument("--engines", type=common.list_of(str), default=["llama.cpp", "quire:float32", "quire:auto"])
    parser.add_argument("--tokens", type=int, default=20000)
    parser.add_argument("--window", type=int, default=512, help="tokens read together")
    options = parser.parse_args()
    options.model = options.gguf
    windows = windows_of(options)
    rows = []
    for engine in options.engines:
        begin = time.monotonic()
        scores = score_llama(options, windows) if engine == "llama.cpp" else score_quire(options, engine, windows)
        flat = [score for window in scores for score in window]
        perplexity = math.exp(-sum(flat) / len(flat))
        if not rows:
            first = (perplexity, flat)
        apart = sum(abs(one - other) for one, other in zip(flat, first[1], strict=True)) / len(flat)
        rows.append([engine, str(len(flat)), f"{perplexity:.4f}", f"{100 * (perplexity / first[0] - 1):+.3f} %", f"{apart:.4f}",
                     f"{time.monotonic() - begin:.0f}"])
        common.say(" ".join(rows[-1]))
    titles = ["engine", "tokens scored", "perplexity", "against the first", "a token's mean difference", "seconds"]
    print(common.markdown_table(titles, rows))


if __name__ == "__main__":
    main()
