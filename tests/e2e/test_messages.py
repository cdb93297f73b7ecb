"""/v1/messages with the real `anthropic` package."""

import unittest

import anthropic

import harness

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def client_of(server, **key):
    return anthropic.Anthropic(base_url=server.url, max_retries=0, timeout=300, **(key or {"api_key": "none"}))


@harness.needs_default_model
class Messages(harness.ServerTest):
    arguments = ("--activation-dtype", "float32", "--api-key", "the-right-key")  # whose answers are known

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = client_of(cls.server, api_key="the-right-key")
        cls.addClassCleanup(cls.client.close)
        cls.model_name = harness.DEFAULT_MODEL.name

    def create(self, **parameters):
        return self.client.messages.create(**{"model": self.model_name, "messages": QUESTION, "max_tokens": 32,
                                              "extra_body": {"temperature": 0}, **parameters})

    def test_a_message_is_answered(self):
        message = self.create(system="Be brief.")
        self.assertIn("Paris", message.content[0].text)
        self.assertEqual(message.role, "assistant")
        self.assertEqual(message.stop_reason, "end_turn")
        self.assertGreater(message.usage.output_tokens, 0)
        self.assertGreater(message.usage.input_tokens + message.usage.cache_read_input_tokens, 0)

    def test_a_message_cut_short_and_one_that_was_stopped(self):
        self.assertEqual(self.create(max_tokens=2).stop_reason, "max_tokens")
        stopped = self.create(stop_sequences=["Paris"])
        self.assertEqual(stopped.stop_reason, "stop_sequence")
        self.assertEqual(stopped.stop_sequence, "Paris")
        self.assertNotIn("Paris", stopped.content[0].text)

    def test_a_stream_says_what_the_whole_answer_says(self):
        whole = self.create()
        with self.client.messages.stream(model=self.model_name, messages=QUESTION, max_tokens=32,
                                         extra_body={"temperature": 0}) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.content[0].text, text)
        self.assertEqual(final.stop_reason, whole.stop_reason)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_tokens_are_counted_as_they_are_used(self):
        counted = self.client.messages.count_tokens(model=self.model_name, messages=QUESTION, system="Be brief.")
        usage = self.create(system="Be brief.").usage
        self.assertEqual(counted.input_tokens, usage.input_tokens + usage.cache_read_input_tokens)

    def test_a_beginning_of_the_answer_is_gone_on_from(self):
        message = self.create(messages=QUESTION + [{"role": "assistant", "content": "The capital of France is"}],
                              max_tokens=4)
        self.assertIn("Paris", message.content[0].text)

    def test_blocks_are_a_conversation(self):
        message = self.create(messages=[
            {"role": "user", "content": [{"type": "text", "text": "My name is Ada."}]},
            {"role": "assistant", "content": [{"type": "text", "text": "Hello Ada."}]},
            {"role": "user", "content": "What is the capital of France?"}])
        self.assertTrue(message.content[0].text)

    def test_errors_are_the_packages_own(self):
        with client_of(self.server, api_key="wrong") as wrong, self.assertRaises(anthropic.AuthenticationError):
            wrong.messages.create(model=self.model_name, messages=QUESTION, max_tokens=4)
        with self.assertRaises(anthropic.NotFoundError):
            self.create(model="no-such-model")
        for parameters in ({"max_tokens": 0}, {"messages": []}, {"messages": [{"role": "boss", "content": "x"}]},
                           {"stop_sequences": ["x"] * 1025}, {"extra_body": {"container": "c"}},
                           {"max_tokens": 1_000_000}):
            with self.subTest(**parameters), self.assertRaises(anthropic.BadRequestError) as raised:
                self.create(**parameters)
            self.assertEqual(raised.exception.body["error"]["type"], "invalid_request_error")
        self.assertEqual(self.server.get("/v1/models", {"x-api-key": "the-right-key"}).status, 200)

    def test_a_bearers_key_is_as_good(self):
        with client_of(self.server, auth_token="the-right-key") as client:
            message = client.messages.create(model=self.model_name, messages=QUESTION, max_tokens=2)
            self.assertEqual(message.type, "message")

    def test_an_aborted_stream_ends_its_work(self):
        with self.client.messages.stream(model=self.model_name, max_tokens=4000,
                                         messages=[{"role": "user", "content": "Tell a long story."}]) as stream:
            next(iter(stream.text_stream))
        metrics_key = {"Authorization": "Bearer the-right-key"}
        for _ in range(600):
            text = self.server.get("/metrics", metrics_key).body.decode()
            running = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
            if float(running[0].split()[-1]) == 0:
                return
        self.fail("the request still runs")


if __name__ == "__main__":
    harness.main()
