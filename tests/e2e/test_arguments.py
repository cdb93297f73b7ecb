"""vLLM's arguments as its users give them, on the real binary, and what people get who say nothing."""

import os
import pathlib
import socket
import tempfile
import unittest

import harness

TINY = harness.DATA / "e2e" / "tiny" / "llama" if harness.DATA else None
PROMPT = [3, 17, 44, 9, 21]


def server(*arguments, host=harness.HOST, environment=None):
    return harness.Server("--skip-tokenizer-init", *arguments, model=TINY, host=host, environment=environment)


class Refused(unittest.TestCase):
    def refused(self, *arguments, says):
        result = harness.run("serve", TINY, *arguments)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn(says, result.stderr)
        self.assertNotIn("not expected", result.stderr)

    def test_what_is_not_built_says_so_by_name(self):
        self.refused("--data-parallel-rank", 2, says="--data-parallel-rank 2: ")
        self.refused("-dpn", 2, says="--data-parallel-rank 2: ")
        self.refused("--fully-sharded-loras", says="--fully-sharded-loras: adapters are LoRA of the language model")
        self.refused("--speculative-config", '{"model": "x"}', says="--speculative-config")
        self.refused("--compilation-config.mode", 3, says="single members of a JSON argument")
        self.refused("--max_model_len", "auto", says="--max-model-len")

    def test_a_file_of_arguments_says_the_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "config.yaml"
            path.write_text("seed: 1\nbad argument\n")
            self.refused("--config", path, says=f"{path}: line 2: ")

    def test_whole_prompts_need_steps_that_hold_them(self):
        result = harness.run("serve", TINY, "--skip-tokenizer-init", "--no-enable-chunked-prefill",
                             "--max-num-batched-tokens", 16)
        self.assertEqual(result.returncode, 1)
        self.assertIn("without chunked prefill", result.stderr)


