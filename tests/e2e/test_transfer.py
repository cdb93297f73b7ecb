"""A run split between two instances: one computes the prompts, the other fetches their blocks over TCP and goes on. Every
answer must be the one of a single instance, to the bit (receipts), whatever happens to the transfer.

    python test_transfer.py --quire BINARY --data TESTS_DATA
"""

import concurrent.futures
import http.client
import http.server
import json
import os
import pathlib
import random
import signal
import socket
import threading
import time
import unittest

import harness

LLAMA = harness.DATA / "e2e/tiny/llama"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
ARGUMENTS = ("--skip-tokenizer-init", "--max-num-batched-tokens", 256, "--kv-offloading-size", 0.05)
ASKED = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
         "remote_host": None, "remote_port": None}


def prompt(seed, length=300):
    draw = random.Random(seed)
    return [draw.randrange(3, 512) for _ in range(length)]


def body_of(tokens, **more):
    return {"prompt": tokens, "max_tokens": 8, "ignore_eos": True, "temperature": 0, "deterministic": True,
            "return_token_ids": True, "logprobs": 3, "return_tokens_as_token_ids": True, **more}


def essence(answer):
    choice = answer["choices"][0]
    return {"receipt": choice["receipt"], "tokens": choice["token_ids"],
            "logprobs": choice["logprobs"]["token_logprobs"]}


def cached(answer):
    return (answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def counts(server, name, label):
    """A counter's values by one of its labels, those that are not 0."""
    values = {}
    for line in server.get("/metrics").body.decode().splitlines():
        if line.startswith(name + "{") and float(line.split()[-1]):
            values[line.split(f'{label}="')[1].split('"')[0]] = int(float(line.split()[-1]))
    return values


def pulls(server):
    return counts(server, "quire:kv_transfer_pulls_total", "result")


def leases(server):
    return counts(server, "quire:kv_transfer_leases_total", "event")


def transfer(role, port=0, peers=(), **extra):
    config = {"kv_connector": "QuireConnector", "kv_role": role, "kv_port": port}
    if peers:
        extra["peers"] = [f"127.0.0.1:{one}" for one in peers]
    return ("--kv-transfer-config", json.dumps({**config, "kv_connector_extra_config": extra}))


def prefill(server, path, body):
    """What a router asks of the instance that computes the prompt."""
    first = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
    first.update(max_tokens=1, kv_transfer_params=ASKED)
    if "max_completion_tokens" in first:
        first["max_completion_tokens"] = 1
    return server.answer(path, first)["kv_transfer_params"]


class Router:
    """A proxy as vLLM's for prefill and decode instances: every request goes to the one, then to the other."""

    def __init__(self, first, second):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                params = prefill(first, self.path, body)
                if params:
                    body["kv_transfer_params"] = params
                connection = second.connect()
                connection.request("POST", self.path, json.dumps(body), {"Content-Type": "application/json"})
                reply = connection.getresponse()
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.getheader("Content-Type"))
                self.end_headers()
                while chunk := reply.read1(65536):
                    self.wfile.write(chunk)
                connection.close()

            def log_message(self, *arguments):
                pass

        class Listener(http.server.ThreadingHTTPServer):
            request_queue_size = 128

        self.server = Listener(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *what):
        self.server.shutdown()
        self.server.server_close()

    def post(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=300)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            content = reply.read()
            if reply.status != 200:
                raise AssertionError(f"{reply.status} {content[:2000]!r}")
            return content
        finally:
            connection.close()


def wait_until_stopped(pid):
    """Until SIGSTOP has reached every thread: the call that sends it does not wait for that."""
    deadline = time.monotonic() + 10
    while True:
        states = [status.read_text().split("State:", 1)[1].split()[0] for status in pathlib.Path(f"/proc/{pid}/task").glob("*/status")]
        if all(state in "tT" for state in states):
            return
        assert time.monotonic() < deadline, states
        time.sleep(0.01)


