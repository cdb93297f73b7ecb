#include "checkpoint/safetensors_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>

#include "checkpoint/byte_reader.h"
#include "checkpoint/json_file.h"
#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

namespace json = boost::json;

constexpr uint64_t kMostHeaderBytes = 100'000'000;
constexpr size_t kMostTensors = 100'000;
constexpr std::string_view kMetadataKey = "__metadata__";

struct KnownDtype {
  std::string_view name;
  std::optional<DType> dtype;  // nullopt: known, not built
};
constexpr auto kKnownDtypes = std::to_array<KnownDtype>({
    {"F32", DType::kF32},      {"F16", DType::kF16},      {"BF16", DType::kBF16},      {"I32", DType::kI32},
    {"I64", DType::kI64},      {"F64", std::nullopt},     {"BOOL", DType::kU8},        {"U8", DType::kU8},
    {"I8", DType::kI8},        {"I16", std::nullopt},     {"U16", std::nullopt},       {"U32", std::nullopt},
    {"U64", std::nullopt},     {"C64", std::nullopt},     {"F8_E4M3", DType::kF8E4M3}, {"F8_E5M2", DType::kF8E5M2},
    {"F8_E8M0", std::nullopt}, {"F6_E2M3", std::nullopt}, {"F6_E3M2", std::nullopt},   {"F4", std::nullopt},
});

struct Entry {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

// The member `key`, which must be there.
Result<const json::value*> member(const json::object& object, std::string_view key) {
  const json::value* value = object.if_contains(key);
  if (value == nullptr) return data_loss("{} is missing", key);
  return value;
}

Result<uint64_t> whole_number(const json::value& value, std::string_view what) {
  constexpr uint64_t kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (value.is_int64() && value.get_int64() >= 0) return static_cast<uint64_t>(value.get_int64());
  return data_loss("{} is {}, expected an integer from 0 to {}", what, described(value), kMost);
}

Result<DType> read_dtype(const json::object& from) {
  QUIRE_ASSIGN_OR_RETURN(const json::value* value, member(from, "dtype"));
  if (!value->is_string()) return data_loss("dtype is {}, expected a string", described(*value));
  const std::string_view found = value->get_string();
  const auto known =
      std::find_if(kKnownDtypes.begin(), kKnownDtypes.end(), [&](const KnownDtype& d) { return d.name == found; });
  if (known == kKnownDtypes.end()) return data_loss("dtype {} names no type", in_quotes(found));
  if (!known->dtype) {
    return unimplemented("has dtype {}, which is not supported yet; supported: F32, F16, BF16, F8_E4M3", found);
  }
  return *known->dtype;
}

Result<Shape> read_shape(const json::object& from) {
  QUIRE_ASSIGN_OR_RETURN(const json::value* value, member(from, "shape"));
  const json::array* dims = value->if_array();
  if (dims == nullptr) return data_loss("shape is {}, expected a list", described(*value));
  if (dims->size() > static_cast<size_t>(Shape::kMaxRank)) {
    return unimplemented("has {} dimensions, expected at most {}", dims->size(), Shape::kMaxRank);
  }
  Shape shape;
  for (const json::value& dim : *dims) {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t size, whole_number(dim, "a dimension"));
    shape.push_back(static_cast<int64_t>(size));
  }
  return shape;
}

Result<uint64_t> bytes_of_tensor(DType dtype, const Shape& shape) {
  uint64_t bytes = static_cast<uint64_t>(info(dtype).block_bytes);
  bool empty = false;
  for (int i = 0; i < shape.rank(); ++i) {
    empty = empty || shape[i] == 0;
    // Checked even where a 0 follows: whoever multiplies the leading dimensions must not overflow either.
    const uint64_t factor = std::max<uint64_t>(static_cast<uint64_t>(shape[i]), 1);
    if (__builtin_mul_overflow(bytes, factor, &bytes) ||
        bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return data_loss("the product of shape {} and {} overflows", shape.to_string(), name(dtype));
    }
  }
  return empty ? 0 : bytes;
}

Status read_offsets(const json::object& from, Entry& entry) {
  QUIRE_ASSIGN_OR_RETURN(const json::value* value, member(from, "data_offsets"));
  const json::array* offsets = value->if_array();
  if (offsets == nullptr || offsets->size() != 2) {
    return data_loss("data_offsets is {}, expected a list of two integers", described(*value));
  }
  QUIRE_ASSIGN_OR_RETURN(entry.begin, whole_number(offsets->at(0), "data_offsets[0]"));
  QUIRE_ASSIGN_OR_RETURN(entry.end, whole_number(offsets->at(1), "data_offsets[1]"));
  if (entry.begin > entry.end) return data_loss("data_offsets [{}, {}] run backwards", entry.begin, entry.end);
  return {};
}

