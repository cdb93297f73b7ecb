"""A model computed by processes that mpirun has started: the answers of workers of one host, on one host and on two."""

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import harness
from harness import processes

TINY = harness.DATA / "e2e/tiny"
HEADS = harness.DATA / "e2e/tiny_heads"
# Nothing listens but on the loopback device; ranks share the machine's cores as they are told to.
MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "oob_tcp_if_include", "lo",
          "--mca", "btl", "self,vader", "--mca", "btl_vader_single_copy_mechanism", "none")
MPI = ("--distributed-executor-backend", "mpi")
PLAIN = ("--skip-tokenizer-init", "--max-model-len", 256)
OTHER_HOST = "QUIRE_TEST_OTHER_HOST"  # set inside of two namespaces: the process whose namespaces the second host has


def has_mpi():
    library = [folder / "libquire_mpi.so" for folder in (harness.QUIRE.parent.parent, harness.QUIRE.parent)] if harness.QUIRE else []
    return shutil.which("mpirun") is not None and any(path.exists() for path in library)


needs_mpi = unittest.skipUnless(has_mpi(), "no mpirun, or a quire that was built without MPI")


def mpirun(ranks, *arguments, launcher=MPIRUN, timeout=60, stdin=""):
    """One command of quire by so many ranks, to its end."""
    return subprocess.run([*launcher, "-np", str(ranks), str(harness.QUIRE), *map(str, arguments)], input=stdin,
                          capture_output=True, text=True, timeout=timeout)


def server(ranks, *arguments, model=TINY / "llama", launcher=MPIRUN):
    return harness.Server(*MPI, *arguments, model=model, launcher=(*launcher, "-np", ranks), end_by=signal.SIGUSR1)


def ranks_of(one):
    """The process ids of the ranks below mpirun, by rank."""
    found = {}
    for process, (parent, state, _) in processes().items():
        if state == "Z" or parent != one.process.pid:
            continue
        environment = pathlib.Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
        ranks = [entry.split(b"=")[1] for entry in environment if entry.startswith(b"OMPI_COMM_WORLD_RANK=")]
        found.update({int(rank): process for rank in ranks})
    return [found[rank] for rank in sorted(found)]


def streamed_tokens(one, body):
    tokens = []
    for event in one.stream("/v1/completions", {"return_token_ids": True, "ignore_eos": True, **body}):
        for choice in event["choices"]:
            tokens += choice.get("token_ids") or []
    return tokens


def ask_all(one, prompt=tuple(range(5, 60))):
    """Scores of a prompt, sampling with seeds and penalties, several answers, beams, and many at once."""
    def completion(**parameters):
        return one.answer("/v1/completions", {"prompt": list(prompt), "temperature": 0, "return_token_ids": True,
                                              "ignore_eos": True, **parameters})["choices"]
    scored = completion(max_tokens=4, prompt_logprobs=0, logprobs=3)[0]
    sampled = completion(max_tokens=12, temperature=0.8, seed=7, top_p=0.9, frequency_penalty=0.5, n=3)
    beams = completion(max_tokens=8, use_beam_search=True, n=2)
    bodies = [{"prompt": list(prompt[i:]), "max_tokens": 40, "temperature": 0.5 * (i % 2), "seed": i} for i in range(6)]
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        streams = list(pool.map(lambda body: streamed_tokens(one, body), bodies))
    return {"scores": scored["prompt_logprobs"], "logprobs": scored["logprobs"],
            "sampled": [choice["token_ids"] for choice in sampled], "beams": [choice["token_ids"] for choice in beams],
            "streams": streams}


