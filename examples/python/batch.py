"""Many prompts with a bar of progress, log-probabilities as numpy arrays.    python batch.py [MODEL]"""

import sys

import numpy

from quire import LLM, SamplingParams

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "")
prompts = [f"{number} times {number} is" for number in range(1, 33)]
outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4, logprobs=0), arrays=True)
chosen = numpy.concatenate([output.outputs[0].logprobs.logprobs[:, 0] for output in outputs])
print(f"{len(outputs)} answers, {len(chosen)} tokens, mean log-probability {chosen.mean():.3f}")