Status read_entry(const json::value& value, uint64_t data_bytes, Entry& entry) {
  const json::object* object = value.if_object();
  if (object == nullptr) return data_loss("is {}, expected an object", described(value));
  for (const auto& [key, unused] : *object) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return data_loss("has the unknown field {}", in_quotes(key));
    }
  }
  QUIRE_ASSIGN_OR_RETURN(entry.dtype, read_dtype(*object));
  QUIRE_ASSIGN_OR_RETURN(entry.shape, read_shape(*object));
  QUIRE_RETURN_IF_ERROR(read_offsets(*object, entry));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t expected, bytes_of_tensor(entry.dtype, entry.shape));
  if (entry.end - entry.begin != expected) {
    return data_loss("data_offsets [{}, {}] hold {} bytes, but shape {} as {} has {}", entry.begin, entry.end,
                     entry.end - entry.begin, entry.shape.to_string(), name(entry.dtype), expected);
  }
  if (entry.end > data_bytes) {
    return data_loss("data_offsets [{}, {}] reach past the end of the {} bytes of tensor data; is the file truncated?",
                     entry.begin, entry.end, data_bytes);
  }
  return {};
}

Status check_metadata(const json::value& value) {
  const json::object* object = value.if_object();
  if (object == nullptr) return data_loss("{} is {}, expected an object", kMetadataKey, described(value));
  for (const auto& [key, text] : *object) {
    if (!text.is_string()) {
      return data_loss("{}[{}] is {}, expected a string", kMetadataKey, in_quotes(key), described(text));
    }
  }
  return {};
}

Result<std::vector<Entry>> read_entries(const json::object& header, uint64_t data_bytes) {
  if (header.size() > kMostTensors + 1) {
    return data_loss("the header has {} entries, expected at most {} tensors", header.size(), kMostTensors);
  }
  std::vector<Entry> entries;
  entries.reserve(header.size());
  for (const auto& [key, value] : header) {
    if (key == kMetadataKey) {
      QUIRE_RETURN_IF_ERROR(check_metadata(value));
      continue;
    }
    if (key.empty()) return data_loss("a tensor has the empty string as its name");
    Entry entry;
    entry.name = std::string(key);
    QUIRE_RETURN_IF_ERROR(
        read_entry(value, data_bytes, entry).with_prefix(fmt::format("tensor {} ", in_quotes(entry.name))));
    entries.push_back(std::move(entry));
  }
  if (entries.size() > kMostTensors) {
    return data_loss("the header has {} tensors, expected at most {}", entries.size(), kMostTensors);
  }
  return entries;
}

// Sorts by offset; the ranges must cover the data from its first byte to its last, each byte once.
Status check_coverage(std::vector<Entry>& entries, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::tie(a.begin, a.end) < std::tie(b.begin, b.end); });
  uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin < covered) {
      return data_loss("tensor {} at data_offsets [{}, {}] overlaps the tensor before it, which ends at {}",
                       in_quotes(entry.name), entry.begin, entry.end, covered);
    }
    if (entry.begin > covered) {
      return data_loss("a gap from {} to {} before tensor {}: its bytes belong to no tensor", covered, entry.begin,
                       in_quotes(entry.name));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return data_loss("the tensors end at {}, but the file has {} bytes of tensor data", covered, data_bytes);
  }
  return {};
}

Result<const std::byte*> aligned(const std::byte* data, const Entry& entry, SafetensorsFile& file) {
  const size_t bytes = static_cast<size_t>(entry.end - entry.begin);
  if (bytes == 0 || reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(info(entry.dtype).block_bytes) == 0) {
    return data;
  }
  std::unique_ptr<std::byte[]> copy(new (std::nothrow) std::byte[bytes]);
  if (copy == nullptr) {
    return resource_exhausted("tensor {} is not aligned in the file, and there is no memory to copy its {} bytes",
                              in_quotes(entry.name), bytes);
  }
  std::memcpy(copy.get(), data, bytes);
  file.copies.push_back(std::move(copy));
  return static_cast<const std::byte*>(file.copies.back().get());
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  QUIRE_ASSIGN_OR_RETURN(const uint64_t header_bytes, reader.number<uint64_t>("the header's length"));
  if (header_bytes > kMostHeaderBytes) {
    return data_loss("the header's length is {}, expected at most {}", header_bytes, kMostHeaderBytes);
  }
  QUIRE_ASSIGN_OR_RETURN(const std::span<const std::byte> text, reader.take(header_bytes, "the header"));
  const std::string_view header_text(reinterpret_cast<const char*>(text.data()), text.size());
  if (!header_text.starts_with('{')) return data_loss("the header does not begin with \"{{\"");
  auto header = parse_json_object(header_text, {.duplicate_keys = DuplicateKeys::kRefuse});
  if (!header.ok()) return header.status().with_prefix("the header is ");

  const std::span<const std::byte> data = bytes.subspan(reader.position());
  QUIRE_ASSIGN_OR_RETURN(std::vector<Entry> entries, read_entries(*header, data.size()));
  QUIRE_RETURN_IF_ERROR(check_coverage(entries, data.size()));
  SafetensorsFile file;
  file.tensors.reserve(entries.size());
  for (Entry& entry : entries) {
    QUIRE_ASSIGN_OR_RETURN(const std::byte* begin, aligned(data.data() + entry.begin, entry, file));
    file.tensors.push_back({std::move(entry.name), {.data = begin, .dtype = entry.dtype, .shape = entry.shape}});
  }
  return file;
}

}  // namespace quire::checkpoint
