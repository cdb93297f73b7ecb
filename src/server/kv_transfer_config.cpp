// --kv-transfer-config
#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <charconv>
#include <cmath>

#include "base/parse_json.h"
#include "server/kv_transfer.h"
#include "server/random_id.h"

namespace quire::server {
namespace {

namespace json = boost::json;

constexpr const char* kKnownMembers =
    "kv_connector, kv_role, engine_id, kv_ip, kv_port, kv_load_failure_policy, kv_connector_extra_config";
constexpr const char* kKnownExtras = "peers, lease_seconds, timeout_seconds, memory_gib";

Status refuse_member(std::string_view member, std::string_view expected) {
  return invalid_argument("kv_transfer_config: {} must be {}", member, expected);
}

// In its plainest form, so that two spellings of one are one.
std::optional<std::string> plain_address(std::string_view text) {
  boost::system::error_code error;
  const auto address = boost::asio::ip::make_address(std::string(text), error);
  if (error || address.is_unspecified()) return std::nullopt;
  return address.to_string();
}

bool is_of_this_machine(const std::string& address) {
  return boost::asio::ip::make_address(address).is_loopback();
}

// "10.0.0.7:14579", "[fd00::7]:14579"
std::optional<KvTransferConfig::Peer> peer_of(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const bool bracketed = host.starts_with('[') && host.ends_with(']');
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (bracketed != (host.find(':') != std::string_view::npos)) return std::nullopt;
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), port);
  const auto address = plain_address(host);
  if (error != std::errc() || end != text.data() + text.size() || port == 0 || !address) return std::nullopt;
  return KvTransferConfig::Peer{.address = *address, .port = port};
}

std::optional<double> bounded_number(const json::value& value, double least, double most) {
  if (!value.is_number()) return std::nullopt;
  const double number = value.to_number<double>();
  if (!(number >= least && number <= most)) return std::nullopt;
  return number;
}

Status read_extra(const json::object& extra, KvTransferConfig& config) {
  for (const auto& [key, member] : extra) {
    const std::string_view name(key.data(), key.size());
    if (name == "peers") {
      const json::array* list = member.if_array();
      if (list == nullptr || list->size() > 1024) return refuse_member(name, "a list of \"ADDRESS:PORT\"");
      for (const json::value& one : *list) {
        const auto peer = one.is_string() ? peer_of(std::string_view(one.get_string())) : std::nullopt;
        if (!peer) {
          return refuse_member(name, "a list of \"ADDRESS:PORT\", each address in numbers: names are not looked up");
        }
        config.peers.push_back(*peer);
      }
    } else if (name == "lease_seconds" || name == "timeout_seconds") {
      const auto seconds = bounded_number(member, 0.01, 3600);
      if (!seconds) return refuse_member(name, "a number of seconds from 0.01 to 3600");
      (name == "lease_seconds" ? config.lease_time : config.timeout) =
          std::chrono::milliseconds(std::llround(*seconds * 1000));
    } else if (name == "memory_gib") {
      const auto gib = bounded_number(member, 0.001, 1 << 14);
      if (!gib) return refuse_member(name, "a number of GiB from 0.001 to 16384");
      config.memory_bytes = std::llround(*gib * static_cast<double>(1 << 30));
    } else {
      return invalid_argument("kv_transfer_config: kv_connector_extra_config has a member \"{}\"; known: {}", name,
                              kKnownExtras);
    }
  }
  return {};
}

Status read_member(std::string_view name, const json::value& member, KvTransferConfig& config) {
  const std::string_view text = member.is_string() ? std::string_view(member.get_string()) : std::string_view();
  if (name == "kv_connector") {
    if (text == "QuireConnector") return {};
    return refuse_member(name, "\"QuireConnector\": other connectors' protocols are not spoken here");
  }
  if (name == "kv_role") {
    if (text != "kv_producer" && text != "kv_consumer" && text != "kv_both") {
      return refuse_member(name, "kv_producer, kv_consumer or kv_both");
    }
    config.role = {.sends = text != "kv_consumer", .receives = text != "kv_producer"};
    return {};
  }
  if (name == "engine_id") {
    const bool plain = std::ranges::all_of(text, [](char c) { return c > ' ' && c < 127 && c != '"' && c != '\\'; });
    if (text.empty() || text.size() > 32 || !plain) return refuse_member(name, "1 to 32 visible ASCII characters");
    config.engine_id = text;
    return {};
  }
  if (name == "kv_ip") {
    const auto address = plain_address(text);
    if (!address) return refuse_member(name, "an address of this machine in numbers, by which others find it");
    config.address = *address;
    return {};
  }
  if (name == "kv_port") {
    const auto port = bounded_number(member, 0, 65535);
    if (!port || *port != std::floor(*port)) return refuse_member(name, "a number from 0 (any free one) to 65535");
    config.port = static_cast<uint16_t>(*port);
    return {};
  }
  if (name == "kv_load_failure_policy") {
    if (text == "recompute") return {};
    return refuse_member(name, "\"recompute\": what cannot be fetched is computed, and the answer is the same");
  }
  if (name == "kv_connector_extra_config") {
    if (!member.is_object()) return refuse_member(name, "an object");
    return read_extra(member.get_object(), config);
  }
  return invalid_argument("kv_transfer_config has a member \"{}\"; known: {}", name, kKnownMembers);
}

}  // namespace

Result<KvTransferConfig> KvTransferConfig::parse(const std::string& text, const std::string& secret) {
  boost::system::error_code error;
  const json::value value = parse_json(text, error);
  if (error || !value.is_object()) return invalid_argument("kv_transfer_config is no JSON object: {}", text);
  const json::object& object = value.get_object();
  KvTransferConfig config;
  config.secret = secret;
  for (const char* needed : {"kv_connector", "kv_role"}) {
    if (!object.contains(needed)) return invalid_argument("kv_transfer_config needs {}", needed);
  }
  for (const auto& [key, member] : object) {
    QUIRE_RETURN_IF_ERROR(read_member(std::string_view(key.data(), key.size()), member, config));
  }
  if (config.role.receives && config.peers.empty()) {
    return invalid_argument(
        "kv_transfer_config: a kv_role that receives needs kv_connector_extra_config.peers, the \"ADDRESS:PORT\" of "
        "each "
        "instance that blocks may be fetched from");
  }
  if (!config.role.receives && !config.peers.empty()) {
    return invalid_argument("kv_transfer_config: peers are of a kv_role that receives, and this one is kv_producer");
  }
  const bool all_here = is_of_this_machine(config.address) && std::ranges::all_of(config.peers, [](const Peer& peer) {
                          return is_of_this_machine(peer.address);
                        });
  if (!all_here && secret.size() < 16) {
    return invalid_argument(
        "kv_transfer_config: with other machines, QUIRE_KV_TRANSFER_SECRET must be set in the environment, to the same "
        "16 "
        "or more characters for all instances");
  }
  // A process's own: leases of one that was there before are nobody's.
  config.engine_id += (config.engine_id.empty() ? "" : "-") + random_id().substr(0, 24);
  return config;
}

}  // namespace quire::server
