"""Whether the spans that `quire serve` sends are OpenTelemetry's: a server on a tiny checkpoint, a collector here that
reads what comes with the classes of the package opentelemetry-proto, in JSON and in protobuf. Prints each span.

    pip install opentelemetry-proto
    python scripts/check_otlp.py --quire build/release/src/cli/quire --data tests/data

With --golden it prints instead the bytes that tests/server/otlp_test.cpp expects.
"""

import pathlib
import sys

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests" / "e2e"))

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


def from_json(body):
    """OTLP's JSON is protobuf's own but for its ids, which are hexadecimal where protobuf has base64."""
    import base64
    import json

    value = json.loads(body)
    for resource in value["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId", "parentSpanId"):
                    if name in span:
                        span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return json_format.ParseDict(value, ExportTraceServiceRequest())


def golden():
    """The request of tests/server/otlp_test.cpp."""
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    for key, text in (("service.name", "front"), ("service.version", "1.2"), ("zone", "a")):
        attribute = resource.resource.attributes.add(key=key)
        attribute.value.string_value = text
    scope = resource.scope_spans.add()
    scope.scope.name, scope.scope.version = "quire", "1.2"
    span = scope.spans.add(trace_id=bytes.fromhex(TRACE), span_id=bytes.fromhex(PARENT),
                           trace_state="vendor=1,other=2", parent_span_id=bytes.fromhex("b7ad6b7169203331"),
                           name="llm_request", kind=2, start_time_unix_nano=1700000000123456789,
                           end_time_unix_nano=1700000001000000000, flags=0x301)
    span.attributes.add(key="gen_ai.request.id").value.string_value = "cmpl-1"
    span.attributes.add(key="gen_ai.usage.prompt_tokens").value.int_value = 7_000_000_000
    span.attributes.add(key="gen_ai.latency.e2e").value.double_value = 0.25
    span.status.code, span.status.message = 2, 'Not "Found"'
    root = scope.spans.add(trace_id=bytes.fromhex("1".zfill(32)), span_id=bytes.fromhex("2".zfill(16)),
                           name="llm_request", kind=2, start_time_unix_nano=1, end_time_unix_nano=2, flags=0x101)
    root.status.SetInParent()
    return request.SerializeToString(deterministic=True).hex()


def check(protocol):
    import os

    import harness
    from test_tracing import Collector

    with Collector() as collector:
        environment = os.environ | {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "OTEL_RESOURCE_ATTRIBUTES": "zone=a%20b"}
        with harness.Server("--skip-tokenizer-init", "--otlp-traces-endpoint", collector.url,
                            model=harness.DATA / "e2e/tiny/llama", environment=environment) as server:
            body = {"prompt": [3, 17, 44], "max_tokens": 4, "temperature": 0.7}
            server.answer("/v1/completions", body)
            server.post("/v1/completions", body, {"traceparent": f"00-{TRACE}-{PARENT}-01"})
            server.post("/v1/completions", {"prompt": [3], "temperature": -1})
        requests = [ExportTraceServiceRequest.FromString(body) if protocol == "http/protobuf" else from_json(body)
                    for body in collector.bodies]
    spans = [span for request in requests for part in request.resource_spans for scope in part.scope_spans
             for span in scope.spans]
    assert len(spans) == 3, len(spans)
    about = {one.key: one.value.string_value for one in requests[0].resource_spans[0].resource.attributes}
    assert about["service.name"] == "quire" and about["zone"] == "a b", about
    for span in spans:
        assert (len(span.trace_id), len(span.span_id), span.name, span.kind) == (16, 8, "llm_request", 2), span
        assert span.start_time_unix_nano < span.end_time_unix_nano
    assert spans[1].trace_id.hex() == TRACE and spans[1].parent_span_id.hex() == PARENT
    values = {one.key: one.value for one in spans[0].attributes}
    assert values["gen_ai.usage.completion_tokens"].int_value == 4
    assert values["gen_ai.request.temperature"].double_value == 0.7
    assert 0 < values["gen_ai.latency.time_to_first_token"].double_value < 60
    assert spans[2].status.code == 2, spans[2].status
    return requests


if __name__ == "__main__":
    if "--golden" in sys.argv:
        print(golden())
    else:
        for protocol in ("http/json", "http/protobuf"):
            print(protocol, *check(protocol), sep="\n")
