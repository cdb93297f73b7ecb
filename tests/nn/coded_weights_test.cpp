// Weights of AWQ, GPTQ, compressed-tensors and bitsandbytes, packed here by the formats' definitions out of codes,
// zeros and scales that are known: what is read is scale times (code less zero), bit for bit, and products are theirs.
#include "nn/coded_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>

#include <fmt/format.h>

#include "nn/expert_linear.h"
#include "nn/linear.h"
#include "nn/loader.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/reference/reference_backend.h"
#include "tensor/stored_values.h"
#include "tests/nn/bare_step.h"
#include "tests/nn/memory_checkpoint.h"

namespace quire::nn {
namespace {

using ::testing::HasSubstr;

// A matrix of codes, as every format below keeps it in its own way.
struct Codes {
  int64_t rows;
  int64_t columns;
  int64_t group;  // columns that share a scale
  int bits;
  std::vector<int> codes;        // [rows, columns], from 0 on
  std::vector<int> zeros;        // [rows, groups], as they are meant
  std::vector<uint16_t> scales;  // [rows, groups], halves
  std::vector<int32_t> group_of_column;

  int64_t groups() const { return (columns + group - 1) / group; }
  int code(int64_t row, int64_t column) const { return codes[static_cast<size_t>(row * columns + column)]; }
  int zero(int64_t row, int64_t g) const { return zeros[static_cast<size_t>(row * groups() + g)]; }
  uint16_t scale(int64_t row, int64_t g) const { return scales[static_cast<size_t>(row * groups() + g)]; }
  float value(int64_t row, int64_t column) const {
    const int64_t g = group_of_column[static_cast<size_t>(column)];
    return half_to_float(scale(row, g)) * static_cast<float>(code(row, column) - zero(row, g));
  }
};

class Maker {
 public:
  explicit Maker(uint32_t seed) : engine_(seed) {}
  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }

  // Zeros from `least_zero` on; -1: all in the middle.
  Codes codes(int64_t rows, int64_t columns, int64_t group, int bits, int least_zero, bool shuffled = false) {
    Codes made{.rows = rows, .columns = columns, .group = group, .bits = bits};
    const int most = (1 << bits) - 1;
    for (int64_t i = 0; i < rows * columns; ++i) made.codes.push_back(between(0, most));
    for (int64_t i = 0; i < rows * made.groups(); ++i) {
      made.zeros.push_back(least_zero < 0 ? 1 << (bits - 1) : between(least_zero, most));
      made.scales.push_back(static_cast<uint16_t>(between(0x2000, 0x2fff)));
    }
    for (int64_t i = 0; i < columns; ++i) made.group_of_column.push_back(static_cast<int32_t>(i / group));
    if (shuffled) std::shuffle(made.group_of_column.begin(), made.group_of_column.end(), engine_);
    return made;
  }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
};

// Words of 32 bits in lines of `stride`, filled from their lowest bits on, down the lines.
std::vector<uint32_t> packed(int64_t lines, int64_t stride, int64_t count, int bits,
                             const std::function<int(int64_t index, int64_t at)>& code) {
  std::vector<uint32_t> words(static_cast<size_t>(lines * stride));
  for (int64_t at = 0; at < stride; ++at) {
    for (int64_t i = 0; i < count; ++i) {
      for (int bit = 0; bit < bits; ++bit) {
        const int64_t place = i * bits + bit;
        if (code(i, at) >> bit & 1) words[static_cast<size_t>(place / 32 * stride + at)] |= 1u << place % 32;
      }
    }
  }
  return words;
}
// The same along the lines.
std::vector<uint32_t> packed_along(int64_t lines, int64_t words_of_line, int64_t count, int bits,
                                   const std::function<int(int64_t line, int64_t index)>& code) {
  std::vector<uint32_t> words;
  for (int64_t line = 0; line < lines; ++line) {
    const auto one = packed(words_of_line, 1, count, bits, [&](int64_t i, int64_t) { return code(line, i); });
    words.insert(words.end(), one.begin(), one.end());
  }
  return words;
}

void add_scales(MemoryCheckpoint& checkpoint, const std::string& name, const Codes& c, bool outputs_first,
                int64_t width = 0) {
  std::vector<uint16_t> scales;
  if (outputs_first) {
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t g = 0; g < std::max(width, c.groups()); ++g) scales.push_back(g < c.groups() ? c.scale(row, g) : 0);
    }
    checkpoint.add(name, DType::kF16, {c.rows, std::max(width, c.groups())}, stored_bytes(scales));
    return;
  }
  for (int64_t g = 0; g < c.groups(); ++g) {
    for (int64_t row = 0; row < c.rows; ++row) scales.push_back(c.scale(row, g));
  }
  checkpoint.add(name, DType::kF16, {c.groups(), c.rows}, stored_bytes(scales));
}

void add_gptq(MemoryCheckpoint& checkpoint, const std::string& module, const Codes& c, int zero_offset) {
  const int64_t lines = c.columns * c.bits / 32;
  checkpoint.add(module + ".qweight", DType::kI32, {lines, c.rows},
                 stored_bytes(packed(lines, c.rows, c.columns, c.bits,
                                     [&](int64_t column, int64_t row) { return c.code(row, column); })));
  const int64_t words = c.rows * c.bits / 32;
  checkpoint.add(module + ".qzeros", DType::kI32, {c.groups(), words},
                 stored_bytes(packed_along(c.groups(), words, c.rows, c.bits,
                                           [&](int64_t g, int64_t row) { return c.zero(row, g) - zero_offset; })));
  add_scales(checkpoint, module + ".scales", c, /*outputs_first=*/false);
  checkpoint.add(module + ".g_idx", DType::kI32, {c.columns}, stored_bytes(c.group_of_column));
}

