"""Answers of a given form.    python structured_outputs.py [MODEL]"""

import json
import sys

from quire import LLM, SamplingParams
from quire.sampling_params import StructuredOutputsParams

llm = LLM(model=sys.argv[1] if len(sys.argv) > 1 else "")


def ask(question, **form):
    params = SamplingParams(temperature=0, max_tokens=80, structured_outputs=StructuredOutputsParams(**form))
    messages = [{"role": "user", "content": question}]
    return llm.chat(messages, params, use_tqdm=False)[0].outputs[0].text


print(ask("Is this a good or a bad review? \"I would buy it again.\"", choice=["good", "bad"]))
print(ask("Give an e-mail address of Ada Lovelace at example.com.", regex=r"[a-z.]{3,20}@example\.com"))
car = {"type": "object", "properties": {"brand": {"type": "string", "maxLength": 20},
                                        "doors": {"type": "integer", "minimum": 2, "maximum": 5}},
       "required": ["brand", "doors"], "additionalProperties": False}
print(json.loads(ask("Describe a car as JSON.", json=car)))
print(ask("Write a query that selects a column of a table.", grammar='''
root ::= "SELECT " name " FROM " name
name ::= [a-z]{1,8}
'''))
