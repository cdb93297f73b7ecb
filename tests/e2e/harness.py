"""What the end-to-end tests share: the real binary, a server of it on a free loopback port, plain HTTP, metrics.

Paths come from the command line (ctest gives them):
    python test_x.py --quire BINARY --data TESTS_DATA [unittest's own arguments]
The default model is looked for where the program itself looks. Where it is missing, tests that need it are skipped; a
file in which every test is skipped exits with 77, which ctest shows as skipped.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

SKIPPED = 77
HOST = "127.0.0.1"
os.environ["NO_PROXY"] = os.environ["no_proxy"] = HOST

_parser = argparse.ArgumentParser(add_help=False)
_parser.add_argument("--quire", type=pathlib.Path)
_parser.add_argument("--data", type=pathlib.Path)
_options, _rest = _parser.parse_known_args()

# How much longer than usual things may take: set for a program that was built with a sanitizer.
SLOWDOWN = float(os.environ.get("QUIRE_TEST_SLOWDOWN") or 1)

QUIRE = _options.quire
DATA = _options.data


def _cache_folder():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")


DEFAULT_MODEL = _cache_folder() / "quire/models/SmolLM2-135M-Instruct.Q4_1.gguf"
needs_default_model = unittest.skipUnless(DEFAULT_MODEL.exists(), "the default model is not here (scripts/fetch_model.sh)")


def main():
    """Runs the file's tests; the exit code says passed, failed or all skipped."""
    if QUIRE is None or DATA is None:
        sys.exit("usage: test_x.py --quire BINARY --data TESTS_DATA [unittest arguments]")
    program = unittest.main(module="__main__", argv=[sys.argv[0], *_rest], exit=False, verbosity=2)
    result = program.result
    if not result.wasSuccessful() or result.testsRun == 0:
        sys.exit(1)
    sys.exit(SKIPPED if len(result.skipped) >= result.testsRun else 0)


def run(*arguments, stdin="", timeout=120, environment=None):
    """Runs the binary to its end; returns subprocess.CompletedProcess with text output."""
    return subprocess.run([str(QUIRE), *map(str, arguments)], input=stdin, capture_output=True, text=True,
                          encoding="utf-8", timeout=timeout * SLOWDOWN, env=environment)


def wait_until(condition, told, seconds=30):
    """Raises with TOLD() where CONDITION() does not become true."""
    deadline = time.monotonic() + seconds * SLOWDOWN
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(told())
        time.sleep(0.02)


