// Where spans go: --otlp-traces-endpoint, and OpenTelemetry's environment.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "server/span_exporter.h"

namespace quire::cli {

// Of --otlp-traces-endpoint: an address of http or https.
CLI::Validator as_spans_endpoint();

// The value of a variable; empty where it is not set.
using Environment = std::function<std::string(const char* name)>;

// endpoint: the flag's; empty: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT as it is, or OTEL_EXPORTER_OTLP_ENDPOINT with
// /v1/traces behind it, unless OTEL_SDK_DISABLED is true or OTEL_TRACES_EXPORTER is none; then nothing is sent, and
// nothing else is looked at. Heeded beside it, each with OTEL_EXPORTER_OTLP_TRACES_... before OTEL_EXPORTER_OTLP_...:
// PROTOCOL, HEADERS, TIMEOUT, CERTIFICATE; and OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER with
// OTEL_TRACES_SAMPLER_ARG, OTEL_BSP_SCHEDULE_DELAY, _MAX_QUEUE_SIZE and _MAX_EXPORT_BATCH_SIZE, SSL_CERT_FILE,
// SSL_CERT_DIR.
// notes: what is taken and changes nothing. Errors: invalid_argument, naming the variable.
Result<server::SpanExportOptions> read_span_options(const std::string& endpoint, const Environment& environment,
                                                    std::vector<std::string>& notes);

}  // namespace quire::cli
