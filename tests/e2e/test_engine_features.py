"""What the engine can do beyond one answer a request, seen by a client of the real binary: several answers, beams,
every sampling parameter, the prefix cache, timeouts, full queues, keys as tenants, the flight recorder, traces, receipts.
Mostly on a tiny Llama checkpoint by token ids; what needs text, on the default model."""

import concurrent.futures
import json
import pathlib
import re
import tempfile
import threading
import unittest

import harness

TINY = harness.DATA / "e2e/tiny"
LLAMA = TINY / "llama"
BEAMS = harness.DATA / "beam_search/checkpoints.json"
COMPLETIONS = "/v1/completions"
PROMPT = [5, 17, 130, 9, 44, 301, 7]


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


class TinyServer(harness.ServerTest):
    """A server of the tiny checkpoint."""

    model = LLAMA
    more_arguments = ()

    @classmethod
    def setUpClass(cls):
        cls.arguments = ("--skip-tokenizer-init", *cls.more_arguments)
        super().setUpClass()

    def complete(self, **parameters):
        body = {"prompt": PROMPT, "max_tokens": 16, "ignore_eos": True, "return_token_ids": True,
                "return_tokens_as_token_ids": True, **parameters}
        return self.server.answer(COMPLETIONS, body)

    def choices(self, **parameters):
        return self.complete(**parameters)["choices"]

    def refused(self, **parameters):
        reply = self.server.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 4, **parameters})
        self.assertEqual(reply.status, 400, reply.body)
        return reply.json["error"]


def logprobs_of(choice):
    return choice["logprobs"]["token_logprobs"]


def mean(values):
    return sum(values) / len(values)


class SeveralAnswers(TinyServer):
    more_arguments = ("--max-logprobs", -1)

    def test_n_answers_are_those_of_single_requests_with_the_seeds_that_follow(self):
        together = self.choices(n=4, seed=100, temperature=0.9, logprobs=2)
        for index, choice in enumerate(together):
            alone = self.choices(seed=100 + index, temperature=0.9, logprobs=2)[0]
            self.assertEqual(choice["index"], index)
            self.assertEqual(choice["token_ids"], alone["token_ids"])
            self.assertEqual(choice["logprobs"], alone["logprobs"])
        self.assertGreater(len({tuple(choice["token_ids"]) for choice in together}), 1)

    def test_n_answers_are_the_same_in_a_stream(self):
        whole = self.choices(n=3, seed=5)
        tokens = [[], [], []]
        body = {"prompt": PROMPT, "max_tokens": 16, "ignore_eos": True, "n": 3, "seed": 5, "return_token_ids": True}
        for event in self.server.stream(COMPLETIONS, body):
            choice = event["choices"][0]
            tokens[choice["index"]] += choice["token_ids"]
        self.assertEqual(tokens, [choice["token_ids"] for choice in whole])

    def test_best_of_returns_the_best_by_mean_logprob(self):
        singles = [self.choices(seed=40 + i, temperature=1.2, logprobs=0)[0] for i in range(6)]
        best = sorted(singles, key=lambda choice: -mean(logprobs_of(choice)))[:2]
        answer = self.complete(seed=40, temperature=1.2, best_of=6, n=2)
        self.assertEqual([choice["token_ids"] for choice in answer["choices"]], [choice["token_ids"] for choice in best])
        self.assertEqual([choice["logprobs"] for choice in answer["choices"]], [None, None])

    def test_best_of_has_the_prompts_logprobs(self):
        expected = self.choices(prompt_logprobs=1)[0]["prompt_logprobs"]
        for seed in range(41, 49):  # whichever of the answers is the best
            choices = self.choices(seed=seed, best_of=5, n=2, prompt_logprobs=1)
            self.assertEqual([choice["prompt_logprobs"] for choice in choices], [expected, expected], seed)

    def test_best_of_cannot_be_streamed(self):
        self.assertEqual(self.refused(best_of=3, stream=True)["param"], "best_of")

    def test_logprobs_of_the_whole_vocabulary_are_a_distribution(self):
        top = self.choices(max_tokens=1, logprobs=-1, temperature=0)[0]["logprobs"]["top_logprobs"][0]
        self.assertEqual(len(top), 512)
        self.assertAlmostEqual(sum(2.718281828459045 ** value for value in top.values()), 1, places=4)
        entries = self.choices(max_tokens=1, prompt_logprobs=-1)[0]["prompt_logprobs"]
        self.assertEqual([len(entry) for entry in entries[1:]], [512] * (len(PROMPT) - 1))


