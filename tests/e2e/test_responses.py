"""/v1/responses with the real `openai` package."""

import time
import unittest

import openai

import harness

QUESTION = "What is the capital of France?"


@harness.needs_default_model
class Responses(harness.ServerTest):
    arguments = ("--activation-dtype", "float32")  # whose answers are known

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=300)
        cls.addClassCleanup(cls.client.close)
        cls.model_name = cls.client.models.list().data[0].id

    def create(self, **parameters):
        return self.client.responses.create(**{"model": self.model_name, "input": QUESTION, "temperature": 0,
                                               "max_output_tokens": 32, **parameters})

    def chat(self, messages):
        answer = self.client.chat.completions.create(model=self.model_name, messages=messages, temperature=0,
                                                     max_tokens=32)
        return answer.choices[0].message.content

    def ended(self, identifier):
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            response = self.client.responses.retrieve(identifier)
            if response.status not in ("queued", "in_progress"):
                return response
            time.sleep(0.05)
        self.fail(f"response {identifier} does not end")

    def test_an_answer_is_the_chats(self):
        response = self.create(instructions="Be brief.", metadata={"who": "test"})
        self.assertEqual(response.status, "completed")
        self.assertIn("Paris", response.output_text)
        self.assertEqual(response.output_text, self.chat([{"role": "system", "content": "Be brief."},
                                                          {"role": "user", "content": QUESTION}]))
        self.assertEqual(response.metadata, {"who": "test"})
        self.assertEqual(response.usage.total_tokens, response.usage.input_tokens + response.usage.output_tokens)
        self.assertGreaterEqual(response.usage.input_tokens_details.cached_tokens, 0)
        self.assertEqual(response.output[0].content[0].type, "output_text")

    def test_an_answer_cut_short_is_incomplete(self):
        response = self.create(max_output_tokens=2)
        self.assertEqual(response.status, "incomplete")
        self.assertEqual(response.incomplete_details.reason, "max_output_tokens")
        self.assertEqual(response.usage.output_tokens, 2)

    def test_a_stream_says_what_the_whole_answer_says(self):
        whole = self.create()
        with self.client.responses.stream(model=self.model_name, input=QUESTION, temperature=0,
                                          max_output_tokens=32) as stream:
            events = list(stream)
            final = stream.get_final_response()
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        self.assertEqual(events[0].type, "response.created")
        self.assertEqual(events[-1].type, "response.completed")
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)
        self.assertEqual(final.output_text, whole.output_text)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        self.assertEqual(self.client.responses.retrieve(final.id).output_text, whole.output_text)

    def test_a_conversation_goes_on_from_a_response(self):
        first = self.create()
        second = self.create(input="And of Italy?", previous_response_id=first.id)
        self.assertEqual(second.output_text, self.chat([
            {"role": "user", "content": QUESTION}, {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "And of Italy?"}]))
        self.assertEqual(second.previous_response_id, first.id)

    def test_a_stored_response_is_there_until_it_is_deleted(self):
        response = self.create(input=[{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}])
        self.assertEqual(self.client.responses.retrieve(response.id).output_text, response.output_text)
        items = self.client.responses.input_items.list(response.id)
        self.assertEqual(items.data[0].content[0].text, QUESTION)
        self.client.responses.delete(response.id)
        with self.assertRaises(openai.NotFoundError):
            self.client.responses.retrieve(response.id)

    def test_a_response_in_the_background_is_fetched_later(self):
        response = self.create(background=True)
        self.assertEqual(response.status, "queued")
        self.assertIn("Paris", self.ended(response.id).output_text)

    def test_a_response_in_the_background_is_cancelled(self):
        response = self.create(background=True, max_output_tokens=4000, extra_body={"ignore_eos": True})
        self.assertEqual(self.client.responses.cancel(response.id).status, "cancelled")
        self.assertEqual(self.client.responses.retrieve(response.id).status, "cancelled")
        self.server.wait_until_idle()

    def test_logprobs(self):
        response = self.create(include=["message.output_text.logprobs"], top_logprobs=2)
        logprobs = response.output[0].content[0].logprobs
        self.assertEqual(len(logprobs), response.usage.output_tokens)
        self.assertEqual(len(logprobs[0].top_logprobs), 2)

    def test_a_schema_is_kept(self):
        schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"],
                  "additionalProperties": False}
        response = self.create(text={"format": {"type": "json_schema", "name": "answer", "schema": schema}},
                               max_output_tokens=64)
        self.assertRegex(response.output_text, r'^\s*\{\s*"city"\s*:\s*"(Paris|Rome)"\s*\}\s*$')
        with self.assertRaises(openai.BadRequestError) as raised:
            self.create(text={"format": {"type": "json_schema", "name": "answer", "schema": {"type": "strange"}}})
        self.assertEqual(raised.exception.param, "text.format")

    def test_bad_requests_are_bad_request_errors(self):
        for parameters in ({"input": []}, {"temperature": 9}, {"truncation": "some"}, {"max_output_tokens": -1},
                           {"extra_body": {"conversation": "conv_1"}}, {"tools": [{"type": "web_search"}]}):
            with self.subTest(**parameters), self.assertRaises(openai.BadRequestError) as raised:
                self.create(**parameters)
            self.assertTrue(raised.exception.param)
        with self.assertRaises(openai.NotFoundError):
            self.create(previous_response_id="resp_unknown")
        self.server.wait_until_idle()


if __name__ == "__main__":
    harness.main()