void add_awq(MemoryCheckpoint& checkpoint, const std::string& module, const Codes& c) {
  constexpr int kOutputs[8] = {0, 2, 4, 6, 1, 3, 5, 7};  // of a word, from its lowest bits on
  const auto at = [&](int64_t i) { return i / 8 * 8 + kOutputs[i % 8]; };
  checkpoint.add(module + ".qweight", DType::kI32, {c.columns, c.rows / 8},
                 stored_bytes(packed_along(c.columns, c.rows / 8, c.rows, 4,
                                           [&](int64_t column, int64_t i) { return c.code(at(i), column); })));
  checkpoint.add(module + ".qzeros", DType::kI32, {c.groups(), c.rows / 8},
                 stored_bytes(packed_along(c.groups(), c.rows / 8, c.rows, 4,
                                           [&](int64_t g, int64_t i) { return c.zero(at(i), g); })));
  add_scales(checkpoint, module + ".scales", c, /*outputs_first=*/false);
}

void add_awq_gemv(MemoryCheckpoint& checkpoint, const std::string& module, const Codes& c) {
  const int64_t words = (c.groups() + 7) / 8 + 1;  // one to spare
  checkpoint.add(module + ".qweight", DType::kI32, {c.rows, c.columns / 8},
                 stored_bytes(packed_along(c.rows, c.columns / 8, c.columns, 4,
                                           [&](int64_t row, int64_t column) { return c.code(row, column); })));
  checkpoint.add(
      module + ".qzeros", DType::kI32, {c.rows, words},
      stored_bytes(packed_along(c.rows, words, c.groups(), 4, [&](int64_t row, int64_t g) { return c.zero(row, g); })));
  add_scales(checkpoint, module + ".scales", c, /*outputs_first=*/true, words * 8);
}

// Marlin's published packing, step by step: squares of 16 by 16 beside each other, permuted in pieces of 1024.
void add_marlin(MemoryCheckpoint& checkpoint, const std::string& module, const Codes& c) {
  std::vector<int> order;
  for (int i = 0; i < 32; ++i) {
    std::vector<int> own;
    for (const int block : {0, 1}) {
      for (const int line : {2 * (i % 4), 2 * (i % 4) + 1, 2 * (i % 4 + 4), 2 * (i % 4 + 4) + 1})
        own.push_back(16 * line + i / 4 + 8 * block);
    }
    for (int j = 0; j < 4; ++j) {
      for (const int at : {0, 2, 4, 6, 1, 3, 5, 7}) order.push_back(own[static_cast<size_t>(at)] + 256 * j);
    }
  }
  const int64_t width = c.rows * 16;
  std::vector<uint32_t> words;
  for (int64_t tile = 0; tile < c.columns / 16; ++tile) {
    for (int64_t i = 0; i < width; i += 8) {
      uint32_t word = 0;
      for (int64_t j = i; j < i + 8; ++j) {
        const int64_t from = j / 1024 * 1024 + order[static_cast<size_t>(j % 1024)];
        const int64_t column = tile * 16 + from % 256 / 16;
        word |= static_cast<uint32_t>(c.code(from / 256 * 16 + from % 16, column)) << 4 * (j - i);
      }
      words.push_back(word);
    }
  }
  checkpoint.add(module + ".B", DType::kI32, {c.columns / 16, c.rows * 2}, stored_bytes(words));
  std::vector<int> places;
  if (c.groups() > 1) {
    for (int i = 0; i < 8; ++i) {
      for (int j = 0; j < 8; ++j) places.push_back(i + 8 * j);
    }
  } else {
    for (int i = 0; i < 4; ++i) {
      for (const int j : {0, 1, 8, 9, 16, 17, 24, 25}) places.push_back(2 * i + j);
    }
  }
  std::vector<uint16_t> scales;
  const auto piece = static_cast<int64_t>(places.size());
  for (int64_t g = 0; g < c.groups(); ++g) {
    for (int64_t row = 0; row < c.rows; ++row)
      scales.push_back(c.scale(row / piece * piece + places[static_cast<size_t>(row % piece)], g));
  }
  checkpoint.add(module + ".s", DType::kF16, {c.groups(), c.rows}, stored_bytes(scales));
}

void add_packed(MemoryCheckpoint& checkpoint, const std::string& module, const Codes& c, bool symmetric) {
  const int64_t words = (c.columns * c.bits + 31) / 32;
  checkpoint.add(module + ".weight_packed", DType::kI32, {c.rows, words},
                 stored_bytes(packed_along(c.rows, words, c.columns, c.bits,
                                           [&](int64_t row, int64_t column) { return c.code(row, column); })));
  add_scales(checkpoint, module + ".weight_scale", c, /*outputs_first=*/true);
  checkpoint.add(module + ".weight_shape", DType::kI64, {2}, stored_bytes(std::vector<int64_t>{c.rows, c.columns}));
  if (!symmetric) {
    const int64_t lines = (c.rows * c.bits + 31) / 32;
    checkpoint.add(module + ".weight_zero_point", DType::kI32, {lines, c.groups()},
                   stored_bytes(packed(lines, c.groups(), c.rows, c.bits,
                                       [&](int64_t row, int64_t g) { return c.zero(row, g); })));
  }
  if (!std::ranges::is_sorted(c.group_of_column))
    checkpoint.add(module + ".weight_g_idx", DType::kI32, {c.columns}, stored_bytes(c.group_of_column));
}

