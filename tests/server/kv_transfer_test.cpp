// --kv-transfer-config and kv_transfer_params: what is read of them, and what is refused.
#include "server/kv_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire::server {
namespace {

namespace json = boost::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

constexpr const char* kBoth =
    R"({"kv_connector":"QuireConnector","kv_role":"kv_both","kv_connector_extra_config":{"peers":["127.0.0.1:9"]}})";

// ---- the configuration ----

std::string config_error(const std::string& text, const std::string& secret = "") {
  const auto config = KvTransferConfig::parse(text, secret);
  return config.ok() ? "" : config.status().message();
}

std::string with(const std::string& more, const std::string& role = "kv_producer") {
  return R"({"kv_connector":"QuireConnector","kv_role":")" + role + "\"" + more + "}";
}

TEST(KvTransferConfigTest, IsReadWithVllmsNames) {
  const auto config = KvTransferConfig::parse(
      R"({"kv_connector":"QuireConnector","kv_role":"kv_both","engine_id":"a","kv_ip":"127.0.0.1","kv_port":9000,
          "kv_load_failure_policy":"recompute","kv_connector_extra_config":{"peers":["127.0.0.1:9001","[::1]:9002"],
          "lease_seconds":7,"timeout_seconds":0.5,"memory_gib":0.25}})",
      "");
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_TRUE(config->role.sends && config->role.receives);
  EXPECT_THAT(config->engine_id, StartsWith("a-"));
  EXPECT_EQ(config->port, 9000);
  EXPECT_THAT(config->peers,
              ElementsAre(KvTransferConfig::Peer{"127.0.0.1", 9001}, KvTransferConfig::Peer{"::1", 9002}));
  EXPECT_EQ(config->lease_time, std::chrono::seconds(7));
  EXPECT_EQ(config->timeout, std::chrono::milliseconds(500));
  EXPECT_EQ(config->memory_bytes, 1 << 28);
}

TEST(KvTransferConfigTest, TwoProcessesAreNeverOneEngine) {
  EXPECT_NE(KvTransferConfig::parse(kBoth, "")->engine_id, KvTransferConfig::parse(kBoth, "")->engine_id);
}

TEST(KvTransferConfigTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(config_error("[]"), HasSubstr("no JSON object"));
  EXPECT_THAT(config_error("{}"), HasSubstr("needs kv_connector"));
  EXPECT_THAT(config_error(R"({"kv_connector":"QuireConnector"})"), HasSubstr("needs kv_role"));
  EXPECT_THAT(config_error(R"({"kv_connector":"NixlConnector","kv_role":"kv_both"})"), HasSubstr("QuireConnector"));
  EXPECT_THAT(config_error(with("", "kv_none")), HasSubstr("kv_role must be"));
  EXPECT_THAT(config_error(with("", "kv_consumer")), HasSubstr("peers"));
  EXPECT_THAT(config_error(with(R"(,"kv_rank":1)")), HasSubstr("\"kv_rank\""));
  EXPECT_THAT(config_error(with(R"(,"kv_port":70000)")), HasSubstr("kv_port"));
  EXPECT_THAT(config_error(with(R"(,"kv_port":1.5)")), HasSubstr("kv_port"));
  EXPECT_THAT(config_error(with(R"(,"kv_ip":"0.0.0.0")")), HasSubstr("kv_ip"));
  EXPECT_THAT(config_error(with(R"(,"kv_ip":"localhost")")), HasSubstr("kv_ip"));
  EXPECT_THAT(config_error(with(R"(,"kv_load_failure_policy":"fail")")), HasSubstr("recompute"));
  EXPECT_THAT(config_error(with(R"(,"engine_id":"a b")")), HasSubstr("engine_id"));
  EXPECT_THAT(config_error(with(R"(,"kv_connector_extra_config":{"peer":1})")), HasSubstr("\"peer\""));
  EXPECT_THAT(config_error(with(R"(,"kv_connector_extra_config":{"lease_seconds":0})")), HasSubstr("lease_seconds"));
  for (const char* peer : {"host:1", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:99999", "::1:5", "0.0.0.0:5", ":5", ""}) {
    const std::string extra = R"(,"kv_connector_extra_config":{"peers":[")" + std::string(peer) + "\"]}";
    EXPECT_THAT(config_error(with(extra, "kv_both")), HasSubstr("peers")) << peer;
  }
}

TEST(KvTransferConfigTest, OtherMachinesNeedASecret) {
  const std::string elsewhere = with(R"(,"kv_ip":"10.1.2.3")");
  const std::string peer = with(R"(,"kv_connector_extra_config":{"peers":["10.1.2.3:5"]})", "kv_consumer");
  for (const std::string& text : {elsewhere, peer}) {
    EXPECT_THAT(config_error(text), HasSubstr("QUIRE_KV_TRANSFER_SECRET"));
    EXPECT_THAT(config_error(text, "too short"), HasSubstr("QUIRE_KV_TRANSFER_SECRET"));
    EXPECT_EQ(config_error(text, "sixteen letters."), "");
  }
  EXPECT_EQ(config_error(kBoth), "");
}

