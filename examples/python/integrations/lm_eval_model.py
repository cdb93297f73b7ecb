"""lm-evaluation-harness over the engine in its own process: no server, no HTTP.

    python lm_eval_model.py --model quire --model_args model=PATH,max_model_len=2048 --tasks TASK

The harness's own command line, with the model `quire` beside its others. model_args are LLM()'s arguments.
"""

from __future__ import annotations

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from quire import LLM, SamplingParams


@register_model("quire")
class QuireLM(LM):
    def __init__(self, model="", max_gen_toks=256, batch_size=None, device=None, max_batch_size=None, **arguments):
        super().__init__()
        self._llm = LLM(model=model, **arguments)
        self._tokenizer = self._llm.get_tokenizer()
        self._max_gen_toks = int(max_gen_toks)

    @property
    def tokenizer_name(self):
        return "quire"

    def apply_chat_template(self, chat_history, add_generation_prompt=True):
        return self._tokenizer.apply_chat_template(chat_history, tokenize=False,
                                                   add_generation_prompt=add_generation_prompt,
                                                   continue_final_message=not add_generation_prompt)

    def _prefix(self):
        first = self._tokenizer.bos_token_id
        return [self._tokenizer.eos_token_id if first is None else first]

    def _pair(self, context, continuation):
        """Token ids of both; the space between them belongs to the continuation."""
        kept = context.rstrip()
        continuation, context = context[len(kept):] + continuation, kept
        if not context:
            return self._prefix(), self._tokenizer.encode(continuation, add_special_tokens=False)
        before = self._tokenizer.encode(context)
        return before, self._tokenizer.encode(context + continuation)[len(before):]

    def _scores(self, pairs):
        """For each (context, continuation) the continuation's log-probability, and whether it is the likeliest."""
        most = self._llm.max_model_len - 1
        prompts = [(context + continuation)[-most:] for context, continuation in pairs]
        outputs = self._llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False))
        scores = []
        for (_, continuation), prompt, output in zip(pairs, prompts, outputs):
            if output.outputs[0].error is not None:
                raise output.outputs[0].error
            count = min(len(continuation), len(prompt) - 1)
            chosen = [position[token] for token, position in zip(prompt[-count:], output.prompt_logprobs[-count:])]
            scores.append((sum(one.logprob for one in chosen), all(one.rank == 1 for one in chosen)))
        return scores

    def loglikelihood(self, requests, disable_tqdm=False):
        return self._scores([self._pair(*request.args) for request in requests])

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        window = self._llm.max_model_len - 2
        totals = []
        for request in requests:
            tokens = self._prefix() + self._tokenizer.encode(request.args[0], add_special_tokens=False)
            pairs = []
            for begin in range(1, len(tokens), window):
                end = min(begin + window, len(tokens))
                pairs.append((tokens[max(0, end - window - 1):begin], tokens[begin:end]))
            totals.append(sum(score for score, _ in self._scores(pairs)))
        return totals

    def generate_until(self, requests, disable_tqdm=False):
        params = []
        for request in requests:
            asked = dict(request.args[1])
            until = asked.get("until") or []
            sampling = {name: asked[name] for name in ("temperature", "top_p", "top_k", "min_p") if name in asked}
            if not asked.get("do_sample", False):
                sampling = {"temperature": 0}
            params.append(SamplingParams(max_tokens=int(asked.get("max_gen_toks", self._max_gen_toks)),
                                         stop=[until] if isinstance(until, str) else list(until), **sampling))
        outputs = self._llm.generate([request.args[0] for request in requests], params)
        return [output.outputs[0].text for output in outputs]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
