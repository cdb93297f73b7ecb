"""The real `openai` package against the server: what it sends is understood, what it gets back it can parse, and errors
arrive as its own exceptions."""

import concurrent.futures
import math
import unittest

import openai

import harness

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STORY = [{"role": "user", "content": "Tell me a long story about a sailor."}]


def client_of(server, api_key="none"):
    return openai.OpenAI(base_url=server.url + "/v1", api_key=api_key, max_retries=0, timeout=300)


def text_of(answer):
    return answer.choices[0].message.content


@harness.needs_default_model
class OpenAIClient(harness.ServerTest):
    arguments = ("--activation-dtype", "float32")  # whose answers are known

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = client_of(cls.server)
        cls.addClassCleanup(cls.client.close)
        cls.model_name = cls.client.models.list().data[0].id

    def chat(self, **parameters):
        return self.client.chat.completions.create(
            **{"model": self.model_name, "messages": QUESTION, "max_tokens": 16, "temperature": 0, **parameters})

    def complete(self, **parameters):
        return self.client.completions.create(
            **{"model": self.model_name, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0,
               **parameters})

    def test_models_are_listed_and_found(self):
        models = self.client.models.list().data
        self.assertEqual(len(models), 1)
        self.assertEqual(models[0].object, "model")
        self.assertEqual(self.client.models.retrieve(self.model_name).id, self.model_name)

    def test_chat_answers(self):
        answer = self.chat()
        self.assertIn("Paris", text_of(answer))
        self.assertEqual(answer.object, "chat.completion")
        self.assertTrue(answer.id.startswith("chatcmpl-"))
        self.assertEqual(answer.model, self.model_name)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertGreater(answer.usage.completion_tokens, 0)

    def test_completions_answer(self):
        answer = self.complete()
        self.assertEqual(answer.object, "text_completion")
        self.assertTrue(answer.id.startswith("cmpl-"))
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 8)
        self.assertGreater(len(answer.choices[0].text), 0)

    def test_a_list_of_prompts_is_answered_in_order_each_as_if_alone(self):
        prompts = ["One, two, three,", "The opposite of hot is", "def main():"]
        together = self.complete(prompt=prompts)
        self.assertEqual([choice.index for choice in together.choices], [0, 1, 2])
        alone = [self.complete(prompt=prompt).choices[0].text for prompt in prompts]
        self.assertEqual([choice.text for choice in together.choices], alone)

    def test_a_chat_stream_says_what_the_whole_answer_says(self):
        whole = self.chat()
        chunks = list(self.chat(stream=True, stream_options={"include_usage": True}))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), text_of(whole))
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
        self.assertEqual(reasons, [whole.choices[0].finish_reason])
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.prompt_tokens, whole.usage.prompt_tokens)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)
        self.assertEqual({c.id for c in chunks}, {chunks[0].id})

    def test_a_stream_without_usage_asked_for_has_none(self):
        for chunk in self.chat(stream=True):
            self.assertIsNone(chunk.usage)
            self.assertEqual(len(chunk.choices), 1)

    def test_a_completion_stream_says_what_the_whole_answer_says(self):
        whole = self.complete()
        chunks = list(self.complete(stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), whole.choices[0].text)
        self.assertEqual(chunks[-1].usage.completion_tokens, 8)

    def test_eight_clients_at_once_get_what_each_gets_alone(self):
        topics = ["rivers", "bread", "the moon", "clocks", "ships", "rain", "music", "ants"]

        def ask(topic):
            with client_of(self.server) as client:
                return text_of(client.chat.completions.create(
                    model=self.model_name, messages=[{"role": "user", "content": f"Tell me about {topic}."}],
                    max_tokens=24, temperature=0))

        alone = [ask(topic) for topic in topics]
        with concurrent.futures.ThreadPoolExecutor(len(topics)) as threads:
            self.assertEqual(list(threads.map(ask, topics)), alone)

    def test_an_aborted_stream_ends_its_work_and_nothing_else(self):
        stream = self.chat(messages=STORY, max_tokens=4000, stream=True, extra_body={"ignore_eos": True})
        for number, _ in enumerate(stream):
            if number == 3:
                break
        stream.close()
        self.server.wait_until_idle()
        self.assertIn("Paris", text_of(self.chat()))

    def test_two_choices_of_a_seeded_request_are_reproducible(self):
        first = self.chat(n=2, temperature=0.9, seed=7, messages=STORY)
        again = self.chat(n=2, temperature=0.9, seed=7, messages=STORY)
        self.assertEqual([choice.index for choice in first.choices], [0, 1])
        self.assertEqual([c.message.content for c in first.choices], [c.message.content for c in again.choices])
        self.assertNotEqual(first.choices[0].message.content, first.choices[1].message.content)

    def test_two_choices_stream_by_index(self):
        whole = self.chat(n=2, temperature=0.9, seed=7, messages=STORY)
        texts = ["", ""]
        for chunk in self.chat(n=2, temperature=0.9, seed=7, messages=STORY, stream=True):
            texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        self.assertEqual(texts, [choice.message.content for choice in whole.choices])

    def test_another_seed_gives_another_answer(self):
        answers = {text_of(self.chat(temperature=1.2, seed=seed, messages=STORY)) for seed in range(4)}
        self.assertGreater(len(answers), 1)

    def test_chat_logprobs(self):
        answer = self.chat(logprobs=True, top_logprobs=3)
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), answer.usage.completion_tokens)
        for entry in content:
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertLessEqual(entry.logprob, 0)
            self.assertEqual(entry.logprob, max(top.logprob for top in entry.top_logprobs))  # greedy
            self.assertLessEqual(sum(math.exp(top.logprob) for top in entry.top_logprobs), 1 + 1e-4)
            self.assertEqual(bytes(entry.bytes).decode(errors="replace"), entry.token)

    def test_completion_logprobs_and_echo(self):
        answer = self.complete(logprobs=2, echo=True)
        choice = answer.choices[0]
        self.assertTrue(choice.text.startswith("The capital of France is"))
        count = answer.usage.prompt_tokens + answer.usage.completion_tokens
        self.assertEqual(len(choice.logprobs.tokens), count)
        self.assertEqual(len(choice.logprobs.token_logprobs), count)
        self.assertIsNone(choice.logprobs.token_logprobs[0])
        self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        for offset, token in zip(choice.logprobs.text_offset, choice.logprobs.tokens):
            self.assertEqual(choice.text[offset:offset + len(token)], token)

    def test_a_stop_string_ends_the_answer_before_it(self):
        whole = text_of(self.chat())
        answer = self.chat(stop=["Paris"])
        self.assertEqual(text_of(answer), whole[:whole.index("Paris")])
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(answer.choices[0].stop_reason, "Paris")

    def test_a_stop_string_is_never_streamed_in_part(self):
        whole = text_of(self.chat())
        text = "".join(chunk.choices[0].delta.content or "" for chunk in self.chat(stop=["France is Paris"], stream=True))
        self.assertEqual(text, whole[:whole.index("France is Paris")])

    def test_logit_bias_forbids_a_token(self):
        ids = self.complete(extra_body={"return_token_ids": True}).choices[0].token_ids
        biased = self.complete(logit_bias={str(ids[0]): -100}, extra_body={"return_token_ids": True})
        self.assertNotEqual(biased.choices[0].token_ids[0], ids[0])

    def test_max_completion_tokens_wins(self):
        answer = self.chat(messages=STORY, max_tokens=2, max_completion_tokens=5)
        self.assertEqual(answer.usage.completion_tokens, 5)

    def test_bad_requests_are_bad_request_errors(self):
        cases = [{"temperature": -1}, {"temperature": 3}, {"top_p": 0}, {"n": 0}, {"n": 1_000_000},
                 {"max_tokens": -1}, {"messages": []}, {"messages": [{"content": "no role"}]},
                 {"logprobs": True, "top_logprobs": 1000}, {"stop": ["a"] * 2000},
                 {"logit_bias": {"99999999": 1}}, {"stream_options": {"include_usage": True}},
                 {"max_tokens": 1_000_000}, {"presence_penalty": 9}, {"extra_body": {"repetition_penalty": 0}},
                 {"extra_body": {"min_p": 2}}, {"extra_body": {"stop_token_ids": [-1]}}]
        for parameters in cases:
            with self.subTest(**parameters), self.assertRaises(openai.BadRequestError) as raised:
                self.chat(**parameters)
            self.assertTrue(raised.exception.message)
            self.assertEqual(raised.exception.type, "BadRequestError")
        self.server.wait_until_idle()

    def test_a_prompt_longer_than_the_context_is_a_bad_request(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            self.complete(prompt=[100] * 100_000)
        self.assertIn("maximum context length", raised.exception.message)

    def test_token_ids_outside_the_vocabulary_are_a_bad_request(self):
        for prompt in ([-1], [10_000_000], [1, 2**31]):
            with self.subTest(prompt=prompt), self.assertRaises(openai.BadRequestError):
                self.complete(prompt=prompt)

    def test_an_unknown_model_is_a_not_found_error(self):
        with self.assertRaises(openai.NotFoundError) as raised:
            self.chat(model="no-such-model")
        self.assertEqual(raised.exception.param, "model")
        self.assertIn("no-such-model", raised.exception.message)

    def test_an_unknown_route_is_a_not_found_error(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.post("/nowhere", body={}, cast_to=object)

    def test_bytes_that_are_no_json_are_a_bad_request(self):
        for body in (b"", b"{", b"[]", b'"text"', b"\xff\xfe", b'{"messages": 1e999}', b"[" * 100_000):
            with self.subTest(body=body[:16]):
                reply = self.server.post("/v1/chat/completions", body)
                self.assertEqual(reply.status, 400)
                self.assertEqual(set(reply.json["error"]), {"message", "type", "param", "code"})


@harness.needs_default_model
class ApiKey(harness.ServerTest):
    arguments = ("--api-key", "the-right-key", "--served-model-name", "my-model")

    def test_the_right_key_and_name_are_served(self):
        with client_of(self.server, "the-right-key") as client:
            self.assertEqual([model.id for model in client.models.list()], ["my-model"])
            answer = client.chat.completions.create(model="my-model", messages=QUESTION, max_tokens=4)
            self.assertEqual(answer.model, "my-model")

    def test_a_wrong_key_is_an_authentication_error(self):
        for key in ("the-wrong-key", "the-right-ke", "the-right-key2", "x"):
            with self.subTest(key=key), client_of(self.server, key) as client:
                with self.assertRaises(openai.AuthenticationError) as raised:
                    client.chat.completions.create(model="my-model", messages=QUESTION, max_tokens=4)
                self.assertNotIn("the-right-key", str(raised.exception).replace(key, ""))

    def test_no_key_is_refused_and_health_needs_none(self):
        self.assertEqual(self.server.get("/v1/models").status, 401)
        self.assertEqual(self.server.get("/health").status, 200)


if __name__ == "__main__":
    harness.main()