class Beams(TinyServer):
    def test_beams_come_by_score_and_the_best_is_no_worse_than_greedy(self):
        choices = self.choices(use_beam_search=True, n=4, logprobs=0)
        scores = [choice["cumulative_logprob"] for choice in choices]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertEqual(len({tuple(choice["token_ids"]) for choice in choices}), 4)
        greedy = self.choices(temperature=0, logprobs=0)[0]
        self.assertGreaterEqual(scores[0], sum(logprobs_of(greedy)) - 1e-4)
        wide = self.choices(use_beam_search=True, n=2, beam_width=8)
        self.assertEqual(len(wide), 2)

    def test_one_beam_is_greedy(self):
        beam = self.choices(use_beam_search=True)[0]
        greedy = self.choices(temperature=0, logprobs=0)[0]
        self.assertEqual(beam["token_ids"], greedy["token_ids"])
        self.assertAlmostEqual(beam["cumulative_logprob"], sum(logprobs_of(greedy)), places=3)

    def test_a_streamed_beam_search_is_the_whole_one(self):
        body = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True, "use_beam_search": True, "n": 3,
                "return_token_ids": True}
        whole = self.server.answer(COMPLETIONS, body)["choices"]
        streamed = [event["choices"][0] for event in self.server.stream(COMPLETIONS, body)]
        for choice in whole:
            parts = [part for part in streamed if part["index"] == choice["index"]]
            self.assertEqual(sum((part["token_ids"] for part in parts), []), choice["token_ids"])
            self.assertEqual(parts[-1]["cumulative_logprob"], choice["cumulative_logprob"])
            self.assertEqual(parts[-1]["finish_reason"], "length")

    def test_beams_do_not_depend_on_what_runs_beside_them(self):
        def ask(number):
            if number % 2:
                return self.choices(seed=number)
            return self.choices(use_beam_search=True, n=3, prompt=[number + 3, *PROMPT])

        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            together = list(threads.map(ask, range(16)))
        for number, choices in enumerate(together):
            self.assertEqual(choices, ask(number), number)

    def test_what_only_shapes_a_draw_contradicts_a_beam_search(self):
        for field, value in {"top_p": 0.9, "top_k": 5, "mirostat": 2, "dry_multiplier": 1, "stop": "x"}.items():
            self.assertEqual(self.refused(use_beam_search=True, **{field: value})["param"], field)
        for field, value in {"beam_width": 4, "length_penalty": 2, "early_stopping": True}.items():
            self.assertEqual(self.refused(**{field: value})["param"], field)


@unittest.skipUnless(BEAMS.exists(), "there is no record of beam searches")
class BeamsAsRecorded(unittest.TestCase):
    def test_beam_searches_find_the_recorded_answers(self):
        cases = json.loads(BEAMS.read_text())["cases"]
        for name in sorted({case["checkpoint"] for case in cases}):
            with harness.Server("--skip-tokenizer-init", model=TINY / name) as server:
                for number, case in enumerate(case for case in cases if case["checkpoint"] == name):
                    with self.subTest(checkpoint=name, case=number):
                        self.check(server, case)

    def check(self, server, case):
        choices = server.answer(COMPLETIONS, {
            "prompt": case["prompt"], "use_beam_search": True, "n": case["num_beams"],
            "max_tokens": case["max_new_tokens"], "min_tokens": case["min_new_tokens"], "ignore_eos": True,
            "stop_token_ids": case["eos_token_ids"], "length_penalty": case["length_penalty"],
            "early_stopping": case["early_stopping"], "return_token_ids": True})["choices"]
        self.assertEqual([choice["token_ids"] for choice in choices], [answer["tokens"] for answer in case["answers"]])
        for choice, answer in zip(choices, case["answers"], strict=True):
            score = choice["cumulative_logprob"] / len(answer["tokens"]) ** case["length_penalty"]
            self.assertAlmostEqual(score, answer["score"], delta=1e-3 * max(1, abs(answer["score"])))


