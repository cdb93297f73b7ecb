#!/usr/bin/env python3
"""Drives vLLM's CPU build for bench/compare; runs in the environment vllm.

    vllm_driver.py speed MODEL_DIRECTORY THREADS PROMPTS DTYPE MEASURE...

Arguments and lines as llama_driver.cpp's.
"""

import os
import sys
import time

# Read by vLLM when it is imported: the engine in this process, a KV cache of 2 GiB, no word to anybody.
os.environ.update({"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1",
                   "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})


class Engine:
    def __init__(self, model, dtype):
        from vllm import LLM

        # Greedy answers of token ids; prompts of one measurement fit one step, as the other engines have it.
        self.engine = LLM(model=model, dtype=dtype, max_model_len=2048, max_num_seqs=64, max_num_batched_tokens=8192,
                          enable_prefix_caching=False, disable_log_stats=True).llm_engine
        self.requests = 0

    def run(self, prompts, output):
        """Seconds until every prompt has its first token, seconds after that, and tokens that came after that."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True, detokenize=False)
        begin = time.perf_counter()
        have = {}
        for ids in prompts:
            name = str(self.requests)
            self.requests += 1
            have[name] = 0
            self.engine.add_request(name, {"prompt_token_ids": ids}, sampling)
        all_begun = None
        before = 0
        while self.engine.has_unfinished_requests():
            for answer in self.engine.step():
                have[answer.request_id] = len(answer.outputs[0].token_ids)
            if all_begun is None and all(have.values()):
                all_begun = time.perf_counter()
                before = sum(have.values())
        return all_begun - begin, time.perf_counter() - all_begun, sum(have.values()) - before


def measure(engine, prompts, what):
    kind, *numbers = what.split(":")
    if kind == "decode":
        sequences, length, output = map(int, numbers)
        engine.run([prompts[0][:length]], 2)
        _, seconds, tokens = engine.run([ids[:length] for ids in prompts[:sequences]], output)
        return seconds, tokens
    length = int(numbers[0])
    if kind == "prefill":
        engine.run([prompts[1][:length]], 1)
    return engine.run([prompts[0][:length]], 1)[0], length


def main():
    mode, model, threads, prompts_path, dtype, *measures = sys.argv[1:]
    if mode != "speed":
        raise SystemExit("error: expected speed")
    os.environ["OMP_NUM_THREADS"] = threads
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, sorted(os.sched_getaffinity(0))[:int(threads)]))
    with open(prompts_path) as file:
        prompts = [[int(word) for word in line.split()] for line in file]
    engine = Engine(model, dtype)
    for what in measures:
        seconds, tokens = measure(engine, prompts, what)
        print(what, f"{seconds:.6f}", tokens, flush=True)


if __name__ == "__main__":
    main()