@needs_mpi
class Answers(unittest.TestCase):
    def expect_those_of_mp(self, name, ranks, *arguments, like=None):
        with harness.Server(*PLAIN, *arguments, *(like or ("--distributed-executor-backend", "mp")), model=TINY / name) as one:
            expected = ask_all(one)
        with server(ranks, *PLAIN, *arguments, model=TINY / name) as one:
            self.assertEqual(len(ranks_of(one)), ranks)
            self.assertEqual(ask_all(one), expected)
            one.wait_until_idle()

    def test_two_ranks_give_the_bits_of_two_workers(self):
        for name in ("llama", "gemma3", "deepseek_v3"):
            with self.subTest(name):
                self.expect_those_of_mp(name, 2, "-tp", 2)

    def test_four_ranks_with_chunks_and_too_few_blocks_for_all(self):
        self.expect_those_of_mp("llama", 4, "-tp", 4, "--max-num-batched-tokens", 16, "--num-gpu-blocks-override", 24)

    def test_two_stages_of_two_ranks_give_those_of_two_workers(self):
        self.expect_those_of_mp("llama", 4, "-tp", 2, "-pp", 2)

    def test_adapters_give_the_bits_of_two_workers(self):
        lora = harness.DATA / "e2e/lora/llama"
        adapters = ("--enable-lora", "--max-loras", 2, "--lora-dir", lora, "--lora-modules", f"named={lora / 'dora'}")
        found = []
        for start in (lambda: harness.Server(*PLAIN, "-tp", 2, *adapters, model=TINY / "llama"),
                      lambda: server(2, *PLAIN, "-tp", 2, *adapters)):
            with start() as one, concurrent.futures.ThreadPoolExecutor(6) as pool:
                bodies = [{"model": name, "prompt": [5, 6, 7], "max_tokens": 24, "temperature": 0}
                          for name in ("named", "qv", "all_linear", "embed_head", "patterns")]
                found.append(list(pool.map(lambda body: streamed_tokens(one, body), bodies)))
                one.wait_until_idle()
        self.assertEqual(found[1], found[0])
        self.assertEqual(len({tuple(tokens) for tokens in found[0]}), 5)

    def test_a_pipeline_gives_the_bits_of_one_process_also_with_guesses(self):
        guesses = ("--speculative-config", '{"method": "suffix", "num_speculative_tokens": 6, "always": true}')
        model = ("--speculative-config", json.dumps({"method": "draft_model", "model": str(TINY / "llama"), "always": True}))
        with harness.Server(*PLAIN, model=TINY / "llama") as one:
            expected = ask_all(one)
        head = ("--speculative-config", json.dumps({"method": "eagle3", "model": str(HEADS / "eagle3_llama"), "always": True}))
        for arguments in ((), guesses, model, head):
            with self.subTest(arguments), server(2, *PLAIN, "-pp", 2, *arguments) as one:
                self.assertEqual(ask_all(one), expected)
                self.assertEqual(ask_all(one), expected)
                accepted = one.metrics()["vllm:spec_decode_num_accepted_tokens_total"]
                self.assertEqual(accepted > 0, bool(arguments))

    # The rank that samples is not the one that has the grammar.
    @harness.needs_default_model
    def test_structured_output_asks_the_first_rank_for_its_masks(self):
        body = {"messages": [{"role": "user", "content": "Describe a cat."}], "temperature": 0, "max_tokens": 40,
                "response_format": {"type": "json_schema", "json_schema": {"name": "cat", "schema": {
                    "type": "object", "properties": {"name": {"enum": ["Tom", "Felix"]}, "age": {"enum": [3, 4]}},
                    "required": ["name", "age"], "additionalProperties": False}}}}
        texts = []
        for make in (lambda: harness.Server("--max-model-len", 512), lambda: server(2, "-pp", 2, "--max-model-len", 512, model=None)):
            with make() as one:
                texts.append(one.answer("/v1/chat/completions", body)["choices"][0]["message"]["content"])
        self.assertIn(json.loads(texts[0])["name"], ("Tom", "Felix"))
        self.assertEqual(texts[0], texts[1])