class Parameters(TinyServer):
    """What each field does, and that a value out of its range is refused by the field's name."""

    def test_every_sampler_is_taken(self):
        for fields in ({"typical_p": 0.7}, {"top_n_sigma": 1.5}, {"mirostat": 1}, {"mirostat": 2, "mirostat_tau": 3},
                       {"dynatemp_range": 0.5, "dynatemp_exponent": 2}, {"xtc_probability": 1, "xtc_threshold": 0.05},
                       {"dry_multiplier": 0.8, "dry_base": 2, "dry_allowed_length": 1, "dry_penalty_last_n": 64},
                       {"top_k": 5, "top_p": 0.8, "min_p": 0.1}, {"spaces_between_special_tokens": False},
                       {"presence_penalty": 1, "frequency_penalty": -1, "repetition_penalty": 1.3}):
            with self.subTest(**fields):
                first = self.choices(seed=3, **fields)[0]["token_ids"]
                self.assertEqual(len(first), 16)
                self.assertEqual(self.choices(seed=3, **fields)[0]["token_ids"], first)

    def test_values_out_of_range_are_refused_by_name(self):
        for field, values in {
                "temperature": (-1, 2.1, "hot", 1e308), "top_p": (0, 1.1), "top_k": (-2,), "min_p": (1.5,),
                "typical_p": (0, 2), "mirostat": (3, -1), "mirostat_eta": (-1, 2), "mirostat_tau": (0,),
                "dry_base": (0.5,), "dry_multiplier": (-1,), "dry_penalty_last_n": (-2,), "dry_allowed_length": (-1,),
                "xtc_probability": (2,), "xtc_threshold": (-1,), "dynatemp_range": (-1,), "dynatemp_exponent": (0,),
                "n": (0, 129), "best_of": (0, 129), "truncate_prompt_tokens": (0, -2, 10**6, 10**30),
                "allowed_token_ids": ([], [512], [-1], "x"), "bad_words": ([""], "x", [1]), "stop_token_ids": ([512],),
                "logit_bias": ({"512": 1}, {"x": 1}), "early_stopping": ("always",), "timeout": (0, -1),
                "cache_salt": ("", 5), "priority": (1, "high"), "deterministic": ("yes",),
                "repetition_detection": ({"max_pattern_size": 5}, {"max_pattern_size": -1}, True)}.items():
            for value in values:
                with self.subTest(field=field, value=value):
                    self.assertEqual(self.refused(**{field: value})["param"], field)

    def test_no_number_is_no_crash(self):
        for literal in (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999", b"[" * 5000, b'{"a":' * 5000):
            body = b'{"prompt":[5],"max_tokens":2,"typical_p":' + literal + b"}"
            self.assertEqual(self.server.post(COMPLETIONS, body).status, 400, literal[:20])
        self.complete()

    def test_only_allowed_tokens_are_said(self):
        for choice in self.choices(n=3, allowed_token_ids=[20, 21, 22], temperature=1.5):
            self.assertLessEqual(set(choice["token_ids"]), {20, 21, 22})

    def test_a_repetition_ends_the_answer(self):
        choice = self.choices(allowed_token_ids=[20], max_tokens=100,
                              repetition_detection={"max_pattern_size": 3, "min_pattern_size": 1, "min_count": 5})[0]
        self.assertEqual(choice["finish_reason"], "repetition")
        self.assertLess(len(choice["token_ids"]), 20)

    def test_a_truncated_prompt_is_its_end(self):
        cut = self.complete(prompt=[3] * 600 + PROMPT, truncate_prompt_tokens=len(PROMPT), temperature=0)
        self.assertEqual(cut["usage"]["prompt_tokens"], len(PROMPT))
        self.assertEqual(cut["choices"][0]["token_ids"], self.choices(temperature=0)[0]["token_ids"])
        self.assertEqual(cut["choices"][0]["prompt_token_ids"], PROMPT)
        self.assertEqual(self.complete(prompt=[3] * 600, truncate_prompt_tokens=-1)["usage"]["total_tokens"], 512)


@harness.needs_default_model
class Words(harness.ServerTest):
    arguments = ("--activation-dtype", "float32")  # whose answers are known

    def test_a_bad_word_is_not_said(self):
        body = {"messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 24,
                "temperature": 0}
        path = "/v1/chat/completions"
        said = self.server.answer(path, body)["choices"][0]["message"]["content"]
        self.assertIn("Paris", said)
        other = self.server.answer(path, {**body, "bad_words": ["Paris"]})["choices"][0]["message"]["content"]
        self.assertNotIn("Paris", other)

    def test_a_chat_searches_with_beams(self):
        answer = self.server.answer("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Count to five."}], "max_tokens": 12, "use_beam_search": True,
            "n": 2, "beam_width": 3, "ignore_eos": True})  # of one length: what orders beams is their sum
        scores = [choice["cumulative_logprob"] for choice in answer["choices"]]
        self.assertEqual(scores, sorted(scores, reverse=True))
        self.assertTrue(all(choice["message"]["content"] for choice in answer["choices"]))

    def test_an_answer_that_a_stop_string_ends_counts_as_stopped_with_its_tokens(self):
        def counted():
            text = self.server.get("/metrics").body.decode()
            ended = dict(re.findall(r'vllm:request_success_total\{[^}]*finished_reason="(\w+)"[^}]*\} (\d+)', text))
            tokens = re.search(r"vllm:request_generation_tokens_sum\{[^}]*\} (\d+)", text)[1]
            return {reason: int(count) for reason, count in ended.items()}, int(tokens)

        self.server.wait_until_idle()
        before, tokens_before = counted()
        self.assertLessEqual({"stop", "length", "abort", "error"}, set(before))
        body = {"prompt": "one, two, three,", "temperature": 0, "max_tokens": 400, "ignore_eos": True, "stop": [","], "min_tokens": 3}
        for best in ({}, {"n": 2, "temperature": 0.01, "seed": 3}):
            self.server.answer(COMPLETIONS, {**body, **best})
        answers = [self.server.answer(COMPLETIONS, body) for _ in range(3)]
        self.assertEqual({answer["choices"][0]["finish_reason"] for answer in answers}, {"stop"})
        self.server.wait_until_idle()
        harness.wait_until(lambda: counted()[0]["stop"] == before["stop"] + 6, lambda: f"{before} and then {counted()}")
        ended, tokens = counted()
        self.assertEqual({**ended, "stop": before["stop"]}, before)
        self.assertEqual(tokens - tokens_before, 6 * answers[0]["usage"]["completion_tokens"])

    def test_dry_breakers_and_stops_are_texts(self):
        answer = self.server.answer(COMPLETIONS, {
            "prompt": "one two three one two three one two", "max_tokens": 12, "temperature": 0, "dry_multiplier": 2,
            "dry_sequence_breakers": ["\n", "!"], "stop": ["zebra"]})
        self.assertTrue(answer["choices"][0]["text"])

    def test_without_detokenizing_there_is_no_text(self):
        answer = self.server.answer(COMPLETIONS, {"prompt": "Once", "max_tokens": 4, "detokenize": False,
                                                  "return_token_ids": True, "ignore_eos": True})
        self.assertEqual(answer["choices"][0]["text"], "")
        self.assertEqual(len(answer["choices"][0]["token_ids"]), 4)


