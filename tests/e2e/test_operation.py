"""What an operator sets around the server: where it listens, TLS, keys from a file, the log, the operators' listener, and
what the service manager is told."""

import http.client
import json
import os
import pathlib
import signal
import socket
import ssl
import stat
import subprocess
import tempfile
import time
import unittest

import harness

TINY = harness.DATA / "e2e/tiny/llama"
BASIC = ("--skip-tokenizer-init",)
BODY = json.dumps({"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "ignore_eos": True, "return_token_ids": True})
JSON = {"Content-Type": "application/json"}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=60)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(self.path)


def ask(connection, method="POST", path="/v1/completions", body=BODY, headers=None):
    try:
        connection.request(method, path, body, {**JSON, **(headers or {})})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def tokens(answer):
    status, body = answer
    if status != 200:
        raise AssertionError(f"{status} {body!r}")
    return json.loads(body)["choices"][0]["token_ids"]


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def serve(self, *arguments, environment=None):
        """A server whose listening flags are the test's own."""
        log = open(self.folder / "log", "w+")
        self.addCleanup(log.close)
        process = subprocess.Popen([harness.QUIRE, "serve", "--model", TINY, *BASIC, *map(str, arguments)],
                                   stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def log(self):
        return (self.folder / "log").read_text()

    def wait_for(self, condition, process):
        deadline = time.monotonic() + 120
        while not condition():
            self.assertIsNone(process.poll(), self.log())
            self.assertLess(time.monotonic(), deadline, self.log())
            time.sleep(0.02)

    def end(self, process):
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0, self.log())

    def refused(self, *arguments, says, code=1):
        result = harness.run("serve", "--model", TINY, *BASIC, "--host", harness.HOST, "--port", 0, *arguments)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertIn(says, result.stderr)


class UnixSocket(Folder):
    def test_serves_on_it_and_removes_it(self):
        path = self.folder / "quire.sock"
        process = self.serve("--uds", path)
        self.wait_for(lambda: "ready in" in self.log(), process)
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        self.assertEqual(len(tokens(ask(UnixConnection(path)))), 4)
        self.end(process)
        self.assertFalse(path.exists())

    def test_one_that_a_killed_server_left_is_replaced(self):
        path = self.folder / "quire.sock"
        killed = self.serve("--uds", path)
        self.wait_for(path.exists, killed)
        killed.kill()
        killed.wait()
        self.assertTrue(path.exists())
        process = self.serve("--uds", path, "--uds-mode", "0666")
        self.wait_for(lambda: "ready in" in self.log(), process)
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o666)
        self.assertEqual(len(tokens(ask(UnixConnection(path)))), 4)
        self.end(process)

    def test_contradictions_are_refused(self):
        path = self.folder / "quire.sock"
        for arguments in (("--uds", path, "--port", "0"), ("--uds", path, "--host", harness.HOST), ("--uds-mode", "0600")):
            with self.subTest(arguments=arguments):
                result = harness.run("serve", "--model", TINY, *arguments)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn("--uds", result.stderr)
        result = harness.run("serve", "--model", TINY, "--uds", path, "--uds-mode", "rw")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("--uds-mode: rw", result.stderr)


class Tls(Folder):
    def certificate(self, name):
        paths = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2",
                        "-out", paths[0], "-keyout", paths[1]], check=True, capture_output=True)
        return paths

    def test_https_with_and_without_client_certificates(self):
        own, own_key = self.certificate("server")
        client, client_key = self.certificate("client")
        port = harness.free_port()
        process = self.serve("--host", harness.HOST, "--port", port, "--ssl-certfile", own, "--ssl-keyfile", own_key,
                             "--ssl-ca-certs", client, "--ssl-cert-reqs", 2)
        self.wait_for(lambda: "ready in" in self.log(), process)
        self.assertIn(f"https://{harness.HOST}:{port}", self.log())
        context = ssl.create_default_context(cafile=own)
        with self.assertRaises((ssl.SSLError, OSError)):
            ask(http.client.HTTPSConnection(harness.HOST, port, context=context, timeout=60))
        context.load_cert_chain(client, client_key)
        self.assertEqual(len(tokens(ask(http.client.HTTPSConnection(harness.HOST, port, context=context, timeout=60)))), 4)
        self.end(process)

    def test_a_bad_file_is_told(self):
        own, own_key = self.certificate("server")
        other, other_key = self.certificate("other")
        encrypted = self.folder / "encrypted.key"
        subprocess.run(["openssl", "ec", "-in", own_key, "-aes256", "-passout", "pass:secret", "-out", encrypted],
                       check=True, capture_output=True)
        self.refused("--ssl-certfile", self.folder / "none.pem", says="--ssl-certfile")
        self.refused("--ssl-certfile", own, "--ssl-keyfile", other_key, says="--ssl-keyfile")
        self.refused("--ssl-certfile", own, "--ssl-keyfile", encrypted, says="--ssl-keyfile")
        self.refused("--ssl-keyfile", own_key, says="--ssl-certfile")


