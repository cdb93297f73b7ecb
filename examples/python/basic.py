"""A few prompts in one batch.    python basic.py [MODEL]"""

import sys

from quire import LLM, SamplingParams

prompts = ["The capital of France is", "Once upon a time", "Two plus two is"]
params = SamplingParams(temperature=0.8, top_p=0.95, max_tokens=24, seed=1)

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "")
for output in llm.generate(prompts, params):
    print(f"{output.prompt!r} -> {output.outputs[0].text!r}")
