#include "server/kv_transfer_params.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include "server/api_error.h"
#include "server/refused_fields.h"

namespace quire::server {
namespace json = boost::json;

namespace {

constexpr const char* kTransferField = "kv_transfer_params";
constexpr std::array<std::string_view, 9> kWhereMembers = {"remote_engine_id", "remote_block_ids", "remote_host",
                                                           "remote_port",      "lease_id",         "generation",
                                                           "text_hash",        "tp_size",          "remote_request_id"};

// remote_block_ids: the blocks of the text from its beginning, 0, 1, 2, ...
bool read_blocks(JsonFields& inner, int64_t most_blocks, KvTransferParams& params) {
  const json::array* blocks = inner.array("remote_block_ids");
  if (blocks == nullptr || blocks->empty() || std::cmp_greater(blocks->size(), most_blocks)) return false;
  for (size_t i = 0; i < blocks->size(); ++i) {
    const auto number = as_integer((*blocks)[i]);
    if (!number || std::cmp_not_equal(*number, i)) return false;
  }
  params.num_blocks = static_cast<int64_t>(blocks->size());
  return true;
}

void read_where(JsonFields& fields, JsonFields& inner, int64_t most_blocks, KvTransferParams& params) {
  const auto wrong = [&](std::string_view member, std::string_view expected) {
    fields.fail(kTransferField, fmt::format("kv_transfer_params.{} must be {}.", member, expected));
  };
  params.engine_id = inner.string("remote_engine_id").value_or("");
  if (params.engine_id.empty() || params.engine_id.size() > net::kMostKvName) {
    wrong("remote_engine_id", fmt::format("a string of 1 to {} bytes", net::kMostKvName));
  }
  params.host = inner.string("remote_host").value_or("");
  if (params.host.empty() || params.host.size() > 64) wrong("remote_host", "an address");
  params.port = static_cast<uint16_t>(inner.integer("remote_port", 1, 65535).value_or(0));
  if (params.port == 0) wrong("remote_port", "a number from 1 to 65535");
  if (!read_blocks(inner, most_blocks, params)) {
    wrong("remote_block_ids", fmt::format("the numbers 0, 1, 2, ... of 1 to {} blocks", most_blocks));
  }
  if (!net::from_hex(inner.string("lease_id").value_or(""), params.lease)) {
    wrong("lease_id", "32 hexadecimal digits, in lower case");
  }
  params.generation =
      static_cast<uint64_t>(inner.integer("generation", 1, std::numeric_limits<int64_t>::max()).value_or(0));
  if (params.generation == 0) wrong("generation", "a number of 1 or more");
  if (!net::from_hex(inner.string("text_hash").value_or(""), params.text)) {
    wrong("text_hash", "32 hexadecimal digits, in lower case");
  }
  if (inner.integer("tp_size", 1, 1).value_or(1) != 1) wrong("tp_size", "1");
  if (!inner.status().ok()) fields.fail(kTransferField, inner.status().message());
}

}  // namespace

json::object KvTransferParams::for_decode() const {
  json::array blocks;
  for (int64_t i = 0; i < num_blocks; ++i) blocks.emplace_back(i);
  return {{"do_remote_prefill", true},
          {"do_remote_decode", false},
          {"remote_engine_id", engine_id},
          {"remote_block_ids", std::move(blocks)},
          {"remote_host", host},
          {"remote_port", port},
          {"lease_id", net::hex_of(lease)},
          {"generation", generation},
          {"text_hash", net::hex_of(text)}};
}

KvTransferParams read_kv_transfer_params(JsonFields& fields, const KvTransferRole& role, int64_t most_blocks) {
  KvTransferParams params;
  const json::value* value = fields.any(kTransferField);
  if (value == nullptr || is_falsy(*value)) return params;
  if (!role.sends && !role.receives) {
    fields.fail(kTransferField,
                "kv_transfer_params is not supported: this server was started without --kv-transfer-config. Leave it "
                "out.");
    return params;
  }
  const json::object* object = fields.object(kTransferField);
  if (object == nullptr) return params;
  JsonFields inner(*object, "kv_transfer_params.");
  bool says_where = false;
  for (const auto& [key, member] : *object) {
    const std::string_view name(key.data(), key.size());
    if (name == "do_remote_decode" || name == "do_remote_prefill") continue;
    if (std::ranges::find(kWhereMembers, name) == kWhereMembers.end()) {
      fields.fail(kTransferField, fmt::format("kv_transfer_params has no member {}.", in_quotes(name, 40)));
      return params;
    }
    says_where = says_where || !member.is_null();
  }
  params.do_remote_decode = inner.boolean("do_remote_decode").value_or(false);
  params.do_remote_prefill = inner.boolean("do_remote_prefill").value_or(false);
  if (!inner.status().ok()) {
    fields.fail(kTransferField, inner.status().message());
  } else if (params.do_remote_decode && params.do_remote_prefill) {
    fields.fail(kTransferField, "kv_transfer_params: do_remote_decode and do_remote_prefill must not both be true.");
  } else if (params.do_remote_decode && !role.sends) {
    fields.fail(kTransferField,
                "kv_transfer_params: do_remote_decode is for a server whose kv_role is kv_producer or kv_both.");
  } else if (params.do_remote_prefill && !role.receives) {
    fields.fail(kTransferField,
                "kv_transfer_params: do_remote_prefill is for a server whose kv_role is kv_consumer or kv_both.");
  } else if (params.do_remote_prefill) {
    read_where(fields, inner, most_blocks, params);
  } else if (says_where) {
    fields.fail(kTransferField, "kv_transfer_params: the remote members belong to do_remote_prefill.");
  }
  return params;
}

}  // namespace quire::server