@needs_mpi
class Commands(unittest.TestCase):
    def test_a_file_of_requests_and_a_measurement(self):
        with tempfile.TemporaryDirectory() as folder:
            asked, answered = pathlib.Path(folder) / "asked.jsonl", pathlib.Path(folder) / "answered.jsonl"
            asked.write_text("".join(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {
                "model": "llama", "prompt": [5 + i, 6], "max_tokens": 5, "temperature": 0}}) + "\n" for i in range(4)))
            done = mpirun(2, "run-batch", TINY / "llama", "-i", asked, "-o", answered, *MPI, "--tensor-parallel-size", 2,
                          *PLAIN)
            self.assertEqual(done.returncode, 0, done.stderr)
            answers = [json.loads(line) for line in answered.read_text().splitlines()]
            self.assertEqual([answer["response"]["status_code"] for answer in answers], [200] * 4)
        done = mpirun(2, "bench", "latency", TINY / "llama", "--input-len", 8, "--output-len", 4, "--num-iters", 1,
                      "--num-iters-warmup", 0, *MPI, "--pipeline-parallel-size", 2, *PLAIN)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("2 ranks over MPI"), 1, done.stdout)

    @harness.needs_default_model
    def test_complete(self):
        arguments = ("complete", "-q", "-p", "The capital of France is", "--temperature", 0, "--max-tokens", 8,
                     "--max-model-len", 128)
        done = mpirun(2, *arguments, *MPI, "--pipeline-parallel-size", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, harness.run(*arguments).stdout)

    def test_without_mpirun_it_says_how_it_is_started(self):
        done = harness.run("serve", TINY / "llama", *MPI, "-tp", 4)
        self.assertEqual(done.returncode, 1)
        self.assertIn("mpirun -np 4 quire serve MODEL --distributed-executor-backend mpi --tensor-parallel-size 4", done.stderr)

    def test_what_cannot_be_is_refused_by_all(self):
        for ranks, arguments, says in ((3, ("-tp", 2), "MPI has started 3 processes, but tensor_parallel_size 2"),
                                       (2, ("-tp", 2, "-dp", 2), "its processes compute one model"),
                                       (2, ("-tp", 2, "--sleep-idle-seconds", 5), "compute one model as long as they live")):
            with self.subTest(says):
                done = mpirun(ranks, "serve", TINY / "llama", *MPI, *PLAIN, *arguments)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn(says, done.stderr)

    def test_ranks_that_were_started_with_other_flags_refuse_each_other(self):
        command = [str(harness.QUIRE), "serve", str(TINY / "llama"), *MPI, "-tp", "2", *map(str, PLAIN)]
        for other, says in ((["--block-size", "32"], "was started with other flags than rank 0"),
                            (None, "has another model in")):
            second = [*command, *other] if other else [part.replace("tiny/llama", "tiny/qwen2") for part in command]
            done = subprocess.run([*MPIRUN, "-np", "1", *command, ":", "-np", "1", *second], capture_output=True, text=True,
                                  timeout=60)
            self.assertNotEqual(done.returncode, 0)
            self.assertRegex(done.stderr, r"rank 1 \(host [^)]+\) " + says)


@needs_mpi
class Ends(unittest.TestCase):
    BODY = {"prompt": [5, 6, 7], "max_tokens": 240, "temperature": 0}

    def test_running_answers_are_finished_when_it_is_asked_to_end(self):
        for whom in ("mpirun", "rank 0"):
            with self.subTest(whom), server(2, *PLAIN, "-tp", 2) as one:
                expected = streamed_tokens(one, self.BODY)
                self.assertEqual(len(expected), 240)
                begun = threading.Event()
                found = []

                def ask():
                    for event in one.stream("/v1/completions", {"return_token_ids": True, "ignore_eos": True, **self.BODY}):
                        begun.set()
                        found.extend(token for choice in event["choices"] for token in choice.get("token_ids") or [])

                asking = threading.Thread(target=ask)
                asking.start()
                self.assertTrue(begun.wait(30))
                if whom == "mpirun":
                    one.terminate()
                else:
                    os.kill(ranks_of(one)[0], signal.SIGTERM)
                asking.join()
                self.assertEqual(one.process.wait(30), 0, one.log_text())
                self.assertEqual(found, expected)

    def test_a_lost_rank_ends_all_with_a_message(self):
        one = server(2, *PLAIN, "-tp", 2)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            one.wait_until_healthy()
            own = ranks_of(one)
            asking = pool.submit(lambda: [streamed_tokens(one, self.BODY) for _ in range(100)])
            time.sleep(0.3)
            os.kill(own[1], signal.SIGKILL)
            self.assertNotEqual(one.process.wait(20), 0)
            self.assertIsNotNone(asking.exception())
        self.assertIn("signal 9", one.log_text())
        harness.wait_until(lambda: not any(harness.is_alive(process) for process in own), one.log_text)

    def test_a_rank_that_hangs_ends_the_server(self):
        one = server(2, *PLAIN, "-tp", 2)
        one.wait_until_healthy()
        own = ranks_of(one)
        os.kill(own[1], signal.SIGSTOP)
        try:
            harness.wait_until(lambda: "has given no sign of life for 5 s" in one.log_text(), one.log_text, 15)
            self.assertNotEqual(one.process.wait(20), 0)
        finally:
            for process in own:
                if harness.is_alive(process):
                    os.kill(process, signal.SIGKILL)

    def test_ranks_that_wait_take_no_core(self):
        def seconds(process):
            fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

        with server(2, *PLAIN, "-tp", 2) as one:
            streamed_tokens(one, self.BODY)
            time.sleep(1.2)
            own = ranks_of(one)
            before = [seconds(process) for process in own]
            time.sleep(1.5)
            for process, was in zip(own, before):
                self.assertLess(seconds(process) - was, 0.15)


