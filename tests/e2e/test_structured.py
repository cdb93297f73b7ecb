"""Structured output through the real client: what ends by itself is what was asked for, whatever runs beside it; what
cannot be promised is refused by name; and attacks (ids of the list of attacks) cost others nothing."""

import concurrent.futures
import enum
import json
import re
import typing
import unittest

import openai
import pydantic

import harness
import schema_judge
from test_openai_client import QUESTION, STORY, client_of, text_of


class Colour(str, enum.Enum):
    RED = "red"
    BLUE = "blue"


class Car(pydantic.BaseModel):
    title: str = pydantic.Field(max_length=12)
    doors: int = pydantic.Field(ge=2, le=5)
    colour: Colour
    price: float = pydantic.Field(gt=0, lt=100000)
    plate: str = pydantic.Field(pattern=r"^[A-Z]{2}-[0-9]{1,4}$")
    owner: typing.Optional[str] = pydantic.Field(max_length=10)


SCHEMA = Car.model_json_schema()
# Short enough that every answer ends.
SMALL = {"type": "object", "properties": {"n": {"type": "integer", "minimum": -9, "maximum": 99},
                                          "s": {"enum": ["a\"b", "c\nd", "é"]}, "b": {"type": "boolean"}},
         "required": ["n", "s", "b"], "additionalProperties": False}


def json_schema(schema):
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, "strict": True}}


def check_small(test, text):
    value = json.loads(text)
    test.assertEqual(set(value), {"n", "s", "b"})
    test.assertTrue(isinstance(value["n"], int) and -9 <= value["n"] <= 99)
    test.assertIn(value["s"], SMALL["properties"]["s"]["enum"])
    test.assertIsInstance(value["b"], bool)


