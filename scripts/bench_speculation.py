#!/usr/bin/env python3
"""What speculation gains and what it loses, over HTTP, on this machine: servers that guess nothing, n-grams and suffixes
get the same requests in turn, so that a machine that is slower for a while is so for all. Answers must be identical.

    scripts/bench_speculation.py [--chats FILE] [--tasks copy,prediction,chat,agent] [--requests 8] [--rounds 3]
    scripts/bench_speculation.py --tasks chat --concurrency 32 --requests 64
    scripts/bench_speculation.py --llama ~/.cache/quire/peers/llama-build/bin/llama-server --llama-model FILE.gguf

With --llama there are also llama.cpp's server without guesses and with its n-grams (with --draft-model its draft, too), whose ratios
are to itself without guesses: it has no identical answers to promise, so theirs are not compared. With
--head, a folder, the modes eagle3 and eagle3-int8 (its weights rounded at load) are there. With --concurrency each round's ratio
is of the whole of it, plain2 beside plain says what such a ratio is worth; the time per output token is of the requests of all rounds.

FILE: ShareGPT's conversations (JSON). Without it there are only the tasks of this file: copy and prediction.
Needs a release build and the default model (./quickstart.sh makes both).
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent

CODE = (ROOT / "src/kv/block_pool.cpp").read_text()[:3600]
RECORDS = "\n".join(f"order {1000 + 7 * n}: customer {name}, city {city}, amount {31 * n % 97 + 3}.50 EUR, paid {'yes' if n % 3 else 'no'}"
                    for n, (name, city) in enumerate((f"C{a}{b}", c) for a in "XYZ" for b in "1234" for c in ("Oslo", "Bergen")))

MODES = {
    "plain": [],
    "plain2": [],  # the same once more: by how much rounds differ in any case
    "ngram": ["--speculative-config", '{"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 6}'],
    "suffix": ["--speculative-config", '{"method": "suffix", "suffix_decoding_max_spec_factor": 4}'],
}


def processor():
    with open("/proc/cpuinfo") as info:
        name = next((line.split(":", 1)[1].strip() for line in info if line.startswith("model name")), "unknown processor")
    return f"{name}, {len(os.sched_getaffinity(0))} cores used"


def completion(prompt, tokens, **more):
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}


def copy_tasks(count, skip):
    """A text, and the beginning of its copy: the model goes on with it."""
    tasks = []
    for n in range(skip, skip + count):
        text = [CODE, RECORDS][n % 2][37 * (n % 24):]
        text = text[text.index("\n") + 1:][:1500]
        head = "\n".join(text.split("\n")[:3])
        tasks.append(completion(f"Here is a text:\n\n{text}\n\nHere is the same text once more, word for word:\n\n{head}\n", 256))
    return tasks


def chat_tasks(chats, count, tokens, skip):
    """First questions, after the `skip` first of them."""
    tasks = []
    for chat in chats:
        first = chat["conversations"][0]["value"] if chat["conversations"] else ""
        if 20 < len(first) < 3000:
            tasks.append({"messages": [{"role": "user", "content": first}], "max_tokens": tokens, "temperature": 0,
                          "return_token_ids": True})
        if len(tasks) == skip + count:
            break
    return tasks[skip:]


def agent_tasks(chats, count, tokens, skip):
    """Turns of agents: the same outputs of tools again and again, gone on from as they were."""
    long = [turn["value"] for chat in chats for turn in chat["conversations"] if 1200 < len(turn["value"]) < 2400]
    tasks = []
    for n in range(count):
        text = long[(skip + n) // 4]  # each comes four times
        head = "\n".join(text.split("\n")[:2])[:200]
        tasks.append(completion(f"Tool output {n % 4}:\n{text}\n\nThe file again, as it is now:\n{head}", tokens))
    return tasks


def changed_lines(text, count):
    lines = text.split("\n")
    rng = random.Random(5)
    for at in rng.sample(range(len(lines)), min(count, len(lines))):
        lines[at] = lines[at][:len(lines[at]) // 2] + " changed " + lines[at][len(lines[at]) // 2 + 3:]
    return "\n".join(lines)


def llama_server_of(harness, program, arguments):
    """llama.cpp's server as one of the harness's."""

    class LlamaServer(harness.Server):
        def __init__(self):
            self.end_by = signal.SIGTERM
            self.port = harness.free_port()
            self.log = tempfile.NamedTemporaryFile("w+", prefix="llama-server-", suffix=".log", errors="replace")
            self.process = subprocess.Popen([program, "--port", str(self.port), "-np", "1", "-c", "8192", "-t", str(os.cpu_count()), *arguments],
                                            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT)

        def __exit__(self, kind, value, traceback):
            self.stop()

    return LlamaServer()


class Asker:
    def __init__(self, server):
        self.server = server

    def ask(self, body):
        """Tokens, text, seconds from the first token to the last, usage."""
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        ids, text, first, last, usage = [], "", None, None, None
        for event in self.server.stream(path, {**body, "stream_options": {"include_usage": True}}):
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text += (choice["delta"].get("content") or "") if "delta" in choice else choice["text"]
                if choice.get("token_ids"):
                    ids += choice["token_ids"]
                    last = time.perf_counter()
                    first = first or last
        return ids, text, last - first, usage

    def count(self, answer):
        return len(answer[0])

    def all(self, bodies, workers):
        """The answers; seconds: of several at once all of it, else the sum of what came behind first tokens."""
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(workers) as threads:
            answers = list(threads.map(self.ask, bodies))
        whole = time.perf_counter() - begin
        return answers, whole if workers > 1 else sum(answer[2] for answer in answers)


class LlamaAsker(Asker):
    """Its pieces of text in the place of tokens, which are counted by its usage."""

    def ask(self, body):
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        body = {name: value for name, value in body.items() if name not in ("return_token_ids", "prediction")}
        text, first, last, usage = "", None, None, None
        for event in self.server.stream(path, {**body, "cache_prompt": False, "stream_options": {"include_usage": True}}):
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                piece = (choice["delta"].get("content") or "") if "delta" in choice else choice["text"]
                text += piece
                if piece:
                    last = time.perf_counter()
                    first = first or last
        return [], text, last - first, usage

    def count(self, answer):
        return answer[3]["completion_tokens"]


def counters(server):
    found = {}
    for line in server.get("/metrics").body.decode().split("\n"):
        if line.startswith("vllm:spec_decode_num_") and "position" not in line:
            found[line.split("{")[0].removeprefix("vllm:spec_decode_num_").removesuffix("_total")] = float(line.rsplit(" ", 1)[1])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--model", default=None)
    parser.add_argument("--chats")
    parser.add_argument("--tasks", default="copy,prediction")
    parser.add_argument("--modes", default="plain,ngram,suffix")
    parser.add_argument("--requests", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--draft-model", help="its modes are draft, and both (suffix, then it)")
    parser.add_argument("--head", help="a folder with an EAGLE-3 head: the modes eagle3 and eagle3-int8")
    parser.add_argument("--heads", help="a folder with heads in eagle, medusa and dflash, which are modes then (make_random_heads.py)")
    parser.add_argument("--llama", help="llama.cpp's server: its modes are llama, llama-ngram, llama-draft")
    parser.add_argument("--llama-model", help="its model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="flags of quire serve")
    options = parser.parse_args()
    sys.argv = [sys.argv[0], "--quire", options.quire]
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    import harness

    chats = json.load(open(options.chats)) if options.chats else []
    if options.draft_model:
        MODES["draft"] = ["--speculative-config", json.dumps({"model": options.draft_model})]
        MODES["both"] = ["--speculative-config", json.dumps({"method": "suffix", "model": options.draft_model})]
    if options.heads:
        for method in ("eagle", "medusa", "dflash"):
            MODES[method] = ["--speculative-config", json.dumps({"method": method, "model": f"{options.heads}/{method}",
                                                                 "num_speculative_tokens": 3})]
    if options.head:
        head = {"method": "eagle3", "model": options.head, "num_speculative_tokens": 3}
        MODES["eagle3"] = ["--speculative-config", json.dumps(head)]
        MODES["eagle3-int8"] = ["--speculative-config", json.dumps({**head, "quantization": "int8"})]
    llama = {"llama": [], "llama-ngram": ["--spec-type", "ngram-simple"],
             "llama-draft": ["--spec-type", "draft-simple", "-md", options.draft_model or ""]}
    print(processor())

    def asker_of(stack, mode):
        if mode in llama:
            if not options.llama or not options.llama_model:
                parser.error(f"{mode} wants --llama and --llama-model")
            return LlamaAsker(stack.enter_context(llama_server_of(harness, options.llama, ["-m", options.llama_model, *llama[mode]])))
        return Asker(stack.enter_context(harness.Server("--kv-cache-memory-bytes", "1G", "--no-enable-prefix-caching", *MODES[mode],
                                                        *options.flags, model=options.model)))

    with contextlib.ExitStack() as stack:
        askers = {mode: asker_of(stack, mode) for mode in options.modes.split(",")}
        for asker in askers.values():
            asker.ask(completion("warm", 4))
        for task in options.tasks.split(","):
            def bodies_of(number):
                """Of a round: none has been answered in an earlier one."""
                skip = number * options.requests
                return {"copy": lambda: copy_tasks(options.requests, skip),
                        "prediction": lambda: copy_tasks(options.requests, skip),
                        "chat": lambda: chat_tasks(chats, options.requests, options.max_tokens, skip),
                        "agent": lambda: agent_tasks(chats, options.requests, options.max_tokens, skip)}[task]()

            total = []
            before = {mode: counters(asker.server) for mode, asker in askers.items() if mode not in llama}
            tokens_of = {mode: [] for mode in askers}
            times = {mode: [] for mode in askers}
            same = True
            usage = [0, 0]
            per_token = {mode: [] for mode in askers}
            for number in range(options.rounds):
                bodies = bodies_of(number)
                expected = None
                order = list(askers)
                if task != "prediction":  # which wants the plain answers first
                    order = order[number % len(order):] + order[:number % len(order)]
                for mode in order:
                    asker = askers[mode]
                    sent = bodies
                    if task == "prediction" and mode != "plain" and mode not in llama:  # of the answer, with five lines changed
                        sent = [{**body, "prediction": {"type": "content", "content": changed_lines(text, 5)}}
                                for body, (_, text, _, _) in zip(bodies, expected)]
                    answers, seconds = asker.all(sent, options.concurrency)
                    times[mode].append(seconds)
                    tokens_of[mode].append(sum(asker.count(answer) for answer in answers))
                    per_token[mode] += [a[2] / max(1, asker.count(a) - 1) for a in answers]
                    if mode in llama:
                        continue
                    if expected is None:
                        expected = answers
                    same = same and [a[0] for a in answers] == [a[0] for a in expected]
                    if task == "prediction" and mode != "plain":
                        for _, _, _, used in answers:
                            details = used["completion_tokens_details"]
                            usage[0] += details["accepted_prediction_tokens"]
                            usage[1] += details["rejected_prediction_tokens"]
                total.append(sum(len(a[0]) for a in expected))
            tokens = statistics.mean(total)
            print(f"{task}: {len(bodies)} requests, {options.concurrency} at once, {tokens:.0f} tokens; answers "
                  f"{'identical' if same else 'DIFFERENT'}")
            for mode, seconds in times.items():
                if mode in llama:
                    rates, plain = ([tokens / seconds for tokens, seconds in zip(tokens_of[one], times[one])]
                                    for one in (mode, "llama" if "llama" in times else mode))
                    ratios = [own / other for own, other in zip(rates, plain)]
                    print(f"  {mode:11} {statistics.median(rates):8.1f} tokens/s, to itself {statistics.median(ratios):.2f} "
                          f"({', '.join(f'{r:.2f}' for r in ratios)})")
                    continue
                ratios = [plain / own for plain, own in zip(times[next(iter(times))], seconds)]
                after = counters(askers[mode].server)
                did = {name: after[name] - before[mode].get(name, 0) for name in after}
                told = "" if not did.get("drafts") else (
                    f", {100 * did['accepted_tokens'] / did['draft_tokens']:.0f} % of {did['draft_tokens']:.0f} drafts accepted, "
                    f"{1 + did['accepted_tokens'] / did['drafts']:.1f} tokens a draft")
                if options.concurrency > 1:
                    p50, p95 = (1e3 * sorted(per_token[mode])[int(share * len(per_token[mode]))] for share in (0.5, 0.95))
                    told += f", time per output token p50 {p50:.1f}, p95 {p95:.1f} ms"
                print(f"  {mode:11} {tokens / statistics.median(seconds):8.1f} tokens/s, ratio {statistics.median(ratios):.2f} "
                      f"({', '.join(f'{r:.2f}' for r in ratios)}){told}")
            if task == "prediction":
                print(f"  usage: {usage[0]} tokens of predictions accepted, {usage[1]} rejected")


if __name__ == "__main__":
    main()
