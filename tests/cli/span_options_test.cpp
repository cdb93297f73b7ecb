// OpenTelemetry's environment, and the flag over it.
#include "cli/span_options.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::cli {
namespace {

using server::SpanExportOptions;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::Pair;
using Variables = std::map<std::string, std::string>;

std::vector<std::string> span_notes;

Result<SpanExportOptions> read(const std::string& flag, const Variables& variables) {
  span_notes.clear();
  return read_span_options(
      flag,
      [&](const char* name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::string() : found->second;
      },
      span_notes);
}

SpanExportOptions good(const Variables& variables) {
  const auto options = read("http://flag:1/x", variables);
  EXPECT_TRUE(options.ok()) << options.status().message();
  return options.ok() ? *options : SpanExportOptions();
}

std::string why_refused(const Variables& variables) {
  const auto options = read("http://flag:1/x", variables);
  EXPECT_FALSE(options.ok());
  return options.ok() ? "" : options.status().message();
}

TEST(SpanOptions, TheEndpointIsTheFlagsThenTheTracesThenOfAllSignals) {
  Variables variables{{"OTEL_EXPORTER_OTLP_ENDPOINT", "https://all:4318/base/"}};
  EXPECT_EQ(read("", variables)->endpoint, "https://all:4318/base/v1/traces");
  variables["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = "http://traces:4318";
  EXPECT_EQ(read("", variables)->endpoint, "http://traces:4318") << "as it is";
  EXPECT_EQ(read("http://flag/x", variables)->endpoint, "http://flag/x");
  EXPECT_EQ(read("", {})->endpoint, "");
  variables["OTEL_SDK_DISABLED"] = "True";
  EXPECT_EQ(read("", variables)->endpoint, "");
  EXPECT_EQ(read("http://flag/x", variables)->endpoint, "http://flag/x") << "who gives a flag wants it";
  variables["OTEL_SDK_DISABLED"] = "false";
  variables["OTEL_TRACES_EXPORTER"] = "none";
  EXPECT_EQ(read("", variables)->endpoint, "");
}

TEST(SpanOptions, WithoutAnEndpointTheRestIsOtherPrograms) {
  EXPECT_TRUE(read("", {{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}, {"OTEL_TRACES_SAMPLER", "x"}}).ok());
}

TEST(SpanOptions, AnEndpointIsOfHttp) {
  const auto endpoint = read("", {{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4317"}});
  ASSERT_FALSE(endpoint.ok());
  EXPECT_THAT(endpoint.status().message(), HasSubstr("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: "));
  CLI::App app;
  std::string text;
  app.add_option("--at", text)->check(as_spans_endpoint());
  EXPECT_NO_THROW(app.parse("--at https://host:4318/v1/traces"));
  for (const char* bad : {"--at grpc://host:4317", "--at host:4317", "--at http://", "--at http://user@host/"}) {
    try {
      app.parse(bad);
      ADD_FAILURE() << bad;
    } catch (const CLI::ValidationError& error) {
      if (std::string(bad).find("grpc") != std::string::npos) {
        EXPECT_THAT(error.what(), HasSubstr("not by gRPC"));
      }
    }
  }
}

TEST(SpanOptions, TheProtocolIsHttpInJsonOrProtobuf) {
  EXPECT_EQ(good({}).encoding, server::SpanEncoding::kJson);
  EXPECT_EQ(good({{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"}}).encoding, server::SpanEncoding::kProtobuf);
  EXPECT_EQ(
      good({{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}, {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"}}).encoding,
      server::SpanEncoding::kJson);
  EXPECT_THAT(why_refused({{"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}}), HasSubstr("OTEL_EXPORTER_OTLP_PROTOCOL=grpc: "));
  EXPECT_THAT(why_refused({{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"}}), HasSubstr("not by gRPC"));
}

TEST(SpanOptions, HeadersAreAListInPercentEncoding) {
  EXPECT_THAT(good({{"OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b%2Cc, x = y=z ,,"}}).headers,
              ElementsAre(Pair("api-key", "a b,c"), Pair("x", "y=z")));
  EXPECT_THAT(good({{"OTEL_EXPORTER_OTLP_HEADERS", "a=1"}, {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "b=2"}}).headers,
              ElementsAre(Pair("b", "2")));
  for (const char* bad : {"secret", "=secret", "a=1,secret"}) {
    const std::string told = why_refused({{"OTEL_EXPORTER_OTLP_HEADERS", bad}});
    EXPECT_THAT(told, HasSubstr("OTEL_EXPORTER_OTLP_HEADERS"));
    EXPECT_THAT(told, Not(HasSubstr("secret")));
  }
}

TEST(SpanOptions, WhoSendsThem) {
  EXPECT_EQ(good({}).service_name, "quire");
  const std::string attributes = "service.name=one,zone=a%2Fb,service.version=9";
  EXPECT_EQ(good({{"OTEL_RESOURCE_ATTRIBUTES", attributes}}).service_name, "one");
  const SpanExportOptions both = good({{"OTEL_RESOURCE_ATTRIBUTES", attributes}, {"OTEL_SERVICE_NAME", "two"}});
  EXPECT_EQ(both.service_name, "two");
  EXPECT_THAT(both.resource, ElementsAre(Pair("zone", "a/b"))) << "the version is ours to say";
}

TEST(SpanOptions, SamplersAndTheirShares) {
  const auto sampling = [](const Variables& variables) { return good(variables).sampling; };
  EXPECT_TRUE(sampling({}).heeds_parent);
  EXPECT_EQ(sampling({}).ratio, 1);
  EXPECT_EQ(sampling({{"OTEL_TRACES_SAMPLER", "always_off"}}).ratio, 0);
  EXPECT_FALSE(sampling({{"OTEL_TRACES_SAMPLER", "always_on"}}).heeds_parent);
  const auto share =
      sampling({{"OTEL_TRACES_SAMPLER", "parentbased_traceidratio"}, {"OTEL_TRACES_SAMPLER_ARG", "0.25"}});
  EXPECT_TRUE(share.heeds_parent);
  EXPECT_EQ(share.ratio, 0.25);
  EXPECT_EQ(sampling({{"OTEL_TRACES_SAMPLER", "traceidratio"}}).ratio, 1);
  EXPECT_THAT(why_refused({{"OTEL_TRACES_SAMPLER", "jaeger_remote"}}), HasSubstr("jaeger_remote"));
  for (const char* bad : {"2", "-1", "x", "0.5x", "nan"}) {
    EXPECT_THAT(why_refused({{"OTEL_TRACES_SAMPLER", "traceidratio"}, {"OTEL_TRACES_SAMPLER_ARG", bad}}),
                HasSubstr("OTEL_TRACES_SAMPLER_ARG"));
  }
}

TEST(SpanOptions, TimeCertificatesAndCompression) {
  EXPECT_EQ(good({}).post_timeout.count(), 10'000);
  EXPECT_EQ(good({{"OTEL_EXPORTER_OTLP_TIMEOUT", "250"}}).post_timeout.count(), 250);
  EXPECT_EQ(good({{"OTEL_BSP_SCHEDULE_DELAY", "100"}}).delay.count(), 100);
  EXPECT_EQ(good({{"OTEL_BSP_MAX_QUEUE_SIZE", "100"}}).max_batch, 100u) << "no more than there may be";
  EXPECT_EQ(good({{"OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "7"}}).max_batch, 7u);
  for (const char* bad : {"0", "-1", "many", "99999999999"}) {
    for (const char* name :
         {"OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_BSP_SCHEDULE_DELAY", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"}) {
      EXPECT_THAT(why_refused({{name, bad}}), HasSubstr(std::string(name) + "=" + bad));
    }
  }
  EXPECT_EQ(good({{"SSL_CERT_FILE", "/a"}, {"OTEL_EXPORTER_OTLP_CERTIFICATE", "/b"}}).ca_file, "/b");
  EXPECT_EQ(good({{"SSL_CERT_FILE", "/a"}, {"SSL_CERT_DIR", "/c"}}).ca_folder, "/c");
  good({{"OTEL_EXPORTER_OTLP_COMPRESSION", "none"}});
  EXPECT_THAT(span_notes, IsEmpty());
  good({{"OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"}});
  EXPECT_THAT(span_notes, ElementsAre(HasSubstr("without compression")));
}

}  // namespace
}  // namespace quire::cli
