#!/usr/bin/env python3
"""How far each engine is from float32 compute of the same weights: log-probabilities, greedy choices, perplexity.

    bench/compare/accuracy.py [--formats Q4_1,Q8_0] [--only llama.cpp,quire:int8,quire:auto] [--chats FILE]

The reference is quire with --activation-dtype float32. "quire:auto:int4" is quire with --quantization int4, which wants a format of 16 or
32 bits: --formats F16 --only quire:auto:int8,quire:auto:int4,quire:auto:fp8. --chats is a record like tests/data/e2e/smollm2.json: prompts as ids and, for the
model's own file, what an independent float32 implementation said of them; quire's float32 is held against that too. The answers are
float32's greedy ones, put before every engine token by token, so that one flip does not make all that follows differ.
"""

import csv
import http.client
import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

import common
from common import say

REFERENCE = "quire:float32"
TOP = 8
LIKELIEST = 4  # of the tokens after a prompt, that are compared
SCORED_AT_ONCE = 8
PROBLEMS = (RuntimeError, OSError, subprocess.TimeoutExpired, http.client.HTTPException)


class Score:
    """logprobs[i]: of token i + 1 after those before it. top[i]: {token: logprob}, likeliest first, after token i; may be empty."""

    def __init__(self, logprobs, top):
        self.logprobs, self.top = logprobs, top


