#!/usr/bin/env python3
"""Abuse of the real binary, beside streams that must stay, token by token, what they are alone. Needs a release build and
the default model (./quickstart.sh makes both).

    scripts/abuse.py [--quire BINARY] [--model MODEL] [--only NAME ...] [-- flags of serve]

Every attack ends with the server idle, its blocks given back and its memory where it was. Exit code 1 if one does not.
"""

import argparse
import json
import resource
import socket
import sys
import threading
import time

from bench_concurrency import ROOT, processor

HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
PROBES = [{"prompt": [300 + 17 * i + j for j in range(6 + i)], "max_tokens": 48, "temperature": 0.8, "seed": i,
           "ignore_eos": True, "stream": True, "deterministic": True, "return_token_ids": True} for i in range(4)]


class Beside(threading.Thread):
    """Asks the probes in turn for as long as it lasts; each must have the tokens and the receipt that it has alone."""

    def __init__(self, server, alone):
        super().__init__(daemon=True)
        self.server, self.alone = server, alone
        self.stopping, self.count, self.slowest, self.wrong = threading.Event(), 0, 0.0, []

    def run(self):
        while not self.stopping.is_set():
            number = self.count % len(PROBES)
            begun = time.monotonic()
            try:
                seen = probe(self.server, number)
            except Exception as error:  # whatever it is, it is the attack's doing
                seen = repr(error)
            self.slowest = max(self.slowest, time.monotonic() - begun)
            if seen != self.alone[number]:
                self.wrong.append((number, seen))
            self.count += 1


def probe(server, number):
    tokens, receipt = [], None
    for event in server.stream("/v1/completions", PROBES[number]):
        choice = event["choices"][0]
        tokens += choice.get("token_ids") or []
        receipt = choice.get("receipt") or receipt
    return tokens, receipt


def connect(server, receive_buffer=0):
    client = socket.socket()
    if receive_buffer:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    client.settimeout(60)
    client.connect(("127.0.0.1", server.port))
    return client


def status(client):
    """Of the answer; 0: the connection ended before one."""
    try:
        answer = client.recv(65536)
    except OSError:
        return 0
    return int(answer[9:12]) if answer.startswith(b"HTTP/1.1 ") else 0


def push(client, data, times):
    """Sends until it is refused; returns the bytes that went."""
    sent = 0
    try:
        for _ in range(times):
            client.sendall(data)
            sent += len(data)
    except OSError:
        pass
    return sent


def slow_loris(server):
    clients = [connect(server) for _ in range(2000)]
    for client in clients:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX-")
    answers = {}
    open_clients = clients
    while open_clients:  # a byte a second from each
        time.sleep(1)
        still = []
        for client in open_clients:
            try:
                client.sendall(b"a")
                client.settimeout(0.0)
                data = client.recv(100)
                client.settimeout(60)
                code = data[9:12].decode() if data else "closed"
                answers[code] = answers.get(code, 0) + 1
                client.close()
            except BlockingIOError:
                client.settimeout(60)
                still.append(client)
            except OSError:
                answers["closed"] = answers.get("closed", 0) + 1
        open_clients = still
    return f"2,000 sockets, a byte a second: {answers}"


def headers(server):
    client = connect(server)
    push(client, (HEAD + "".join(f"X-{i}: 1\r\n" for i in range(100_000)) + "\r\n").encode(), 1)
    return f"100,000 fields: {status(client)}"


def large_header(server):
    client = connect(server)
    client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX: ")
    sent = push(client, b"x" * (1 << 20), 5900)
    return f"one field of 5.8 GB: ended after {sent / 1e6:.1f} MB"


def gigabyte(server):
    client = connect(server)
    client.sendall((HEAD + "Content-Length: 1073741824\r\n\r\n").encode())
    code = status(client)
    sent = push(client, b"x" * (1 << 20), 1024)
    return f"1 GiB announced: {code}, ended after {sent / 1e6:.1f} MB"


def endless_chunks(server):
    client = connect(server)
    client.sendall((HEAD + "Transfer-Encoding: chunked\r\n\r\n").encode())
    sent = push(client, b"10000\r\n" + b"x" * 0x10000 + b"\r\n", 20_000)
    return f"chunks without end: {status(client)} after {sent / 1e6:.1f} MB"