class Prefixes(TinyServer):
    more_arguments = ("--enable-admin-endpoints",)
    prompt = [3 + i * 7 % 500 for i in range(200)]

    def ask(self, first, **parameters):
        answer = self.complete(prompt=[first, *self.prompt], temperature=0, logprobs=3, **parameters)
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"]

    def test_a_second_request_finds_the_prefix_and_answers_the_same(self):
        cold, answer = self.ask(11)
        warm, again = self.ask(11)
        self.assertEqual(cold, 0)
        self.assertEqual(warm, 192, "all full blocks of 16")
        self.assertEqual(again, answer)

    def test_a_salt_separates(self):
        self.ask(12)
        self.assertEqual(self.ask(12, cache_salt="a")[0], 0)
        self.assertEqual(self.ask(12, cache_salt="b")[0], 0)
        self.assertEqual(self.ask(12, cache_salt="a")[0], 192)
        self.assertEqual(self.ask(12)[0], 192)

    def test_a_reset_empties_the_cache(self):
        self.ask(13)
        reply = self.server.post("/reset_prefix_cache", b"")
        self.assertEqual(reply.status, 200)
        self.assertEqual(self.ask(13)[0], 0)
        self.assertEqual(self.ask(13)[0], 192)

    def test_hits_are_counted(self):
        before = self.server.metrics()
        self.ask(14)
        self.ask(14)
        after = self.server.metrics()
        for name, least in {"vllm:prefix_cache_queries_total": 402, "vllm:prefix_cache_hits_total": 192,
                            "vllm:prompt_tokens_cached_total": 192}.items():
            self.assertGreaterEqual(after[name] - before[name], least, name)