class Keys(Folder):
    def test_keys_of_a_file_have_names_and_quotas(self):
        file = self.folder / "keys"
        file.write_text("# two of them\nalice sk-alice-secret weight=2\nbob sk-bob-secret tokens-per-minute=5\n")
        file.chmod(0o600)
        operators = self.folder / "admin.sock"
        with harness.Server(*BASIC, "--api-key-file", file, "--log-format", "json", "--admin-uds", operators,
                            model=TINY) as server:
            def post(key):
                return server.request("POST", "/v1/completions", BODY, {**JSON, "Authorization": f"Bearer {key}"})
            self.assertEqual(server.get("/v1/models").status, 401)
            self.assertEqual(post("sk-bob-secret").status, 200)
            refused = post("sk-bob-secret")
            self.assertEqual(refused.status, 429)
            self.assertGreaterEqual(int(refused.headers["Retry-After"]), 1)
            self.assertEqual(refused.json["error"]["code"], "rate_limit_exceeded")
            self.assertEqual(post("sk-alice-secret").status, 200)
            def scraped():
                return ask(UnixConnection(operators), "GET", "/metrics", None)[1].decode()
            harness.wait_until(lambda: 'quire:api_key_requests_total{api_key="bob",status="429"} 1' in scraped(), scraped)
            metrics = scraped()
            clients = server.request("GET", "/metrics", headers={"Authorization": "Bearer sk-alice-secret"}).body.decode()
            self.assertIn("vllm:generation_tokens_total", clients)
            self.assertNotIn("bob", clients, "one key learns nothing of others")
            self.assertRegex(metrics, r'vllm:admission_rejections_total\{[^}]*reason="quota"\} 1')
            log = server.log_with('"api_key":"bob"', '"api_key":"alice"')
            self.assertNotIn("secret", log + metrics)
            self.assertNotIn("others than its owner", log)

    def test_a_bad_file_is_told_by_its_line_and_not_by_its_keys(self):
        file = self.folder / "keys"
        file.write_text("alice sk-secret\nbob sk-secret\n")
        self.refused("--api-key-file", file, says="is there twice")
        file.write_text("alice sk-secret\nbob sk-other waight=1\n")
        self.refused("--api-key-file", file, says="line 2")
        file.write_text("# nobody\n")
        self.refused("--api-key-file", file, says="no key")
        self.refused("--api-key-file", self.folder / "none", says="there is no file")


