"""Guessing tokens ahead changes no answer: a server that guesses as much as it can beside one that guesses nothing, with
all pairs of what a request may ask for (case P7 of docs/attacks.md); predicted outputs; metrics; what is refused."""

import concurrent.futures
import itertools
import json
import pathlib
import tempfile
import unittest

import harness

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
ALWAYS = {"ngram": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4, "num_speculative_tokens": 8, "always": True},
          "suffix": {"method": "suffix", "suffix_decoding_max_spec_factor": 8, "always": True}}
TEXT = "one, two, three, one, two, three, four; one, two, three, one, two, three, four; one, two,"
SCHEMA = {"type": "object", "required": ["list"], "additionalProperties": False, "properties": {
    "list": {"type": "array", "minItems": 3, "maxItems": 4, "items": {"enum": ["one", "two", "three, one, two, three"]}}}}

# What a request may ask for beside its text.
FEATURES = {
    "drawn": {"temperature": 1.0, "top_p": 0.95, "seed": 5},
    "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
    "stop": {"stop": ["three, four"]},
    "stop_shown": {"stop": [" two, three"], "include_stop_str_in_output": True, "min_tokens": 9},
    "logprobs": {"logprobs": 3},
    "prompt_logprobs": {"prompt_logprobs": 1},
    "penalties": {"repetition_penalty": 1.15, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    "bias": {"logit_bias": {"28": 2.5, "198": -5}},
    "bad_words": {"bad_words": ["four", "two, three, four"]},
    "dry": {"dry_multiplier": 0.4, "dry_allowed_length": 6},
    "mirostat": {"mirostat": 2, "temperature": 0.8, "seed": 3},
    "several": {"n": 3, "temperature": 0.9, "seed": 11},
    "short": {"max_tokens": 7},
    "prediction": {"prediction": {"type": "content", "content": " three, one, two, five, four; one, two, three, one"}},
    "salt": {"cache_salt": "mine"},
    "priority": {"timeout": 60 * harness.SLOWDOWN},
}


def body(*names):
    asked = {"prompt": TEXT, "max_tokens": 32, "temperature": 0, "deterministic": True, "return_token_ids": True}
    for name in names:
        asked.update(FEATURES[name])
    return asked


def essence(answer):
    return [{key: choice.get(key) for key in ("text", "token_ids", "finish_reason", "stop_reason", "logprobs", "prompt_logprobs",
                                              "receipt")} for choice in answer["choices"]]


@harness.needs_default_model
class Equality(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.servers = {}
        common = ("--kv-cache-memory-bytes", "256M", "--max-num-seqs", 16)
        for name, config in {"plain": {}, **ALWAYS}.items():
            server = harness.Server(*common, "--speculative-config", json.dumps(config))
            cls.addClassCleanup(server.__exit__, None, None, None)
            cls.servers[name] = server.__enter__()

    def test_every_pair_of_features(self):
        pairs = [(), *((name,) for name in FEATURES), *itertools.combinations(FEATURES, 2)]
        answers = {}
        for name, server in self.servers.items():
            # Several at once: answers do not depend on what runs beside them, and a step costs little more.
            with concurrent.futures.ThreadPoolExecutor(12) as clients:
                answers[name] = list(clients.map(lambda names, to=server: to.post(COMPLETIONS, body(*names)), pairs))
        wrong = []
        for guesser in ALWAYS:
            for names, reply, other in zip(pairs, answers["plain"], answers[guesser]):
                same = other.status == reply.status and (reply.status != 200 or essence(other.json) == essence(reply.json))
                if not same:
                    wrong.append((guesser, names))
        self.assertEqual(wrong, [])
        self.assertGreater(sum(reply.status == 200 for reply in answers["plain"]), 130)
        for guesser in ALWAYS:
            values = self.servers[guesser].wait_until_idle()
            self.assertGreater(values["vllm:spec_decode_num_accepted_tokens_total"], 300)
            self.assertGreater(values["vllm:spec_decode_num_draft_tokens_total"], values["vllm:spec_decode_num_accepted_tokens_total"])
            self.assertEqual(values["vllm:spec_decode_num_accepted_tokens_per_pos_total"],
                             values["vllm:spec_decode_num_accepted_tokens_total"])
        # A request's own prediction is followed whatever the server does by itself.
        self.assertGreater(self.servers["plain"].metrics()["vllm:spec_decode_num_drafts_total"], 0)

    def test_streams_are_the_same_text(self):
        asked = body("stop_shown")
        expected = self.servers["plain"].answer(COMPLETIONS, asked)["choices"][0]["text"]
        for server in self.servers.values():
            text = "".join(event["choices"][0]["text"] for event in server.stream(COMPLETIONS, asked) if event["choices"])
            self.assertEqual(text, expected)

    def test_tools(self):
        asked = {"messages": [{"role": "user", "content": "What is the weather in Oslo, and in Oslo?"}], "temperature": 0,
                 "max_tokens": 60, "deterministic": True, "tool_choice": "required", "tools": [
                     {"type": "function", "function": {"name": "weather", "parameters": {
                         "type": "object", "required": ["city"], "properties": {"city": {"enum": ["Oslo", "Bergen"]}}}}}]}
        answers = [server.answer(CHAT, asked)["choices"][0] for server in self.servers.values()]
        for answer in answers:
            for call in answer["message"]["tool_calls"]:
                call.pop("id")
        self.assertEqual(answers[1:], answers[:1] * 2)
        self.assertEqual(answers[0]["message"]["tool_calls"][0]["function"]["name"], "weather")

    def test_what_was_predicted_is_told(self):
        asked = {"messages": [{"role": "user", "content": "Count from one to twenty in words."}], "temperature": 0,
                 "max_tokens": 48, "return_token_ids": True}
        for server in self.servers.values():
            plain = server.answer(CHAT, {**asked, "speculation": False})
            details = plain["usage"]["completion_tokens_details"]
            self.assertEqual((details["accepted_prediction_tokens"], details["rejected_prediction_tokens"]), (0, 0))
            text = plain["choices"][0]["message"]["content"]
            for content in (text, [{"type": "text", "text": text[:60]}, {"type": "text", "text": "changed" + text[60:]}]):
                predicted = server.answer(CHAT, {**asked, "prediction": {"type": "content", "content": content}})
                self.assertEqual(predicted["choices"][0]["token_ids"], plain["choices"][0]["token_ids"])
                details = predicted["usage"]["completion_tokens_details"]
                self.assertGreater(details["accepted_prediction_tokens"], 12)
                self.assertLessEqual(details["accepted_prediction_tokens"], predicted["usage"]["completion_tokens"])

    def test_a_request_may_do_without(self):
        server = self.servers["suffix"]
        before = server.wait_until_idle()["vllm:spec_decode_num_drafts_total"]
        server.answer(COMPLETIONS, {**body(), "speculation": False})
        self.assertEqual(server.wait_until_idle()["vllm:spec_decode_num_drafts_total"], before)

    def test_what_is_no_prediction_is_refused(self):
        for wrong in ("text", {"type": "content"}, {"type": "text", "content": "x"}, {"type": "content", "content": 3},
                      {"type": "content", "content": [{"type": "text"}]}):
            reply = self.servers["plain"].post(COMPLETIONS, {"prompt": "x", "prediction": wrong})
            self.assertEqual(reply.status, 400, wrong if not isinstance(wrong, dict) else str(wrong)[:80])
            self.assertEqual(reply.json["error"]["param"], "prediction")
        reply = self.servers["plain"].post(COMPLETIONS, {"prompt": "x", "use_beam_search": True, "n": 2, **FEATURES["prediction"]})
        self.assertEqual((reply.status, reply.json["error"]["param"]), (400, "prediction"))


@harness.needs_default_model
class ByGain(unittest.TestCase):
    """As it is meant to be used: drafts where they pay."""

    def test_one_answer_that_repeats_takes_fewer_steps_and_the_trace_is_replayed(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "trace.jsonl"
            with harness.Server("--kv-cache-memory-bytes", "128M", "--speculative-config", '{"method": "suffix"}',
                                "--trace-file", trace) as server:
                asked = {**body(), "prompt": TEXT * 3, "max_tokens": 100, "ignore_eos": True}
                first = essence(server.answer(COMPLETIONS, {**asked, "speculation": False}))
                for _ in range(3):
                    self.assertEqual(essence(server.answer(COMPLETIONS, asked)), first)
                self.assertGreater(server.wait_until_idle()["vllm:spec_decode_num_accepted_tokens_total"], 50)
            replayed = harness.run("replay", trace)
            self.assertEqual(replayed.returncode, 0, replayed.stdout + replayed.stderr)


@harness.needs_default_model
class OtherRules(unittest.TestCase):
    """Acceptance that may change answers: structured output, penalties, log-probabilities and ends keep working, greedy
    answers and those with a receipt are what they are."""

    def test_typical_and_rejection(self):
        common = ("--kv-cache-memory-bytes", "128M", "--max-num-seqs", 8)
        with harness.Server(*common) as plain:
            kept = [body(), body("schema"), body("penalties", "logprobs"), body("stop_shown"), body("drawn"),
                    body("drawn", "schema")]
            expected = [essence(plain.answer(COMPLETIONS, asked)) for asked in kept]
        for rule in ("rejection_sampler", "typical_acceptance_sampler"):
            config = json.dumps({**ALWAYS["suffix"], "rejection_sample_method": rule})
            with harness.Server(*common, "--speculative-config", config) as server:
                for asked, answer in zip(kept, expected):
                    self.assertEqual(essence(server.answer(COMPLETIONS, asked)), answer)
                for names in (("drawn", "schema", "logprobs"), ("drawn", "penalties", "bias", "bad_words"), ("mirostat",)):
                    asked = {**body(*names), "deterministic": False}
                    for seed in range(2):
                        choice = server.answer(COMPLETIONS, {**asked, "seed": seed})["choices"][0]
                        self.assertLessEqual(len(choice["token_ids"]), 40)
                        if "schema" in names and choice["finish_reason"] == "stop":
                            self.assertIn(len(json.loads(choice["text"])["list"]), (3, 4))
                        if "logprobs" in names:
                            self.assertEqual(len(choice["logprobs"]["token_logprobs"]), len(choice["token_ids"]))
                        if "bad_words" in names:
                            self.assertNotIn("four", choice["text"])
                values = server.wait_until_idle()
                self.assertGreater(values["vllm:spec_decode_num_accepted_tokens_total"], 20)


@harness.needs_default_model
class Bench(unittest.TestCase):
    def test_shows_acceptance(self):
        told = harness.run("bench", "latency", "--batch-size", 1, "--input-len", 64, "--output-len", 64, "--num-iters-warmup", 0,
                           "--num-iters", 1, "--kv-cache-memory-bytes", "64M", "--speculative-config",
                           json.dumps(ALWAYS["ngram"]))
        self.assertEqual(told.returncode, 0, told.stderr)
        self.assertIn("Acceptance rate (%):", told.stdout)


class Heads(unittest.TestCase):
    """Heads beside the model that they were made for: tiny and random, so hardly ever right."""

    TINY = harness.DATA / "e2e/tiny/llama" if harness.DATA else None
    HEAD = harness.DATA / "e2e/tiny_heads/eagle3_llama" if harness.DATA else None

    def test_answers_are_those_without(self):
        asked = {"prompt": [3, 17, 44, 9, 21], "max_tokens": 40, "temperature": 0, "deterministic": True, "ignore_eos": True}
        with harness.Server("--skip-tokenizer-init", model=self.TINY) as server:
            expected = server.answer(COMPLETIONS, asked)["choices"][0]["receipt"]
        config = json.dumps({"method": "eagle3", "model": str(self.HEAD), "num_speculative_tokens": 3, "always": True})
        with harness.Server("--skip-tokenizer-init", "--speculative-config", config, model=self.TINY) as server:
            for _ in range(2):  # the second finds its beginning in the prefix cache
                self.assertEqual(server.answer(COMPLETIONS, asked)["choices"][0]["receipt"], expected)
            self.assertGreater(server.wait_until_idle()["vllm:spec_decode_num_draft_tokens_total"], 60)

    def test_the_layer_of_the_checkpoint_itself(self):
        self.the_layer_guesses(harness.DATA / "e2e/tiny_heads/deepseek_v3_mtp", 200_000)

    def test_the_layer_of_a_model_with_states(self):
        self.the_layer_guesses(harness.DATA / "e2e/tiny_heads/qwen3_5_mtp", 50_000)
        self.the_layer_guesses(harness.DATA / "e2e/tiny_heads/qwen3_5_mtp.gguf", 50_000)

    # Workers are told how many guesses a plan may hold, for which their states have room.
    def test_states_in_other_processes(self):
        model = harness.DATA / "e2e/tiny_heads/qwen3_5_mtp"
        asked = {"prompt": [10 + j * 7 % 400 for j in range(30)], "max_tokens": 60, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        tokens = lambda server: server.answer(COMPLETIONS, asked)["choices"][0]["token_ids"]
        with harness.Server("--skip-tokenizer-init", model=model) as server:
            expected = tokens(server)
        config = json.dumps({"method": "suffix", "always": True})
        for ranks in ("--tensor-parallel-size", "--pipeline-parallel-size"):
            with harness.Server("--skip-tokenizer-init", "--speculative-config", config, ranks, "2", model=model) as server:
                for _ in range(2):  # the second time the answer is known
                    self.assertEqual(tokens(server), expected)
                self.assertGreater(server.wait_until_idle()["vllm:spec_decode_num_accepted_tokens_total"], 20)

    def the_layer_guesses(self, model, least_bytes):
        asked = {"prompt": [3, 17, 44, 9, 21], "max_tokens": 40, "temperature": 0, "deterministic": True, "ignore_eos": True}
        with harness.Server("--skip-tokenizer-init", model=model) as server:
            expected = server.answer(COMPLETIONS, asked)["choices"][0]["receipt"]
        config = json.dumps({"method": "mtp", "num_speculative_tokens": 2, "always": True})
        with harness.Server("--skip-tokenizer-init", "--speculative-config", config, model=model) as server:
            for _ in range(2):  # the second finds its beginning in the prefix cache
                self.assertEqual(server.answer(COMPLETIONS, asked)["choices"][0]["receipt"], expected)
            self.assertGreater(server.wait_until_idle()["vllm:spec_decode_num_draft_tokens_total"], 40)
        told = harness.run("plan", model, "--json", "--speculative-config", config)
        self.assertEqual(told.returncode, 0, told.stderr)
        planned = json.loads(told.stdout)
        self.assertGreater(planned["draft_weight_bytes"], least_bytes)  # the layer, and nothing that it shares
        self.assertLess(planned["draft_weight_bytes"], 2 * least_bytes)

    def test_heads_over_the_last_state(self):
        asked = {"prompt": [3, 17, 44, 9, 21], "max_tokens": 40, "temperature": 0, "deterministic": True, "ignore_eos": True}
        with harness.Server("--skip-tokenizer-init", model=self.TINY) as server:
            expected = server.answer(COMPLETIONS, asked)["choices"][0]["receipt"]
        for method, name in (("eagle", "eagle_llama"), ("medusa", "medusa_llama"), ("dflash", "dflash_llama")):
            config = json.dumps({"method": method, "model": str(self.HEAD.with_name(name)), "num_speculative_tokens": 3, "always": True})
            with harness.Server("--skip-tokenizer-init", "--speculative-config", config, model=self.TINY) as server:
                for _ in range(2):
                    self.assertEqual(server.answer(COMPLETIONS, asked)["choices"][0]["receipt"], expected)
                self.assertGreater(server.wait_until_idle()["vllm:spec_decode_num_draft_tokens_total"], 60)

    def test_the_plan_counts_who_drafts(self):
        def planned(*arguments):
            told = harness.run("plan", self.TINY, "--json", *arguments)
            self.assertEqual(told.returncode, 0, told.stderr)
            return json.loads(told.stdout)

        self.assertEqual(planned()["draft_weight_bytes"], 0)
        same = planned("--speculative-config", json.dumps({"model": str(self.TINY)}))
        self.assertEqual(same["draft_weight_bytes"], same["weight_bytes"])
        self.assertGreater(same["draft_pool_bytes"], 0)
        head = planned("--speculative-config", json.dumps({"method": "eagle3", "model": str(self.HEAD)}))
        self.assertGreater(head["draft_weight_bytes"], 200_000)
        # What they share with the model is not counted again: 64 KiB of embeddings, of which EAGLE's file has a copy.
        for method, name, least, most in (("eagle", "eagle_llama", 150_000, 230_000), ("medusa", "medusa_few_tokens", 160_000, 170_000),
                                          ("medusa", "medusa_blocks", 65_000, 70_000), ("dflash", "dflash_llama", 300_000, 330_000)):
            head = planned("--speculative-config", json.dumps({"method": method, "model": str(self.HEAD.with_name(name))}))
            self.assertTrue(least < head["draft_weight_bytes"] < most, head)
            # Beside workers it is not shared: 64 KiB each of embeddings and of the head over the vocabulary, or more as they are held.
            beside = planned("--speculative-config", json.dumps({"method": method, "model": str(self.HEAD.with_name(name))}),
                             "--tensor-parallel-size", 2)
            lent = beside["draft_weight_bytes"] - head["draft_weight_bytes"]
            self.assertTrue(lent == 0 if name == "medusa_few_tokens" else 128_000 < lent < 300_000, lent)
            self.assertGreater(head["draft_workspace_bytes"], 0)
            self.assertGreaterEqual(head["draft_pool_bytes"], 4096 * 64 * 4)  # the states that wait
        told = harness.run("plan", self.TINY, "--speculative-config", json.dumps({"method": "eagle3", "model": str(self.HEAD)}))
        self.assertIn("who drafts", told.stdout)


class Refused(unittest.TestCase):
    def refused(self, *arguments, says):
        told = harness.run("serve", harness.DATA / "e2e/tiny/llama", *arguments)
        self.assertNotEqual(told.returncode, 0)
        self.assertIn(says, told.stdout + told.stderr)

    def test_by_name(self):
        for method in ("eagle", "medusa", "dflash"):
            self.refused("--speculative-config", json.dumps({"method": method}), says="needs a head")
        self.refused("--speculative-config", '{"method": "mlp_speculator"}', says="medusa and mtp are built")
        self.refused("--speculative-config", '{"method": "mtp"}', says="read of DeepseekV3ForCausalLM, ")
        self.refused("--speculative-config", '{"method": "eagle3"}', says="needs a head")
        self.refused("--speculative-config", json.dumps({"method": "eagle3", "model": str(harness.DATA / "e2e/tiny/llama")}),
                     says="heads of one layer")
        head = str(harness.DATA / "e2e/tiny_heads/dflash_llama")
        self.refused("--speculative-config", json.dumps({"method": "dflash", "model": head, "num_speculative_tokens": 8}),
                     "--skip-tokenizer-init", says="at most 7 can be guessed")
        self.refused("--speculative-config", json.dumps({"method": "dflash", "model": head}), "--async-scheduling",
                     says="leave out one of them")
        self.refused("--speculative-config", '{"method": "draft_model"}', says="needs a model that drafts")
        self.refused("--speculative-model", "org/small", "--skip-tokenizer-init", says="speculative_config: model: ")
        self.refused("--speculative-model", harness.DATA / "e2e/tiny/llama", "--async-scheduling", says="leave out one of them")
        self.refused("--spec-decoding-acceptance-method", "synthetic", says="never accepted by the dice")
        self.refused("--posterior-alpha", 0.5, says='acceptance method "typical_acceptance_sampler"')
        self.refused("--spec-decoding-acceptance-method", "typical_acceptance_sampler", "--posterior-threshold", 1.5,
                     says="posterior_threshold is 1.5")
        self.refused("--ngram-prompt-lookup-min", 4, "--ngram-prompt-lookup-max", 2, says="prompt_lookup_min is 4")


if __name__ == "__main__":
    harness.main()