class Receipts(TinyServer):
    def ask(self, number):
        return self.choices(prompt=[number + 3, *PROMPT], seed=number, max_tokens=24, deterministic=True)[0]

    def test_receipts_are_equal_alone_and_in_a_batch(self):
        with concurrent.futures.ThreadPoolExecutor(24) as threads:
            together = list(threads.map(self.ask, range(24)))
        for number, choice in enumerate(together):
            alone = self.ask(number)
            self.assertEqual(choice["receipt"], alone["receipt"])
            self.assertEqual(choice["token_ids"], alone["token_ids"])
        self.assertEqual(len({choice["receipt"] for choice in together}), 24)

    def test_a_receipt_is_in_the_last_chunk_of_a_stream(self):
        body = {"prompt": [3, *PROMPT], "seed": 0, "max_tokens": 24, "ignore_eos": True, "deterministic": True}
        chunks = [event["choices"][0] for event in self.server.stream(COMPLETIONS, body)]
        self.assertEqual(chunks[-1]["receipt"], self.ask(0)["receipt"])
        self.assertFalse(any("receipt" in chunk for chunk in chunks[:-1]))


class Queues(TinyServer):
    more_arguments = ("--max-num-seqs", 1, "--max-num-queued-reqs", 2)

    def test_a_full_queue_says_when_to_come_back(self):
        body = {"prompt": PROMPT, "max_tokens": 300, "ignore_eos": True}
        with concurrent.futures.ThreadPoolExecutor(12) as threads:
            replies = list(threads.map(lambda _: self.server.post(COMPLETIONS, body), range(12)))
        refused = [reply for reply in replies if reply.status != 200]
        self.assertTrue(refused)
        self.assertGreater(len(replies), len(refused))
        for reply in refused:
            self.assertEqual(reply.status, 429)
            self.assertGreaterEqual(int(reply.headers["Retry-After"]), 1)
            self.assertEqual(reply.json["error"]["type"], "RateLimitError")
        self.assertGreaterEqual(self.server.metrics()["vllm:admission_rejections_total"], len(refused))
        self.server.wait_until_idle()

    def test_a_request_beyond_its_timeout_is_408(self):
        body = {"prompt": PROMPT, "max_tokens": 500, "ignore_eos": True, "timeout": 0.001}
        reply = self.server.post(COMPLETIONS, body)
        self.assertEqual(reply.status, 408, reply.body)
        self.assertEqual(reply.json["error"]["code"], "deadline_exceeded")
        *_, last = self.server.stream(COMPLETIONS, body)
        self.assertEqual(last["error"]["code"], "deadline_exceeded")
        self.server.wait_until_idle()


