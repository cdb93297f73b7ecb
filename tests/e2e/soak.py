"""Mixed load on a real server on loopback for a bounded time: whole answers, streams, tools, schemas, batches, adapters,
clients that go away at random moments, requests that are wrong. At the end nothing may be left over: no KV block, no running
or waiting request, no memory beyond what the first part took, no answer of a 5xx kind. Run by scripts/soak.sh; writes a text
report, and beside it what was resident, minute by minute. SIGUSR1 lets the clients rest, and work again; that time does not count."""

import argparse
import json
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

SUBJECTS = ["the sea", "an old house", "a train at night", "winter", "two brothers", "a lost key", "the market", "fog"]
WRONG = [{"temperature": -1}, {"max_tokens": -3}, {"n": 10**6}, {"messages": []}, {"messages": 5},
         {"logit_bias": {"99999999": 5}}, {"model": "no-such-model"}, {"top_p": "high"}, {"stop": [""] * 9},
         {"tools": [{"type": "function"}]}, {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "sea"}}}}]
TOOL = {"type": "function", "function": {"name": "find", "parameters": {
    "type": "object", "properties": {"what": {"enum": SUBJECTS}, "how_many": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["what", "how_many"], "additionalProperties": False}}}
SCHEMA = {"type": "object", "properties": {"title": {"type": "string", "maxLength": 12}, "year": {"type": "integer", "minimum": 1, "maximum": 9999}},
          "required": ["title", "year"], "additionalProperties": False}
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
ADAPTERS, IN_MEMORY = 6, 3


def text_of(source):
    return " ".join(source.choice(SUBJECTS) for _ in range(source.randrange(1, 120)))


class Load:
    """The worker threads' common state."""

    def __init__(self, server, seed, seconds):
        self.server, self.seed, self.seconds = server, seed, seconds
        self.lock = threading.Lock()
        self.working = threading.Event()
        self.working.set()
        self.begin, self.rested, self.resting_since = time.monotonic(), 0.0, 0.0
        self.modes = {"chat": self.chat, "completion": self.completion, "stream": self.stream, "cancelled stream": self.cancelled_stream,
                      "cancelled answer": self.cancelled_answer, "wrong request": self.wrong_request, "tool call": self.tool_call,
                      "schema": self.schema, "adapter": self.adapter, "batch": self.batch}
        self.counts = dict.fromkeys(self.modes, 0)
        self.statuses = {}
        self.failures = []

    def rest_or_work(self, *_):
        if self.working.is_set():
            self.resting_since = time.monotonic()
            self.working.clear()
        else:
            self.rested += time.monotonic() - self.resting_since
            self.working.set()

    def elapsed(self):
        """Seconds of work."""
        now = time.monotonic() if self.working.is_set() else self.resting_since
        return now - self.begin - self.rested

    def fail(self, text):
        with self.lock:
            self.failures.append(text)

    def work(self, number):
        source = random.Random(self.seed * 1000 + number)
        while self.elapsed() < self.seconds:
            self.working.wait()
            # A batch is several requests.
            mode = source.choice([mode for mode in self.modes if mode != "batch" or source.random() < 0.1])
            try:
                status = self.modes[mode](source)
                with self.lock:
                    self.counts[mode] += 1
                    self.statuses[status] = self.statuses.get(status, 0) + 1
            except Exception as error:  # any surprise is a finding, and the others go on
                self.fail(f"{mode}: {type(error).__name__}: {error}")
                time.sleep(0.2)

    # Each mode is one request; returns the HTTP status (0: this client left before there was one).

    def body(self, source, path, **more):
        body = {"max_tokens": source.randrange(1, 64), "temperature": source.choice([0, 0.7, 1.0]), "seed": source.randrange(2**31), **more}
        # Several greedy answers are refused.
        body["n"] = 1 if body["temperature"] == 0 else source.choice([1, 1, 1, 2])
        if path == COMPLETION:
            body["prompt"] = f"A story about {text_of(source)}:"
        else:
            body["messages"] = [{"role": "user", "content": f"Tell me about {text_of(source)}."}]
        return body

    def post(self, path, body, leave=None):
        """(status, content). LEAVE: given the connection, and then the response, may end it all by returning a status."""
        connection = self.server.connect(timeout=600)
        try:
            connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
            if leave is not None:
                return leave(connection), b""
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def answer(self, path, body):
        """The choices of a whole answer."""
        status, content = self.post(path, body)
        if status != 200:
            self.fail(f"{body}: {status} {content[:200]!r}")
            return status, []
        choices = json.loads(content)["choices"]
        if len(choices) != body["n"]:
            self.fail(f"not {body['n']} choices: {content[:200]!r}")
        return status, choices

    def chat(self, source):
        return self.answer(CHAT, self.body(source, CHAT))[0]

    def completion(self, source):
        return self.answer(COMPLETION, self.body(source, COMPLETION))[0]

    def adapter(self, source):
        return self.answer(COMPLETION, self.body(source, COMPLETION, model=f"adapter{source.randrange(ADAPTERS)}"))[0]

    def tool_call(self, source):
        status, choices = self.answer(CHAT, self.body(source, CHAT, tools=[TOOL], tool_choice="required", max_tokens=160, parallel_tool_calls=False))
        for choice in choices:
            for call in choice["message"].get("tool_calls") or []:
                if choice["finish_reason"] != "length" and json.loads(call["function"]["arguments"])["what"] not in SUBJECTS:
                    self.fail(f"not the tool's arguments: {call}")
        return status

    def schema(self, source):
        wanted = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}}
        status, choices = self.answer(CHAT, self.body(source, CHAT, response_format=wanted, max_tokens=160))
        for choice in choices:
            if choice["finish_reason"] == "stop" and set(json.loads(choice["message"]["content"])) != {"title", "year"}:
                self.fail(f"not of the schema: {choice}")
        return status

    def stream(self, source):
        status, content = self.post(CHAT, self.body(source, CHAT, stream=True))
        if status != 200 or not content.endswith(b"data: [DONE]\n\n"):
            self.fail(f"stream without its end: {status} {content[-200:]!r}")
        return status

    def cancelled_stream(self, source):
        def leave(connection):
            response = connection.getresponse()
            for _ in range(source.randrange(1, 20)):
                response.readline()
            return response.status
        return self.post(CHAT, self.body(source, CHAT, stream=True), leave)[0]

    def cancelled_answer(self, source):
        return self.post(COMPLETION, self.body(source, COMPLETION), lambda _: time.sleep(source.random() * 0.5) or 0)[0]

    def wrong_request(self, source):
        body = {**self.body(source, CHAT), **source.choice(WRONG)}
        status, content = self.post(CHAT, body)
        if not 400 <= status < 500 or "error" not in json.loads(content):
            self.fail(f"wrong request {body}: {status} {content[:200]!r}")
        return status

    def batch(self, source):
        """Of a few requests, from the file that goes up to the deletion of the files."""
        count = source.randrange(1, 5)
        lines = "\n".join(json.dumps({"custom_id": str(i), "method": "POST", "url": CHAT, "body": self.body(source, CHAT)}) for i in range(count))
        parts = "".join(f'--limit\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n{value}\r\n'
                        for name, more, value in (("purpose", "", "batch"), ("file", '; filename="lines.jsonl"', lines)))
        connection = self.server.connect(timeout=600)
        try:
            def send(method, path, body=None, kind="application/json"):
                connection.request(method, path, body, {"Content-Type": kind} if body else {})
                response = connection.getresponse()
                content = response.read()
                if response.status != 200:
                    raise AssertionError(f"{method} {path}: {response.status} {content[:200]!r}")
                return content

            file = json.loads(send("POST", "/v1/files", parts + "--limit--\r\n", "multipart/form-data; boundary=limit"))
            batch = json.loads(send("POST", "/v1/batches", json.dumps(
                {"input_file_id": file["id"], "endpoint": CHAT, "completion_window": "24h"})))
            while batch["status"] not in ("completed", "failed", "cancelled", "expired"):
                time.sleep(0.2)
                batch = json.loads(send("GET", f"/v1/batches/{batch['id']}"))
            answers = send("GET", f"/v1/files/{batch['output_file_id']}/content").splitlines()
            if sorted(json.loads(line)["custom_id"] for line in answers) != [str(i) for i in range(count)]:
                self.fail(f"a batch of {count}: {answers}")
            for name in (file["id"], batch["output_file_id"]):
                send("DELETE", f"/v1/files/{name}")
            return 200
        finally:
            connection.close()


