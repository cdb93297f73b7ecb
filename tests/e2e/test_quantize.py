"""quire quantize: a small checkpoint rounded and written in every way, loaded again, gone on with after a kill; and quire bench perplexity,
which says how much each way costs."""

import json
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import harness

TINY = harness.DATA / "e2e/tiny/llama"


def byte_alphabet():
    """How a tokenizer.json of bytes spells each of them."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + i) for i, byte in enumerate(others)}}


def write_tokenizer(folder):
    model = {"type": "BPE", "vocab": {spelled: byte for byte, spelled in byte_alphabet().items()}, "merges": []}
    bytes_alone = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": 256, "content": "<|end|>", "special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": bytes_alone, "post_processor": None,
        "decoder": bytes_alone, "model": model}))


class Quantize(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "model"
        shutil.copytree(TINY, self.model)
        write_tokenizer(self.model)
        words = random.Random(4)
        self.text = self.folder / "text.txt"
        self.text.write_text(" ".join("".join(words.choices("etaoinshr", k=words.randint(2, 9))) for _ in range(1200)))

    def quantize(self, out, *arguments, model=None, code=0):
        result = harness.run("quantize", model or self.model, out, "--threads", 2, *arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        return result.stdout if code == 0 else result.stderr

    def perplexity(self, model, *arguments):
        result = harness.run("bench", "perplexity", model, "--text", self.text, "--window", 64, "--num-windows", 12, "--kv-cache-memory-bytes",
                             "4M", "--activation-dtype", "float32", "--output-json", self.folder / "result.json", *arguments)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads((self.folder / "result.json").read_text())

    def test_every_type_is_read_again_and_says_about_the_same(self):
        exact = self.perplexity(self.model)
        self.assertEqual(exact["scored_tokens"], 12 * 31)
        self.assertEqual(exact["total_tokens"], 12 * 64)
        for kind, most in (("f32", 1e-5), ("f16", 1e-3), ("q8_0", 0.02), ("q6_k", 0.05), ("q5_k_m", 0.2), ("q4_k_s", 0.4), ("q4_1", 0.4), ("q4_0", 0.4)):
            out = self.folder / f"{kind}.gguf"
            self.assertIn(str(out), self.quantize(out, *(("--type", kind) if kind != "q8_0" else (kind.upper(),))))  # as llama-quantize has it
            found = self.perplexity(out)
            self.assertLess(abs(found["mean_logprob"] - exact["mean_logprob"]), most, kind)
        asked = json.loads(harness.run("inspect", out, "--json").stdout)
        self.assertEqual(asked["unsupported"], [])
        self.assertIn("512 tokens", asked["tokenizer"])

    def generated(self, model):
        """Tokens of a few prompts and their log-probabilities, and what ended each answer."""
        with harness.Server("--activation-dtype", "float32", "--kv-cache-dtype", "float32", "--skip-tokenizer-init",
                            "--kv-cache-memory-bytes", "16M", model=model) as server:
            choices = [server.answer("/v1/completions", {"model": server.get("/v1/models").json["data"][0]["id"], "prompt": prompt,
                                                         "max_tokens": 24, "temperature": 0, "logprobs": 0, "return_token_ids": True})["choices"][0]
                       for prompt in ([5, 6, 7], list(range(9, 40)), [3] * 20)]
        return [(one["token_ids"], one["finish_reason"], one["stop_reason"]) for one in choices], [
            logprob for one in choices for logprob in one["logprobs"]["token_logprobs"]]

    def test_biases_of_heads_are_turned_with_them(self):
        model = self.folder / "biased"
        shutil.copytree(harness.DATA / "e2e/tiny/llama_yarn_mscale", model)
        self.assertIn("truncate", self.quantize(self.folder / "out.gguf", "--type", "f32", model=model, code=1))
        config = json.loads((model / "config.json").read_text())
        config["rope_parameters"]["truncate"] = True
        (model / "config.json").write_text(json.dumps(config))
        self.quantize(self.folder / "out.gguf", "--type", "f32", model=model)
        expected, found = self.generated(model), self.generated(self.folder / "out.gguf")
        self.assertEqual(found[0], expected[0])
        for a, b in zip(found[1], expected[1]):
            self.assertAlmostEqual(a, b, delta=2e-3)

    def test_a_file_without_a_tokenizer_ends_where_the_model_does(self):
        model = self.folder / "ends"
        shutil.copytree(TINY, model)
        first = self.generated(model)[0][0][0]
        for name in ("config.json", "generation_config.json"):  # the tokens that it gives now
            if (model / name).exists():
                config = json.loads((model / name).read_text())
                (model / name).write_text(json.dumps({**config, "eos_token_id": [2, first[3], first[1], first[2]]}))
        result = harness.run("quantize", model, self.folder / "out.gguf", "--type", "f32")
        self.assertEqual(result.returncode, 0, result.stderr)
        lost = len({2, first[1], first[2], first[3]}) > 3
        self.assertEqual("for which a GGUF file has no place" in result.stderr, lost)
        self.assertEqual(self.generated(self.folder / "out.gguf")[0][0], self.generated(model)[0][0])

    def test_two_do_not_write_one_file(self):
        out = self.folder / "out.gguf"
        first = subprocess.Popen([harness.QUIRE, "quantize", self.model, out, "--type", "q4_1"], stderr=subprocess.DEVNULL)
        while first.poll() is None and not (self.folder / "out.gguf.partial").exists():
            time.sleep(0.0005)
        first.send_signal(signal.SIGSTOP)
        if not out.exists() and (self.folder / "out.gguf.partial").exists():  # it may have been faster
            self.assertIn("being written by another process", self.quantize(out, "--type", "q8_0", code=1))
        first.send_signal(signal.SIGCONT)
        self.assertEqual(first.wait(60), 0)
        self.assertIn("Q4_1", harness.run("inspect", out).stdout)

    def test_calibrated_codes_are_read_again(self):
        exact = self.perplexity(self.model)["mean_logprob"]
        self.quantize(self.folder / "w4", "--type", "w4a16", "--calibration-text", self.text, "--calibration-tokens", 4096, "--window", 128)
        found = self.perplexity(self.folder / "w4", "--quantization", "compressed-tensors")
        self.assertLess(abs(found["mean_logprob"] - exact), 0.4)
        config = json.loads((self.folder / "w4/config.json").read_text())["quantization_config"]
        self.assertEqual(config["config_groups"]["group_0"]["weights"]["group_size"], 64)
        self.assertTrue((self.folder / "w4/tokenizer.json").exists())
        self.quantize(self.folder / "q4.gguf", "--type", "q4_0", "--imatrix-text", self.text, "--calibration-tokens", 2048)

    def test_a_killed_one_is_gone_on_with(self):
        out = self.folder / "out.gguf"
        process = subprocess.Popen([harness.QUIRE, "quantize", self.model, out, "--type", "q4_1"], stderr=subprocess.DEVNULL)
        state = self.folder / "out.gguf.partial.state"
        while process.poll() is None and not (state.exists() and state.read_text().split()[2:] > ["0"]):
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.quantize(self.folder / "whole.gguf", "--type", "q4_1")
        if not out.exists():  # it may have been faster than the kill
            self.quantize(out, "--type", "q4_1")
        self.assertEqual(out.read_bytes(), (self.folder / "whole.gguf").read_bytes())
        self.assertFalse(state.exists())

    def test_what_cannot_be_is_refused_by_name(self):
        for arguments, found in ((("--type", "q3_k_m"), "q4_k_m"), (("--type", "w4a16"), "--calibration-text"),
                                 (("--type", "w4a16", "--no-calibration", "--group-size", 48), "--group-size 48"),
                                 (("--type", "q4_0", "--imatrix-text", self.folder / "none.txt"), "none.txt")):
            self.assertIn(found, self.quantize(self.folder / "out", *arguments, code=1))
        self.quantize(self.folder / "q8.gguf", "--type", "q8_0")
        self.assertIn("exists already", self.quantize(self.folder / "q8.gguf", "--type", "q8_0", code=1))
        self.assertIn("--allow-requantize", self.quantize(self.folder / "out", "--type", "q4_0", model=self.folder / "q8.gguf", code=1))
        self.assertIn("Hugging Face", self.quantize(self.folder / "out", "--type", "w4a16", "--no-calibration", model=self.folder / "q8.gguf", code=1))
        short = self.folder / "short.txt"
        short.write_text("Too short.")
        result = harness.run("bench", "perplexity", self.model, "--text", short, "--window", 64)
        self.assertEqual(result.returncode, 1)
        self.assertIn("--window", result.stderr)


if __name__ == "__main__":
    harness.main()
