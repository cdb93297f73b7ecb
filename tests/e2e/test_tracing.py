"""The span of each request, at a collector that is here, away, slow, or talks nonsense. On a tiny Llama checkpoint by
token ids; scripts/check_otlp.py reads the same with OpenTelemetry's own classes."""

import concurrent.futures
import http.server
import json
import os
import socket
import tempfile
import threading
import time
import unittest

import harness

LLAMA = harness.DATA / "e2e/tiny/llama" if harness.DATA else None
COMPLETIONS = "/v1/completions"
PROMPT = [3, 17, 44, 9, 21]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "20"}


class Collector:
    """Takes what is posted to it. ANSWER: None, or called with the number of the request for (status, fields, body)."""

    def __init__(self, answer=None, port=0):
        self.bodies, self.heads = [], []
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                number = len(collector.bodies)
                collector.heads.append((self.path, dict(self.headers)))
                collector.bodies.append(body)
                status, fields, text = answer(number) if answer else (200, {}, b"{}")
                self.send_response(status)
                for name, value in fields.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer((harness.HOST, port), Handler)
        self.server.daemon_threads = True
        self.url = f"http://{harness.HOST}:{self.server.server_address[1]}/v1/traces"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def requests(self):
        return [json.loads(body) for body in list(self.bodies)]

    def spans(self, count=None):
        """All spans, when there are COUNT of them."""
        found = lambda: [span for request in self.requests() for resource in request["resourceSpans"]
                         for scope in resource["scopeSpans"] for span in scope["spans"]]
        if count is not None:
            harness.wait_until(lambda: len(found()) >= count, lambda: f"{len(found())} of {count} spans: {found()}")
        return found()


def attributes(of):
    kinds = {"stringValue": str, "intValue": int, "doubleValue": float}
    values = {}
    for one in of["attributes"]:
        (kind, value), = one["value"].items()
        values[one["key"]] = kinds[kind](value)
    return values


def traced(url, *arguments, **environment):
    return harness.Server("--skip-tokenizer-init", "--otlp-traces-endpoint", url, *arguments, model=LLAMA,
                          environment=os.environ | QUICK | environment)


def body(max_tokens=4, **more):
    return {"prompt": PROMPT, "max_tokens": max_tokens, "temperature": 0.7, "ignore_eos": True, **more}


