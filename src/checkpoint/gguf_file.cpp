#include "checkpoint/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <unordered_set>

#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

constexpr std::string_view kAlignmentKey = "general.alignment";
constexpr uint64_t kDefaultAlignment = 32;
// The format asks for a multiple of 8; readers of tensor data count on it.
constexpr uint64_t kLeastAlignment = 8;
constexpr uint64_t kMostAlignment = uint64_t{1} << 30;
constexpr size_t kMostNameBytes = 65535;

struct TensorEntry {
  std::string_view name;
  DType dtype = DType::kF32;
  Shape shape;
  uint64_t offset = 0;  // from the start of the data section
  uint64_t bytes = 0;
};

Status check_magic(ByteReader& reader) {
  QUIRE_ASSIGN_OR_RETURN(const std::span<const std::byte> magic, reader.take(4, "the magic"));
  const std::string_view text(reinterpret_cast<const char*>(magic.data()), magic.size());
  if (text == "GGUF") return {};
  if (text == "FUGG") return unimplemented("the magic is FUGG: a big-endian GGUF file; convert it to little-endian");
  for (const std::string_view older : {"lmgg", "fmgg", "tjgg", "algg"}) {
    if (text == older) return unimplemented("a GGML file older than GGUF; convert the model to GGUF");
  }
  return data_loss("the magic is {}, expected \"GGUF\"", in_quotes(text));
}

Result<uint32_t> read_version(ByteReader& reader) {
  QUIRE_ASSIGN_OR_RETURN(const uint32_t version, reader.number<uint32_t>("the version"));
  if (version == 2 || version == 3) return version;
  if (version == 1) return unimplemented("GGUF version 1 is not supported; convert the model to version 3");
  const uint32_t swapped = __builtin_bswap32(version);
  if (swapped >= 1 && swapped <= 3) {
    return unimplemented("a big-endian GGUF file (version {} with its bytes reversed); convert it to little-endian",
                         swapped);
  }
  return data_loss("GGUF version {}, expected 2 or 3", version);
}

Result<uint64_t> read_alignment(const GgufMetadata& metadata) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> found, metadata.integer(kAlignmentKey));
  if (!found) return kDefaultAlignment;
  const uint64_t alignment = *found < 0 ? 0 : static_cast<uint64_t>(*found);
  if (!std::has_single_bit(alignment) || alignment < kLeastAlignment || alignment > kMostAlignment) {
    return data_loss("metadata \"{}\" is {}, expected a power of two from {} to {}", kAlignmentKey, *found,
                     kLeastAlignment, kMostAlignment);
  }
  return alignment;
}

// Bytes of `shape` as `dtype`, every product checked.
Result<uint64_t> tensor_bytes(DType dtype, const Shape& shape) {
  const DTypeInfo& about = info(dtype);
  const int64_t row = shape[shape.rank() - 1];
  if (row % about.block_values != 0) {
    return data_loss("rows of {} values are not whole blocks of {} ({})", row, about.block_values, about.name);
  }
  int64_t elements = 1;
  for (int i = 0; i < shape.rank(); ++i) {
    if (__builtin_mul_overflow(elements, shape[i], &elements)) {
      return data_loss("the product of the dimensions {} overflows", shape.to_string());
    }
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(elements / about.block_values, int64_t{about.block_bytes}, &bytes)) {
    return data_loss("the size of {} values as {} overflows", elements, about.name);
  }
  return static_cast<uint64_t>(bytes);
}

constexpr uint32_t kMostDimensions = 4;  // the format's own

Result<Shape> read_shape(ByteReader& reader) {
  QUIRE_ASSIGN_OR_RETURN(const uint32_t rank, reader.number<uint32_t>("the number of dimensions"));
  if (rank < 1 || rank > kMostDimensions) {
    return data_loss("has {} dimensions, expected 1 to {}", rank, kMostDimensions);
  }
  std::array<int64_t, kMostDimensions> dims{};
  for (uint32_t i = 0; i < rank; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t dim, reader.number<uint64_t>("a dimension"));
    if (dim < 1 || dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return data_loss("dimension {} is {}, expected 1 to 2^63-1", i, dim);
    }
    dims[i] = static_cast<int64_t>(dim);
  }
  Shape shape;
  for (uint32_t i = rank; i-- > 0;) shape.push_back(dims[i]);
  return shape;
}