class QuireScorer:
    """A running `quire serve`."""

    def __init__(self, port):
        self.port = port

    def complete(self, **body):
        return common.ask(self.port, "/v1/completions", {"temperature": 0, "return_token_ids": True,
                                                         "return_tokens_as_token_ids": True, **body})["choices"]

    def tokenize(self, text):
        return common.ask(self.port, "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def greedy(self, prompt, length):
        return self.complete(prompt=prompt, max_tokens=length)[0]["token_ids"]

    def score(self, lines, top):
        """lines: [(tokens computed together, ids)]; here all are computed together, which gives the same bits."""
        scores = []
        for begin in range(0, len(lines), SCORED_AT_ONCE):
            prompts = [ids for _, ids in lines[begin:begin + SCORED_AT_ONCE]]
            # One more token than the prompt, so that what follows the last one is known as well.
            for choice in self.complete(prompt=prompts, max_tokens=1, echo=True, logprobs=max(top, 1), ignore_eos=True):
                found = choice["logprobs"]
                tops = [{} if not one or not top else
                        dict(sorted(((int(name.removeprefix("token_id:")), value) for name, value in one.items()),
                                    key=lambda pair: -pair[1])[:top])
                        for one in found["top_logprobs"][1:]]
                scores.append(Score(found["token_logprobs"][1:-1], tops))
        return scores


class LlamaScorer:
    def __init__(self, command):
        self.command = command

    def score(self, lines, top):
        with tempfile.NamedTemporaryFile("w", suffix=".ids") as file:
            file.write("".join(f"{together} {' '.join(map(str, ids))}\n" for together, ids in lines))
            file.flush()
            shown = common.run([*self.command, file.name, top], timeout=3600)
        found = map(json.loads, shown.splitlines())
        return [Score(one["logprobs"], [dict(map(tuple, row)) for row in one["top"]]) for one in found]


def likeliest(top):
    return next(iter(top))


def margin(top):
    first, second = itertools.islice(top.values(), 2)
    return first - second


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def chat_measures(lines, references, scores):
    """Differences of `scores` from `references` over chats: prompt, four likeliest tokens, greedy choices."""
    differences, of_means, likely, flips, steps = [], [], [], [], 0
    for (length, ids), reference, score in zip(lines, references, scores, strict=True):
        pairs = list(zip(reference.logprobs[:length - 1], score.logprobs[:length - 1]))
        differences += [abs(one - other) for one, other in pairs]
        of_means.append(abs(mean(one for one, _ in pairs) - mean(other for _, other in pairs)))
        for token in itertools.islice(reference.top[length - 1], LIKELIEST):
            if token in score.top[length - 1]:
                likely.append(abs(reference.top[length - 1][token] - score.top[length - 1][token]))
            else:  # fell out of the list: at least as far as the list's end
                likely.append(reference.top[length - 1][token] - min(score.top[length - 1].values()))
        for place in range(length - 1, len(ids) - 1):
            steps += 1
            if likeliest(score.top[place]) != likeliest(reference.top[place]):
                flips.append(margin(reference.top[place]))
    return {"mean_prompt_difference": mean(differences), "largest_prompt_mean_difference": max(of_means),
            "largest_top4_difference": max(likely), "flips": len(flips), "steps": steps,
            "largest_flip_margin": max(flips, default=0.0)}


def record_measures(cases, lines, scores):
    """The same against the record, as far as it goes."""
    of_means, likely, flips, steps = [], [], [], 0
    for case, (length, ids), score in zip(cases, lines, scores, strict=True):
        of_means.append(abs(case["mean_prompt_logprob"] - mean(score.logprobs[:length - 1])))
        likely += [abs(logprob - score.top[length - 1].get(token, -99.0)) for token, logprob in case["next_token_top8"][:LIKELIEST]]
        for step, gap in enumerate(case["greedy_margin"][:len(ids) - length]):
            steps += 1
            if likeliest(score.top[length - 1 + step]) != case["greedy_ids"][step]:
                flips.append(gap)
    return {"largest_prompt_mean_difference": max(of_means), "largest_top4_difference": max(likely), "flips": len(flips),
            "steps": steps, "largest_flip_margin": max(flips, default=0.0)}


def perplexity(scores):
    return 2.718281828459045 ** -mean(itertools.chain.from_iterable(score.logprobs for score in scores))


def fixed_text(options):
    """Answers of ShareGPT in the file's order, or the given files: more than enough characters for the tokens asked for."""
    if options.text:
        return "\n".join(path.read_text(errors="replace") for path in options.text)
    path = options.peers / "sharegpt.json"
    if not path.exists():
        raise SystemExit(f"error: {path} is not here (setup.sh makes it); --text FILE takes another text")
    answers = []
    for chat in json.loads(path.read_text()):
        answers += [turn["value"] for turn in chat["conversations"] if turn["from"] == "gpt"][:1]
        if sum(map(len, answers)) > 8 * options.tokens:
            break
    return "\n\n".join(answers)


def windows(ids, options):
    ids = ids[:options.tokens]
    cut = [ids[begin:begin + options.window] for begin in range(0, len(ids), options.window)]
    return [(len(one), one) for one in cut if len(one) > 1]


class Engines:
    """Opens an engine on a format."""

    def __init__(self, options, peers, models):
        self.options, self.peers, self.models = options, peers, models

    def llama(self, name):
        return LlamaScorer([*self.options.prefix, self.peers.llama / "llama-driver", "score", self.models.gguf(name),
                            self.options.threads])

    def quire(self, name, engine):
        """A context manager."""
        port = common.free_port()
        command = [*self.options.prefix, self.options.quire, "serve", self.models.gguf(name), "--host", common.HOST, "--port",
                   port, "--threads", self.options.threads, "--max-num-seqs", SCORED_AT_ONCE, "--no-enable-prefix-caching",
                   "--max-model-len", 4096, *common.quire_flags(engine)]
        return port, common.server(command, port)


def score_all(engines, name, engine, lines, texts):
    """(scores of the chats, perplexity or None) of one engine."""
    def both(scorer):
        return scorer.score(lines, TOP), perplexity(scorer.score(texts, 0)) if texts else None

    if engine == "llama.cpp":
        return both(engines.llama(name))
    port, running = engines.quire(name, engine)
    with running:
        return both(QuireScorer(port))


def measure_format(engines, options, cases, name):
    """Rows of one format; the reference's own first."""
    is_own = name == common.DEFAULT_FORMAT and all("greedy_ids" in case for case in cases)
    port, running = engines.quire(name, REFERENCE)
    with running:
        quire = QuireScorer(port)
        lines = []
        for case in cases:
            answer = case["greedy_ids"] if is_own else quire.greedy(case["prompt_ids"], options.answer)
            lines.append((len(case["prompt_ids"]), case["prompt_ids"] + answer))
        texts = windows(quire.tokenize(fixed_text(options)), options) if options.tokens else []
        references = quire.score(lines, TOP)
        reference_perplexity = perplexity(quire.score(texts, 0)) if texts else None
    rows = []
    if is_own and all("greedy_margin" in case for case in cases):
        rows.append({"engine": REFERENCE, "against": "record", "perplexity": reference_perplexity,
                     **record_measures(cases, lines, references)})
    for engine in options.only:
        try:
            scores, found = score_all(engines, name, engine, lines, texts)
        except PROBLEMS as problem:
            say(f"{name}, {engine}: {problem}")
            continue
        row = {"engine": engine, "against": REFERENCE, **chat_measures(lines, references, scores)}
        if texts:
            row |= {"perplexity": found, "perplexity_change": found / reference_perplexity - 1}
        rows.append(row)
        say(f"{name}, {engine}: done")
    return [{"format": name, **row} for row in rows]


COLUMNS = (("format", "weights"), ("engine", "engine"), ("against", "against"), ("mean_prompt_difference", "prompt logprob, mean abs. diff."),
           ("largest_prompt_mean_difference", "a prompt's mean, largest diff."),
           ("largest_top4_difference", "four likeliest, largest diff."), ("flips", "flips"), ("steps", "of"),
           ("largest_flip_margin", "largest margin flipped"), ("perplexity", "perplexity"), ("perplexity_change", "against float32"))


def shown(key, value):
    if value is None:
        return ""
    if key == "perplexity_change":
        return f"{100 * value:+.3f} %"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def main():
    parser = common.parser_of(__doc__)
    common.add_arguments(parser)
    words = common.list_of(str)
    parser.add_argument("--only", type=words, default=["llama.cpp", "quire:int8", "quire:int16", "quire:auto"])
    parser.add_argument("--formats", type=words, default=["Q4_1", "F16", "Q8_0", "Q4_0", "Q4_K_M"])
    parser.add_argument("--chats", type=pathlib.Path, default=common.ROOT / "tests/data/e2e/smollm2.json")
    parser.add_argument("--answer", type=int, default=32, help="most tokens of an answer where the record has none")
    parser.add_argument("--text", type=pathlib.Path, nargs="*", help="instead of ShareGPT's answers")
    parser.add_argument("--tokens", type=int, default=20000, help="of the text; 0: no perplexity")
    parser.add_argument("--window", type=int, default=512, help="tokens read together; the first is not predicted")
    options = parser.parse_args()
    peers = common.Peers(options.peers)
    models = common.Models(peers, options.model)
    cases = json.loads(options.chats.read_text())["cases"]
    engines = Engines(options, peers, models)
    rows = []
    for name in options.formats:
        try:
            rows += measure_format(engines, options, cases, name)
        except PROBLEMS as problem:
            say(f"{name}: no reference: {problem}")
    if not rows:
        sys.exit("error: nothing was measured")
    options.out.mkdir(parents=True, exist_ok=True)
    keys = [key for key, _ in COLUMNS]
    with (options.out / "accuracy.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, keys, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    table = common.markdown_table([title for _, title in COLUMNS], [[shown(key, row.get(key)) for key in keys] for row in rows])
    text = (f"{len(cases)} chats; {options.tokens} tokens of text in windows of {options.window}. "
            f"{common.processor()}, {options.model.name}.\n\n{table}\n")
    (options.out / "accuracy.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
