"""quire bench: small runs of latency, throughput, kernels and serve against the real engine and server, and serve against
servers that fail in every way."""

import json
import pathlib
import socket
import tempfile
import threading
import unittest

import harness

TINY = harness.DATA / "e2e/tiny/llama"
ENGINE = (TINY, "--skip-tokenizer-init", "--kv-cache-memory-bytes", "4M", "--max-num-batched-tokens", "256")


class Bench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.file = pathlib.Path(folder.name) / "result.json"

    def bench(self, *arguments, code=0):
        result = harness.run("bench", *arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        return result

    def results(self):
        return json.loads(self.file.read_text())


class Offline(Bench):
    def test_help_lists_the_benchmarks_and_their_flags(self):
        self.assertRegex(self.bench("--help").stdout, r"(?s)latency.*throughput.*perplexity.*serve.*kernels")
        for name in ("latency", "throughput", "perplexity", "serve", "kernels"):
            self.assertIn("--help", self.bench(name, "--help").stdout)
        self.bench(code=2)
        self.bench("latency", "--no-such-flag", code=2)

    def test_latency(self):
        shown = self.bench("latency", *ENGINE, "--input-len", 20, "--output-len", 8, "--batch-size", 3,
                           "--num-iters-warmup", 1, "--num-iters", 3, "--output-json", self.file).stdout
        self.assertRegex(shown, r"Avg latency: \d")
        results = self.results()
        self.assertEqual(len(results["latencies"]), 3)
        self.assertAlmostEqual(results["avg_latency"], sum(results["latencies"]) / 3)
        self.assertEqual(set(results["percentiles"]), {"10", "25", "50", "75", "90", "99"})
        for latency, first, prefill in zip(results["latencies"], results["times_to_first_token"],
                                           results["prefill_tokens_per_second_list"], strict=True):
            self.assertLess(first, latency)
            self.assertAlmostEqual(prefill, 3 * 20 / first)
        self.assertGreater(results["decode_tokens_per_second"], 0)
        self.assertGreater(results["start_to_first_token_seconds"], results["times_to_first_token"][0])
        self.assertEqual(results["cached_tokens"], 0)

    def test_one_token_has_no_decode(self):
        self.bench("latency", *ENGINE, "--input-len", 5, "--output-len", 1, "--batch-size", 2, "--num-iters-warmup", 0,
                   "--num-iters", 1, "--output-json", self.file)
        self.assertIsNone(self.results()["decode_tokens_per_second"])

    def test_throughput(self):
        self.bench("throughput", *ENGINE, "--num-prompts", 20, "--random-input-len", 12, "--random-output-len", 6,
                   "--max-num-seqs", 4, "--num-warmups", 2, "--output-json", self.file)
        results = self.results()
        self.assertEqual(results["num_requests"], 20)
        self.assertEqual(results["total_num_tokens"], 20 * 18)
        self.assertAlmostEqual(results["output_tokens_per_second"], 20 * 6 / results["elapsed_time"])

    def test_prompts_that_begin_alike_hit_the_prefix_cache(self):
        self.bench("throughput", *ENGINE, "--dataset-name", "prefix_repetition", "--num-prompts", 12,
                   "--prefix-repetition-prefix-len", 64, "--prefix-repetition-suffix-len", 5,
                   "--prefix-repetition-num-prefixes", 2, "--prefix-repetition-output-len", 4, "--max-num-seqs", 2,
                   "--output-json", self.file)
        self.assertGreater(self.results()["cached_prompt_tokens"], 0)

    def test_what_does_not_fit_is_refused(self):
        self.assertIn("--max-model-len", self.bench("latency", *ENGINE, "--input-len", 600, code=1).stderr)
        self.assertIn("--dataset-path", self.bench("throughput", *ENGINE, "--dataset-name", "sharegpt", code=1).stderr)

    def test_kernels(self):
        self.bench("kernels", "--filter", r"^(rms_norm|rope 1 )", "--seconds", "0.001", "--output-json", self.file)
        results = self.results()
        self.assertGreater(results["machine"]["memory_bytes_per_second"], 0)
        self.assertGreater(results["machine"]["float32_flops"], 0)
        self.assertGreater(len(results["kernels"]), 3)
        for kernel in results["kernels"]:
            self.assertRegex(kernel["name"], "^(rms_norm|rope 1 )")
            self.assertGreater(kernel["seconds"], 0)
        self.assertIn("--filter", self.bench("kernels", "--filter", "(", code=1).stderr)


class Serve(Bench):
    def serve(self, url, *arguments, code=0):
        return self.bench("serve", "--base-url", url, "--skip-tokenizer-init", "--vocab-size", 500, "--model", "tiny",
                          "--random-input-len", 10, "--random-output-len", 5, "--ignore-eos",
                          *(() if "--result-filename" in arguments else ("--result-filename", self.file)),
                          *(() if "--num-warmups" in arguments else ("--num-warmups", 2)), *arguments, code=code)

    def test_a_closed_loop_and_a_poisson_process(self):
        with harness.Server(*ENGINE[1:], "--served-model-name", "tiny", model=TINY) as server:
            shown = self.serve(server.url, "--num-prompts", 12, "--max-concurrency", 3, "--num-runs", 3, "--goodput",
                               "ttft:60000", "--save-detailed").stdout
            self.assertRegex(shown, r"Successful requests: +12\s")
            self.assertRegex(shown, r"P99 E2EL \(ms\): +\d")
            results = self.results()
            self.assertEqual((results["completed"], results["failed"]), (12, 0))
            self.assertEqual((results["total_input_tokens"], results["total_output_tokens"]), (120, 60))
            self.assertEqual(len(results["runs"]), 3)
            throughputs = [run["output_throughput"] for run in results["runs"]]
            self.assertEqual(results["output_throughput"], sorted(throughputs)[1])
            self.assertAlmostEqual(results["request_goodput"], results["request_throughput"])
            self.assertEqual(results["output_lens"], [5] * 12)
            for ttft, itls, latency in zip(results["ttfts"], results["itls"], results["latencies"], strict=True):
                self.assertAlmostEqual(ttft + sum(itls), latency)

            self.serve(server.url, "--num-prompts", 10, "--request-rate", 50, "--num-runs", 1)
            self.assertGreater(self.results()["duration"], 0.2)
            self.assertEqual(self.results()["completed"], 10)

    def test_the_folder_of_results_is_made_before_the_load(self):
        with harness.Server(*ENGINE[1:], "--served-model-name", "tiny", model=TINY) as server, \
                tempfile.TemporaryDirectory() as folder:
            self.serve(server.url, "--num-prompts", 1, "--num-runs", 1, "--result-dir", f"{folder}/a/b",
                       "--result-filename", "r.json")
            self.assertTrue(pathlib.Path(folder, "a/b/r.json").is_file())
            pathlib.Path(folder, "file").touch()
            refused = self.serve(server.url, "--num-prompts", 1, "--num-runs", 1, "--result-dir", f"{folder}/file/a",
                                 "--result-filename", "r.json", code=1)
            self.assertIn("cannot be made", refused.stderr)
            self.assertNotIn("Successful requests", refused.stdout)

    def test_a_wrong_key_is_counted(self):
        with harness.Server(*ENGINE[1:], "--api-key", "right", "--served-model-name", "tiny", model=TINY) as server:
            self.serve(server.url, "--num-prompts", 3, "--num-runs", 1, "--api-key", "wrong", code=1)
            self.assertEqual(self.results()["failed_by_kind"]["status"], 3)
            self.serve(server.url, "--num-prompts", 3, "--num-runs", 1, "--api-key", "right")

    def test_nobody_there(self):
        self.serve(f"http://127.0.0.1:{harness.free_port()}", "--num-prompts", 3, "--num-runs", 2, code=1)
        self.assertEqual(self.results()["failed_by_kind"]["connection"], 3)

    def test_servers_that_fail(self):
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        event = b'data: {"choices":[{"text":"a","finish_reason":null}]}\n\n'
        chunk = b"%x\r\n%s\r\n" % (len(event), event)
        cases = {
            "closes without a word": (b"", "connection"),
            "500": (b"HTTP/1.1 500 Oh\r\nContent-Length: 4\r\n\r\nnope", "status"),
            "cut": (head + chunk, "cut"),
            "ends too soon": (head + chunk + b"0\r\n\r\n", "cut"),
            "no HTTP": (b"SSH-2.0-hello\r\n\r\n" * 9, "malformed"),
            "broken chunks": (head + b"zz\r\nwhat\r\n", "cut"),
            "no event stream": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "malformed"),
            "broken events": (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ndata: {\n\n", "malformed"),
        }
        for name, (answer, kind) in cases.items():
            with self.subTest(name), FakeServer(answer) as server:
                shown = self.serve(server.url, "--num-prompts", 4, "--max-concurrency", 2, "--num-runs", 1, code=1)
                self.assertEqual(self.results()["failed_by_kind"][kind], 4, self.results()["failed_by_kind"])
                self.assertIn(f"failed ({kind})", shown.stderr)

    def test_a_server_that_hangs_is_timed_out(self):
        with FakeServer(None) as server:
            self.serve(server.url, "--num-prompts", 2, "--num-runs", 1, "--num-warmups", 0, "--timeout", "0.2", code=1)
        self.assertEqual(self.results()["failed_by_kind"]["timeout"], 2)


class FakeServer:
    """Answers every request with the same bytes and closes; None: never answers one."""

    def __init__(self, answer):
        self.answer = answer
        self.held = []
        self.socket = socket.create_server((harness.HOST, 0))
        self.url = f"http://{harness.HOST}:{self.socket.getsockname()[1]}"

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.socket.close()

    def accept(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            if self.answer is None:
                self.held.append(connection)
                continue
            try:
                received = b""
                while b'"stream"' not in received and not received.startswith(b"GET"):
                    piece = connection.recv(65536)
                    if not piece:
                        break
                    received += piece
                connection.sendall(self.answer)
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()


if __name__ == "__main__":
    harness.main()
