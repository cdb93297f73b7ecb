#!/usr/bin/env python3
"""Drives OpenVINO GenAI's continuous batching for bench/compare; runs in the environment openvino.

    openvino_driver.py speed MODEL THREADS PROMPTS KV GROUP MEASURE...

Arguments and lines as llama_driver.cpp's. KV is the KV cache's precision (u8, f16, f32), GROUP how many activations share a scale of
8 bits (0: float activations); "default" leaves either to OpenVINO.
"""

import sys
import time

import numpy as np
import openvino
import openvino_genai


class Engine:
    def __init__(self, model, threads, kv, group):
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2
        scheduler.max_num_batched_tokens = 16384  # all prompts of a measurement in one step: no decoding before its time
        scheduler.max_num_seqs = 256
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        if kv != "default":
            properties["KV_CACHE_PRECISION"] = kv
        if group != "default":
            properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = int(group)
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
        self.requests = 0

    def run(self, prompts, output):
        """Seconds until every prompt has its first token, seconds after that, and tokens that came after that."""
        sampling = openvino_genai.GenerationConfig()
        sampling.max_new_tokens = output
        sampling.ignore_eos = True
        sampling.do_sample = False
        begin = time.perf_counter()
        handles = []
        for ids in prompts:
            handles.append(self.pipeline.add_request(self.requests, openvino.Tensor(np.array([ids], dtype=np.int64)), sampling))
            self.requests += 1
        waiting = set(range(len(handles)))
        all_begun = None
        tokens = 0
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            counted = all_begun is not None
            for index, handle in enumerate(handles):
                while handle.can_read():
                    found = sum(len(one.generated_ids) for one in handle.read().values())
                    if found:
                        waiting.discard(index)
                    if counted:
                        tokens += found
            if not waiting and all_begun is None:
                all_begun = time.perf_counter()
        return all_begun - begin, time.perf_counter() - all_begun, tokens


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
    mode, model, threads, prompts_path, kv, group, *measures = sys.argv[1:]
    if mode != "speed":
        raise SystemExit("error: expected speed")
    with open(prompts_path) as file:
        prompts = [[int(word) for word in line.split()] for line in file]
    engine = Engine(model, int(threads), kv, group)
    for what in measures:
        seconds, tokens = measure(engine, prompts, what)
        print(what, f"{seconds:.6f}", tokens, flush=True)


if __name__ == "__main__":
    main()