Status read_entry_after_name(ByteReader& reader, uint64_t alignment, TensorEntry& entry) {
  QUIRE_ASSIGN_OR_RETURN(entry.shape, read_shape(reader));
  QUIRE_ASSIGN_OR_RETURN(const uint32_t type_id, reader.number<uint32_t>("the type"));
  QUIRE_ASSIGN_OR_RETURN(entry.dtype, tensor_dtype_of_ggml(type_id));
  QUIRE_ASSIGN_OR_RETURN(entry.offset, reader.number<uint64_t>("the offset"));
  if (entry.offset % alignment != 0) {
    return data_loss("offset {} is not a multiple of the alignment {}", entry.offset, alignment);
  }
  QUIRE_ASSIGN_OR_RETURN(entry.bytes, tensor_bytes(entry.dtype, entry.shape));
  return {};
}

Result<std::vector<TensorEntry>> read_directory(ByteReader& reader, uint64_t count, uint64_t alignment) {
  std::vector<TensorEntry> entries;
  std::unordered_set<std::string_view> names;
  for (uint64_t i = 0; i < count; ++i) {
    TensorEntry entry;
    QUIRE_ASSIGN_OR_RETURN(entry.name, reader.text(fmt::format("the name of tensor {}", i)));
    if (entry.name.empty() || entry.name.size() > kMostNameBytes) {
      return data_loss("the name of tensor {} has {} bytes, expected 1 to {}", i, entry.name.size(), kMostNameBytes);
    }
    QUIRE_RETURN_IF_ERROR(
        read_entry_after_name(reader, alignment, entry).with_prefix(fmt::format("tensor {} ", in_quotes(entry.name))));
    if (!names.insert(entry.name).second) return data_loss("duplicate tensor name {}", in_quotes(entry.name));
    entries.push_back(entry);
  }
  return entries;
}

// Every entry inside the data section of `available` bytes, none over another.
Status check_ranges(const std::vector<TensorEntry>& entries, uint64_t available) {
  for (const TensorEntry& entry : entries) {
    if (entry.bytes > available || entry.offset > available - entry.bytes) {
      return data_loss(
          "tensor {}: offset {} and {} bytes reach past the end of the {} bytes of tensor data; "
          "is the file truncated?",
          in_quotes(entry.name), entry.offset, entry.bytes, available);
    }
  }
  std::vector<const TensorEntry*> by_offset;
  by_offset.reserve(entries.size());
  for (const TensorEntry& entry : entries) by_offset.push_back(&entry);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const TensorEntry* a, const TensorEntry* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const TensorEntry& left = *by_offset[i - 1];
    const TensorEntry& right = *by_offset[i];
    if (left.offset + left.bytes > right.offset) {
      return data_loss("tensors {} and {} overlap at offset {}", in_quotes(left.name), in_quotes(right.name),
                       right.offset);
    }
  }
  return {};
}

}  // namespace

Result<GgufFile> GgufFile::parse(std::span<const std::byte> bytes) {
  ByteReader reader(bytes);
  GgufFile file;
  QUIRE_RETURN_IF_ERROR(check_magic(reader));
  QUIRE_ASSIGN_OR_RETURN(file.version, read_version(reader));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t num_tensors, reader.number<uint64_t>("the tensor count"));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t num_pairs, reader.number<uint64_t>("the metadata count"));
  QUIRE_ASSIGN_OR_RETURN(file.metadata, GgufMetadata::read(reader, num_pairs));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t alignment, read_alignment(file.metadata));

  // An entry takes at least its name's length, one character, rank, one dimension, type and offset.
  constexpr uint64_t kLeastEntryBytes = 8 + 1 + 4 + 8 + 4 + 8;
  if (num_tensors > reader.remaining() / kLeastEntryBytes) {
    return data_loss("tensor count {} cannot fit in the {} bytes that follow", num_tensors, reader.remaining());
  }
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TensorEntry> entries, read_directory(reader, num_tensors, alignment));
  if (entries.empty()) return file;

  const uint64_t data_begin = (reader.position() + alignment - 1) & ~(alignment - 1);
  if (data_begin > bytes.size())
    return data_loss("the file ends before its tensor data, which begins at {}", data_begin);
  QUIRE_RETURN_IF_ERROR(check_ranges(entries, bytes.size() - data_begin));
  file.tensors.reserve(entries.size());
  for (const TensorEntry& entry : entries) {
    const std::byte* data = bytes.data() + data_begin + entry.offset;
    file.tensors.push_back({entry.name, {.data = data, .dtype = entry.dtype, .shape = entry.shape}});
  }
  return file;
}

}  // namespace quire::checkpoint
