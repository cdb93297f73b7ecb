"""Attacks that are known of other engines (docs/attacks.md), on the real binary: those of scripts/abuse.py that are quick, and
every pair of things that a request may ask for, ended by itself or by its client, beside a stream that must not notice."""

import concurrent.futures
import itertools
import json
import pathlib
import re
import subprocess
import sys
import unittest

import harness

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
REGEX = "[a-f]{3}(-[0-9]{1,4}){1,3}"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}, "required": ["n"],
          "additionalProperties": False}
# What may be asked for beside each other or is refused; none of it may be a fault of the server's or another's business.
ASKED = {
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": -1.5},
    "repetition": {"repetition_penalty": 1.8},
    "dry": {"dry_multiplier": 1.0},
    "bias": {"logit_bias": {"260": 90, "300": -100}},
    "bad words": {"bad_words": ["the", " a"]},
    "allowed ids": {"allowed_token_ids": list(range(900))},  # the end and every byte among them, so that structured output stays possible
    "min tokens": {"min_tokens": 9, "stop_token_ids": list(range(200, 400))},
    "stop": {"stop": ["e", "-"]},
    "regex": {"guided_regex": REGEX},
    "schema": {"guided_json": SCHEMA},
    "hot": {"temperature": 2.0, "top_p": 0.95, "seed": 3},
    "mirostat": {"mirostat": 2, "seed": 4},
    "several": {"n": 3, "temperature": 1.0, "seed": 5},
    "beams": {"use_beam_search": True, "beam_width": 3},
    "logprobs": {"logprobs": 5},
    "prompt logprobs": {"prompt_logprobs": 3},
    "truncated": {"truncate_prompt_tokens": 4},
    "salted": {"cache_salt": "mine"},
    "receipt": {"deterministic": True},
    "out of time": {"timeout": 0.01},
}
BODY = {"prompt": "Once upon a time there was", "max_tokens": 14, "temperature": 0}
BESIDE = {"prompt": "The sea is", "max_tokens": 48, "temperature": 0.8, "seed": 11, "ignore_eos": True, "deterministic": True}


def begin_and_leave(server, body):
    """Streams; goes away with the first bytes of the answer."""
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
    response = connection.getresponse()
    response.read(1)
    status = response.status
    connection.close()
    return status


@harness.needs_default_model
class Pairs(harness.ServerTest):  # P7
    arguments = ("--max-num-batched-tokens", "64", "--num-gpu-blocks-override", "96", "--disable-access-log")

    def said(self, body):
        choice = self.server.answer("/v1/completions", body)["choices"][0]
        return choice["text"], choice["receipt"]

    def ask(self, names, leaves):
        body = {**BODY, **{key: value for name in names for key, value in ASKED[name].items()}}
        if leaves:
            return begin_and_leave(self.server, body), None
        reply = self.server.post("/v1/completions", body)
        return reply.status, reply.json

    def check(self, names, status, answer):
        self.assertIn(status, (200, 400, 408), names)
        if answer is None:
            return
        if status != 200:
            self.assertTrue(answer["error"]["message"], names)
            return
        for choice in answer["choices"]:
            self.assertIn(choice["finish_reason"], ("stop", "length", "repetition"), names)
            if choice["finish_reason"] == "stop" and "stop" not in names and "min tokens" not in names:
                if "regex" in names and "schema" not in names:
                    self.assertRegex(choice["text"], f"^{REGEX}$", names)
                if "schema" in names and "regex" not in names:
                    self.assertEqual(list(json.loads(choice["text"])), ["n"], names)

    def test_of_everything_that_may_be_asked_for_beside_another_stream(self):
        alone = self.said(BESIDE)
        asked = [(names, leaves) for names in itertools.combinations(ASKED, 2) for leaves in (False, True)]
        taken = 0
        with concurrent.futures.ThreadPoolExecutor(6) as pool, concurrent.futures.ThreadPoolExecutor(1) as other:
            answers = [pool.submit(self.ask, *one) for one in asked]
            rounds = 0
            while not all(answer.done() for answer in answers) or rounds == 0:
                self.assertEqual(other.submit(self.said, BESIDE).result(), alone)
                rounds += 1
            for (names, _), answer in zip(asked, answers):
                status, value = answer.result()
                self.check(names, status, value)
                taken += status == 200
        self.assertGreater(taken, len(asked) // 2)
        self.server.wait_until_idle()
        self.assertEqual(self.said(BESIDE), alone)


@harness.needs_default_model
class Abuse(unittest.TestCase):
    @unittest.skipIf(harness.SLOWDOWN > 1, "a sanitizer keeps what is freed")
    def test_what_is_quick_of_it_leaves_streams_blocks_and_memory_as_they_were(self):
        done = subprocess.run([sys.executable, str(ROOT / "scripts/abuse.py"), "--quire", str(harness.QUIRE), "--quick"],
                              capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = [line for line in done.stdout.splitlines() if re.search(r"\| \d+ of \d+ \|", line)]
        self.assertGreaterEqual(len(rows), 10, done.stdout)


if __name__ == "__main__":
    harness.main()
