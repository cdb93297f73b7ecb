#include "cli/span_options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "cli/numbers.h"
#include "net/url.h"
#include "server/url.h"

namespace quire::cli {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kSpansByHttp =
    "spans are sent by HTTP, in JSON or protobuf, and not by gRPC: collectors take them at http://HOST:4318/v1/traces";
constexpr int64_t kMostMilliseconds = 600'000;
constexpr int64_t kMostSpans = 1 << 20;

std::string_view without_blanks(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

std::string in_lower_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  return text;
}

// The variable for traces, else that for all signals; both names, for errors.
struct Said {
  std::string name;
  std::string value;
};
Said said_for_traces(const Environment& environment, const std::string& what) {
  for (const char* prefix : {"OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"}) {
    const std::string name = prefix + what;
    if (std::string value = environment(name.c_str()); !value.empty()) return {name, std::move(value)};
  }
  return {};
}

// "key=value,key=value", the values percent-encoded, as W3C's Baggage has it.
Result<Pairs> read_pairs(const Said& said) {
  Pairs pairs;
  std::string_view rest = said.value;
  while (!rest.empty()) {
    const std::string_view pair = without_blanks(rest.substr(0, rest.find(',')));
    rest.remove_prefix(
        std::min(rest.size(), rest.find(',') == std::string_view::npos ? rest.size() : rest.find(',') + 1));
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    const std::string_view key = without_blanks(pair.substr(0, equals));
    if (equals == std::string_view::npos || key.empty()) {
      return invalid_argument("{}: a list looks like key=value,key=value.", said.name);  // and may be a secret
    }
    pairs.emplace_back(server::percent_decoded(key), server::percent_decoded(without_blanks(pair.substr(equals + 1))));
  }
  return pairs;
}

std::string endpoint_of(const std::string& flag, const Environment& environment) {
  if (!flag.empty()) return flag;
  if (in_lower_case(environment("OTEL_SDK_DISABLED")) == "true" || environment("OTEL_TRACES_EXPORTER") == "none")
    return {};
  const Said said = said_for_traces(environment, "ENDPOINT");
  if (said.value.empty() || said.name == "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") return said.value;
  std::string base = said.value;
  while (base.ends_with('/')) base.pop_back();
  return base + "/v1/traces";
}

Status read_protocol(const Environment& environment, server::SpanExportOptions& options) {
  const Said said = said_for_traces(environment, "PROTOCOL");
  if (said.value.empty() || said.value == "http/json") return {};
  if (said.value == "http/protobuf") {
    options.encoding = server::SpanEncoding::kProtobuf;
    return {};
  }
  return invalid_argument("{}={}: {}.", said.name, said.value, kSpansByHttp);
}

// A whole number from 1 to `most`, where the variable is set.
template <typename Number>
Status read_number(const Said& said, int64_t most, Number& into) {
  if (said.value.empty()) return {};
  const auto number = whole_number(said.value);
  if (!number || *number < 1 || *number > most) {
    return invalid_argument("{}={}: a number from 1 to {}.", said.name, said.value, most);
  }
  into = Number(*number);
  return {};
}

Status read_sizes(const Environment& environment, server::SpanExportOptions& options) {
  const auto said = [&](const char* name) { return Said{name, environment(name)}; };
  QUIRE_RETURN_IF_ERROR(read_number(said_for_traces(environment, "TIMEOUT"), kMostMilliseconds, options.post_timeout));
  QUIRE_RETURN_IF_ERROR(read_number(said("OTEL_BSP_SCHEDULE_DELAY"), kMostMilliseconds, options.delay));
  QUIRE_RETURN_IF_ERROR(read_number(said("OTEL_BSP_MAX_QUEUE_SIZE"), kMostSpans, options.max_queue));
  QUIRE_RETURN_IF_ERROR(read_number(said("OTEL_BSP_MAX_EXPORT_BATCH_SIZE"), kMostSpans, options.max_batch));
  options.max_batch = std::min(options.max_batch, options.max_queue);
  return {};
}

Status read_source(const Environment& environment, server::SpanExportOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(options.resource,
                         read_pairs({"OTEL_RESOURCE_ATTRIBUTES", environment("OTEL_RESOURCE_ATTRIBUTES")}));
  std::erase_if(options.resource, [&](const auto& attribute) {
    if (attribute.first == "service.name" && !attribute.second.empty()) options.service_name = attribute.second;
    return attribute.first == "service.name" || attribute.first == "service.version";
  });
  if (const std::string name = environment("OTEL_SERVICE_NAME"); !name.empty()) options.service_name = name;
  return {};
}

Status read_sampler(const Environment& environment, server::SpanExportOptions& options) {
  const std::string said = environment("OTEL_TRACES_SAMPLER");
  if (said.empty()) return {};
  constexpr std::string_view kParent = "parentbased_";
  options.sampling.heeds_parent = said.starts_with(kParent);
  const std::string root = options.sampling.heeds_parent ? said.substr(kParent.size()) : said;
  if (root == "always_on") return {};
  options.sampling.ratio = 0;
  if (root == "always_off") return {};
  if (root != "traceidratio") {
    return invalid_argument(
        "OTEL_TRACES_SAMPLER={}: always_on, always_off, traceidratio, or one of these behind parentbased_.", said);
  }
  options.sampling.ratio = 1;
  const std::string ratio = environment("OTEL_TRACES_SAMPLER_ARG");
  if (ratio.empty()) return {};
  const auto [end, error] = std::from_chars(ratio.data(), ratio.data() + ratio.size(), options.sampling.ratio);
  if (error != std::errc() || end != ratio.data() + ratio.size() || !(options.sampling.ratio >= 0) ||
      !(options.sampling.ratio <= 1)) {
    return invalid_argument("OTEL_TRACES_SAMPLER_ARG={}: a number from 0 to 1.", ratio);
  }
  return {};
}

std::string wrong_endpoint(const std::string& text) {
  if (in_lower_case(text).starts_with("grpc")) return kSpansByHttp;
  const auto url = net::parse_url(text);
  return url.ok() ? std::string() : url.status().message();
}

}  // namespace

