"""Answers do not depend on what else runs: 32 requests at once against the same requests one by one, by token ids and
bit-equal logprobs; also when the KV pool is too small for all of them and sequences are preempted."""

import concurrent.futures
import random
import unittest

import harness

REQUESTS = 32
SUBJECTS = ["the sea", "an old house", "a train at night", "winter", "two brothers", "a lost key", "the market", "fog"]


def make_requests(seed, most_words, most_tokens):
    """Different lengths, some greedy, some sampled with a seed of their own."""
    random_source = random.Random(seed)
    requests = []
    for number in range(REQUESTS):
        words = " ".join(random_source.choice(SUBJECTS) for _ in range(random_source.randrange(1, most_words)))
        request = {"messages": [{"role": "user", "content": f"Write about {words}."}], "ignore_eos": True,
                   "max_tokens": random_source.randrange(4, most_tokens), "logprobs": True, "top_logprobs": 2,
                   "return_token_ids": True, "temperature": 0}
        if number % 2:
            request.update(temperature=0.8, top_p=0.95, seed=number, presence_penalty=0.5)
        requests.append(request)
    return requests


class Concurrency:
    seed = 20260101
    most_words = 60
    most_tokens = 48

    def ask(self, request):
        answer = self.server.answer("/v1/chat/completions", request)
        choice = answer["choices"][0]
        logprobs = [[entry["logprob"], [top["logprob"] for top in entry["top_logprobs"]]]
                    for entry in choice["logprobs"]["content"]]
        return {"prompt": answer["prompt_token_ids"], "ids": choice["token_ids"], "logprobs": logprobs,
                "text": choice["message"]["content"], "finish": choice["finish_reason"]}

    def test_32_at_once_answer_as_one_at_a_time(self):
        print(f"seed {self.seed}")
        requests = make_requests(self.seed, self.most_words, self.most_tokens)
        with concurrent.futures.ThreadPoolExecutor(REQUESTS) as threads:
            together = list(threads.map(self.ask, requests))
        self.check_after_the_crowd()
        for number, request in enumerate(requests):
            with self.subTest(request=number):
                alone = self.ask(request)
                self.assertEqual(len(alone["ids"]), request["max_tokens"])
                self.assertEqual(together[number], alone)
        self.server.wait_until_idle()

    def check_after_the_crowd(self):
        pass


@harness.needs_default_model
class WithRoomForAll(Concurrency, harness.ServerTest):
    pass


@harness.needs_default_model
class WithSmallSteps(Concurrency, harness.ServerTest):
    """Prompts are cut into chunks that share steps with others' decoding."""

    arguments = ("--max-num-batched-tokens", 64, "--max-num-seqs", 32)


@harness.needs_default_model
class WithTooFewBlocks(Concurrency, harness.ServerTest):
    """A pool of 60 blocks of 16 tokens and answers that outgrow their prompts: sequences are preempted and computed
    again."""

    most_words = 8
    most_tokens = 120
    arguments = ("--max-model-len", 512, "--kv-cache-memory-bytes", 60 * 16 * 23040)  # 30 layers x 2 x 3 x 64 x 2 B

    def check_after_the_crowd(self):
        self.assertGreater(self.server.metrics()["vllm:num_preemptions_total"], 0)


if __name__ == "__main__":
    harness.main()
