"""`quire tokenize --jsonl` against recorded encodings and decodings of the tokenizers library."""

import json
import unittest

import harness

RECORDS = harness.DATA / "e2e/tokenizers"


def read_lines(path):
    # No str.splitlines: the texts hold every kind of line break.
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


class Tokenize(unittest.TestCase):
    def check(self, record, *model):
        cases = read_lines(record)
        self.assertGreater(len(cases), 50)
        texts = "".join(json.dumps({"text": case["text"]}) + "\n" for case in cases)
        result = harness.run("tokenize", *model, "--jsonl", stdin=texts)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [line for line in result.stdout.split("\n") if line]
        self.assertEqual(len(lines), len(cases))
        for line, case in zip(lines, cases):
            given = json.loads(line)
            for field in ("ids", "decoded", "decoded_clean"):
                self.assertEqual(given[field], case[field], f"{field} of {case['text'][:200]!r}")

    @harness.needs_default_model
    def test_the_default_model(self):
        self.check(RECORDS / "smollm2.golden.jsonl")

    def test_a_tokenizer_json_of_gpt2s_kind(self):
        self.check(RECORDS / "gpt2_style_bpe.golden.jsonl", RECORDS / "gpt2_style_bpe.tokenizer.json")

    def test_a_tokenizer_json_of_llama3s_kind(self):
        self.check(RECORDS / "llama3_style_bpe.golden.jsonl", RECORDS / "llama3_style_bpe.tokenizer.json")

    def test_a_line_that_is_no_json_is_an_error_in_its_place(self):
        result = harness.run("tokenize", RECORDS / "gpt2_style_bpe.tokenizer.json", "--jsonl",
                             stdin='{"text": "a"}\nnothing\n{"text": 3}\n{"text": "a"}\n')
        self.assertEqual(result.returncode, 1)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual(["ids" in line for line in lines], [True, False, False, True])
        self.assertEqual(lines[0], lines[3])

    def test_text_of_every_size_takes_no_stack(self):
        text = json.dumps({"text": "a" * 300_000}) + "\n" + json.dumps({"text": " " * 300_000}) + "\n"
        result = harness.run("tokenize", RECORDS / "llama3_style_bpe.tokenizer.json", "--jsonl", stdin=text)
        self.assertEqual(result.returncode, 0, result.stderr)
        for line, letter in zip(result.stdout.splitlines(), "a "):
            self.assertEqual(json.loads(line)["decoded"], letter * 300_000)


if __name__ == "__main__":
    harness.main()