def resident_bytes(process_id):
    """Of the process alone: pages of the model's file come and go with the machine's free memory."""
    with open(f"/proc/{process_id}/status") as status:
        return sum(int(line.split()[1]) * 1024 for line in status if line.startswith(("RssAnon:", "RssShmem:", "VmSwap:")))


def growth(samples):
    """Bytes an hour: the slope of the straight line nearest to (seconds, bytes)."""
    times, sizes = zip(*samples)
    time_mean, size_mean = sum(times) / len(times), sum(sizes) / len(sizes)
    spread = sum((at - time_mean) ** 2 for at in times)
    return 3600 * sum((at - time_mean) * (size - size_mean) for at, size in samples) / spread


def watch(load, threads, process, report):
    """[(seconds, bytes)] of what is resident of its own, each second that the clients work; the largest of each minute is written down."""
    samples, minute = [], 0
    with open(report.with_suffix(".csv"), "w") as file:
        file.write("minute,largest resident MiB\n")
        while any(thread.is_alive() for thread in threads) and load.elapsed() < load.seconds + 600:
            time.sleep(1)
            if not load.working.is_set():
                continue
            samples.append((load.elapsed(), resident_bytes(process.pid)))
            if samples[-1][0] >= 60 * (minute + 1):
                largest = max(size for at, size in samples if at >= 60 * minute)
                minute += 1
                file.write(f"{minute},{largest / 2**20:.2f}\n")
                file.flush()
    return samples


