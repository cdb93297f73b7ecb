"""The default model against an independent float32 implementation's record of it (tests/data/e2e/smollm2.json)."""

import json
import unittest

import harness
import recorded_answers

MARGIN = 0.05          # a step whose two best logits are closer may go either way
MEAN_TOLERANCE = 0.005
TOP_TOLERANCE = 0.02   # of the logarithm of one token's probability

RECORD = json.loads((harness.DATA / "e2e/smollm2.json").read_text())


@harness.needs_default_model
class Oracle(harness.ServerTest):
    arguments = ("--activation-dtype", "float32")

    def test_chat_gives_the_recorded_prompt_and_answer(self):
        for case in RECORD["cases"]:
            with self.subTest(message=case["message"][:40]):
                found = recorded_answers.compare(self.server, case, MARGIN)
                self.assertTrue(found.within(MEAN_TOLERANCE, TOP_TOLERANCE), found)

    def test_a_prompt_of_ids_is_scored_without_generating(self):
        for case in RECORD["cases"]:
            with self.subTest(message=case["message"][:40]):
                answer = self.server.answer("/v1/completions", {
                    "prompt": case["prompt_ids"], "max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0,
                    "return_token_ids": True, "return_tokens_as_token_ids": True})
                choice = answer["choices"][0]
                self.assertEqual(choice["prompt_token_ids"], case["prompt_ids"])
                self.assertEqual(answer["usage"]["completion_tokens"], 0)
                self.assertEqual(choice["logprobs"]["tokens"], [f"token_id:{id}" for id in case["prompt_ids"]])
                logprobs = choice["logprobs"]["token_logprobs"]
                self.assertIsNone(logprobs[0])
                self.assertAlmostEqual(sum(logprobs[1:]) / len(logprobs[1:]), case["mean_prompt_logprob"],
                                       delta=MEAN_TOLERANCE)

    def test_the_rendered_prompt_is_the_recorded_text(self):
        for case in RECORD["cases"]:
            with self.subTest(message=case["message"][:40]):
                answer = self.server.answer("/v1/completions", {
                    "prompt": case["prompt_ids"], "max_tokens": 0, "echo": True, "skip_special_tokens": False})
                self.assertEqual(answer["choices"][0]["text"], case["prompt_text"])

    def test_a_prompt_of_ids_is_continued_as_recorded(self):
        # All at once, so that the prompts share steps.
        cases = RECORD["cases"]
        answer = self.server.answer("/v1/completions", {
            "prompt": [case["prompt_ids"] for case in cases], "temperature": 0, "return_token_ids": True,
            "max_tokens": max(len(case["greedy_ids"]) for case in cases)})
        self.assertEqual([choice["index"] for choice in answer["choices"]], list(range(len(cases))))
        for case, choice in zip(cases, answer["choices"]):
            steps = harness.steps_to_compare(case["greedy_margin"], MARGIN)
            self.assertEqual(choice["token_ids"][:steps], case["greedy_ids"][:steps], case["message"])


if __name__ == "__main__":
    harness.main()