class Taken(unittest.TestCase):
    def test_what_changes_nothing_is_told_at_start(self):
        with server("--trust-remote-code", "-O3", "--data-parallel-rank", 0, "--disable-log-requests",
                    "--tokenizer-mode", "slow", "--guided-decoding-backend=xgrammar") as one:
            log = one.log_text()
            self.assertIn("--trust-remote-code: no code of a checkpoint is ever run", log)
            self.assertIn("--optimization-level 3: ", log)
            self.assertIn("--tokenizer-mode slow: ", log)
            self.assertNotIn("--data-parallel-rank", log)

    def test_a_file_of_arguments_and_the_command_line_over_it(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "config.yaml"
            path.write_text("served-model-name: [one, two]\nmax-model-len: 32\ndtype: bfloat16\n")
            with server("--config", path, "--max-model-len", 16) as one:
                models = one.get("/v1/models").json["data"]
                self.assertEqual([model["id"] for model in models], ["one", "two"])
                self.assertEqual(models[0]["max_model_len"], 16)
                self.assertIn("F32 to BF16", one.log_text())

    def test_weights_are_converted_and_answers_stay_near(self):
        answers = {}
        for dtype in ("auto", "float32", "half", "bfloat16"):
            with server("--dtype", dtype) as one:
                answer = one.answer("/v1/completions", {"prompt": PROMPT, "max_tokens": 1, "temperature": 0,
                                                        "logprobs": 0})
                answers[dtype] = answer["choices"][0]["logprobs"]["token_logprobs"][0]
        self.assertEqual(answers["auto"], answers["float32"])
        self.assertAlmostEqual(answers["half"], answers["auto"], delta=0.05)
        self.assertAlmostEqual(answers["bfloat16"], answers["auto"], delta=0.2)

    def test_prompts_in_one_step_give_the_same_answers(self):
        body = {"prompt": PROMPT * 4, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        ids = lambda *arguments: one_answer(body, *arguments)["choices"][0]["token_ids"]
        self.assertEqual(ids("--no-enable-chunked-prefill", "--max-num-batched-tokens", "4k"),
                         ids("--max-num-batched-tokens", 7))
        self.assertEqual(ids("--no-enable-chunked-prefill"), ids())  # as large a step as the longest prompt


def one_answer(body, *arguments):
    with server(*arguments) as one:
        return one.answer("/v1/completions", body)


class Server(unittest.TestCase):
    def test_the_key_may_come_from_the_environment(self):
        with server(environment={**os.environ, "VLLM_API_KEY": "secret"}) as one:
            self.assertEqual(one.get("/v1/models").status, 401)
            self.assertEqual(one.get("/v1/models", {"Authorization": "Bearer secret"}).status, 200)
        with server("--api-key", "other", environment={**os.environ, "VLLM_API_KEY": "secret"}) as one:
            self.assertEqual(one.get("/v1/models", {"Authorization": "Bearer secret"}).status, 401)

    def test_under_a_path_of_a_proxy(self):
        with server("--root-path", "/llm") as one:
            for path in ("/v1/models", "/llm/v1/models", "/llm/", "/llm/page/chat.js"):
                self.assertEqual(one.get(path).status, 200, path)
            self.assertEqual(one.get("/llmx/v1/models").status, 404)
            self.assertEqual(one.get("/openapi.json").json["servers"], [{"url": "/llm"}])

    def test_usage_ends_every_stream_where_that_is_forced(self):
        with server("--enable-force-include-usage") as one:
            events = list(one.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 2, "ignore_eos": True}))
            self.assertEqual(events[-1]["usage"]["completion_tokens"], 2)

    def test_the_description_of_the_api_can_be_left_out(self):
        with server("--disable-fastapi-docs") as one:
            self.assertEqual(one.get("/openapi.json").status, 404)

    def test_everybodys_address_without_a_key_is_warned_of(self):
        warning = "anybody who reaches 0.0.0.0"
        with server(host="0.0.0.0") as one:
            self.assertIn(warning, one.log_text())
        with server("--api-key", "k", host="0.0.0.0") as one:
            self.assertNotIn(warning, one.log_text())

    def test_it_listens_on_this_machine_alone_unless_told_otherwise(self):
        def reaches(address, port):
            with socket.socket() as probe:
                return probe.connect_ex((address, port)) == 0

        with server(host=None) as one:
            self.assertTrue(reaches("127.0.0.1", one.port))
            self.assertFalse(reaches("127.0.0.2", one.port))
        with server("--api-key", "k", host="0.0.0.0") as one:
            self.assertTrue(reaches("127.0.0.2", one.port))


@harness.needs_default_model
class Conversations(unittest.TestCase):
    def test_the_default_model_is_sampled_as_its_card_says(self):
        with harness.Server() as one:
            card = one.get("/v1/models").json["data"][0]
            self.assertEqual(card["chat_sampling"], {"temperature": 0.2, "top_p": 0.9})

    def test_a_chat_is_drawn_with_what_suits_the_model_unless_flags_say_otherwise(self):
        say = lambda *arguments: harness.run("chat", "--seed", 5, "--max-tokens", 16, *arguments,
                                             stdin="Name a color.\n").stdout
        self.assertEqual(say(), say("--temperature", 0.2, "--top-p", 0.9))
        self.assertNotEqual(say(), say("--temperature", 2, "--top-p", 1))

    def test_complete_draws_a_chat_as_chat_does(self):
        ask = ("complete", "-q", "-p", "Name a color.", "--seed", 5, "--max-tokens", 16)
        self.assertEqual(harness.run(*ask, "--chat").stdout,
                         harness.run(*ask, "--chat", "--temperature", 0.2, "--top-p", 0.9).stdout)
        self.assertEqual(harness.run(*ask).stdout, harness.run(*ask, "--temperature", 0.7, "--top-p", 0.95).stdout)


if __name__ == "__main__":
    harness.main()
