"""scripts/cuda_check on the CPU, with stand-ins for what only a machine with a card has: every command line of the real
binary is accepted, and what did not run is never told as passed."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import harness

SOURCES = pathlib.Path(__file__).resolve().parent
SCRIPTS = SOURCES.parents[1] / "scripts/cuda_check"

# GoogleTest's report, of the tests that the variable RESULTS says.
TEST_PROGRAM = """#!/usr/bin/env python3
import json, os, sys
output = next(a for a in sys.argv if a.startswith("--gtest_output=json:")).split(":", 1)[1]
cases = [{"name": r, "classname": "C", "result": r, "mean_logit_difference": "0.5"} for r in os.environ["RESULTS"].split()]
json.dump({"tests": len(cases), "testsuites": [{"testsuite": cases}]}, open(output, "w"))
"""


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


class CudaCheck(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for path in (*SCRIPTS.iterdir(), SOURCES / "harness.py", SOURCES / "recorded_answers.py"):
            if path.is_file():
                shutil.copy(path, self.folder)
        self.programs = self.folder / "bin"
        self.programs.mkdir()
        (self.programs / "quire").symlink_to(harness.QUIRE.resolve())
        for name in ("test_ops", "test_runner", "test_engine_cuda"):
            write_program(self.programs / name, TEST_PROGRAM)
        write_program(self.programs / "nvidia-smi", "#!/bin/sh\necho 'a card'\n")
        write_program(self.programs / "compute-sanitizer", "#!/bin/sh\nshift 2\nexec \"$@\"\n")
        shape = json.loads((harness.DATA / "e2e/tiny/llama/config.json").read_text())
        (self.folder / "shape").mkdir()
        (self.folder / "shape/config.json").write_text(json.dumps({**shape, "max_position_embeddings": 16384}))

    def check(self, results="COMPLETED COMPLETED", seconds=400):
        """Returns run.sh's exit code and its summary."""
        environment = {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}", "RESULTS": results,
                       "QUIRE_CHECK_TRY": str(self.folder / "shape"), "QUIRE_CHECK_SECONDS": str(seconds)}
        done = subprocess.run(["bash", self.folder / "run.sh", self.folder / "results"], capture_output=True, text=True,
                              env=environment, timeout=600)
        self.output = done.stdout + done.stderr
        return done.returncode, json.loads((self.folder / "results/summary.json").read_text())

    def test_every_part_runs_here_but_the_model_that_was_not_given(self):
        code, summary = self.check()
        self.assertEqual(code, 1, self.output)
        parts = summary["parts"]
        self.assertEqual({name for name, part in parts.items() if part["status"] != "passed"},
                         {"smollm2_float32", "smollm2"}, self.output)
        self.assertEqual(parts["smollm2"]["status"], "skipped")
        self.assertIn("SmolLM2", parts["smollm2"]["reason"])
        self.assertFalse(summary["passed"])
        self.assertEqual(summary["card"], "a card")
        self.assertEqual(summary["tests"]["tiny_models_bfloat16"]["worst"], {"mean_logit_difference": 0.5})
        self.assertGreater(summary["limits"]["memory_bytes_per_second"], 0)
        for name, figures in summary["benchmark"].items():
            self.assertGreater(figures["value"], 0, name)
            self.assertGreater(figures["share_of_roof"], 0, name)
        self.assertEqual(len(summary["benchmark"]), 12)  # FlashInfer's are a card's alone
        for step in summary["host_of_a_step_of_256"].values():
            if step is not None:
                self.assertGreater(step["host_ms"], 0)

    def test_tests_that_were_all_skipped_or_not_there_have_failed(self):
        for results in ("SKIPPED SKIPPED", ""):
            with self.subTest(results=results):
                code, summary = self.check(results, seconds=8)
                self.assertEqual(code, 1)
                self.assertEqual(summary["parts"]["ops"]["status"], "failed", self.output)
                self.assertIn("skipped" if results else "selects no test", summary["parts"]["ops"]["reason"])

    def test_parts_without_time_are_skipped_by_name(self):
        code, summary = self.check(seconds=0)
        self.assertEqual(code, 1)
        self.assertEqual({part["status"] for part in summary["parts"].values()}, {"skipped"})
        self.assertIn("no time left", summary["parts"]["llama_8b_256"]["reason"])

    @harness.needs_default_model
    def test_the_model_answers_as_recorded_with_floats_and_as_it_comes(self):
        # A CPU's own choice for these weights, inputs of 8 bits, is coarser than a card's.
        for flags in (["--", "--device", "cpu"], ["--as-it-comes", "--", "--device", "cpu", "--activation-dtype", "int16"]):
            with self.subTest(flags=flags):
                result = self.folder / "oracle.json"
                done = subprocess.run(
                    ["python3", self.folder / "oracle.py", "--quire", harness.QUIRE, "--data", harness.DATA, "--model",
                     harness.DEFAULT_MODEL, "--output", result, "--cases", "5", *flags],
                    capture_output=True, text=True, timeout=300)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                found = json.loads(result.read_text())
                self.assertEqual((found["passed"], found["failed"]), (5, 0))
                self.assertGreater(found["greedy_tokens_compared"], 10)


if __name__ == "__main__":
    harness.main()
