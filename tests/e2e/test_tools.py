"""Calls of tools and reasoning through the real `openai` package: what the grammar makes is what the client parses, streamed
or whole."""

import json
import os
import tempfile
import unittest

import openai

import harness

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 7},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
TIME = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}},
}
QUESTION = [{"role": "user", "content": "What is the weather in Paris?"}]

# ChatML that opens the model's reasoning, as templates of reasoning models do.
THINKING_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% if enable_thinking is defined and not enable_thinking %}"
    "\n</think>\n\n{% endif %}{% endif %}")


def streamed(chunks):
    """The answer that a stream's chunks put together are: content, reasoning, calls, finish_reason."""
    content, reasoning, calls, finish = "", "", [], None
    for chunk in chunks:
        for choice in chunk.choices:
            delta = choice.delta
            content += delta.content or ""
            reasoning += getattr(delta, "reasoning", None) or ""
            for piece in delta.tool_calls or []:
                if piece.id:
                    assert piece.index == len(calls), "calls come in order"
                    calls.append([piece.id, piece.function.name, ""])
                calls[piece.index][2] += piece.function.arguments or ""
            finish = choice.finish_reason or finish
    return content, reasoning, calls, finish


@harness.needs_default_model
class Tools(harness.ServerTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=300)
        cls.addClassCleanup(cls.client.close)

    def chat(self, **parameters):
        return self.client.chat.completions.create(
            **{"model": "", "messages": QUESTION, "tools": [WEATHER, TIME], "max_tokens": 400, "temperature": 0,
               **parameters})

    def check_arguments(self, name, text):
        arguments = json.loads(text)
        if name == "get_weather":
            self.assertLessEqual({"city", "unit"}, set(arguments))
            self.assertLessEqual(set(arguments), {"city", "unit", "days"})
            self.assertIn(arguments["unit"], ("celsius", "fahrenheit"))
            self.assertIsInstance(arguments["city"], str)
            self.assertIn(arguments.get("days", 1), range(1, 8))
        else:
            self.assertEqual(name, "get_time")

    def test_a_required_call_is_made_and_fits_its_schema(self):
        for seed in range(6):
            answer = self.chat(tool_choice="required", temperature=1.5, seed=seed, parallel_tool_calls=False,
                               extra_body={"structured_outputs": None}).choices[0]
            if answer.finish_reason == "length":
                continue  # a long city
            self.assertEqual(answer.finish_reason, "tool_calls")
            self.assertIsNone(answer.message.content)
            (call,) = answer.message.tool_calls
            self.assertTrue(call.id)
            self.check_arguments(call.function.name, call.function.arguments)

    def test_a_named_function_is_the_one_that_is_called(self):
        answer = self.chat(tool_choice={"type": "function", "function": {"name": "get_weather"}}).choices[0]
        (call,) = answer.message.tool_calls
        self.assertEqual(call.function.name, "get_weather")
        self.check_arguments("get_weather", call.function.arguments)
        self.assertEqual(answer.finish_reason, "stop")

    def test_a_streamed_answer_is_the_whole_one(self):
        for choice in ("required", "auto"):
            for seed in range(3):
                same = {"tool_choice": choice, "temperature": 1.0, "seed": seed, "max_tokens": 200}
                whole = self.chat(**same).choices[0]
                content, _, calls, finish = streamed(self.chat(stream=True, **same))
                self.assertEqual(content, whole.message.content or "")
                self.assertEqual([call[1:] for call in calls],
                                 [[c.function.name, c.function.arguments] for c in whole.message.tool_calls or []])
                self.assertEqual(finish, whole.finish_reason)

    def test_without_a_choice_the_model_may_just_talk(self):
        answer = self.chat(tool_choice="none", max_tokens=20).choices[0]
        self.assertIsNone(answer.message.tool_calls)
        self.assertTrue(answer.message.content)

    def test_a_conversation_with_results_goes_on(self):
        call = {"id": "call_1", "type": "function",
                "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\", \"unit\": \"celsius\"}"}}
        answer = self.chat(max_tokens=40, messages=QUESTION + [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "21 degrees, sunny"}]).choices[0]
        self.assertTrue(answer.message.content or answer.message.tool_calls)

    def test_what_cannot_be_heeded_is_refused_by_name(self):
        strict = json.loads(json.dumps(WEATHER))
        strict["function"]["parameters"]["properties"]["city"] = {"type": "string", "not": {"pattern": "x"}}
        with self.assertRaises(openai.BadRequestError) as refused:
            self.chat(tools=[strict])
        self.assertEqual(refused.exception.param, "tools")
        self.assertIn("not", str(refused.exception))
        strict["function"]["strict"] = False  # then the schema is best effort
        self.chat(tools=[strict], max_tokens=5)
        with self.assertRaises(openai.BadRequestError) as refused:
            self.chat(tool_choice={"type": "function", "function": {"name": "nobody"}})
        self.assertEqual(refused.exception.param, "tool_choice")


@harness.needs_default_model
class Reasoning(harness.ServerTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        path = os.path.join(folder.name, "thinking.jinja")
        with open(path, "w", encoding="utf-8") as file:
            file.write(THINKING_TEMPLATE)
        cls.arguments = ("--chat-template", path)
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=300)
        cls.addClassCleanup(cls.client.close)

    def chat(self, body=None, **parameters):
        return self.client.chat.completions.create(
            **{"model": "", "messages": QUESTION, "max_tokens": 60, "temperature": 0, "extra_body": body or {},
               **parameters})

    # Cut off in its thoughts, the model may well have nothing to say; min_tokens makes it go on.
    CUT_SHORT = {"thinking_token_budget": 8, "min_tokens": 24}

    def test_the_budget_ends_the_reasoning_and_the_answer_follows(self):
        whole = self.chat(self.CUT_SHORT)
        message = whole.choices[0].message
        self.assertTrue(message.reasoning)
        self.assertTrue(message.content)
        self.assertNotIn("</think>", message.content + message.reasoning)
        self.assertGreater(whole.usage.completion_tokens_details.reasoning_tokens, 0)
        self.assertLessEqual(whole.usage.completion_tokens_details.reasoning_tokens, 8)
        content, reasoning, _, finish = streamed(self.chat(self.CUT_SHORT, stream=True))
        self.assertEqual((content, reasoning, finish),
                         (message.content, message.reasoning, whole.choices[0].finish_reason))

    def test_reasoning_may_be_left_out_or_switched_off(self):
        silent = self.chat({**self.CUT_SHORT, "include_reasoning": False}).choices[0].message
        self.assertFalse(getattr(silent, "reasoning", None))
        self.assertTrue(silent.content)
        plain = self.chat({"chat_template_kwargs": {"enable_thinking": False}}).choices[0].message
        self.assertFalse(getattr(plain, "reasoning", None))
        self.assertTrue(plain.content)

    def test_a_form_holds_behind_the_reasoning(self):
        answer = self.chat({"thinking_token_budget": 8, "structured_outputs": {"choice": ["sunny", "rainy"]}})
        message = answer.choices[0].message
        self.assertTrue(message.reasoning)
        self.assertIn(message.content, ("sunny", "rainy"))
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_a_call_may_follow_the_reasoning(self):
        message = self.chat({"thinking_token_budget": 8}, tools=[WEATHER], tool_choice="required",
                            parallel_tool_calls=False, max_tokens=200).choices[0].message
        self.assertTrue(message.reasoning)
        self.assertEqual(message.tool_calls[0].function.name, "get_weather")


if __name__ == "__main__":
    harness.main()
