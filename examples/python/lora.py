"""The same model with and without an adapter, in one batch.    python lora.py MODEL ADAPTER"""

import sys

from quire import LLM, SamplingParams
from quire.lora.request import LoRARequest

if len(sys.argv) != 3:
    sys.exit(__doc__)
llm = LLM(model=sys.argv[1], enable_lora=True, max_lora_rank=64, skip_tokenizer_init=True)
adapter = LoRARequest("mine", 1, sys.argv[2])
prompt = [3, 17, 44, 9, 21]  # token ids, as any model takes them
for output in llm.generate([prompt, prompt], SamplingParams(temperature=0, max_tokens=12), lora_request=[None, adapter]):
    print(output.outputs[0].token_ids)
