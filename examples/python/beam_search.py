"""The most likely continuations, instead of drawn ones.    python beam_search.py [MODEL]"""

import sys

from quire import LLM
from quire.sampling_params import BeamSearchParams

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "")
for output in llm.beam_search(["The capital of France is"], BeamSearchParams(beam_width=4, max_tokens=12)):
    for beam in output.sequences:
        print(f"{beam.cum_logprob:8.3f}  {beam.text!r}")
