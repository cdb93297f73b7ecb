#include "ops/cpu/stored_blocks.h"

#include <cstring>

#include "base/check.h"
#include "ops/cpu/stored_levels.h"

namespace quire::ops::cpu {
namespace {

uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

constexpr uint32_t kHalfBytes = 0x0f0f0f0f;

// 16 bytes: values 0..15 in the low halves, 16..31 in the high ones.
void read_nibbles(const uint8_t* bytes, StoredGroup& out) {
  for (size_t j = 0; j < 4; ++j) {
    const uint32_t word = word_at(bytes + j * 4);
    out.quads[j] = word & kHalfBytes;
    out.quads[j + 4] = (word >> 4) & kHalfBytes;
  }
}

// 32 bytes of which every byte has `bits` bits of a value from bit `shift` on; put at bit `to`.
void read_plane(const uint8_t* bytes, int shift, int bits, int to, StoredGroup& out) {
  const uint32_t mask = static_cast<uint32_t>((1 << bits) - 1) * 0x01010101u;
  for (size_t j = 0; j < 8; ++j) out.quads[j] |= ((word_at(bytes + j * 4) >> shift) & mask) << to;
}

// Bit i of `bits` is bit 4 of value i.
void read_fifth_bits(uint32_t bits, StoredGroup& out) {
  for (uint32_t& quad : out.quads) {
    quad |= (bits & 1u) << 4 | (bits & 2u) << 11 | (bits & 4u) << 18 | (bits & 8u) << 25;
    bits >>= 4;
  }
}

// The 6-bit scale and minimum of group 0..7 of Q4_K and Q5_K: see tensor/stored_values.cpp.
void read_packed_scales(const uint8_t* packed, int group, StoredGroup& out) {
  if (group < 4) {
    out.small_scales = {static_cast<uint8_t>(packed[group] & 0x3f), static_cast<uint8_t>(packed[4 + group] & 0x3f)};
    return;
  }
  out.small_scales = {static_cast<uint8_t>((packed[4 + group] & 0x0f) | (packed[group - 4] >> 6) << 4),
                      static_cast<uint8_t>(packed[4 + group] >> 4 | (packed[group] >> 6) << 4)};
}

// The signed scale of half a group of Q3_K: lower 4 bits in the halves of 8 bytes, upper 2 in the quarters of 4.
uint8_t scale_of_q3(const uint8_t* packed, int half) {
  const int low = half < 8 ? packed[half] & 0x0f : packed[half - 8] >> 4;
  const int high = (packed[8 + half % 4] >> (half / 4 * 2)) & 3;
  return static_cast<uint8_t>((low | high << 4) - 32);
}

// Where a block keeps its f16 numbers d and, for formats with two, m; as byte offsets.
struct HeadOffsets {
  int32_t d;
  int32_t m;
};

HeadOffsets head_offsets(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
    case DType::kIQ1_S:
    case DType::kU4_32:
    case DType::kU4_64:
    case DType::kU4_128:
    case DType::kU4_64_HZ:
    case DType::kI8_64_HZ:
      return {0, -1};
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
      return {0, 2};
    case DType::kQ2_K:
      return {80, 82};
    case DType::kQ3_K:
      return {108, -1};
    case DType::kQ6_K:
      return {208, -1};
    case DType::kTQ1_0:
      return {52, -1};
    case DType::kTQ2_0:
      return {64, -1};
    default:
      break;
  }
  check_failed("a format of codes with f16 scales", __FILE__, __LINE__, name(dtype));
}

}  // namespace

uint32_t stored_head(DType dtype, const uint8_t* block, int index) {
  if (dtype == DType::kQ8_K) return word_at(block);
  if (dtype == DType::kIQ1_M) return scattered_d(block);
  if (coded_block(dtype).head_bytes == 4) return word_at(block);
  const HeadOffsets offsets = head_offsets(dtype);
  const int32_t at = index == 0 ? offsets.d : offsets.m;
  QUIRE_CHECK(at >= 0);
  return static_cast<uint32_t>(block[at] | block[at + 1] << 8);
}

StoredGroup stored_group(DType dtype, const uint8_t* block, int group) {
  StoredGroup out{};
  const auto index = static_cast<size_t>(group);
  const int64_t run = group / 4;  // of 128 values
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kIQ4_NL:
      read_nibbles(block + 2, out);
      return out;
    case DType::kMXFP4:
      read_nibbles(block + 1, out);
      out.small_scales[0] = *block;
      return out;
    case DType::kQ4_1:
      read_nibbles(block + 4, out);
      return out;
    case DType::kQ5_0:
      read_nibbles(block + 6, out);
      read_fifth_bits(word_at(block + 2), out);
      return out;
    case DType::kQ5_1:
      read_nibbles(block + 8, out);
      read_fifth_bits(word_at(block + 4), out);
      return out;
    case DType::kQ8_0:
      read_plane(block + 2, 0, 8, 0, out);
      return out;
    case DType::kQ2_K:
      read_plane(block + 16 + run * 32, group % 4 * 2, 2, 0, out);
      out.small_scales = {block[2 * index], block[2 * index + 1]};
      return out;
    case DType::kQ3_K:
      read_plane(block + 32 + run * 32, group % 4 * 2, 2, 0, out);
      read_plane(block, group, 1, 2, out);
      out.small_scales = {scale_of_q3(block + 96, 2 * group), scale_of_q3(block + 96, 2 * group + 1)};
      return out;
    case DType::kQ4_K:
      read_plane(block + 16 + group / 2 * 32, group % 2 * 4, 4, 0, out);
      read_packed_scales(block + 4, group, out);
      return out;
    case DType::kQ5_K:
      read_plane(block + 48 + group / 2 * 32, group % 2 * 4, 4, 0, out);
      read_plane(block + 16, group, 1, 4, out);
      read_packed_scales(block + 4, group, out);
      return out;
    case DType::kQ6_K:
      read_plane(block + run * 64 + group % 2 * 32, group % 4 / 2 * 4, 4, 0, out);
      read_plane(block + 128 + run * 32, group % 4 * 2, 2, 4, out);
      out.small_scales = {block[192 + 2 * index], block[192 + 2 * index + 1]};
      return out;
    case DType::kIQ4_XS: {
      read_nibbles(block + 8 + group * 16, out);
      const int low = (block[4 + group / 2] >> (group % 2 * 4)) & 0x0f;
      const int high = ((block[2] | block[3] << 8) >> (group * 2)) & 3;
      out.small_scales[0] = static_cast<uint8_t>((low | high << 4) - 32);
      return out;
    }
    case DType::kU4_32:
    case DType::kU4_64:
    case DType::kU4_128:
    case DType::kU4_32_F32:
    case DType::kNF4:
    case DType::kFP4:
    case DType::kU4_64_HZ:
    case DType::kU4_32_FZ:
      read_nibbles(coded_zero(dtype, block) + coded_block(dtype).zero_bytes + group * 16, out);
      return out;
    case DType::kI8_32:
    case DType::kI8_128:
    case DType::kI8_32_Z:
    case DType::kI8_64_HZ:
      read_plane(coded_zero(dtype, block) + coded_block(dtype).zero_bytes + group * 32, 0, 8, 0, out);
      return out;
    default:
      return group_of_levels(dtype, block, group);
  }
}

}  // namespace quire::ops::cpu
