"""Small checkpoints in the codes of AWQ, GPTQ, compressed-tensors and bitsandbytes, served by token ids, against the records beside them;
and --quantization, which says what they are stored in."""

import json
import pathlib
import shutil
import tempfile
import unittest

import harness
import test_tiny

QUANT = harness.DATA / "e2e/quant"


class Coded(test_tiny.Tiny):
    folder = "quant"
    method = ""

    @classmethod
    def setUpClass(cls):
        cls.arguments = ("--skip-tokenizer-init", "--activation-dtype", "float32", "--quantization", cls.method)
        super().setUpClass()


class Awq(Coded, harness.ServerTest):
    name = "llama_awq_g32"
    method = "awq"


class GptqReordered(Coded, harness.ServerTest):
    name = "qwen2_gptq_4bit_g32_act_order"
    method = "gptq_marlin"


class CompressedTensors(Coded, harness.ServerTest):
    name = "llama_ct_w4a16_g32_asym"
    method = "compressed-tensors"


class RoundedInputs(Coded, harness.ServerTest):
    name = "llama_ct_fp8_dynamic"
    method = "compressed-tensors"


class Nf4(Coded, harness.ServerTest):
    name = "qwen2_bnb_nf4"
    method = "bitsandbytes"


class Plans(unittest.TestCase):
    def test_weights_take_their_own_width(self):
        def bytes_of(name):
            result = harness.run("plan", QUANT / name, "--json", "--kv-cache-memory-bytes", "1M")
            self.assertEqual(result.returncode, 0, result.stderr)
            return json.loads(result.stdout)["weight_bytes"]

        # Embeddings and head are F16: 128 KiB. 74 Ki codes of 4 bits with 24 bits for each 32, of 8 bits with 4 bytes.
        self.assertLess(bytes_of("llama_gptq_4bit_g32"), bytes_of("llama_gptq_8bit_channel") - 25_000)

    def test_the_method_of_gpt_oss_own_files_may_be_named(self):
        with tempfile.TemporaryDirectory() as place:
            folder = pathlib.Path(place) / "model"
            shutil.copytree(harness.DATA / "e2e/tiny/gpt_oss", folder)
            config = json.loads((folder / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
            result = harness.run("plan", folder, "--quantization", "mxfp4", "--kv-cache-memory-bytes", "1M")
            self.assertEqual(result.returncode, 0, result.stderr)
            result = harness.run("plan", folder, "--quantization", "quark")
            self.assertIn("--quantization quark: the checkpoint's weights are mxfp4", result.stderr)

    def test_what_a_file_is_not_stored_in_is_refused(self):
        for folder, found in ((harness.DATA / "e2e/tiny/llama", "not stored so"), (QUANT / "llama_gptq_4bit_g32", "gptq")):
            result = harness.run("plan", folder, "--quantization", "awq")
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"--quantization awq: the checkpoint's weights are {found}", result.stderr)


del Coded  # it has no server of its own


if __name__ == "__main__":
    harness.main()
