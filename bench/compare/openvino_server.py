#!/usr/bin/env python3
"""OpenVINO GenAI's continuous batching behind as little of a server as the benchmark needs: /health, and /v1/completions streamed or whole.

    openvino_server.py --model MODEL.gguf [--host H] [--port P] [--threads N] [--max-num-seqs N]

Runs in the environment openvino. One thread makes the engine's steps; one a connection reads a request and writes its tokens as they come.
"""

import argparse
import http.server
import itertools
import json
import os
import queue
import threading

import openvino_genai


class Engine(threading.Thread):
    """Requests come through `inbox` as (prompt, config, outbox); what is new goes to the outbox as lists of ids, None at the end."""

    def __init__(self, options):
        super().__init__(daemon=True)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = options.cache_gb
        scheduler.max_num_batched_tokens = options.max_num_batched_tokens
        scheduler.max_num_seqs = options.max_num_seqs
        scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_NUM_THREADS": options.threads, "PERFORMANCE_HINT": "LATENCY"}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(options.model, scheduler, "CPU", properties)
        self.tokenizer = self.pipeline.get_tokenizer()
        self.inbox = queue.SimpleQueue()
        self.open = []

    def admit(self, numbers):
        """Waits for a request where none is under way."""
        wait = not self.open
        while True:
            try:
                prompt, config, outbox = self.inbox.get(block=wait)
            except queue.Empty:
                return
            wait = False
            try:
                self.open.append((self.pipeline.add_request(next(numbers), prompt, config), outbox))
            except RuntimeError as problem:
                outbox.put(problem)

    def run(self):
        numbers = itertools.count()
        while True:
            self.admit(numbers)
            self.pipeline.step()
            going = []
            for handle, outbox in self.open:
                while handle.can_read():
                    outbox.put([token for one in handle.read().values() for token in one.generated_ids])
                if handle.get_status() == openvino_genai.GenerationStatus.RUNNING:
                    going.append((handle, outbox))
                else:
                    outbox.put(None)
            self.open = going


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine = None

    def log_message(self, *_):
        pass

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer(200 if self.path == "/health" else 404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/completions" or not isinstance(body.get("prompt"), str):
            self.answer(404, {"error": "only /v1/completions with one prompt of text"})
            return
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = body.get("max_tokens", 16)
        config.ignore_eos = bool(body.get("ignore_eos", False))
        config.do_sample = False
        outbox = queue.SimpleQueue()
        self.engine.inbox.put((body["prompt"], config, outbox))
        (self.stream if body.get("stream") else self.whole)(outbox)

    def whole(self, outbox):
        ids = []
        while (new := outbox.get()) is not None:
            if isinstance(new, Exception):
                self.answer(500, {"error": str(new)})
                return
            ids += new
        self.answer(200, {"choices": [{"index": 0, "text": self.engine.tokenizer.decode(ids), "finish_reason": "length"}],
                          "usage": {"completion_tokens": len(ids)}})

    def event(self, body):
        data = b"data: " + (body if isinstance(body, bytes) else json.dumps(body).encode()) + b"\n\n"
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def stream(self, outbox):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        count = 0
        while (new := outbox.get()) is not None:
            if isinstance(new, Exception):
                self.event({"error": {"message": str(new)}})
                break
            if new:
                count += len(new)
                self.event({"choices": [{"index": 0, "text": self.engine.tokenizer.decode(new), "finish_reason": None}]})
        self.event({"choices": [], "usage": {"completion_tokens": count}})
        self.event(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")


class Listener(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--max-num-seqs", type=int, default=64)
    parser.add_argument("--max-num-batched-tokens", type=int, default=256, help="in a step; OpenVINO's own default")
    parser.add_argument("--cache-gb", type=int, default=4)
    options = parser.parse_args()
    Handler.engine = Engine(options)
    Handler.engine.start()
    Listener((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