class Tenants(unittest.TestCase):
    def finishing_order(self, floods, *arguments):
        """Which key's answers end in which order, when each key of `floods` sends its number, one key after another."""
        order = []
        lock = threading.Lock()

        def ask(server, key):
            reply = server.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 450, "ignore_eos": True}, bearer(key))
            with lock:
                order.append(key if reply.status == 200 else f"{key}: {reply.status}")

        keys = [argument for key, _ in floods for argument in ("--api-key", key)]
        server = harness.Server("--skip-tokenizer-init", "--max-num-seqs", 1, *arguments, *keys, model=LLAMA)
        with server, concurrent.futures.ThreadPoolExecutor(sum(count for _, count in floods)) as threads:
            for key, count in floods:
                for _ in range(count):
                    threads.submit(ask, server, key)
            threads.shutdown(wait=True)
        return order

    def test_a_flood_of_one_key_does_not_starve_another(self):
        order = self.finishing_order([("flood", 40), ("other", 4)])
        self.assertEqual(len(order), 44)
        self.assertLess(max(place for place, key in enumerate(order) if key == "other"), 30, order)

    def test_a_heavier_key_gets_more(self):
        order = self.finishing_order([("light", 24), ("heavy", 24)], "--api-key-weights", "1,4")
        first = order.index("heavy")
        last = len(order) - order[::-1].index("heavy")
        self.assertLess(order[first:last].count("light"), 12, order)

    def test_weights_must_fit_the_keys(self):
        result = harness.run("serve", LLAMA, "--skip-tokenizer-init", "--api-key", "a", "--api-key-weights", "1,2",
                             "--port", harness.free_port())
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("weights", result.stderr)


class Inspection(TinyServer):
    more_arguments = ("--enable-admin-endpoints", "--api-key", "secret")

    def ask(self, **parameters):
        reply = self.server.post(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, **parameters},
                                 {"X-Request-Id": "an-incident", **bearer("secret")})
        self.assertEqual(reply.status, 200, reply.body)

    def test_a_requests_life_and_the_steps_it_was_in_are_shown(self):
        self.ask(n=2, seed=1)
        reply = self.server.get("/admin/requests/an-incident", bearer("secret"))
        self.assertEqual(reply.status, 200, reply.body)
        answers = reply.json["answers"]
        self.assertGreaterEqual(len(answers), 2)
        for answer in answers:
            self.assertEqual([event["event"] for event in answer["events"]],
                             ["queued", "scheduled", "first_token", "finished"])
            self.assertEqual((answer["output_tokens"], answer["finish_reason"]), (8, "length"))
        steps = self.server.get("/admin/flight_recorder", bearer("secret")).json["steps"]
        ran = {run[0] for step in steps for run in step["scheduled"]}
        self.assertTrue({answer["sequence"] for answer in answers} <= ran)
        few = self.server.get("/admin/flight_recorder?steps=3", bearer("secret")).json["steps"]
        self.assertEqual(few, steps[-3:])

    def test_without_the_key_nothing_is_shown(self):
        for path in ("/admin/flight_recorder", "/admin/requests/an-incident"):
            self.assertEqual(self.server.get(path).status, 401)
        self.assertEqual(self.server.post("/reset_prefix_cache", b"").status, 401)


class Traces(unittest.TestCase):
    def test_a_recorded_trace_replays(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder) / "trace"
            server = harness.Server("--skip-tokenizer-init", "--trace-file", trace, "--enable-admin-endpoints",
                                    "--num-gpu-blocks-override", 40, model=LLAMA)
            with server, concurrent.futures.ThreadPoolExecutor(16) as threads:
                def ask(number):
                    more = ({}, {"n": 3, "seed": 1}, {"use_beam_search": True, "n": 2}, {"timeout": 0.01})[number % 4]
                    status = server.post(COMPLETIONS, {"prompt": [number % 5 + 3] * 40, "max_tokens": 60,
                                                       "ignore_eos": True, **more}).status
                    if number == 10:
                        server.post("/reset_prefix_cache", b"")
                    return status

                self.assertLessEqual(set(threads.map(ask, range(32))), {200, 408})
            result = harness.run("replay", trace)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertIn("every plan is as recorded", result.stdout)


class NoAdmin(TinyServer):
    def test_without_the_flag_admin_endpoints_are_not_there(self):
        self.assertEqual(self.server.post("/reset_prefix_cache", b"").status, 404)
        self.assertEqual(self.server.get("/admin/flight_recorder").status, 404)
        self.assertEqual(self.server.get("/admin/requests/1").status, 404)


if __name__ == "__main__":
    harness.main()