def small_chunks(server):
    body = json.dumps({"prompt": "Hello", "max_tokens": 2, "user": "u" * (3 << 20)}).encode()
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(body[at:at + 6]), body[at:at + 6]) for at in range(0, len(body), 6))
    client = connect(server)
    client.sendall((HEAD + "Transfer-Encoding: chunked\r\n\r\n").encode() + pieces + b"0\r\n\r\n")
    return f"3 MiB in chunks of 6 bytes: {status(client)}"


def bodies(server):
    deep = "[" * 100_000 + "]" * 100_000
    counts = {}
    fields = ("prompt", "n", "temperature", "stop", "logit_bias", "user", "unheard_of")
    for body in ([deep.encode()] + [f'{{"prompt":"a","{field}":{deep}}}'.encode() for field in fields] +
                 [b'{"prompt":"' + bytes([byte]) + b'"}' for byte in range(128, 256)] +
                 [f'{{"prompt":"a","{field}":{value}}}'.encode()
                  for field in ("n", "best_of", "max_tokens", "temperature", "top_p", "top_k", "seed", "logprobs", "timeout")
                  for value in ("NaN", "Infinity", "-Infinity", "1e400", "9" * 400, "-" + "9" * 400)] +
                 [b'{"prompt":"a","n":1000000}', b'{"prompt":"a","best_of":1000000}']):
        code = server.post("/v1/completions", body).status
        counts[code] = counts.get(code, 0) + 1
    return f"deep, not UTF-8, not numbers, n of 10^6: {counts}"


def come_and_go(server):
    request = (HEAD + 'Content-Length: 61\r\n\r\n{"prompt":"Once upon a time","max_tokens":64,"stream": true }').encode()
    for i in range(10_000):
        client = connect(server)
        if i % 10 == 0:
            client.sendall(request)
        elif i % 2:
            client.sendall(request[:i % len(request)])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0" if i % 8 else b"\0" * 8)
        client.close()
    return "10,000 connects and disconnects, 1,000 with a whole request"


def slow_reader(server):
    client = connect(server, receive_buffer=4096)
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 200, "n": 8, "logprobs": 20, "stream": True,
                       "ignore_eos": True})
    client.sendall((HEAD + f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
    taken = 0
    for _ in range(20):
        taken += len(client.recv(1))
        time.sleep(1)
    client.close()
    return f"a byte a second for 20 s: {taken} taken"


ATTACKS = (slow_loris, headers, large_header, gigabyte, endless_chunks, small_chunks, bodies, come_and_go, slow_reader)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quire", default=str(ROOT / "build/release/src/cli/quire"))
    parser.add_argument("--model")
    parser.add_argument("--only", nargs="*", choices=[attack.__name__ for attack in ATTACKS])
    parser.add_argument("flags", nargs="*", help="of serve, after --")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    sys.argv = [sys.argv[0], "--quire", options.quire, "--data", str(ROOT / "tests/data")]
    import harness
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 16384), hard))
    failures = 0
    print(processor())
    with harness.Server("--disable-access-log", *options.flags, model=options.model) as server:
        alone = [probe(server, number) for number in range(len(PROBES))]

        def resident():
            with open(f"/proc/{server.process.pid}/status") as state:
                return next(int(line.split()[1]) for line in state if line.startswith("VmRSS")) / 1024

        before = resident()
        print(f"{before:.0f} MiB resident\n\n| attack | seconds | streams beside it, equal | slowest, s | MiB resident |")
        print("|---|---:|---:|---:|---:|")
        for attack in ATTACKS:
            if options.only and attack.__name__ not in options.only:
                continue
            beside = Beside(server, alone)
            beside.start()
            begun = time.monotonic()
            said = attack(server)
            seconds = time.monotonic() - begun
            beside.stopping.set()
            beside.join()
            server.wait_until_idle()
            failures += len(beside.wrong)
            print(f"| {said} | {seconds:.1f} | {beside.count - len(beside.wrong)} of {beside.count} | "
                  f"{beside.slowest:.2f} | {resident():.0f} |", flush=True)
        grown = resident() - before
        print(f"\nGrown by {grown:.0f} MiB.")
    if grown > 256:
        failures += 1
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
