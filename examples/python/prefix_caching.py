"""What prompts share is computed once.    python prefix_caching.py [MODEL]"""

import sys
import time

from quire import LLM, SamplingParams

manual = "You are a clerk in a paper mill. " + "A quire has twenty-four sheets, a ream has twenty quires. " * 20
questions = ["How many sheets has a ream?", "How many quires has a ream?", "Who are you?"]
params = SamplingParams(temperature=0, max_tokens=8)

for caching in (False, True):
    with LLM(model=sys.argv[1] if len(sys.argv) > 1 else "", enable_prefix_caching=caching) as llm:
        llm.generate(manual, params, use_tqdm=False)  # what the others begin with
        start = time.perf_counter()
        outputs = llm.generate([manual + question for question in questions], params, use_tqdm=False)
        cached = [output.num_cached_tokens for output in outputs]
        print(f"enable_prefix_caching={caching}: {time.perf_counter() - start:.2f} s, tokens found in the cache: {cached}")
