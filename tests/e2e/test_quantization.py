"""--quantization through the real binary: small checkpoints against the records beside them, the plan, what is refused."""

import json
import re
import statistics
import unittest

import harness

TINY = harness.DATA / "e2e/tiny"
# Mean absolute difference of a prompt's log-probabilities from float32's of the stored weights, as a share of the standard deviation of
# those (the weights are random, the logits far apart): {mode: (more than, less than)}. The lower bounds, ten times what arithmetic may
# differ by, say that weights were rounded indeed. tests/runner/quantized_models_test.cpp holds the same against scalar rounding.
BOUNDS = {"int8": (0.003, 0.13), "fp8": (0.02, 0.4), "int4": (0.03, 0.75)}
MODELS = ("llama", "gemma3", "mixtral", "qwen2_moe", "deepseek_v2")


def plan(model, *flags):
    result = harness.run("plan", TINY / model, "--json", "--kv-cache-memory-bytes", "1M", *flags)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


class Answers(unittest.TestCase):
    def test_logprobs_stay_near_the_record(self):
        for model in MODELS:
            cases = json.loads((TINY / model / "golden.json").read_text())["cases"]
            for mode, (least, most) in BOUNDS.items():
                with self.subTest(model=model, mode=mode), harness.Server(
                        "--skip-tokenizer-init", "--quantization", mode, model=TINY / model) as server:
                    differences = []
                    for case in cases:
                        reply = server.post("/v1/completions", {
                            "prompt": case["prompt"], "temperature": 0, "max_tokens": 1, "prompt_logprobs": 0})
                        self.assertEqual(reply.status, 200, reply.body)
                        entries = reply.json["choices"][0]["prompt_logprobs"][1:]
                        differences += [abs(entry[str(token)]["logprob"] - expected) for entry, token, expected in
                                        zip(entries, case["prompt"][1:], case["logprob_of_prompt"], strict=True)]
                    spread = statistics.pstdev(value for case in cases for value in case["logprob_of_prompt"])
                    share = statistics.mean(differences) / spread
                    self.assertGreater(share, least)
                    self.assertLess(share, most)

    def test_the_start_says_what_was_done_and_takes_what_was_planned(self):
        planned = plan("mixtral", "--quantization", "int4")
        with harness.Server("--skip-tokenizer-init", "--quantization", "int4", "--kv-cache-memory-bytes", "1M",
                            model=TINY / "mixtral") as server:
            log = server.log_text()
        (line,) = [line for line in log.splitlines() if " memory: weights" in line]
        self.assertRegex(line, r"int4: \d+ matrices of .* to .* of Q4_1, Q8_0 in \d+\.\d\d s \(\d+\.\d\d GB/s\)")
        kib = float(re.search(r"weights +([0-9.]+) KiB", line).group(1))
        self.assertAlmostEqual(kib, planned["weight_bytes"] / 1024, delta=0.06)
        self.assertIn("F32 to int4", log)


class Plans(unittest.TestCase):
    def test_memory_follows_from_the_formats(self):
        """llama: 2 layers or more of q, k, v, o, gate, up, down and a head, all of rows of 64 or 128 values in float32."""
        stored = plan("llama")
        self.assertEqual(stored["quantization"], "")
        sizes = {mode: plan("llama", "--quantization", mode) for mode in BOUNDS}
        for mode, found in sizes.items():
            with self.subTest(mode=mode):
                self.assertTrue(found["quantization"].startswith(f"{mode}: "), found["quantization"])
                self.assertLess(found["weight_bytes"], 0.6 * stored["weight_bytes"])
        self.assertLess(sizes["int4"]["weight_bytes"], sizes["fp8"]["weight_bytes"])
        self.assertEqual(plan("llama", "--quantization", "none")["weight_bytes"], stored["weight_bytes"])

    def test_rows_of_odd_lengths_stay_and_the_plan_says_so(self):
        """The experts of qwen2_moe have 48 values inside."""
        for mode in ("int8", "int4"):
            self.assertIn("stay as they are stored: their rows are no multiple of 32 values",
                          plan("qwen2_moe", "--quantization", mode)["quantization"])
        self.assertNotIn("stay", plan("qwen2_moe", "--quantization", "fp8")["quantization"])


class Refusals(unittest.TestCase):
    def test_an_unknown_value_is_named_with_those_that_are_known(self):
        for command in (("plan", TINY / "llama"), ("complete", TINY / "llama", "-p", "x")):
            result = harness.run(*command, "--quantization", "vptq")
            self.assertEqual(result.returncode, 2)
            self.assertIn('quantization "vptq" is not known; choose one of: int8, int4, fp8', result.stderr)

    @harness.needs_default_model
    def test_a_file_that_is_quantised_already_is_refused_by_its_type(self):
        for command in (("plan",), ("complete", "-p", "x"), ("serve", "--port", harness.free_port())):
            result = harness.run(*command, "--quantization", "int8")
            self.assertEqual(result.returncode, 1)
            self.assertIn("--quantization int8", result.stderr)
            self.assertRegex(result.stderr, r"quantised already, the first \S+ as Q\d_\d")
        # inspect says it among what is not supported.
        found = json.loads(harness.run("inspect", "--json", "--quantization", "int8").stdout)
        self.assertIn("quantised already", json.dumps(found["unsupported"]))


if __name__ == "__main__":
    harness.main()