class Between:
    """A man in the middle who flips byte AT of what the listener on PORT sends over a connection."""

    def __init__(self, own_port, port):
        self.listener = socket.create_server(("127.0.0.1", own_port))
        self.port, self.at, self.flipped = port, None, 0
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.create_connection(("127.0.0.1", self.port))
            threading.Thread(target=self.copy, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self.copy, args=(server, client, self.at), daemon=True).start()

    def copy(self, source, sink, at):
        passed = 0
        try:
            while data := bytearray(source.recv(65536)):
                if at is not None and passed <= at < passed + len(data):
                    data[at - passed] ^= 1
                    self.flipped += 1
                passed += len(data)
                sink.sendall(data)
        except OSError:
            pass
        for one in (source, sink):
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Transfer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.expected = {}
        with harness.Server(*ARGUMENTS[:3], "--no-enable-prefix-caching", model=LLAMA) as server:
            for seed in range(32):
                cls.expected[seed] = essence(server.answer(COMPLETIONS, body_of(prompt(seed))))

    def setUp(self):
        self.port = harness.free_port()

    def producer(self, *more, environment=None, **extra):
        return harness.Server(*ARGUMENTS, *transfer("kv_producer", self.port, **extra), *more, model=LLAMA,
                              environment=environment)

    def consumer(self, *more, peers=(), environment=None, **extra):
        return harness.Server(*ARGUMENTS, *transfer("kv_consumer", peers=[self.port, *peers], **extra), *more,
                              model=LLAMA, environment=environment)

    def check_computed(self, decode, params, seed, why, **more):
        """The decode instance computes the prompt anew, for this reason, and its answer is the same."""
        before = pulls(decode)
        answer = decode.answer(COMPLETIONS, body_of(prompt(seed), kv_transfer_params=params, **more))
        self.assertEqual(essence(answer), self.expected[seed])
        self.assertEqual(cached(answer), 0)
        after = pulls(decode)
        self.assertEqual(after.get(why, 0), before.get(why, 0) + 1, after)
        self.assertEqual(after.get("fetched", 0), before.get("fetched", 0))

    def test_a_split_run_gives_the_answers_of_one_instance(self):
        with self.producer() as first, self.consumer() as second:
            for seed in range(12):
                params = prefill(first, COMPLETIONS, body_of(prompt(seed)))
                self.assertEqual(params["remote_block_ids"], list(range(18)))
                self.assertTrue(params["do_remote_prefill"])
                answer = second.answer(COMPLETIONS, body_of(prompt(seed), kv_transfer_params=params))
                self.assertEqual(essence(answer), self.expected[seed])
                self.assertEqual(cached(answer), 288)
                self.assertNotIn("kv_transfer_params", answer)
            self.assertEqual(pulls(second), {"fetched": 12})
            self.assertEqual(counts(second, "quire:kv_transfer_blocks_total", "direction"), {"in": 12 * 18})
            harness.wait_until(lambda: leases(first) == {"made": 12, "fetched": 12}, lambda: leases(first))
            self.assertEqual(first.metrics()["quire:kv_transfer_lease_bytes"], 0)
            # A lease that was fetched is gone, and what was fetched is there for others.
            answer = second.answer(COMPLETIONS, body_of(prompt(3), kv_transfer_params=params))
            self.assertEqual(essence(answer), self.expected[3])
            self.assertEqual(cached(answer), 288)

    def test_thirty_two_at_once_through_a_router(self):
        with self.producer() as first, self.consumer() as second, Router(first, second) as router:
            with concurrent.futures.ThreadPoolExecutor(32) as pool:
                answers = list(pool.map(lambda seed: json.loads(router.post(COMPLETIONS, body_of(prompt(seed)))), range(32)))
            for seed, answer in enumerate(answers):
                self.assertEqual(essence(answer), self.expected[seed], seed)
            self.assertEqual(pulls(second), {"fetched": 32})
            self.assertEqual(sum(map(cached, answers)), 32 * 288)
            first.wait_until_idle()
            second.wait_until_idle()

    def test_streams_go_on_from_another_instances_prompt(self):
        with self.producer() as first, self.consumer() as second, Router(first, second) as router:
            text = router.post(COMPLETIONS, body_of(prompt(5), stream=True)).decode()
            self.assertTrue(text.endswith("data: [DONE]\n\n"))
            tokens = []
            for line in text.splitlines():
                if line.startswith("data: {"):
                    for choice in json.loads(line[6:])["choices"]:
                        tokens += choice.get("token_ids") or []
            self.assertEqual(tokens, self.expected[5]["tokens"])
            self.assertEqual(pulls(second), {"fetched": 1})

    def test_a_lease_that_is_over(self):
        with self.producer(lease_seconds=0.3) as first, self.consumer() as second:
            params = prefill(first, COMPLETIONS, body_of(prompt(0)))
            harness.wait_until(lambda: leases(first).get("expired") == 1, lambda: leases(first))
            self.check_computed(second, params, 0, "lease")
            self.assertEqual(first.metrics()["quire:kv_transfer_lease_bytes"], 0)
            second.log_with("kv transfer: a prompt is computed anew: the lease is over")

    def test_the_other_instance_dies_in_between_and_comes_back_as_another(self):
        with self.consumer(timeout_seconds=2) as second:
            with self.producer() as first:
                kept = prefill(first, COMPLETIONS, body_of(prompt(1)))
                params = prefill(first, COMPLETIONS, body_of(prompt(0)))
                first.process.send_signal(signal.SIGKILL)
                first.process.wait()
                self.check_computed(second, params, 0, "connection")
                with self.producer():
                    self.check_computed(second, kept, 1, "lease")
                first.stop = lambda: 0  # it was killed

    def test_an_instance_that_does_not_answer_costs_the_timeout(self):
        with self.producer() as first, self.consumer(timeout_seconds=0.5) as second:
            params = prefill(first, COMPLETIONS, body_of(prompt(0)))
            first.process.send_signal(signal.SIGSTOP)
            wait_until_stopped(first.process.pid)
            try:
                start = time.monotonic()
                self.check_computed(second, params, 0, "timeout")
                self.assertLess(time.monotonic() - start, 10)
            finally:
                first.process.send_signal(signal.SIGCONT)

    def test_flipped_bytes(self):
        own = harness.free_port()
        # In the hello's head; the offer's head, generation, size of a block, tokens, a checksum, its mac; a block's
        # generation and bytes: by what tests/server/kv_listener_test.cpp says of the messages' form.
        cases = ((0, "protocol"), (29, "protocol"), (60, "lease"), (66, "model"), (90, "text"), (1241, "checksum"),
                 (1530, "secret"), (1566, "lease"), (1600, "checksum"), (1700, "checksum"))
        with self.producer() as first, self.consumer(peers=[own], timeout_seconds=1) as second:
            between = Between(own, self.port)
            self.addCleanup(between.listener.close)
            for seed, (between.at, why) in enumerate(cases):
                params = prefill(first, COMPLETIONS, body_of(prompt(seed)))
                self.check_computed(second, {**params, "remote_port": own}, seed, why)
                self.assertEqual(between.flipped, seed + 1, why)

    def test_leases_of_other_texts_and_salts(self):
        with self.producer() as first, self.consumer() as second:
            lease = [prefill(first, COMPLETIONS, body_of(prompt(seed))) for seed in range(5)]
            self.check_computed(second, lease[1], 0, "text")
            self.check_computed(second, {**lease[1], "lease_id": lease[0]["lease_id"]}, 1, "lease")
            self.check_computed(second, {**lease[2], "generation": lease[2]["generation"] + 1}, 2, "lease")
            self.check_computed(second, {**lease[3], "remote_engine_id": "another"}, 3, "lease")
            foreign = {key: lease[0][key] for key in ("lease_id", "generation")}
            self.check_computed(second, {**lease[4], **foreign}, 4, "text")
            salted = prefill(first, COMPLETIONS, body_of(prompt(5), cache_salt="one"))
            self.check_computed(second, salted, 5, "text")
            self.check_computed(second, salted, 5, "text", cache_salt="two")
            answer = second.answer(COMPLETIONS, body_of(prompt(5), kv_transfer_params=salted, cache_salt="one"))
            self.assertEqual(essence(answer), self.expected[5])
            self.assertEqual(cached(answer), 288)

    def test_nobody_who_is_not_listed_is_connected_to(self):
        with self.producer() as first, self.consumer() as second, socket.create_server(("127.0.0.1", 0)) as other:
            other.settimeout(1)
            params = prefill(first, COMPLETIONS, body_of(prompt(0)))
            self.check_computed(second, {**params, "remote_port": other.getsockname()[1]}, 0, "peer")
            for seed, host in enumerate(("169.254.169.254", "localhost", "127.1", "::1"), 1):
                self.check_computed(second, {**params, "remote_host": host}, seed, "peer")
            with self.assertRaises(TimeoutError):
                other.accept()

    def test_another_model_or_other_settings(self):
        with self.producer("--block-size", 32) as first, self.consumer() as second:
            params = prefill(first, COMPLETIONS, body_of(prompt(0)))
            # Of 9 blocks of 32 tokens: the same text here is 18 of 16, and the hash is of all of it.
            params["remote_block_ids"] = list(range(18))
            self.check_computed(second, params, 0, "model")

    def test_secrets(self):
        def environment(secret):
            return {**os.environ, "QUIRE_KV_TRANSFER_SECRET": secret}

        one, other = "a secret of sixteen letters", "another one of many letters"
        with self.producer(environment=environment(one)) as first:
            with self.consumer(environment=environment(one)) as second:
                params = prefill(first, COMPLETIONS, body_of(prompt(0)))
                answer = second.answer(COMPLETIONS, body_of(prompt(0), kv_transfer_params=params))
                self.assertEqual((essence(answer), cached(answer)), (self.expected[0], 288))
            with self.consumer(environment=environment(other)) as second:
                params = prefill(first, COMPLETIONS, body_of(prompt(1)))
                self.check_computed(second, params, 1, "secret")
                self.assertEqual(leases(first).get("refused"), 1)

    def test_what_cannot_be_is_refused(self):
        with self.producer() as first, self.consumer() as second:
            for server, more in ((first, {"kv_transfer_params": ASKED, "stream": True}),
                                 (first, {"kv_transfer_params": ASKED, "n": 2, "temperature": 1}),
                                 (first, {"kv_transfer_params": ASKED, "prompt": [prompt(0), prompt(1)]}),
                                 (first, {"kv_transfer_params": {**ASKED, "do_remote_prefill": True}}),
                                 (second, {"kv_transfer_params": ASKED}),
                                 (second, {"kv_transfer_params": {"do_remote_prefill": True}}),
                                 (second, {"kv_transfer_params": {"mystery": 1}}),
                                 (second, {"kv_transfer_params": "x"})):
                reply = server.post(COMPLETIONS, {**body_of(prompt(0)), **more})
                self.assertEqual(reply.status, 400, more)
                self.assertEqual(reply.json["error"]["param"], "kv_transfer_params", more)
        for arguments, told in ((transfer("kv_consumer"), "peers"), (transfer("kv_all"), "kv_role")):
            result = harness.run("serve", str(LLAMA), *map(str, ARGUMENTS), *arguments)
            self.assertNotEqual(result.returncode, 0)
            self.assertIn(told, result.stderr)
        result = harness.run("serve", str(LLAMA), "--skip-tokenizer-init", *transfer("kv_producer"))
        self.assertIn("kv_offloading_size", result.stderr)

    @harness.needs_default_model
    def test_chats_of_the_default_model(self):
        messages = [[{"role": "system", "content": "You answer in one sentence. " * 20},
                     {"role": "user", "content": f"What is {n} times {n + 1}, and why?"}] for n in range(4)]

        def body(n):
            return {"messages": messages[n], "max_completion_tokens": 24, "temperature": 0, "deterministic": True}

        def told(answer):
            choice = answer["choices"][0]
            return choice["receipt"], choice["message"]["content"]

        with harness.Server("--kv-offloading-size", 0.2, *transfer("kv_producer", self.port)) as first:
            with harness.Server("--kv-offloading-size", 0.2, *transfer("kv_consumer", peers=[self.port])) as second:
                with Router(first, second) as router:
                    answers = [json.loads(router.post(CHAT, body(n))) for n in range(4)]
                self.assertEqual(pulls(second), {"fetched": 4})
                self.assertTrue(all(cached(answer) > 100 for answer in answers))
        with harness.Server("--no-enable-prefix-caching") as alone:
            for n in range(4):
                self.assertEqual(told(answers[n]), told(alone.answer(CHAT, body(n))))


if __name__ == "__main__":
    harness.main()