// ---- a request's parameters ----

struct ReadParams {
  KvTransferParams params;
  std::string error;
};

ReadParams read_text(const std::string& text, KvTransferRole role = {.sends = true, .receives = true}) {
  const json::value body = json::parse(R"({"kv_transfer_params":)" + text + "}");
  JsonFields fields(body.get_object());
  ReadParams read{.params = read_kv_transfer_params(fields, role, 8), .error = fields.status().message()};
  if (!fields.status().ok()) {
    EXPECT_EQ(fields.status().param(), "kv_transfer_params");
  }
  return read;
}

json::object where() {
  KvTransferParams params;
  params.engine_id = "engine";
  params.host = "127.0.0.1";
  params.port = 5;
  params.num_blocks = 3;
  params.generation = 12;
  params.lease.fill(0xab);
  params.text.fill(0xcd);
  return params.for_decode();
}

TEST(KvTransferParamsTest, WhatOneAnswersTheOtherReads) {
  const ReadParams read = read_text(json::serialize(where()));
  EXPECT_EQ(read.error, "");
  EXPECT_TRUE(read.params.do_remote_prefill);
  EXPECT_FALSE(read.params.do_remote_decode);
  EXPECT_EQ(json::serialize(read.params.for_decode()), json::serialize(where()));
}

TEST(KvTransferParamsTest, ARouterAsksAsVllmsDoes) {
  const ReadParams read = read_text(
      R"({"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,
          "remote_host":null,"remote_port":null})");
  EXPECT_EQ(read.error, "");
  EXPECT_TRUE(read.params.do_remote_decode);
  for (const char* nothing : {"null", "{}", "false", R"({"do_remote_decode":false,"do_remote_prefill":null})"}) {
    EXPECT_EQ(read_text(nothing).error, "") << nothing;
    EXPECT_FALSE(read_text(nothing).params.asks()) << nothing;
  }
}

TEST(KvTransferParamsTest, EveryMemberIsChecked) {
  const std::vector<std::pair<const char*, const char*>> wrong = {
      {"remote_engine_id", R"("")"},
      {"remote_engine_id", "5"},
      {"remote_engine_id", R"("12345678901234567890123456789012345678901234567890123456789012345")"},
      {"remote_block_ids", "[]"},
      {"remote_block_ids", "[1]"},
      {"remote_block_ids", "[0,-1,2147483648]"},
      {"remote_block_ids", "[0,1,2,3,4,5,6,7,8]"},
      {"remote_block_ids", R"(["0"])"},
      {"remote_block_ids", "3"},
      {"remote_host", R"("")"},
      {"remote_host", "7"},
      {"remote_port", "0"},
      {"remote_port", "65536"},
      {"remote_port", R"("5")"},
      {"lease_id", R"("abc")"},
      {"lease_id", R"("ABABABABABABABABABABABABABABABAB")"},
      {"generation", "0"},
      {"generation", "-3"},
      {"generation", "18446744073709551615"},
      {"text_hash", R"("")"},
      {"tp_size", "2"},
      {"do_remote_decode", "true"},
      {"do_remote_decode", "1"},
      {"another", "1"}};
  for (const auto& [member, value] : wrong) {
    json::object params = where();
    params[member] = json::parse(value);
    EXPECT_NE(read_text(json::serialize(params)).error, "") << member << " " << value;
  }
  for (const char* member :
       {"remote_engine_id", "remote_block_ids", "remote_host", "remote_port", "lease_id", "generation", "text_hash"}) {
    json::object params = where();
    params.erase(member);
    EXPECT_THAT(read_text(json::serialize(params)).error, HasSubstr(member));
  }
  for (const char* none : {"[1]", "1", R"("x")", "true"}) EXPECT_NE(read_text(none).error, "") << none;
  EXPECT_THAT(read_text(R"({"do_remote_decode":true,"remote_host":"127.0.0.1"})").error, HasSubstr("remote members"));
}

TEST(KvTransferParamsTest, ARoleDoesItsPartAlone) {
  EXPECT_THAT(read_text(json::serialize(where()), {.sends = true}).error, HasSubstr("kv_consumer or kv_both"));
  EXPECT_THAT(read_text(R"({"do_remote_decode":true})", {.receives = true}).error, HasSubstr("kv_producer or kv_both"));
  EXPECT_THAT(read_text(R"({"do_remote_decode":true})", {}).error, HasSubstr("kv_transfer_params is not supported"));
  EXPECT_THAT(read_text("{}", {}).error, IsEmpty());
}

}  // namespace
}  // namespace quire::server