def can_make_hosts():
    tools = all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip"))
    return tools and subprocess.run(["unshare", "--net", "--uts", "ip", "link", "add", "wire", "type", "veth", "peer", "name", "other"],
                                    capture_output=True).returncode == 0


def run_in_two_namespaces(test, file):
    """FILE's InTwoNamespaces, in a process in namespaces of its own, beside another one that is the second host."""
    if not can_make_hosts():
        test.skipTest("network namespaces and a veth pair need root, unshare, nsenter and ip")
    with subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", "hostname second; echo ready; exec sleep 300"],
                          stdout=subprocess.PIPE, text=True) as second:
        try:
            test.assertEqual(second.stdout.readline(), "ready\n")
            done = subprocess.run(["unshare", "--net", "--uts", sys.executable, file, "--quire", str(harness.QUIRE), "--data",
                                   str(harness.DATA), "InTwoNamespaces"], capture_output=True, text=True, timeout=300,
                                  env={**os.environ, OTHER_HOST: str(second.pid)})
            test.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            test.assertNotIn("skipped", done.stderr)
        finally:
            second.kill()


def wire_to_the_other_host(network):
    """In two namespaces: a wire between NETWORK.1, this one, and NETWORK.2. Returns the command that runs another one there."""
    second = os.environ[OTHER_HOST]
    there = ("nsenter", "--target", second, "--net", "--uts")
    for command in (("hostname", "first"), ("ip", "link", "set", "lo", "up"), (*there, "ip", "link", "set", "lo", "up"),
                    ("ip", "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", second),
                    ("ip", "addr", "add", f"{network}.1/24", "dev", "wire"), ("ip", "link", "set", "wire", "up"),
                    (*there, "ip", "addr", "add", f"{network}.2/24", "dev", "wire"), (*there, "ip", "link", "set", "wire", "up")):
        subprocess.run(command, check=True)
    return there


def bytes_sent_by_wire():
    """Bytes that have left this host."""
    lines = subprocess.run(["ip", "-s", "link", "show", "wire"], capture_output=True, text=True, check=True).stdout.splitlines()
    return int(lines[-1].split()[0])


@needs_mpi
class TwoHosts(unittest.TestCase):
    @unittest.skipIf(OTHER_HOST in os.environ, "these are the two hosts")
    def test_a_model_over_two_network_namespaces(self):
        run_in_two_namespaces(self, __file__)


@unittest.skipUnless(OTHER_HOST in os.environ, "run by TwoHosts")
class InTwoNamespaces(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        there = wire_to_the_other_host("10.9.8")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        agent = pathlib.Path(folder.name) / "agent"  # HOST COMMAND..., as ssh
        agent.write_text(f"#!/bin/sh\nshift\nexec {' '.join(there)} sh -c \"$*\"\n")
        agent.chmod(0o755)
        cls.launcher = ("mpirun", "--allow-run-as-root", "--bind-to", "none", "--mca", "plm_rsh_agent", agent, "--mca",
                        "oob_tcp_if_include", "10.9.8.0/24", "--mca", "btl_tcp_if_include", "10.9.8.0/24", "--mca", "btl",
                        "self,vader,tcp", "--mca", "btl_vader_single_copy_mechanism", "none", "--host",
                        "10.9.8.1:2,10.9.8.2:2")

    def test_answers_are_those_of_one_host(self):
        for ranks, layout in ((4, ("-tp", 2, "-pp", 2)), (2, ("-tp", 2))):
            launcher = self.launcher if ranks == 4 else (*self.launcher[:-1], "10.9.8.1:1,10.9.8.2:1")
            with self.subTest(layout):
                with harness.Server(*PLAIN, *layout, model=TINY / "llama") as one:
                    expected = ask_all(one)
                with server(ranks, *PLAIN, *layout, launcher=launcher) as one:
                    before = bytes_sent_by_wire()
                    self.assertEqual(ask_all(one), expected)
                    self.assertGreater(bytes_sent_by_wire() - before, 100_000)

    @harness.needs_default_model
    def test_they_serve_the_tests_of_the_openai_client(self):
        harness.run_openai_client_tests(self, *MPI, "-tp", 2, "-pp", 2, launcher=(*self.launcher, "-np", 4), end_by=signal.SIGUSR1)


if __name__ == "__main__":
    harness.main()