def soak(server, options):
    """Returns the report's lines and what went wrong."""
    load = Load(server, options.seed, 60 * options.minutes)
    signal.signal(signal.SIGUSR1, load.rest_or_work)
    threads = [threading.Thread(target=load.work, args=(number,)) for number in range(options.clients)]
    for thread in threads:
        thread.start()
    samples = watch(load, threads, server.process, options.report)
    problems = list(load.failures)
    values = {}
    try:
        values = server.wait_until_idle()
    except AssertionError as error:
        problems.append(str(error))
    # Caches of the server, and pages that the KV cache has not touched before, fill in the first hour, or third.
    warm_up = min(3600.0, load.seconds / 3)
    warm = [(at, size) for at, size in samples if at >= warm_up]
    hourly = growth(warm)
    early, late = (max(size for at, size in warm if first <= at < first + 60) for first in (warm_up, warm[-1][0] - 60))
    if late > early * 1.03 + (8 << 20):
        problems.append(f"memory grew from {early >> 20} MiB to {late >> 20} MiB")
    if load.seconds >= 7200 and hourly > 1e6:
        problems.append(f"memory grows by {hourly / 1e6:.2f} MB an hour")
    problems += [f"{count} answers with status {status}" for status, count in load.statuses.items() if status >= 500]
    problems += [f"no request of the kind: {mode}" for mode, count in load.counts.items() if count == 0]
    lines = [f"minutes {options.minutes:g}, clients {options.clients}, seed {options.seed}",
             *(f"{mode:18} {count:8}" for mode, count in load.counts.items()),
             "statuses           " + ", ".join(f"{status or 'left'}: {count}" for status, count in sorted(load.statuses.items())),
             f"resident           {early / 2**20:.1f} MiB in the minute after {warm_up / 60:.0f} minutes, {late / 2**20:.1f} MiB in the last; "
             f"{hourly / 1e6:+.2f} MB an hour",
             *(f"{name} {values.get(name)}" for name in (
                 "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                 "vllm:num_preemptions_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"))]
    return lines, problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=pathlib.Path, required=True)
    options = parser.parse_args()

    sys.argv = [sys.argv[0], "--quire", options.quire]
    import harness

    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "scripts"))
    import make_adapters

    with tempfile.TemporaryDirectory(prefix="quire-soak-") as folder:
        root = pathlib.Path(folder)
        shape = argparse.Namespace(rank=8, hidden_size=576, intermediate_size=1536, layers=30, heads=9, kv_heads=3, head_dim=64)
        for number in range(ADAPTERS):
            make_adapters.write(root / "adapters" / f"adapter{number}", shape, number)
        # A pool that the load does not quite fit into, so that preemption takes part, and fewer places than adapters.
        server = harness.Server("--kv-cache-memory-bytes", "48M", "--max-model-len", 1024, "--enable-lora", "--lora-dir", root / "adapters",
                                "--max-loras", IN_MEMORY, "--max-cpu-loras", IN_MEMORY, "--max-lora-rank", 8, "--batch-folder", root / "batches")
        with server:
            lines, problems = soak(server, options)
            code = server.stop()
            if code != 0:
                problems.append(f"the server ended with exit code {code}")
    verdict = [f"PROBLEM: {problem}" for problem in problems[:50]] or ["nothing leaked, nothing failed"]
    report = "\n".join([*lines, *verdict]) + "\n"
    options.report.write_text(report)
    print(report, end="")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