def free_port():
    """One that is free now, and below those that the system gives to clients: a test beside this one takes none of them."""
    while True:
        port = random.randrange(15000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
        return port


def processes():
    """Process id -> (parent, state, command line), of all that are there."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            found[int(folder.name)] = (int(fields[1]), fields[0], (folder / "cmdline").read_bytes().replace(b"\0", b" "))
        except OSError:
            continue
    return found


def workers_of(engine):
    """The process ids of a model's workers, by rank. ENGINE: the id of the process that started them."""
    own = [(command, process) for process, (parent, state, command) in processes().items()
           if parent == engine and b" worker " in command and state != "Z"]
    return [process for _, process in sorted(own, key=lambda one: int(one[0].split(b"--rank ")[1].split()[0]))]


def is_alive(process):
    return processes().get(process, (0, "Z", b""))[1] != "Z"


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Server:
    """`quire serve` as a process of its own; a context manager that ends it with SIGTERM and expects exit code 0."""

    def __init__(self, *arguments, model=None, host=HOST, environment=None, launcher=(), end_by=signal.SIGTERM):
        """HOST: where it listens; None: where it does by itself. LAUNCHER: a command that starts it, and is sent END_BY."""
        self.end_by = end_by
        self.port = free_port()
        self.log = tempfile.NamedTemporaryFile("w+", prefix="quire-serve-", suffix=".log", errors="replace")
        command = [*map(str, launcher), str(QUIRE), "serve", *([str(model)] if model else []), *(["--host", host] if host else []),
                   "--port", str(self.port)]
        self.process = subprocess.Popen([*command, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=self.log,
                                        stderr=subprocess.STDOUT, env=environment)

    def __enter__(self):
        try:
            self.wait_until_healthy()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    def __exit__(self, kind, value, traceback):
        code = self.stop()
        if kind is None and code != 0:
            raise AssertionError(f"the server ended with exit code {code}; its log:\n{self.log_text()}")

    def wait_until_healthy(self, seconds=120):
        deadline = time.monotonic() + seconds * SLOWDOWN
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended at start with exit code {self.process.returncode}; its log:\n"
                                     f"{self.log_text()}")
            try:
                if self.get("/health").status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.05)
        raise AssertionError(f"the server was not healthy after {seconds} s; its log:\n{self.log_text()}")

    def terminate(self):
        self.process.send_signal(self.end_by)

    def stop(self, seconds=60):
        """SIGTERM, then the exit code. A server that does not end is killed and counts as -9."""
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.process.wait(seconds * SLOWDOWN)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def log_text(self):
        with open(self.log.name, errors="replace") as log:
            return log.read()[-8000:]

    def log_with(self, *texts, seconds=30):
        """The log once it has every one of TEXTS: a request is counted and logged after its answer has left."""
        wait_until(lambda: all(text in self.log_text() for text in texts), lambda: f"no {texts} in {self.log_text()}", seconds)
        return self.log_text()

    @property
    def url(self):
        return f"http://{HOST}:{self.port}"

    def connect(self, timeout=300):
        return http.client.HTTPConnection(HOST, self.port, timeout=timeout * SLOWDOWN)

    def request(self, method, path, body=None, headers=None, timeout=300):
        connection = self.connect(timeout)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return Reply(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path, headers=None):
        return self.request("GET", path, headers=headers)

    def post(self, path, body, headers=None):
        """Posts a JSON value, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.request("POST", path, data, {"Content-Type": "application/json", **(headers or {})})

    def answer(self, path, body):
        """Posts and returns the JSON of a 200."""
        reply = self.post(path, body)
        if reply.status != 200:
            raise AssertionError(f"POST {path}: {reply.status} {reply.body[:2000]!r}")
        return reply.json

    def stream(self, path, body):
        """Posts with stream on; yields each event's JSON and must see [DONE] last."""
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}).encode(),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise AssertionError(f"POST {path}: {response.status} {response.read(2000)!r}")
            yield from events(response)
        finally:
            connection.close()

    def metrics(self):
        """Metric name -> the sum over its label sets."""
        values = {}
        for line in self.get("/metrics").body.decode().splitlines():
            found = re.match(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})?\s+(\S+)", line)
            if found and not line.startswith("#"):
                values[found[1]] = values.get(found[1], 0.0) + float(found[2])
        return values

    def wait_until_idle(self, seconds=60):
        """Until nothing runs or waits and no KV block is held; raises with the metrics otherwise."""
        names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
        deadline = time.monotonic() + seconds * SLOWDOWN
        while True:
            values = self.metrics()
            for name in names:
                if name not in values:
                    raise AssertionError(f"/metrics has no {name}")
            if all(values[name] == 0 for name in names):
                return values
            if time.monotonic() > deadline:
                raise AssertionError("not idle: " + ", ".join(f"{name} = {values[name]}" for name in names))
            time.sleep(0.05)


def events(response):
    """The JSON of each server-sent event of a response, which must end with [DONE]."""
    done = False
    for line in response:
        line = line.rstrip(b"\r\n")
        if not line:
            continue
        if done:
            raise AssertionError(f"after [DONE]: {line!r}")
        if not line.startswith(b"data: "):
            raise AssertionError(f"no event: {line!r}")
        if line == b"data: [DONE]":
            done = True
        else:
            yield json.loads(line[6:])
    if not done:
        raise AssertionError("the stream ended without [DONE]")


LAYOUT = "QUIRE_TEST_LAYOUT"  # how ServerTest starts its servers, as JSON: arguments, launcher, end_by


class ServerTest(unittest.TestCase):
    """A test class whose tests share one server."""

    arguments = ()
    model = None

    @classmethod
    def setUpClass(cls):
        layout = json.loads(os.environ.get(LAYOUT, "{}"))
        cls.server = Server(*cls.arguments, *layout.get("arguments", ()), model=cls.model, launcher=layout.get("launcher", ()),
                            end_by=layout.get("end_by", signal.SIGTERM))
        cls.server.__enter__()

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__(None, None, None)


def run_openai_client_tests(test, *arguments, launcher=(), end_by=signal.SIGTERM, python=sys.executable, environment=()):
    """Those of test_openai_client.py, all of them, against a server whose model is computed by several processes."""
    layout = {"arguments": [str(one) for one in arguments], "launcher": [str(one) for one in launcher], "end_by": int(end_by)}
    done = subprocess.run([str(python), str(pathlib.Path(__file__).with_name("test_openai_client.py")), "--quire", str(QUIRE), "--data",
                           str(DATA), "OpenAIClient"], capture_output=True, text=True, timeout=600 * SLOWDOWN,
                          env={**os.environ, **dict(environment), LAYOUT: json.dumps(layout)})
    test.assertEqual(done.returncode, 0, done.stdout + done.stderr)
    test.assertNotIn("skipped", done.stderr)
    test.assertRegex(done.stderr, r"Ran [1-9]\d+ tests")


def steps_to_compare(margins, threshold):
    """How many greedy steps must be equal: those before the first whose margin is below the threshold."""
    for step, margin in enumerate(margins):
        if margin < threshold:
            return step
    return len(margins)
