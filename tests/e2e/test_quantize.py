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
            self.assertIn(str(out), self.quantize(out, "--type", kind))
            found = self.perplexity(out)
            self.assertLess(abs(found["mean_logprob"] - exact["mean_logprob"]), most, kind)
        asked = json.loads(harness.run("inspect", out, "--json").stdout)
        self.assertEqual(asked["unsupported"], [])
        self.assertIn("512 tokens", asked["tokenizer"])

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