void add_bytes(MemoryCheckpoint& checkpoint, const std::string& module, const Codes& c, bool symmetric) {
  std::vector<int8_t> codes;
  for (const int code : c.codes) codes.push_back(static_cast<int8_t>(code - 128));
  checkpoint.add(module + ".weight", DType::kI8, {c.rows, c.columns}, stored_bytes(codes));
  add_scales(checkpoint, module + ".weight_scale", c, /*outputs_first=*/true);
  std::vector<int8_t> zeros;
  for (const int zero : c.zeros) zeros.push_back(static_cast<int8_t>(zero - 128));
  if (!symmetric) checkpoint.add(module + ".weight_zero_point", DType::kI8, {c.rows, c.groups()}, stored_bytes(zeros));
}

// As torchao's IntxUnpackedToInt8Tensor is taken apart; scales of whole rows in one dimension.
void add_torchao(MemoryCheckpoint& checkpoint, const std::string& module, const Codes& c, bool symmetric) {
  const int middle = 1 << (c.bits - 1);
  const auto signed_bytes = [middle](const std::vector<int>& numbers) {
    std::vector<int8_t> bytes;
    for (const int number : numbers) bytes.push_back(static_cast<int8_t>(number - middle));
    return stored_bytes(bytes);
  };
  const bool is_line = c.groups() == 1;
  const Shape shape = is_line ? Shape{c.rows} : Shape{c.rows, c.groups()};
  checkpoint.add(module + "._weight_qdata", DType::kI8, {c.rows, c.columns}, signed_bytes(c.codes));
  checkpoint.add(module + "._weight_scale", DType::kF16, shape, stored_bytes(c.scales));
  if (!symmetric) checkpoint.add(module + "._weight_zero_point", DType::kI8, shape, signed_bytes(c.zeros));
}

boost::json::object gptq_config(const Codes& c, bool second_version) {
  return {{"quantization_config",
           {{"quant_method", "gptq"},
            {"bits", c.bits},
            {"group_size", c.group >= c.columns ? -1 : c.group},
            {"checkpoint_format", second_version ? "gptq_v2" : "gptq"}}}};
}

boost::json::object awq_config(const Codes& c, const char* version) {
  return {{"quantization_config",
           {{"quant_method", "awq"},
            {"bits", 4},
            {"group_size", c.group >= c.columns ? -1 : c.group},
            {"zero_point", true},
            {"version", version}}}};
}

boost::json::object compressed_config(const Codes& c, const char* format, bool symmetric,
                                      const boost::json::value& inputs = nullptr) {
  const bool channel = c.group >= c.columns;
  const boost::json::object weights = {{"num_bits", c.bits},
                                       {"type", "int"},
                                       {"symmetric", symmetric},
                                       {"strategy", channel ? "channel" : "group"},
                                       {"group_size", channel ? boost::json::value() : boost::json::value(c.group)}};
  return {{"quantization_config",
           {{"quant_method", "compressed-tensors"},
            {"format", format},
            {"ignore", boost::json::array{"lm_head", "re:.*router$"}},
            {"config_groups",
             {{"group_0",
               {{"targets", boost::json::array{"Linear"}}, {"weights", weights}, {"input_activations", inputs}}}}}}}};
}

// One way to store a matrix, and what it is held as.
struct CodedCase {
  std::string name;
  int64_t columns;
  int64_t group;
  int bits;
  int least_zero;  // -1: symmetric
  bool shuffled;
  DType form;
  void (*add)(MemoryCheckpoint& checkpoint, const std::string& module, const Codes& codes);
  boost::json::object (*config)(const Codes& codes);
};

void PrintTo(const CodedCase& one, std::ostream* out) {
  *out << one.name;
}

constexpr auto kGptq = [](MemoryCheckpoint& to, const std::string& module, const Codes& c) {
  add_gptq(to, module, c, 1);
};
constexpr auto kGptq2 = [](MemoryCheckpoint& to, const std::string& module, const Codes& c) {
  add_gptq(to, module, c, 0);
};
constexpr auto kGptqConfig = [](const Codes& c) { return gptq_config(c, false); };
constexpr auto kGptq2Config = [](const Codes& c) { return gptq_config(c, true); };
constexpr auto kMarlinConfig = [](const Codes& c) {
  boost::json::object config = gptq_config(c, false);
  config["quantization_config"].as_object()["checkpoint_format"] = "marlin";
  return config;
};
constexpr auto kAwqConfig = [](const Codes& c) { return awq_config(c, "GEMM"); };
constexpr auto kGemvConfig = [](const Codes& c) { return awq_config(c, "gemv"); };
constexpr auto kPacked = [](MemoryCheckpoint& to, const std::string& module, const Codes& c) {
  add_packed(to, module, c, true);
};
constexpr auto kPackedZeros = [](MemoryCheckpoint& to, const std::string& module, const Codes& c) {
  add_packed(to, module, c, false);
};
constexpr auto kPackedConfig = [](const Codes& c) { return compressed_config(c, "pack-quantized", true); };
constexpr auto kPackedZerosConfig = [](const Codes& c) { return compressed_config(c, "pack-quantized", false); };
constexpr auto kBytes = [](MemoryCheckpoint& to, const std::string& module, const Codes& c) {
  add_bytes(to, module, c, true);
};
constexpr auto kBytesZeros = [](MemoryCheckpoint& to, const std::string& module, const Codes& c) {
  add_bytes(to, module, c, false);
};
constexpr auto kBytesConfig = [](const Codes& c) { return compressed_config(c, "int-quantized", true); };
constexpr auto kBytesZerosConfig = [](const Codes& c) { return compressed_config(c, "int-quantized", false); };