class Log(Folder):
    def test_json_is_an_object_a_line(self):
        with harness.Server(*BASIC, "--log-format", "json", "--disable-access-log-for-endpoints", "/health,/metrics",
                            model=TINY) as server:
            server.post("/v1/completions", json.loads(BODY), {"X-Request-Id": "mine", "traceparent": TRACE})
            server.get("/metrics")
            server.get("/none%22%0a")
            lines = [json.loads(line) for line in server.log_with("/none%22%0a", "/v1/completions").splitlines()]
        for line in lines:
            self.assertRegex(line["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
            self.assertIn(line["level"], ("debug", "info", "warning", "error"))
            self.assertTrue(line["message"])
        access = {line["path"]: line for line in lines if line["message"] == "access"}
        self.assertNotIn("/metrics", access)
        self.assertNotIn("/health", access)
        self.assertIn('/none%22%0a', access)
        mine = access["/v1/completions"]
        self.assertEqual((mine["request_id"], mine["traceparent"], mine["status"], mine["method"]),
                         ("mine", TRACE, 200, "POST"))
        self.assertGreater(mine["seconds"], 0)
        self.assertTrue(mine["client"].startswith("127.0.0.1:"))

    def test_text_has_the_same_and_can_be_without(self):
        with harness.Server(*BASIC, model=TINY) as server:
            server.post("/v1/completions", json.loads(BODY), {"X-Request-Id": "mine"})
            self.assertRegex(server.log_with("/v1/completions"), r"info access request_id=mine client=\S+ method=POST path=/v1/completions "
                                                r"status=200 seconds=\d+\.\d+")
        for flag in ("--disable-access-log", "--disable-uvicorn-access-log"):
            with harness.Server(*BASIC, flag, model=TINY) as server:
                server.post("/v1/completions", json.loads(BODY))
                self.assertNotIn("access", server.log_text())
        with harness.Server(*BASIC, "--log-level", "error", model=TINY) as server:
            server.post("/v1/completions", json.loads(BODY))
            self.assertEqual(server.log_text(), "")

    @harness.needs_default_model
    def test_a_prompt_is_there_only_where_a_flag_asks_for_it(self):
        body = {"prompt": "confidential words", "max_tokens": 2}
        for flags, seen in (((), False), (("--enable-log-requests",), False),
                            (("--enable-log-requests", "--max-log-len", "12"), True)):
            with self.subTest(flags=flags), harness.Server(*flags) as server:
                self.assertEqual(server.post("/v1/completions", body).status, 200)
                log = server.log_text()
                self.assertEqual("confidential" in log, seen, log)
                self.assertNotIn("words", log)


class Operators(Folder):
    def test_a_listener_of_their_own(self):
        path, port = self.folder / "admin.sock", harness.free_port()
        process = self.serve("--host", harness.HOST, "--port", port, "--admin-uds", path)
        self.wait_for(lambda: "ready in" in self.log(), process)
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)
        level = lambda *arguments: json.loads(ask(UnixConnection(path), *arguments)[1])["level"]
        self.assertEqual(level("GET", "/admin/log_level", None), "info")
        self.assertEqual(level("PUT", "/admin/log_level", '{"level": "error"}'), "error")
        self.assertEqual(ask(UnixConnection(path), "POST", "/reset_prefix_cache", None)[0], 200)
        self.assertEqual(ask(UnixConnection(path), "GET", "/admin/flight_recorder", None)[0], 200)
        client = lambda: http.client.HTTPConnection(harness.HOST, port, timeout=60)
        self.assertEqual(ask(client(), "GET", "/admin/log_level", None)[0], 404)
        seen = self.log()
        ask(client())
        self.assertEqual(self.log(), seen, "only errors are written now")
        self.end(process)
        self.assertFalse(path.exists())

    def test_it_is_not_opened_to_the_world_by_mistake(self):
        self.refused("--admin-port", 0, "--admin-host", "0.0.0.0", says="--admin-api-key")
        self.refused("--admin-api-key", "k", says="--admin-port")
        self.refused("--admin-host", "0.0.0.0", says="--admin-port", code=2)

    def test_the_service_manager_is_told(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.settimeout(120)
            manager.bind(str(self.folder / "notify"))
            port = harness.free_port()
            process = self.serve("--host", harness.HOST, "--port", port,
                                 environment={**os.environ, "NOTIFY_SOCKET": str(self.folder / "notify")})
            self.assertEqual(manager.recv(100), b"READY=1\n")
            self.assertEqual(ask(http.client.HTTPConnection(harness.HOST, port, timeout=60), "GET", "/health", None)[0], 200)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(manager.recv(100), b"STOPPING=1\n")
            self.assertEqual(process.wait(60), 0, self.log())


class Pages(Folder):
    def test_cors_is_off_unless_origins_are_named(self):
        page = {"Origin": "https://chat.example"}
        with harness.Server(*BASIC, model=TINY) as server:
            self.assertNotIn("access-control", str(server.get("/health", page).headers).lower())
        for value in ('["https://chat.example"]', "https://chat.example"):
            with harness.Server(*BASIC, "--allowed-origins", value, model=TINY) as server:
                self.assertEqual(server.get("/health", page).headers["Access-Control-Allow-Origin"], page["Origin"])
        self.refused("--allowed-origins", '["*"]', "--allow-credentials", says="--allow-credentials")
        self.refused("--allowed-origins", '[1]', says="--allowed-origins")
        self.refused("--allow-credentials", says="--allowed-origins", code=2)


if __name__ == "__main__":
    harness.main()
