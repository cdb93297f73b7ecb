"""The life of a server process: it says when it is ready, finishes what runs when told to end, and refuses what it cannot
do at start with a message and an exit code."""

import json
import socket
import threading
import time
import unittest

import harness

TINY = harness.DATA / "e2e/tiny/llama"


def stream_lines(response):
    return [line for line in response.read().split(b"\n") if line]


class Drain(unittest.TestCase):
    def test_sigterm_finishes_a_running_stream_and_exits_with_0(self):
        server = harness.Server("--skip-tokenizer-init", "--max-model-len", 512, model=TINY)
        with server:
            connection = server.connect()
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": [5, 6, 7], "max_tokens": 400, "ignore_eos": True, "temperature": 0, "stream": True,
                 "return_token_ids": True}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            first = response.readline()
            self.assertTrue(first.startswith(b"data: "))
            server.terminate()
            chunks = [json.loads(first[6:])] + [event for event in harness.events(response)]
            connection.close()
            self.assertEqual(server.process.wait(60), 0, server.log_text())
        tokens = sum(len(chunk["choices"][0].get("token_ids") or []) for chunk in chunks if chunk["choices"])
        self.assertEqual(tokens, 400)
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")

    @harness.needs_default_model
    def test_sigterm_finishes_a_running_answer_of_the_default_model(self):
        server = harness.Server()
        with server:
            replies = []
            asked = threading.Thread(target=lambda: replies.append(server.post("/v1/completions", {
                "prompt": "Once upon a time", "max_tokens": 60, "ignore_eos": True, "temperature": 0})))
            asked.start()
            while server.metrics()["vllm:num_requests_running"] == 0 and asked.is_alive():
                time.sleep(0.005)
            server.terminate()
            asked.join()
            self.assertEqual(server.process.wait(60), 0, server.log_text())
        self.assertEqual(replies[0].status, 200)
        self.assertEqual(replies[0].json["usage"]["completion_tokens"], 60)

    def test_an_idle_server_ends_at_once_also_with_open_connections(self):
        with harness.Server("--skip-tokenizer-init", model=TINY) as server:
            idle = [socket.create_connection((harness.HOST, server.port)) for _ in range(50)]
            server.terminate()
            self.assertEqual(server.process.wait(30), 0, server.log_text())
            for connection in idle:
                connection.close()


class Start(unittest.TestCase):
    def refused(self, *arguments, says):
        result = harness.run("serve", *arguments, "--host", harness.HOST, "--port", harness.free_port(), timeout=60)
        self.assertNotEqual(result.returncode, 0)
        self.assertGreater(result.returncode, 0, "ended by a signal")
        self.assertIn(says, result.stderr + result.stdout)

    def test_a_model_that_is_not_there(self):
        self.refused("no/such/model.gguf", says="no/such/model.gguf")

    def test_a_model_without_a_tokenizer_says_how_to_serve_it(self):
        self.refused(TINY, says="--skip-tokenizer-init")

    def test_a_pool_too_small_for_one_sequence(self):
        self.refused(TINY, "--skip-tokenizer-init", "--kv-cache-memory-bytes", 1024, says="kv-cache-memory-bytes")

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken:
            taken.bind((harness.HOST, 0))
            taken.listen()
            port = taken.getsockname()[1]
            result = harness.run("serve", TINY, "--skip-tokenizer-init", "--host", harness.HOST, "--port", port, timeout=60)
        self.assertGreater(result.returncode, 0)
        self.assertIn(str(port), result.stderr + result.stdout)


class Basics(harness.ServerTest):
    arguments = ("--skip-tokenizer-init",)
    model = TINY

    def test_version_is_the_programs(self):
        version = self.server.get("/version").json["version"]
        self.assertIn(version, harness.run("--version").stdout)

    def test_the_page_is_there_unless_it_is_disabled(self):
        self.assertEqual(self.server.get("/").status, 200)
        with harness.Server(*self.arguments, "--disable-page", model=self.model) as server:
            self.assertEqual(server.get("/").status, 404)
            self.assertEqual(server.get("/dashboard").status, 404)

    def test_health_and_metrics(self):
        self.assertEqual(self.server.get("/health").status, 200)
        before = self.server.metrics()
        self.server.answer("/v1/completions", {"prompt": [3, 4, 5], "max_tokens": 4, "ignore_eos": True})
        after = self.server.wait_until_idle()
        for name, growth in (("vllm:prompt_tokens_total", 3), ("vllm:generation_tokens_total", 4)):
            self.assertEqual(after[name] - before.get(name, 0), growth, name)

    def test_a_client_that_goes_away_while_queued_or_running_holds_nothing(self):
        connections = []
        for number in range(40):
            connection = self.server.connect()
            connection.request("POST", "/v1/completions", json.dumps(
                {"prompt": [1 + number] * 20, "max_tokens": 450, "ignore_eos": True, "stream": number % 2 == 0}),
                {"Content-Type": "application/json"})
            connections.append(connection)
        for connection in connections:
            connection.close()
        self.server.wait_until_idle()
        self.server.answer("/v1/completions", {"prompt": [3], "max_tokens": 2})

    def test_500_open_connections_are_carried(self):
        connections = [socket.create_connection((harness.HOST, self.server.port)) for _ in range(500)]
        try:
            for connection in connections:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for connection in connections:
                self.assertTrue(connection.recv(64).startswith(b"HTTP/1.1 200"))
            with open(f"/proc/{self.server.process.pid}/status") as status:
                threads = next(int(line.split()[1]) for line in status if line.startswith("Threads:"))
            self.assertLess(threads, 50)
        finally:
            for connection in connections:
                connection.close()


if __name__ == "__main__":
    harness.main()