constexpr auto kTorchao = [](MemoryCheckpoint& to, const std::string& module, const Codes& c) {
  add_torchao(to, module, c, true);
};
constexpr auto kTorchaoZeros = [](MemoryCheckpoint& to, const std::string& module, const Codes& c) {
  add_torchao(to, module, c, false);
};
constexpr auto kTorchaoConfig = [](const Codes& c) {
  const boost::json::object intx = {
      {"_type", "IntxWeightOnlyConfig"},
      {"_version", 2},
      {"_data", {{"weight_dtype", {{"_type", "torch.dtype"}, {"_data", "int" + std::to_string(c.bits)}}}}}};
  const boost::json::object int8 = {
      {"_type", "Int8WeightOnlyConfig"}, {"_version", 2}, {"_data", {{"group_size", nullptr}}}};
  return boost::json::object{
      {"quantization_config",
       {{"quant_method", "torchao"}, {"quant_type", {{"default", c.bits == 8 && c.groups() == 1 ? int8 : intx}}}}}};
};

const std::vector<CodedCase> kCodedCases = {
    {"TorchaoFourBits", 256, 128, 4, -1, false, DType::kU4_128, kTorchao, kTorchaoConfig},
    {"TorchaoFourBitsWithZeros", 256, 32, 4, 0, false, DType::kU4_32, kTorchaoZeros, kTorchaoConfig},
    {"TorchaoThreeBits", 128, 64, 3, -1, false, DType::kU4_64, kTorchao, kTorchaoConfig},
    {"TorchaoSixBitsWithZeros", 128, 64, 6, 0, false, DType::kI8_32_Z, kTorchaoZeros, kTorchaoConfig},
    {"TorchaoRowsOfEightBits", 96, 96, 8, -1, false, DType::kQ8_0, kTorchao, kTorchaoConfig},
    {"TorchaoRowsThatAreNoBlocks", 72, 72, 4, 0, false, DType::kF32, kTorchaoZeros, kTorchaoConfig},
    {"GptqOfTwoBits", 256, 32, 2, 1, false, DType::kU4_32, kGptq, kGptqConfig},
    {"GptqOfThreeBits", 256, 64, 3, 1, false, DType::kU4_64, kGptq, kGptqConfig},
    {"GptqOfThreeBitsReordered", 256, 128, 3, 1, true, DType::kU4_128, kGptq, kGptqConfig},
    {"GptqOfFourBits", 256, 128, 4, 1, false, DType::kU4_128, kGptq, kGptqConfig},
    {"GptqOfFourBitsReordered", 256, 32, 4, -1, true, DType::kU4_32, kGptq, kGptqConfig},
    {"GptqOfColumns", 96, 96, 4, 1, false, DType::kU4_32, kGptq, kGptqConfig},
    {"GptqOfGroupsThatAreNoBlocks", 96, 48, 4, 1, false, DType::kF32, kGptq, kGptqConfig},
    {"GptqWithAShortLastGroup", 160, 128, 4, 1, false, DType::kU4_32, kGptq, kGptqConfig},
    {"GptqOfEightBits", 256, 128, 8, -1, false, DType::kQ8_0, kGptq, kGptqConfig},
    {"GptqOfEightBitsWithZeros", 256, 128, 8, 1, true, DType::kI8_32_Z, kGptq, kGptqConfig},
    {"SecondGptq", 256, 64, 4, 0, false, DType::kU4_64, kGptq2, kGptq2Config},
    {"Marlin", 256, 128, 4, -1, false, DType::kU4_128, add_marlin, kMarlinConfig},
    {"MarlinOfColumns", 128, 128, 4, -1, false, DType::kU4_128, add_marlin, kMarlinConfig},
    {"Awq", 256, 128, 4, 0, false, DType::kU4_128, add_awq, kAwqConfig},
    {"AwqOfColumns", 192, 192, 4, 0, false, DType::kU4_64, add_awq, kAwqConfig},
    {"AwqGemv", 256, 64, 4, 0, false, DType::kU4_64, add_awq_gemv, kGemvConfig},
    {"PackedFourBits", 256, 128, 4, -1, false, DType::kU4_128, kPacked, kPackedConfig},
    {"PackedFourBitsReordered", 256, 32, 4, -1, true, DType::kU4_32, kPacked, kPackedConfig},
    {"PackedFourBitsWithZeros", 256, 32, 4, 0, false, DType::kU4_32, kPackedZeros, kPackedZerosConfig},
    {"PackedEightBits", 256, 256, 8, -1, false, DType::kQ8_0, kPacked, kPackedConfig},
    {"PackedEightBitsWithZeros", 64, 32, 8, 0, false, DType::kI8_32_Z, kPackedZeros, kPackedZerosConfig},
    {"Bytes", 96, 96, 8, -1, false, DType::kQ8_0, kBytes, kBytesConfig},
    {"BytesWithZeros", 96, 96, 8, 0, false, DType::kI8_32_Z, kBytesZeros, kBytesZerosConfig},
    {"BytesThatAreNoBlocks", 72, 72, 8, -1, false, DType::kF32, kBytes, kBytesConfig},
};

constexpr int64_t kOutputs = 64;

class CodedWeights : public ::testing::TestWithParam<CodedCase> {
 protected:
  Codes make(uint32_t seed) const {
    const CodedCase& one = GetParam();
    return Maker(seed).codes(kOutputs, one.columns, one.group, one.bits, one.least_zero, one.shuffled);
  }
  MemoryCheckpoint checkpoint_;
};