CLI::Validator as_spans_endpoint() {
  return {[](std::string& text) { return wrong_endpoint(text); }, "", ""};
}

Result<server::SpanExportOptions> read_span_options(const std::string& endpoint, const Environment& environment,
                                                    std::vector<std::string>& notes) {
  server::SpanExportOptions options;
  options.endpoint = endpoint_of(endpoint, environment);
  if (options.endpoint.empty()) return options;
  if (const std::string wrong = wrong_endpoint(options.endpoint); !wrong.empty()) {
    return invalid_argument("{}: {}.", said_for_traces(environment, "ENDPOINT").name, wrong);
  }
  QUIRE_RETURN_IF_ERROR(read_protocol(environment, options));
  QUIRE_RETURN_IF_ERROR(read_sizes(environment, options));
  QUIRE_RETURN_IF_ERROR(read_source(environment, options));
  QUIRE_RETURN_IF_ERROR(read_sampler(environment, options));
  QUIRE_ASSIGN_OR_RETURN(options.headers, read_pairs(said_for_traces(environment, "HEADERS")));
  options.ca_file = said_for_traces(environment, "CERTIFICATE").value;
  if (options.ca_file.empty()) {
    options.ca_file = environment("SSL_CERT_FILE");
    options.ca_folder = environment("SSL_CERT_DIR");
  }
  if (const Said said = said_for_traces(environment, "COMPRESSION"); !said.value.empty() && said.value != "none") {
    notes.push_back(fmt::format("{}={}: spans are sent as they are, without compression", said.name, said.value));
  }
  return options;
}

}  // namespace quire::cli