class Spans(unittest.TestCase):
    def test_requests_of_all_kinds(self):
        with Collector() as collector, traced(collector.url) as server:
            whole = server.answer(COMPLETIONS, body(6, n=2, top_p=0.9))
            span, = collector.spans(1)
            self.assertEqual((span["name"], span["kind"], span["status"]), ("llm_request", 2, {}))
            self.assertNotIn("parentSpanId", span)
            self.assertLess(int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]))
            self.assertAlmostEqual(int(span["endTimeUnixNano"]) * 1e-9, time.time(), delta=60)
            values = attributes(span)
            expected = {"gen_ai.request.id": whole["id"], "gen_ai.response.model": whole["model"],
                        "gen_ai.request.max_tokens": 6, "gen_ai.request.n": 2, "gen_ai.request.temperature": 0.7,
                        "gen_ai.request.top_p": 0.9, "gen_ai.usage.prompt_tokens": len(PROMPT),
                        "gen_ai.usage.completion_tokens": 12, "http.route": COMPLETIONS,
                        "http.response.status_code": 200}
            self.assertEqual(values, values | expected)
            times = {name: values[f"gen_ai.latency.{name}"] for name in (
                "time_in_queue", "time_to_first_token", "e2e", "time_in_model_prefill", "time_in_model_decode",
                "time_in_model_inference")}
            self.assertGreater(times["e2e"], times["time_to_first_token"])
            self.assertAlmostEqual(times["e2e"], times["time_in_queue"] + times["time_in_model_inference"], delta=1e-6)

            list(server.stream(COMPLETIONS, body(3)))
            self.assertEqual(attributes(collector.spans(2)[1])["gen_ai.usage.completion_tokens"], 3)

            trace = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
            server.post(COMPLETIONS, body(), trace)
            span = collector.spans(3)[2]
            self.assertEqual((span["traceId"], span["parentSpanId"], span["traceState"]), (TRACE, PARENT, "vendor=1"))

            server.post(COMPLETIONS, body(), {"traceparent": f"00-{TRACE}-{PARENT}-00"})
            refused = server.post(COMPLETIONS, body(temperature=-1))
            self.assertEqual(refused.status, 400)
            span = collector.spans(4)[3]
            self.assertEqual(span["status"], {"code": 2, "message": "Bad Request"})
            self.assertEqual(attributes(span)["error.type"], "400")

            # Tens of megabytes, more than sockets hold, so that it cannot have been sent whole when the client leaves.
            connection = server.connect()
            connection.request("POST", COMPLETIONS, json.dumps(body(500, stream=True, n=128, logprobs=5)).encode(),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.readline()
            response.close()
            connection.close()
            span = collector.spans(5)[4]
            values = attributes(span)
            self.assertEqual(span["status"]["code"], 2)
            self.assertEqual(values["http.response.status_code"], 499)
            self.assertIn(values["gen_ai.usage.completion_tokens"], range(1, 500 * 128))
            server.wait_until_idle()
            # Counted when the exporter has read the collector's answer to the last of them.
            exported = lambda: server.metrics()["quire:otlp_spans_exported_total"]
            harness.wait_until(lambda: exported() >= 5, lambda: f"{exported()} of 5 spans are counted as exported")
            self.assertEqual(exported(), 5)
            self.assertEqual(server.metrics()["quire:otlp_spans_dropped_total"], 0)
            self.assertEqual(len(collector.spans()), 5)
            self.assertIn(f"a span of each request to a model is sent to {collector.url}", server.log_text())

    def test_many_at_once_and_what_waits_when_the_server_ends(self):
        with Collector() as collector:
            with traced(collector.url, OTEL_BSP_SCHEDULE_DELAY="600000", OTEL_SERVICE_NAME="front",
                        OTEL_RESOURCE_ATTRIBUTES="zone=a%20b", OTEL_EXPORTER_OTLP_HEADERS="x-key=se%63ret") as server:
                with concurrent.futures.ThreadPoolExecutor(8) as pool:
                    answers = list(pool.map(lambda i: server.answer(COMPLETIONS, body(1 + i % 5)), range(64)))
                self.assertEqual(collector.bodies, [], "they wait for more")
            self.assertEqual(len(collector.bodies), 1, "all of them together")
            (path, fields), = collector.heads
            self.assertEqual((path, fields["x-key"], fields["Content-Type"]), ("/v1/traces", "secret", "application/json"))
            resource = attributes(collector.requests()[0]["resourceSpans"][0]["resource"])
            self.assertEqual((resource["service.name"], resource["zone"]), ("front", "a b"))
            self.assertTrue(resource["service.version"])
            lengths = {answer["id"]: answer["usage"]["completion_tokens"] for answer in answers}
            values = [attributes(span) for span in collector.spans()]
            self.assertEqual({one["gen_ai.request.id"]: one["gen_ai.usage.completion_tokens"] for one in values}, lengths)
            self.assertEqual(len({span["spanId"] for span in collector.spans()}), 64)
            self.assertNotIn("secret", server.log_text())


    def test_vectors(self):
        with Collector() as collector:
            server = harness.Server("--otlp-traces-endpoint", collector.url, model=harness.DATA / "embeddings/bert_cls",
                                    environment=os.environ | QUICK)
            with server:
                answer = server.answer("/v1/embeddings", {"input": ["one text", "another"]})
                span, = collector.spans(1)
        values = attributes(span)
        self.assertEqual((span["name"], span["status"], values["http.route"]), ("llm_request", {}, "/v1/embeddings"))
        self.assertEqual(values["gen_ai.usage.prompt_tokens"], answer["usage"]["prompt_tokens"])
        self.assertEqual(values["gen_ai.usage.completion_tokens"], 0)
        self.assertGreater(values["gen_ai.latency.time_in_model_inference"], 0)
        self.assertGreaterEqual(values["gen_ai.latency.e2e"], values["gen_ai.latency.time_in_model_inference"])
        self.assertNotIn("gen_ai.latency.time_to_first_token", values)
        self.assertNotIn("gen_ai.request.temperature", values)

    def test_a_line_of_a_batch(self):
        with tempfile.TemporaryDirectory() as folder, Collector() as collector:
            with traced(collector.url, "--batch-folder", folder) as server:
                lines = [{"custom_id": str(i), "method": "POST", "url": COMPLETIONS, "body": body(2 + i)} for i in range(3)]
                text = "\n".join(map(json.dumps, lines))
                form = (f'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\nContent-Disposition: '
                        f'form-data; name="file"; filename="f.jsonl"\r\n\r\n{text}\r\n--b--\r\n')
                uploaded = server.request("POST", "/v1/files", form.encode(), {"Content-Type": "multipart/form-data; boundary=b"})
                self.assertEqual(uploaded.status, 200, uploaded.body)
                server.answer("/v1/batches", {"input_file_id": uploaded.json["id"], "endpoint": COMPLETIONS,
                                              "completion_window": "24h"})
                spans = collector.spans(3)
        self.assertEqual(sorted(attributes(span)["gen_ai.usage.completion_tokens"] for span in spans), [2, 3, 4])
        self.assertEqual({attributes(span)["http.response.status_code"] for span in spans}, {200})
        self.assertEqual(len({span["traceId"] for span in spans}), 3)


class Trouble(unittest.TestCase):
    """Whatever the collector does, requests are answered as if it were not there."""

    def answers(self, server, count=20):
        begin = time.monotonic()
        for _ in range(count):
            server.answer(COMPLETIONS, body(2))
        self.assertLess(time.monotonic() - begin, 20)

    def test_one_that_is_away_and_comes_back(self):
        port = harness.free_port()
        with traced(f"http://{harness.HOST}:{port}/v1/traces") as server:
            self.answers(server)
            server.log_with("spans cannot be sent")
            with Collector(port=port) as collector:
                server.log_with("again")
                collector.spans(1)
                self.answers(server, 1)
            log = server.log_text()
            self.assertEqual((log.count("spans cannot be sent"), log.count("spans are sent")), (1, 1))

    def test_one_that_hangs(self):
        with socket.create_server((harness.HOST, 0)) as silent:
            port = silent.getsockname()[1]
            with traced(f"http://{harness.HOST}:{port}/v1/traces", OTEL_BSP_MAX_QUEUE_SIZE="5") as server:
                self.answers(server)
                self.assertGreater(server.metrics()["quire:otlp_spans_dropped_total"], 0)
                begin = time.monotonic()
                self.assertEqual(server.stop(), 0)
                self.assertLess(time.monotonic() - begin, 10)

    def test_one_that_says_no_or_nonsense(self):
        for answer in ((404, {}, b"not here"), (200, {}, b'{"partialSuccess":{"rejectedSpans":"1000000","errorMessage":"\\u0007no"}}')):
            with self.subTest(answer=answer), Collector(lambda _, answer=answer: answer) as collector:
                with traced(collector.url) as server:
                    self.answers(server, 3)
                    server.log_with("spans cannot be sent")
                    harness.wait_until(lambda: server.metrics()["quire:otlp_spans_dropped_total"] == 3, server.log_text)
                    self.assertEqual(server.metrics()["quire:otlp_spans_exported_total"], 0)
                    self.assertEqual(server.log_text().count("spans cannot be sent"), 1)
        with socket.create_server((harness.HOST, 0)) as listener:
            def babble():
                while True:
                    try:
                        connection = listener.accept()[0]
                        connection.recv(100)
                        connection.sendall(os.urandom(3000))
                        connection.close()
                    except OSError:
                        return
            threading.Thread(target=babble, daemon=True).start()
            with traced(f"http://{harness.HOST}:{listener.getsockname()[1]}/v1/traces") as server:
                self.answers(server)
                server.log_with("spans cannot be sent")

    def test_one_that_is_busy_is_asked_again_when_it_says(self):
        with Collector(lambda number: (429, {"Retry-After": "1"}, b"") if number == 0 else (200, {}, b"{}")) as collector:
            with traced(collector.url) as server:
                self.answers(server, 1)
                begin = time.monotonic()
                collector.spans(2)
                self.assertGreater(time.monotonic() - begin, 0.5)
                harness.wait_until(lambda: server.metrics()["quire:otlp_spans_exported_total"] == 1, server.log_text)
            self.assertEqual(collector.bodies[0], collector.bodies[1])


class Refused(unittest.TestCase):
    def test_by_name(self):
        result = harness.run("serve", LLAMA, "--otlp-traces-endpoint", "grpc://127.0.0.1:4317")
        self.assertEqual(result.returncode, 2)
        self.assertIn("not by gRPC", result.stderr)
        result = harness.run("serve", LLAMA, "--otlp-traces-endpoint", "http://127.0.0.1:4318/v1/traces",
                             environment=os.environ | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
        self.assertEqual(result.returncode, 1)
        self.assertIn("OTEL_EXPORTER_OTLP_PROTOCOL=grpc: ", result.stderr)
        result = harness.run("serve", LLAMA, "--collect-detailed-traces", "all")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--flight-recorder-steps", result.stderr)


if __name__ == "__main__":
    harness.main()
