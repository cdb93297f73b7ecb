"""One case of tests/data/e2e/smollm2.json beside what a server says: how far they are apart."""

import dataclasses

import harness


@dataclasses.dataclass
class Difference:
    same_prompt: bool            # token by token: the chat template and the tokenizer
    mean_prompt_logprob: float   # of the means over the prompt
    top_logprob: float           # the largest of the first answered token's four likeliest
    steps: int                   # greedy tokens before the first whose margin is too small to tell
    first_other_step: int | None  # among these
    same_text: bool              # of answers that are compared to their end

    def within(self, mean, top):
        return (self.same_prompt and self.mean_prompt_logprob <= mean and self.top_logprob <= top
                and self.first_other_step is None and self.same_text)


def compare(server, case, margin):
    """Asks the server for the case's answer. MARGIN: of the two best logits, below which either token may come."""
    answer = server.answer("/v1/chat/completions", {
        "messages": [{"role": "user", "content": case["message"]}], "temperature": 0,
        "max_tokens": len(case["greedy_ids"]), "logprobs": True, "top_logprobs": 8,
        "prompt_logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True})
    same_prompt = (answer["prompt_token_ids"] == case["prompt_ids"]
                   and answer["usage"]["prompt_tokens"] == len(case["prompt_ids"]) and answer["prompt_logprobs"][0] is None)
    logprobs = [entry[str(token)]["logprob"]
                for entry, token in zip(answer["prompt_logprobs"][1:], answer["prompt_token_ids"][1:], strict=True)]
    mean = sum(logprobs) / len(logprobs)

    choice = answer["choices"][0]
    top = {int(entry["token"].removeprefix("token_id:")): entry["logprob"]
           for entry in choice["logprobs"]["content"][0]["top_logprobs"]}
    steps = harness.steps_to_compare(case["greedy_margin"], margin)
    given = choice["token_ids"]
    other = next((step for step in range(steps) if step >= len(given) or given[step] != case["greedy_ids"][step]), None)
    whole = steps == len(case["greedy_ids"])
    return Difference(
        same_prompt=same_prompt,
        mean_prompt_logprob=abs(mean - case["mean_prompt_logprob"]),
        top_logprob=max(abs(top.get(token, float("-inf")) - logprob) for token, logprob in case["next_token_top8"][:4]),
        steps=steps,
        first_other_step=other,
        same_text=not whole or (given == case["greedy_ids"] and choice["message"]["content"] == case["greedy_text"]))