TEST_P(CodedWeights, AreReadBitForBitAndHeldInTheirOwnWidth) {
  const Codes codes = make(1);
  GetParam().add(checkpoint_, "a", codes);
  checkpoint_.set_config(GetParam().config(codes));
  const auto backend = ops::make_reference_backend();
  Loader loader(Loader::Mode::kLoad, checkpoint_, *backend);
  const StoredWeight weight = loader.weight({"a.weight", {kOutputs, codes.columns}});
  ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
  EXPECT_EQ(weight.form(), GetParam().form) << name(weight.form());
  const std::vector<float> values = loader.floats(weight);
  for (int64_t row = 0; row < kOutputs; ++row) {
    for (int64_t column = 0; column < codes.columns; ++column) {
      ASSERT_EQ(values[static_cast<size_t>(row * codes.columns + column)], codes.value(row, column))
          << row << ", " << column;
    }
  }
}

// Two layers that share their inputs, whose groups are not in the same order.
TEST_P(CodedWeights, GiveTheProductsOfWhatTheyStandFor) {
  for (const char* isa : {"reference", "portable", "avx2", "avx512"}) {
    SCOPED_TRACE(isa);
    auto backend = ops::make_reference_backend();
    if (std::string_view(isa) != "reference") {
      auto made = ops::make_cpu_backend(
          {.threads = 2, .isa = parse_choice<Isa>(isa).value(), .activation_dtype = ActivationDType::kFloat32});
      if (!made.ok()) continue;
      backend = std::move(*made);
    }
    MemoryCheckpoint checkpoint;
    const Codes parts[] = {make(2), make(3)};
    GetParam().add(checkpoint, "q_proj", parts[0]);
    GetParam().add(checkpoint, "k_proj", parts[1]);
    checkpoint.set_config(GetParam().config(parts[0]));
    Loader plan(Loader::Mode::kPlan, checkpoint, *backend);
    Loader loader(Loader::Mode::kLoad, checkpoint, *backend);
    const int64_t columns = parts[0].columns;
    const std::vector<Linear::Part> layers = {{"q_proj", kOutputs, false}, {"k_proj", kOutputs, false}};
    const Linear planned(plan, layers, columns);
    const Linear linear(loader, layers, columns);
    ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
    EXPECT_EQ(plan.bytes(), loader.bytes());
    std::normal_distribution<float> normal;
    std::mt19937 engine(4);
    constexpr int64_t kInputs = 7;
    std::vector<float> x(static_cast<size_t>(kInputs * columns));
    for (float& number : x) number = normal(engine);
    std::vector<float> out(static_cast<size_t>(kInputs * 2 * kOutputs));
    linear(BareStep(*backend), ops::ConstView(x.data(), kInputs, columns),
           ops::View(out.data(), kInputs, 2 * kOutputs));
    for (int64_t i = 0; i < kInputs; ++i) {
      for (int64_t row = 0; row < 2 * kOutputs; ++row) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < columns; ++k) {
          const double term =
              double{x[static_cast<size_t>(i * columns + k)]} * double{parts[row / kOutputs].value(row % kOutputs, k)};
          sum += term;
          size += std::fabs(term);
        }
        ASSERT_NEAR(out[static_cast<size_t>(i * 2 * kOutputs + row)], sum, 1e-6 * size) << i << ", " << row;
      }
    }
  }
}

TEST_P(CodedWeights, OfExpertsHaveInputsOfTheirOwn) {
  const auto backend = ops::make_cpu_backend({.threads = 2, .activation_dtype = ActivationDType::kFloat32}).value();
  const Codes experts[] = {make(5), make(6)};
  for (const char* stem : {"gate_proj", "up_proj"}) {
    GetParam().add(checkpoint_, std::string("experts.0.") + stem, experts[0]);
    GetParam().add(checkpoint_, std::string("experts.1.") + stem, experts[1]);
  }
  checkpoint_.set_config(GetParam().config(experts[0]));
  Loader loader(Loader::Mode::kLoad, checkpoint_, *backend);
  const int64_t columns = experts[0].columns;
  const ExpertLinear linear =
      ExpertLinear::gate_and_up(loader, "", {.num_experts = 2, .hidden_size = columns, .intermediate_size = kOutputs});
  ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
  std::vector<float> x(static_cast<size_t>(3 * columns));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 6.0f;
  const int32_t offsets[] = {0, 1, 3};
  std::vector<float> out(3 * 2 * kOutputs);
  linear(BareStep(*backend), ops::ConstView(x.data(), 3, columns), offsets, ops::View(out.data(), 3, 2 * kOutputs));
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t row = 0; row < kOutputs; ++row) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < columns; ++k) {
        const double term =
            double{x[static_cast<size_t>(i * columns + k)]} * double{experts[i == 0 ? 0 : 1].value(row, k)};
        sum += term;
        size += std::fabs(term);
      }
      ASSERT_NEAR(out[static_cast<size_t>(i * 2 * kOutputs + row)], sum, 1e-6 * size + 1e-9) << i << ", " << row;
    }
  }
}

