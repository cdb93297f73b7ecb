"""scripts/cuda_check on the CPU and without a card, with stand-ins for what only a machine with a card has: every command
line of the real binary is accepted, what did not run is never told as passed, and what one test or part does wrong costs
no other."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

import harness

SOURCES = pathlib.Path(__file__).resolve().parent
SCRIPTS = SOURCES.parents[1] / "scripts/cuda_check"
sys.path.insert(0, str(SCRIPTS))

import parts  # noqa: E402
import tests  # noqa: E402

# Prints what GoogleTest prints, of the tests that the variable RESULTS says: NAME=RESULT.
TEST_PROGRAM = """#!/usr/bin/env python3
import os, sys, time
chosen = next(a for a in sys.argv if a.startswith("--gtest_filter=")).split("=", 1)[1]
without = chosen.split("-", 1)[1].split(":") if "-" in chosen else []
cases = [one.split("=") for one in os.environ["RESULTS"].split()]
cases = [(name, result) for name, result in cases if name not in without]
print(f"[==========] Running {len(cases)} tests from 1 test suite.")
for name, result in cases:
    print(f"[ RUN      ] {name}", flush=True)
    if result == "CRASHED":
        print("CHECK failed: a bug", file=sys.stderr, flush=True)
        os.abort()
    if result == "HUNG":
        time.sleep(600)
    if result == "SKIPPED":
        print("test.cpp:7: Skipped\\n" + os.environ.get("REASON", "this machine lacks cuda") + "\\n")
    print("[ PROPERTY ] mean_logit_difference 0.5")
    print({"OK": "[       OK ]", "FAILED": "[  FAILED  ]", "SKIPPED": "[  SKIPPED ]"}[result], f"{name} (1 ms)")
