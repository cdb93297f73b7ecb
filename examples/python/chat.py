"""A conversation, and several at once, through the model's chat template.    python chat.py [MODEL]"""

import sys

from quire import LLM, SamplingParams

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "")
params = SamplingParams(temperature=0, max_tokens=32)

conversation = [
    {"role": "system", "content": "You answer in one short sentence."},
    {"role": "user", "content": "What is a quire?"},
]
answer = llm.chat(conversation, params, use_tqdm=False)[0].outputs[0].text
print(answer)

conversation += [{"role": "assistant", "content": answer}, {"role": "user", "content": "Say it in other words."}]
others = [[{"role": "user", "content": f"Name a city in {country}."}] for country in ("France", "Japan")]
for output in llm.chat([conversation, *others], params):
    print("-", output.outputs[0].text.strip())