// One's gate and up have their columns in one order, another's have not, and scales that halves have no room for.
TEST(CodedExperts, NeedNotBeHeldAsTheFirstIs) {
  const auto backend = ops::make_cpu_backend({.threads = 2, .activation_dtype = ActivationDType::kFloat32}).value();
  Maker maker(15);
  const auto make = [&] { return maker.codes(kOutputs, 128, 64, 4, -1, /*shuffled=*/true); };
  const Codes gates[] = {make(), make(), make()};
  const Codes ups[] = {make(), gates[1], make()};
  MemoryCheckpoint checkpoint;
  for (size_t e = 0; e < 3; ++e) {
    add_packed(checkpoint, fmt::format("experts.{}.gate_proj", e), gates[e], true);
    add_packed(checkpoint, fmt::format("experts.{}.up_proj", e), ups[e], true);
  }
  constexpr float kFaint = 3e-9f;
  checkpoint.replace("experts.2.up_proj.weight_scale", DType::kF32, {kOutputs, 2},
                     stored_bytes(std::vector<float>(kOutputs * 2, kFaint)));
  checkpoint.set_config(compressed_config(gates[0], "pack-quantized", true));
  Loader loader(Loader::Mode::kLoad, checkpoint, *backend);
  const ExpertLinear linear =
      ExpertLinear::gate_and_up(loader, "", {.num_experts = 3, .hidden_size = 128, .intermediate_size = kOutputs});
  ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
  std::vector<float> x(3 * 128);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 13) - 6.0f;
  const int32_t offsets[] = {0, 1, 2, 3};
  std::vector<float> out(3 * 2 * kOutputs);
  linear(BareStep(*backend), ops::ConstView(x.data(), 3, 128), offsets, ops::View(out.data(), 3, 2 * kOutputs));
  for (size_t e = 0; e < 3; ++e) {
    for (int64_t row = 0; row < 2 * kOutputs; ++row) {
      const Codes& codes = row < kOutputs ? gates[e] : ups[e];
      const bool is_faint = e == 2 && row >= kOutputs;
      double sum = 0, size = 0;
      for (int64_t k = 0; k < 128; ++k) {
        const double value =
            is_faint ? (codes.code(row % kOutputs, k) - 8) * double{kFaint} : double{codes.value(row % kOutputs, k)};
        sum += double{x[e * 128 + static_cast<size_t>(k)]} * value;
        size += std::fabs(double{x[e * 128 + static_cast<size_t>(k)]} * value);
      }
      ASSERT_NEAR(out[e * 2 * kOutputs + static_cast<size_t>(row)], sum, 1e-6 * size) << e << ", " << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, CodedWeights, ::testing::ValuesIn(kCodedCases),
                         [](const auto& test) { return test.param.name; });

// What finish() says of a module of 64 by 128 once `spoil` has been at its checkpoint and configuration.
Status said_of(
    const CodedCase& one, const std::function<void(MemoryCheckpoint&, boost::json::object&)>& spoil,
    const std::function<void(Codes&)>& change = [](Codes&) {}) {
  Codes codes = Maker(9).codes(kOutputs, one.columns, one.group, one.bits, one.least_zero, one.shuffled);
  boost::json::object config = one.config(codes);
  change(codes);
  MemoryCheckpoint checkpoint;
  one.add(checkpoint, "a", codes);
  spoil(checkpoint, config["quantization_config"].as_object());
  checkpoint.set_config(config);
  const auto backend = ops::make_reference_backend();
  Loader loader(Loader::Mode::kPlan, checkpoint, *backend);
  const Linear linear(loader, "a", one.columns, kOutputs);
  return loader.finish({});
}

const CodedCase& case_of(std::string_view name) {
  return *std::ranges::find(kCodedCases, name, &CodedCase::name);
}

TEST(CodedWeightErrors, OfTorchaoNameTheTensor) {
  const auto scales_of = [](const Shape& shape) {
    return [shape](MemoryCheckpoint& checkpoint, boost::json::object&) {
      checkpoint.replace("a._weight_scale", DType::kF16, shape,
                         std::vector<uint8_t>(static_cast<size_t>(2 * shape.num_elements())));
    };
  };
  const CodedCase& one = case_of("TorchaoFourBits");
  EXPECT_THAT(said_of(one, scales_of({kOutputs, 7})).message(), HasSubstr("a._weight_scale is [64, 7] for a weight"));
  EXPECT_THAT(said_of(one, scales_of({kOutputs - 1, 2})).message(), HasSubstr("expected one number a row"));
  EXPECT_TRUE(said_of(one, scales_of({kOutputs, 2})).ok());
}

TEST(CodedWeightErrors, NameTheTensorOrTheField) {
  const auto nothing = [](MemoryCheckpoint&, boost::json::object&) {};
  EXPECT_TRUE(said_of(case_of("Awq"), nothing).ok());
  EXPECT_THAT(said_of(case_of("GptqOfFourBits"), [](auto&, auto& config) { config["bits"] = 8; }).message(),
              HasSubstr("a.qweight (found [32, 64], expected [64, 64])"));
  EXPECT_THAT(said_of(case_of("Awq"), [](auto&, auto& config) { config["group_size"] = 64; }).message(),
              HasSubstr("a.qzeros (found [2, 8], expected [4, 8])"));
  EXPECT_THAT(said_of(case_of("GptqOfFourBits"), nothing, [](Codes& c) { c.group_of_column[7] = 99; }).message(),
              HasSubstr("a.weight: column 7 is of group 99; expected 0 to 1"));
  EXPECT_THAT(said_of(case_of("GptqOfFourBits"),
                      [](auto&, auto& config) {
                        config["dynamic"] = {{"-:a", boost::json::object()}};
                      })
                  .message(),
              HasSubstr("a.qweight: quantization_config.dynamic says that a is not quantised"));
  EXPECT_THAT(said_of(case_of("PackedFourBits"), [](auto&, auto& config) { config["ignore"] = {"re:.*a"}; }).message(),
              HasSubstr("a is stored in codes, but quantization_config.ignore has it"));
  EXPECT_THAT(said_of(case_of("PackedFourBits"),
                      [](auto&, auto& config) {
                        config["config_groups"].as_object()["group_0"].as_object()["targets"] = {"re:b.*"};
                      })
                  .message(),
              HasSubstr("a is stored in codes, but no group of quantization_config.config_groups has it"));
  EXPECT_THAT(said_of(case_of("Bytes"),
                      [](auto&, auto& config) {
                        config["config_groups"].as_object()["group_0"].as_object()["input_activations"] = {
                            {"num_bits", 8}, {"type", "int"}, {"strategy", "tensor"}};
                      })
                  .message(),
              HasSubstr("a.input_scale is missing; expected one number"));
  EXPECT_THAT(said_of(case_of("PackedFourBits"), nothing, [](Codes& c) { c.columns -= 8; }).message(),
              HasSubstr("a.weight_shape says [64, 248]; expected [64, 256]"));
}

TEST(CodedWeightConfigs, ModulesOfGptqMayDiffer) {
  Maker maker(11);
  MemoryCheckpoint checkpoint;
  const Codes wide = maker.codes(kOutputs, 128, 32, 8, -1);
  const Codes narrow = maker.codes(kOutputs, 128, 64, 4, 1);
  add_gptq(checkpoint, "layers.0.mlp", wide, 1);
  add_gptq(checkpoint, "layers.1.mlp", narrow, 1);
  boost::json::object config = gptq_config(narrow, false);
  config["quantization_config"].as_object()["dynamic"] = {{"+:layers\\.0\\..*", {{"bits", 8}, {"group_size", 32}}},
                                                          {"-:.*norm", boost::json::object()}};
  checkpoint.set_config(config);
  const auto backend = ops::make_reference_backend();
  Loader loader(Loader::Mode::kLoad, checkpoint, *backend);
  const StoredWeight first = loader.weight({"layers.0.mlp.weight", {kOutputs, 128}});
  const StoredWeight second = loader.weight({"layers.1.mlp.weight", {kOutputs, 128}});
  ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
  EXPECT_EQ(first.form(), DType::kQ8_0);
  EXPECT_EQ(second.form(), DType::kU4_64);
  EXPECT_EQ(loader.floats(first)[130], wide.value(1, 2));
  EXPECT_EQ(loader.floats(second)[130], narrow.value(1, 2));
}

TEST(CodedWeightConfigs, NamesAndExpressionsComeBeforeAllLinearModules) {
  Maker maker(12);
  MemoryCheckpoint checkpoint;
  const Codes four = maker.codes(kOutputs, 128, 32, 4, -1);
  const Codes eight = maker.codes(kOutputs, 128, 128, 8, -1);
  add_packed(checkpoint, "layers.0.up", four, true);
  add_packed(checkpoint, "layers.0.down", eight, true);
  boost::json::object config = compressed_config(four, "pack-quantized", true);
  boost::json::object& groups = config["quantization_config"].as_object()["config_groups"].as_object();
  groups["group_1"] = compressed_config(eight, "pack-quantized", true)["quantization_config"]
                          .as_object()["config_groups"]
                          .as_object()["group_0"];
  groups["group_1"].as_object()["targets"] = {"re:.*down$"};
  checkpoint.set_config(config);
  const auto backend = ops::make_reference_backend();
  Loader loader(Loader::Mode::kLoad, checkpoint, *backend);
  EXPECT_EQ(loader.weight({"layers.0.up.weight", {kOutputs, 128}}).form(), DType::kU4_32);
  EXPECT_EQ(loader.weight({"layers.0.down.weight", {kOutputs, 128}}).form(), DType::kQ8_0);
  EXPECT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
}

TEST(CodedWeightConfigs, AnOrderThatWasNeverSetIsTheColumnsOwn) {
  const Codes codes = Maker(14).codes(kOutputs, 128, 32, 4, -1);
  MemoryCheckpoint checkpoint;
  add_packed(checkpoint, "a", codes, true);
  checkpoint.add("a.weight_g_idx", DType::kI32, {128}, stored_bytes(std::vector<int32_t>(128, -1)));
  checkpoint.set_config(compressed_config(codes, "pack-quantized", true));
  const auto backend = ops::make_reference_backend();
  Loader loader(Loader::Mode::kLoad, checkpoint, *backend);
  const StoredWeight weight = loader.weight({"a.weight", {kOutputs, 128}});
  ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
  EXPECT_EQ(weight.form(), DType::kU4_32);
  EXPECT_EQ(loader.floats(weight)[127], codes.value(0, 127));
}

TEST(CodedWeightConfigs, ABiasOfZerosBesideAWeightIsNoParameter) {
  Maker maker(13);
  const Codes codes = maker.codes(kOutputs, 128, 32, 4, 1);
  for (const uint16_t number : {uint16_t{0}, uint16_t{0x3c00}}) {
    MemoryCheckpoint checkpoint;
    add_gptq(checkpoint, "a", codes, 1);
    checkpoint.add("a.bias", DType::kF16, {kOutputs}, stored_bytes(std::vector<uint16_t>(kOutputs, number)));
    checkpoint.set_config(gptq_config(codes, false));
    const auto backend = ops::make_reference_backend();
    Loader loader(Loader::Mode::kPlan, checkpoint, *backend);
    const Linear linear(loader, "a", 128, kOutputs);
    EXPECT_EQ(loader.finish({}).ok(), number == 0) << loader.finish({}).message();
  }
}

// Codes of 4-bit floats [64, 128], two a byte, with scales of 16 or 32.
class FloatCodes : public ::testing::TestWithParam<std::string> {
 protected:
  static constexpr int64_t kColumns = 128;
  void SetUp() override {
    Maker maker(21);
    const bool is_mx = GetParam() == "mxfp4";
    const int64_t group = is_mx ? 32 : 16;
    std::vector<uint8_t> codes, scales;
    for (int64_t i = 0; i < kOutputs * kColumns / 2; ++i) codes.push_back(static_cast<uint8_t>(maker.between(0, 255)));
    for (int64_t i = 0; i < kOutputs * kColumns / group; ++i)
      scales.push_back(static_cast<uint8_t>(is_mx ? maker.between(120, 127) : maker.between(1, 0x7e)));
    constexpr float kNumbers[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    const float shared = is_mx ? 1.0f : GetParam() == "modelopt" ? 0.003f : 1.0f / 300.0f;
    for (int64_t i = 0; i < kOutputs * kColumns; ++i) {
      const int code = codes[static_cast<size_t>(i / 2)] >> i % 2 * 4 & 15;
      const uint8_t e = scales[static_cast<size_t>(i / group)];
      const float scale = is_mx ? std::ldexp(1.0f, e - 127)
                                : std::ldexp(static_cast<float>(e < 8 ? e : 8 + e % 8), (e < 8 ? 1 : e / 8) - 10);
      values_.push_back((code < 8 ? 1.0f : -1.0f) * kNumbers[code % 8] * scale * shared);
    }
    boost::json::object config = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
    const Shape shape = {kOutputs, kColumns / 2};
    if (GetParam() == "modelopt") {
      checkpoint_.add("a.weight", DType::kU8, shape, codes);
      checkpoint_.add("a.weight_scale", DType::kF8E4M3, {kOutputs, kColumns / group}, scales);
      checkpoint_.add("a.weight_scale_2", DType::kF32, {}, stored_bytes(std::vector<float>{shared}));
    } else {
      checkpoint_.add("a.weight_packed", DType::kU8, shape, codes);
      checkpoint_.add("a.weight_scale", is_mx ? DType::kU8 : DType::kF8E4M3, {kOutputs, kColumns / group}, scales);
      if (!is_mx) checkpoint_.add("a.weight_global_scale", DType::kF32, {1}, stored_bytes(std::vector<float>{300}));
      config = {{"quant_method", "compressed-tensors"},
                {"format", is_mx ? "mxfp4-pack-quantized" : "nvfp4-pack-quantized"},
                {"config_groups",
                 {{"g",
                   {{"targets", boost::json::array{"Linear"}},
                    {"weights",
                     {{"num_bits", 4},
                      {"type", "float"},
                      {"strategy", is_mx ? "group" : "tensor_group"},
                      {"group_size", group}}}}}}}};
    }
    checkpoint_.set_config({{"quantization_config", config}});
  }
  MemoryCheckpoint checkpoint_;
  std::vector<float> values_;
};

TEST_P(FloatCodes, AreTheirLevelsTimesTheirScalesHeldInFourBits) {
  for (const char* kind : {"reference", "cpu"}) {
    auto backend = ops::make_reference_backend();
    if (std::string_view(kind) == "cpu")
      backend = ops::make_cpu_backend({.threads = 1, .activation_dtype = ActivationDType::kFloat32}).value();
    Loader loader(Loader::Mode::kLoad, checkpoint_, *backend);
    const StoredWeight weight = loader.weight({"a.weight", {kOutputs, kColumns}});
    const Linear linear(loader, "a", kColumns, kOutputs);
    ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
    EXPECT_EQ(weight.form(), GetParam() == "mxfp4" ? DType::kMXFP4 : DType::kNVFP4);
    const std::vector<float> numbers = loader.floats(weight);
    std::vector<float> x(kColumns);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 7) - 3.0f;
    std::vector<float> out(kOutputs);
    linear(BareStep(*backend), ops::ConstView(x.data(), 1, kColumns), ops::View(out.data(), 1, kOutputs));
    for (size_t row = 0; row < kOutputs; ++row) {
      double sum = 0, size = 0;
      for (size_t k = 0; k < kColumns; ++k) {
        ASSERT_NEAR(numbers[row * kColumns + k], values_[row * kColumns + k],
                    std::fabs(values_[row * kColumns + k]) * 2e-7f);
        sum += double{x[k]} * double{values_[row * kColumns + k]};
        size += std::fabs(double{x[k]} * double{values_[row * kColumns + k]});
      }
      ASSERT_NEAR(out[row], sum, 1e-6 * size) << row;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, FloatCodes, ::testing::Values("nvfp4", "modelopt", "mxfp4"),
                         [](const auto& test) { return test.param; });

// Static scales: each number is the nearest whole number of steps.
TEST(CodedWeightInputs, AreRoundedByTheScaleThatIsStored) {
  Maker maker(14);
  Codes codes = maker.codes(1, 32, 32, 8, -1);
  codes.scales = {0x3c00};  // 1
  MemoryCheckpoint checkpoint;
  add_bytes(checkpoint, "a", codes, true);
  checkpoint.add("a.input_scale", DType::kF32, {1}, stored_bytes(std::vector<float>{0.5f}));
  checkpoint.add("a.input_zero_point", DType::kI8, {1}, stored_bytes(std::vector<int8_t>{-100}));
  checkpoint.set_config(compressed_config(
      codes, "int-quantized", true,
      {{"num_bits", 8}, {"type", "int"}, {"strategy", "tensor"}, {"symmetric", false}, {"dynamic", false}}));
  const auto backend = ops::make_cpu_backend({.threads = 1, .activation_dtype = ActivationDType::kFloat32}).value();
  Loader loader(Loader::Mode::kLoad, checkpoint, *backend);
  const Linear linear(loader, "a", 32, 1);
  ASSERT_TRUE(loader.finish({}).ok()) << loader.finish({}).message();
  std::vector<float> x(32);
  double expected = 0;
  for (int64_t i = 0; i < 32; ++i) {
    x[static_cast<size_t>(i)] = static_cast<float>(i) * 4.3f - 20.0f;
    const double step = std::clamp(std::nearbyint(x[static_cast<size_t>(i)] / 0.5) - 100.0, -128.0, 127.0) + 100.0;
    expected += step * 0.5 * codes.value(0, i);
  }
  float out = 0;
  linear(BareStep(*backend), ops::ConstView(x.data(), 1, 32), ops::View(&out, 1, 1));
  EXPECT_NEAR(out, expected, 1e-3);
}

}  // namespace
}  // namespace quire::nn