print(f"[==========] {len(cases)} tests from 1 test suite ran. (1 ms total)")
sys.exit(any(result == "FAILED" for _, result in cases))
"""
# Fails but with --enforce-eager.
GRAPHLESS = """#!/bin/sh
case "$*" in *--enforce-eager*) exit 0 ;; esac
echo "graphs do not work here" >&2
exit 5
"""
PASSED = "A.one=OK A.two=OK"
CARD = "#!/bin/sh\necho 'a card'\n"


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


class CudaCheck(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.programs = self.folder / "bin"
        self.programs.mkdir()
        self.results = self.folder / "results"
        self.parts = ""
        (self.programs / "quire").symlink_to(harness.QUIRE.resolve())
        for name in ("test_ops", "test_runner", "test_engine_cuda"):
            write_program(self.programs / name, TEST_PROGRAM)
        write_program(self.programs / "compute-sanitizer", "#!/bin/sh\nshift 2\nexec \"$@\"\n")
        (self.folder / "read").write_text("tests/e2e/test_cuda_check.py\nscripts/cuda_check/run.sh\n")
        shape = json.loads((harness.DATA / "e2e/tiny/llama/config.json").read_text())
        self.shape = self.folder / "shape"
        self.shape.mkdir()
        (self.shape / "config.json").write_text(json.dumps({**shape, "max_position_embeddings": 16384}))

    def environment(self, results=PASSED, seconds=400, card=False, on_cpu=True):
        if card:
            write_program(self.programs / "nvidia-smi", CARD)
        more = {"QUIRE_CHECK_TRY": str(self.shape)} if on_cpu else {}
        return {**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}", "RESULTS": results,
                "QUIRE_CHECK_FOLDER": str(self.folder), "QUIRE_CHECK_SECONDS": str(seconds),
                "QUIRE_CHECK_PARTS": self.parts, **more}

    def check(self, mode, *pieces, **how):
        """Returns run.sh's exit code and its summary."""
        done = subprocess.run(["bash", SCRIPTS / "run.sh", f"--{mode}", self.results, *pieces], capture_output=True,
                              text=True, env=self.environment(**how), timeout=600)
        self.output = done.stdout + done.stderr
        return done.returncode, self.summary()

    def summary(self):
        return json.loads((self.results / "summary.json").read_text())

    def logs(self):
        with tarfile.open(self.results / "logs.tar.gz") as archive:
            return set(archive.getnames())

    def test_nothing_is_begun_where_the_tree_lacks_what_the_check_reads(self):
        with open(self.folder / "read", "a") as read:
            read.write("tests/data/that_is_not_there.json\n")
        done = subprocess.run(["bash", SCRIPTS / "run.sh", "--correct", self.results], capture_output=True, text=True,
                              env=self.environment(), timeout=60)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("lacks 1 files that the check reads, such as tests/data/that_is_not_there.json", done.stderr)
        self.assertFalse((self.results / "summary.json").exists())

    def test_every_benchmark_is_a_command_line_that_the_program_knows(self):
        code, summary = self.check("fast", card=True)
        self.assertEqual(code, 3, self.output)
        self.assertTrue(summary["passed"])
        self.assertFalse(summary["complete"])
        cards = {part.name for part in parts.FAST if getattr(part, "card_only", False)}
        self.assertEqual(set(summary["skipped"]), cards, self.output)
        self.assertEqual(summary["card"], "a card")
        self.assertGreater(summary["limits"]["memory_bytes_per_second"], 0)
        self.assertEqual(len(summary["benchmark"]), 15)
        for name, figure in summary["benchmark"].items():
            self.assertGreater(figure["value"], 0, name)
            self.assertGreater(figure["of_an_h200"]["share_of_roof"], 0, name)
        self.assertEqual(sorted(path.name for path in self.results.iterdir()), ["logs.tar.gz", "summary.json"])
        self.assertIn("llama_8b.txt", self.logs())
        for step in summary["host_of_a_step_of_256"].values():
            self.assertGreater(step["host_ms"], 0)

    def test_what_is_computed_is_told_test_by_test(self):
        code, summary = self.check("correct", card=True)
        self.assertEqual(code, 3, self.output)
        self.assertEqual(set(summary["skipped"]), {"attention_trial", "smollm2_float32", "smollm2"})
        self.assertIn("SmolLM2", summary["skipped"]["smollm2"])
        self.assertIn("smollm2", summary["verdict"])
        self.assertEqual(summary["tests"]["ops"]["passed"], 2)
        self.assertEqual(summary["tests"]["tiny_models_bfloat16"]["worst"], {"mean_logit_difference": 0.5})

    def test_parts_can_be_chosen(self):
        self.parts = "ops,engine"
        code, summary = self.check("correct", card=True)
        self.assertEqual(code, 3, self.output)
        self.assertEqual(set(summary["tests"]), {"ops", "engine"})
        self.assertIn("not among", summary["skipped"]["runner"])
        self.parts = "ops,opps"
        done = subprocess.run(["bash", SCRIPTS / "run.sh", "--correct", self.results], capture_output=True, text=True,
                              env=self.environment(card=True), timeout=60)
        self.assertEqual(done.returncode, 1)
        self.assertIn("--correct has no opps; it has ops, attention_trial, tiny", done.stderr)

    def test_a_test_that_ends_the_program_is_named_and_the_others_run(self):
        code, summary = self.check("correct", card=True, results="A.one=OK A.bad=CRASHED A.two=OK A.wrong=FAILED A.three=OK")
        self.assertEqual(code, 1, self.output)
        self.assertFalse(summary["passed"])
        ops = summary["tests"]["ops"]
        self.assertEqual(ops["passed"], 3)
        self.assertEqual(ops["failed"], ["A.wrong"])
        (crashed,) = ops["ended_the_program"]
        self.assertEqual(crashed["test"], "A.bad")
        self.assertIn("signal 6", crashed["how"])
        self.assertIn("CHECK failed: a bug", crashed["last_lines"])
        self.assertIn("A.bad crashed", summary["parts"]["ops"]["reason"])

    def test_a_test_that_hangs_is_named_and_costs_what_it_may(self):
        os.environ["RESULTS"] = "A.one=OK A.slow=HUNG A.two=OK"
        log = self.enterContext((self.folder / "log").open("w"))
        begin = time.monotonic()
        outcome = tests.run(tests.Program([self.programs / "test_ops"], "*", seconds=60, test_seconds=2), log)
        self.assertEqual(outcome.passed, ["A.one", "A.two"])
        self.assertEqual([(one["test"], one["how"]) for one in outcome.ended_it], [("A.slow", "hung")])
        outcome = tests.run(tests.Program([self.programs / "test_ops"], "*", seconds=2, test_seconds=60), log)
        self.assertEqual(outcome.passed, ["A.one"])
        self.assertIn("cut off", outcome.problem)
        self.assertLess(time.monotonic() - begin, 30)

    def test_without_a_card_every_part_is_begun_and_told_so(self):
        if shutil.which("nvidia-smi") is not None:
            self.skipTest("this machine has a card")
        for mode in ("correct", "fast"):
            with self.subTest(mode=mode):
                code, summary = self.check(mode, on_cpu=False, results="A.one=SKIPPED")
                self.assertEqual(code, 3, self.output)
                found = {name: part["status"] for name, part in summary["parts"].items()}
                model = {"smollm2_float32", "smollm2"} if mode == "correct" else set()
                self.assertEqual({name for name, status in found.items() if status != "no card"},
                                 model | ({"torch"} if found.get("torch") == "skipped" else set()), self.output)
                self.assertIn("no card for", summary["verdict"])
                self.assertLess(summary["seconds"], 120)

    def test_tests_that_are_all_skipped_for_another_reason_or_not_there_have_failed(self):
        os.environ["REASON"] = "it is Wednesday"
        self.addCleanup(os.environ.pop, "REASON")
        for results, reason in (("", "selects no test"), ("A.one=SKIPPED", "it is Wednesday")):
            code, summary = self.check("correct", results=results, seconds=8)
            self.assertEqual(code, 1)
            self.assertEqual(summary["parts"]["ops"]["status"], "failed", self.output)
            self.assertIn(reason, summary["parts"]["ops"]["reason"])

    def test_what_fails_is_tried_again_without_graphs(self):
        (self.programs / "quire").unlink()
        write_program(self.programs / "quire", GRAPHLESS)
        code, summary = self.check("fast", card=True)
        self.assertEqual(code, 1)
        found = summary["parts"]
        self.assertEqual(found["llama_8b"]["status"], "failed")
        self.assertIn("graphs do not work here", found["llama_8b"]["reason"])
        self.assertEqual(found["llama_8b_eager_again"]["status"], "passed")
        self.assertEqual(found["llama_8b_eager"]["status"], "passed")
        self.assertNotIn("llama_8b_eager_eager_again", found)

    def test_parts_without_time_are_skipped_by_name(self):
        code, summary = self.check("fast", seconds=0, card=True)
        self.assertEqual(code, 3)
        self.assertIn("no time left", summary["parts"]["llama_8b"]["reason"])

    def test_one_that_is_ended_has_told_what_it_knew(self):
        environment = self.environment(results="A.one=OK A.slow=HUNG", card=True)
        check = subprocess.Popen(["bash", SCRIPTS / "run.sh", "--correct", self.results], env=environment,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(check.kill)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (self.results / "summary.json").exists():
            time.sleep(0.1)
        time.sleep(1)
        check.send_signal(signal.SIGTERM)
        check.wait(timeout=30)
        summary = self.summary()
        self.assertEqual(summary["parts"]["card"]["status"], "passed")
        self.assertEqual(summary["parts"]["engine"]["reason"], "the check was cut off")
        self.assertFalse(summary["complete"])

    def test_a_model_in_pieces_that_are_not_the_models_is_none(self):
        pieces = [self.folder / "model.00", self.folder / "model.01"]
        for piece in pieces:
            piece.write_text("half of something")
        _, summary = self.check("correct", *pieces, card=True)
        self.assertIn("their hash", summary["skipped"]["smollm2"])

    @harness.needs_default_model
    def test_the_model_answers_as_recorded_with_floats_and_as_it_comes(self):
        # A CPU's own choice for these weights, inputs of 8 bits, is coarser than a card's.
        for flags in (["--", "--device", "cpu"], ["--as-it-comes", "--", "--device", "cpu", "--activation-dtype", "int16"]):
            with self.subTest(flags=flags):
                result = self.folder / "oracle.json"
                done = subprocess.run(
                    ["python3", SCRIPTS / "oracle.py", "--quire", harness.QUIRE, "--data", harness.DATA, "--model",
                     harness.DEFAULT_MODEL, "--output", result, "--cases", "5", *flags],
                    capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(SOURCES)})
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                found = json.loads(result.read_text())
                self.assertEqual((found["passed"], found["failed"]), (5, 0))
                self.assertGreater(found["greedy_tokens_compared"], 10)


if __name__ == "__main__":
    harness.main()
