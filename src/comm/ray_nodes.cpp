#include "comm/ray_nodes.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <optional>

namespace quire::comm {
namespace {

// The wire format of protocol buffers: a key (number and kind of a field), then its value.
// https://protobuf.dev/programming-guides/encoding/
class ProtobufReader {
 public:
  enum Kind : uint64_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  struct Field {
    uint64_t number = 0;
    Kind kind = kVarint;
    uint64_t value = 0;      // of a varint, or the bits of a fixed one
    std::string_view bytes;  // of kBytes
  };

  explicit ProtobufReader(std::string_view message) : left_(message) {}

  bool is_done() const { return left_.empty(); }
  std::optional<Field> next() {
    const auto key = varint();
    if (!key.has_value()) return std::nullopt;
    Field field{.number = *key >> 3, .kind = static_cast<Kind>(*key & 7)};
    std::optional<uint64_t> value;
    switch (field.kind) {
      case kVarint:
        value = varint();
        break;
      case kFixed64:
        value = fixed(8);
        break;
      case kFixed32:
        value = fixed(4);
        break;
      case kBytes:
        value = varint();
        if (!value.has_value() || *value > left_.size()) return std::nullopt;
        field.bytes = left_.substr(0, *value);
        left_.remove_prefix(*value);
        break;
    }
    if (!value.has_value()) return std::nullopt;
    field.value = *value;
    return field;
  }

 private:
  std::optional<uint64_t> varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !left_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(left_.front());
      left_.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    return std::nullopt;
  }
  std::optional<uint64_t> fixed(size_t bytes) {
    if (left_.size() < bytes) return std::nullopt;
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; ++i) value |= static_cast<uint64_t>(static_cast<uint8_t>(left_[i])) << (8 * i);
    left_.remove_prefix(bytes);
    return value;
  }

  std::string_view left_;
};

// Numbers of fields of GcsNodeInfo; an entry of a map has its key as 1 and its value as 2.
enum NodeField : uint64_t { kAddress = 2, kState = 7, kHostName = 8, kResources = 11 };

bool read_resource(std::string_view entry, RayNode& node) {
  std::string_view name;
  double amount = 0;
  for (ProtobufReader reader(entry); !reader.is_done();) {
    const auto field = reader.next();
    if (!field.has_value()) return false;
    if (field->number == 1) name = field->bytes;
    if (field->number == 2 && field->kind == ProtobufReader::kFixed64) amount = std::bit_cast<double>(field->value);
  }
  if (name == "CPU") node.cpus = amount;
  return true;
}

std::string in_words(const std::vector<RayNode>& nodes) {
  std::string words;
  for (const RayNode& node : nodes) {
    if (!node.is_alive) continue;
    words += fmt::format("{}{} ({}) has {:g}", words.empty() ? "" : ", ", node.name, node.address, node.cpus);
  }
  return words.empty() ? "no node is alive" : words;
}

}  // namespace

Result<RayNode> parse_ray_node(std::string_view record) {
  RayNode node{.is_alive = true};  // what is 0 is not written, and alive is
  for (ProtobufReader reader(record); !reader.is_done();) {
    const auto field = reader.next();
    if (!field.has_value()) return data_loss("a record of a Ray node is not whole");
    switch (field->number) {
      case kAddress:
        node.address = field->bytes;
        break;
      case kHostName:
        node.name = field->bytes;
        break;
      case kState:
        node.is_alive = field->value == 0;
        break;
      case kResources:
        if (!read_resource(field->bytes, node)) return data_loss("a record of a Ray node is not whole");
        break;
      default:
        break;
    }
  }
  return node;
}

Status check_ray_version(std::string_view metadata, std::string_view version) {
  // A flat object that Ray's head has written: the name, a colon, a string without anything escaped.
  const std::string_view name = "\"ray_version\"";
  const size_t at = metadata.find(name);
  std::string_view found;
  if (at != std::string_view::npos) {
    const size_t begin = metadata.find('"', at + name.size());
    const size_t end = begin == std::string_view::npos ? begin : metadata.find('"', begin + 1);
    if (end != std::string_view::npos) found = metadata.substr(begin + 1, end - begin - 1);
  }
  if (found == version) return {};
  return invalid_argument(
      "its version is {}, and this quire speaks to {} alone: pip install \"ray[cpp]=={}\" on every node",
      found.empty() ? "unknown" : found, version, version);
}

Status check_room(const std::vector<RayNode>& nodes, int bundles, int cpus) {
  double room = 0;
  for (const RayNode& node : nodes) {
    if (node.is_alive && cpus > 0) room += static_cast<double>(static_cast<int64_t>(node.cpus) / cpus);
  }
  if (cpus <= 0 || room >= bundles) return {};
  return invalid_argument(
      "the Ray cluster has too few cores: {} more rank{} with {} each were asked for, and of its nodes {}. Ask for "
      "fewer "
      "cores a rank, or start more nodes (`ray start --address=...`)",
      bundles, bundles == 1 ? "" : "s", cpus, in_words(nodes));
}

Status check_is_node(const std::vector<RayNode>& nodes, const std::vector<std::string>& own_addresses,
                     std::string_view cluster) {
  for (const RayNode& node : nodes) {
    if (node.is_alive && std::ranges::find(own_addresses, node.address) != own_addresses.end()) return {};
  }
  return not_found("this host is none of the nodes of the Ray cluster at {} ({}): `ray start --address={}` here first",
                   cluster, in_words(nodes), cluster);
}

}  // namespace quire::comm
