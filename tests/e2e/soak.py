"""Mixed load on a real server on loopback for a bounded time: whole answers, streams, clients that go away at random
moments, requests that are wrong. At the end nothing may be left over: no KV block, no running or waiting request, no
memory beyond what the first minute took, no answer of a 5xx kind. Run by scripts/soak.sh; writes a text report."""

import argparse
import json
import random
import sys
import threading
import time

MODES = ("chat", "completion", "stream", "cancelled stream", "cancelled answer", "wrong request")
SUBJECTS = ["the sea", "an old house", "a train at night", "winter", "two brothers", "a lost key", "the market", "fog"]
WRONG = [{"temperature": -1}, {"max_tokens": -3}, {"n": 10**6}, {"messages": []}, {"messages": 5},
         {"logit_bias": {"99999999": 5}}, {"model": "no-such-model"}, {"top_p": "high"}, {"stop": [""] * 9}]


class Load:
    """The worker threads' common state."""

    def __init__(self, server, seed, end):
        self.server, self.seed, self.end = server, seed, end
        self.lock = threading.Lock()
        self.counts = {mode: 0 for mode in MODES}
        self.statuses = {}
        self.failures = []

    def note(self, mode, status):
        with self.lock:
            self.counts[mode] += 1
            self.statuses[status] = self.statuses.get(status, 0) + 1

    def fail(self, text):
        with self.lock:
            self.failures.append(text)

    def work(self, number):
        source = random.Random(self.seed * 1000 + number)
        while time.monotonic() < self.end:
            mode = source.choice(MODES)
            try:
                self.note(mode, self.one(mode, source))
            except Exception as error:  # any surprise is a finding, and the others go on
                self.fail(f"{mode}: {type(error).__name__}: {error}")
                time.sleep(0.2)

    def one(self, mode, source):
        """One request of this mode; returns the HTTP status (0: this client left before there was one)."""
        words = " ".join(source.choice(SUBJECTS) for _ in range(source.randrange(1, 120)))
        body = {"max_tokens": source.randrange(1, 64), "temperature": source.choice([0, 0.7, 1.0]),
                "seed": source.randrange(2**31), "n": source.choice([1, 1, 1, 2])}
        if body["temperature"] == 0:
            body["n"] = 1  # several greedy answers are refused
        path = "/v1/chat/completions"
        if mode in ("completion", "cancelled answer"):
            path, body["prompt"] = "/v1/completions", f"A story about {words}:"
        else:
            body["messages"] = [{"role": "user", "content": f"Tell me about {words}."}]
        if mode == "wrong request":
            body.update(source.choice(WRONG))
        body["stream"] = mode in ("stream", "cancelled stream")
        connection = self.server.connect(timeout=300)
        try:
            connection.request("POST", path, json.dumps(body).encode(), {"Content-Type": "application/json"})
            if mode == "cancelled answer":
                time.sleep(source.random() * 0.5)
                return 0
            response = connection.getresponse()
            if mode == "cancelled stream" and response.status == 200:
                for _ in range(source.randrange(1, 20)):
                    response.readline()
                return response.status
            content = response.read()
            self.check(mode, response.status, content, body)
            return response.status
        finally:
            connection.close()

    def check(self, mode, status, content, body):
        if mode == "wrong request":
            if not 400 <= status < 500 or "error" not in json.loads(content):
                self.fail(f"wrong request {body}: {status} {content[:200]!r}")
        elif status != 200:
            self.fail(f"{mode}: {status} {content[:200]!r}")
        elif mode == "stream":
            if not content.endswith(b"data: [DONE]\n\n"):
                self.fail(f"stream without its end: {content[-200:]!r}")
        elif len(json.loads(content)["choices"]) != body["n"]:
            self.fail(f"{mode}: not {body['n']} choices: {content[:200]!r}")


def resident_bytes(process_id):
    with open(f"/proc/{process_id}/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS:"))


def soak(server, minutes, clients, seed):
    """Returns the report's lines and what went wrong."""
    begin = time.monotonic()
    load = Load(server, seed, begin + 60 * minutes)
    threads = [threading.Thread(target=load.work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    samples = []
    warm_up = min(60.0, 60 * minutes / 3)
    while any(thread.is_alive() for thread in threads) and time.monotonic() < load.end + 330:
        samples.append((time.monotonic() - begin, resident_bytes(server.process.pid)))
        time.sleep(1)
    problems = list(load.failures)
    values = {}
    try:
        values = server.wait_until_idle()
    except AssertionError as error:
        problems.append(str(error))
    warm = [size for at, size in samples if warm_up <= at < 2 * warm_up]
    last = [size for at, size in samples if at >= 60 * minutes - warm_up]
    early, late = max(warm), max(last)
    if late > early * 1.03 + (8 << 20):
        problems.append(f"memory grew from {early >> 20} MiB to {late >> 20} MiB")
    for status in load.statuses:
        if status >= 500:
            problems.append(f"{load.statuses[status]} answers with status {status}")
    for mode in MODES:
        if load.counts[mode] == 0:
            problems.append(f"no request of the kind: {mode}")
    lines = [f"minutes {minutes}, clients {clients}, seed {seed}",
             *(f"{mode:18} {load.counts[mode]:8}" for mode in MODES),
             "statuses           " + ", ".join(f"{status or 'left'}: {count}" for status, count in sorted(load.statuses.items())),
             f"resident           {early >> 20} MiB in the minute after warm-up, {late >> 20} MiB in the last",
             *(f"{name} {values.get(name)}" for name in (
                 "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
                 "vllm:num_preemptions_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"))]
    return lines, problems


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quire", required=True)
    parser.add_argument("--model", default=None, help="the default model if not given")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", required=True)
    options = parser.parse_args()

    sys.argv = [sys.argv[0], "--quire", options.quire]
    import harness

    # A pool that the load does not quite fit into, so that preemption takes part.
    server = harness.Server("--kv-cache-memory-bytes", "96M", "--max-model-len", 1024, model=options.model)
    with server:
        lines, problems = soak(server, options.minutes, options.clients, options.seed)
        code = server.stop()
        if code != 0:
            problems.append(f"the server ended with exit code {code}")
    verdict = [f"PROBLEM: {problem}" for problem in problems[:50]] or ["nothing leaked, nothing failed"]
    report = "\n".join([*lines, *verdict]) + "\n"
    with open(options.report, "w") as file:
        file.write(report)
    print(report, end="")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