@harness.needs_default_model
class Structured(harness.ServerTest):
    # Prompts come in chunks, masks are made beside the forward pass where there is a second core.
    arguments = ("--activation-dtype", "float32", "--max-num-batched-tokens", "64", "--threads", "1")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = client_of(cls.server)
        cls.addClassCleanup(cls.client.close)
        cls.model_name = cls.client.models.list().data[0].id

    def chat(self, **parameters):
        return self.client.chat.completions.create(
            **{"model": self.model_name, "messages": QUESTION, "max_tokens": 200, "temperature": 0,
               "extra_body": parameters.pop("extra", {"structured_outputs": {"disable_any_whitespace": True}}),
               **parameters})

    def asked(self, **constraint):
        return self.chat(extra={"structured_outputs": constraint}, temperature=1.5)

    def test_a_pydantic_model_is_parsed(self):
        answer = self.client.chat.completions.parse(
            model=self.model_name, messages=[{"role": "user", "content": "Describe a car."}], temperature=0,
            max_tokens=200, response_format=Car)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertIsInstance(answer.choices[0].message.parsed, Car)

    def test_each_of_several_hot_answers_satisfies_the_schema(self):
        answer = self.chat(response_format=json_schema(SMALL), n=3, temperature=1.5, seed=5, logprobs=True, extra={})
        for choice in answer.choices:
            if choice.finish_reason == "stop":
                check_small(self, choice.message.content)
            self.assertTrue(all(entry.logprob <= 0 for entry in choice.logprobs.content))
        self.assertIn("stop", [choice.finish_reason for choice in answer.choices])

    def test_a_stream_says_the_same(self):
        whole = text_of(self.chat(response_format=json_schema(SMALL), extra={}))
        chunks = self.chat(response_format=json_schema(SMALL), stream=True, extra={})
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks), whole)
        check_small(self, whole)

    def test_end_tokens_are_no_part_of_it(self):
        for shown in (False, True):
            for more in ({}, {"include_stop_str_in_output": True}, {"min_tokens": 10}):
                answer = self.server.answer("/v1/completions", {"prompt": "a", "max_tokens": 20, "structured_outputs": {"regex": "ab"},
                                                                "skip_special_tokens": not shown, **more})
                choice = answer["choices"][0]
                end = "<|im_end|>" if shown and "include_stop_str_in_output" in more else ""
                self.assertEqual((choice["text"], choice["finish_reason"]), ("ab" + end, "stop"), more)
                self.assertLessEqual(answer["usage"]["completion_tokens"], 3)

    def test_an_output_beside_tools_is_what_is_said(self):
        tools = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {}}}}]
        schema = {"type": "object", "properties": {"name": {"enum": ["get_weather", "Bob"]}, "arguments": {"enum": [1]}},
                  "required": ["name", "arguments"], "additionalProperties": False}
        answer = self.server.answer("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Who?"}], "tools": tools, "max_tokens": 60,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}})
        message = answer["choices"][0]["message"]
        self.assertFalse(message.get("tool_calls"))
        self.assertEqual(json.loads(message["content"])["arguments"], 1)

    def test_a_token_that_cuts_a_character_beside_tools_is_gone_on_with(self):
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
        bias = {str(number): 100 for number in range(1000, 1080)} | {"10813": 101}  # bytes F0 9F above all
        answer = self.server.answer("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "hi"}], "tools": tools, "max_tokens": 6, "temperature": 0, "logit_bias": bias})
        self.assertNotIn("\ufffd", answer["choices"][0]["message"]["content"].rstrip("\ufffd"))

    def test_json_objects(self):
        answer = self.chat(response_format={"type": "json_object"}, extra={})
        if answer.choices[0].finish_reason == "stop":
            self.assertIsInstance(json.loads(text_of(answer)), dict)
        else:
            self.assertTrue(text_of(answer).startswith("{"))

    def test_hot_answers_of_many_kinds_of_schemas_satisfy_another_validator(self):
        lines = schema_judge.schemas_of(harness.DATA.parent.parent / "bench/data/schemas.jsonl")
        numbers = (31, 43, 67, 79, 109, 127, 151, 181, 205, 223, 241, 331)  # all of them: scripts/schema_soak.py

        def ask(number):
            schema = json.loads(lines[number - 1])
            answer = self.chat(response_format=json_schema(schema), temperature=1.5, seed=number, max_tokens=100, extra={})
            if answer.choices[0].finish_reason != "stop":
                return None
            return schema_judge.fault(schema_judge.validator_of(schema), text_of(answer)) or "satisfied"

        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            verdicts = dict(zip(numbers, pool.map(ask, numbers)))
        self.assertEqual({number: verdict for number, verdict in verdicts.items() if verdict not in (None, "satisfied")}, {})
        self.assertGreater(list(verdicts.values()).count("satisfied"), 8, verdicts)

    def test_choices_expressions_grammars_and_tags(self):
        self.assertIn(text_of(self.asked(choice=["red\n1", "bl\"ue"])), ["red\n1", "bl\"ue"])
        self.assertRegex(text_of(self.asked(regex=r"[a-f]{3}-\d+\.")), r"\A[a-f]{3}-[0-9]+\.\Z")
        self.assertRegex(text_of(self.asked(grammar='root ::= "<" [a-c]{1,4} ">"')), r"\A<[a-c]{1,4}>\Z")
        new = {"type": "structural_tag", "format": {"type": "tag", "begin": "<x>", "end": "</x>",
                                                    "content": {"type": "json_schema", "json_schema": SMALL}}}
        old = {"structures": [{"begin": "<x>", "schema": SMALL, "end": "</x>"}], "triggers": ["<x>"]}
        inner = re.fullmatch(r"<x>(.*)</x>", text_of(self.asked(structural_tag=new)), re.S)
        check_small(self, inner[1])
        answer = self.chat(response_format={"type": "structural_tag", **old}, max_tokens=60, temperature=1.0, extra={})
        for part in re.findall(r"<x>(.*?)</x>", text_of(answer), re.S):
            check_small(self, part)

    def test_a_stop_string_that_breaks_json_is_an_error_and_one_that_does_not_occur_is_none(self):
        with self.assertRaises(openai.BadRequestError) as refused:
            self.chat(response_format=json_schema(SMALL), stop=["\"s\""], extra={})
        self.assertEqual(refused.exception.param, "stop")
        check_small(self, text_of(self.chat(response_format=json_schema(SMALL), stop=["never said"], extra={})))
        cut = self.chat(stop=["-"], extra={"structured_outputs": {"regex": "[a-f]{3}-[0-9]"}})
        self.assertRegex(text_of(cut), r"\A[a-f]{3}\Z")

    def test_others_in_the_batch_are_answered_as_if_alone(self):
        alone = [text_of(self.chat(messages=messages, max_tokens=24, extra={})) for messages in (QUESTION, STORY)]
        small = text_of(self.chat(response_format=json_schema(SMALL), extra={}))
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            plain = [pool.submit(self.chat, messages=messages, max_tokens=24, extra={})
                     for messages in (QUESTION, STORY) * 2]
            constrained = [pool.submit(self.chat, response_format=json_schema(SMALL), extra={}) for _ in range(4)]
            self.assertEqual([text_of(one.result()) for one in plain], alone * 2)
            self.assertEqual([text_of(one.result()) for one in constrained], [small] * 4)

    def refused(self, field, **parameters):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.chat(**parameters)
        self.assertEqual(caught.exception.body["param"], field)

    def test_bad_schemas_are_refused_by_name(self):
        for schema in ({"type": "strange"}, {"not": {}}, {"type": "array", "uniqueItems": True}, {"$ref": "#"},
                       {"type": "string", "pattern": "(?=a)"}, {"type": "string", "not": {"pattern": "a"}}):
            self.refused("response_format", response_format=json_schema(schema), extra={})
        self.refused("guided_json", extra={"guided_json": {"dependentRequired": {}}})

    def test_attacks_leave_another_stream_as_it_is(self):
        deep = "[" * 100000 + "]" * 100000
        attacks = [
            ("guided_regex", "foo**"), ("guided_json", '{"type":"string","pattern":"foo**"}'),          # G1
            ("guided_json", '{"items":' * 5000 + "{}" + "}" * 5000),                                     # G2
            ("guided_regex", "(" * 7000 + "a" + ")" * 7000), ("guided_regex", "((((a{99}){99}){99}){99})"),
            ("guided_json", json.dumps({"enum": [str(i) for i in range(70000)]})),                       # G3
            ("guided_json", deep), ("guided_json", '{"const":' + deep + "}"),                            # G7
        ]
        exponential = ["(a|aa)*b", "((a|b)*c|(a|c)*b)*", "(.*)x{20}", "[ab]*a[ab]{14}", "(a?){30}a{30}"]  # G4
        parameters = {"messages": STORY, "max_tokens": 96, "extra": {}}
        alone = text_of(self.chat(**parameters))
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            stream = pool.submit(self.chat, **parameters)
            for field, value in attacks:
                self.refused(field, extra={field: value})
            for regex in exponential:
                try:
                    self.chat(max_tokens=4, extra={"guided_regex": regex})
                except openai.BadRequestError as error:
                    self.assertEqual(error.body["param"], "guided_regex")
            self.assertEqual(text_of(stream.result()), alone)
        self.assertEqual(self.server.get("/health").status, 200)

    def test_two_hundred_grammars_leave_the_server_well(self):  # G5; thousands, and the bound: tests/grammar/compiler_test.cpp
        for i in range(200):
            self.asked_once(f"x{i}")
        self.assertEqual(self.server.get("/health").status, 200)

    def asked_once(self, choice):
        answer = self.chat(max_tokens=8, extra={"guided_choice": [choice]})
        self.assertEqual(text_of(answer), choice)


if __name__ == "__main__":
    harness.main()
