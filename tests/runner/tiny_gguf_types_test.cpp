// A whole model with experts in every type that GGUF's grids and levels make (and NVFP4, Q8_K), written here with
// random blocks: embedding rows, projections, stacked experts and the head, against the same numbers as float32.
#include <cmath>
#include <cstring>
#include <random>

#include "tensor/stored_values.h"
#include "tests/checkpoint/file_writers.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

using checkpoint::GgufWriter;

constexpr int64_t kHidden = 256;
constexpr int64_t kInner = 512;
constexpr int64_t kTinyVocab = 48;
constexpr int64_t kExperts = 3;

struct Type {
  DType dtype;
  uint32_t id;       // GGUF's
  size_t scale_at;   // of a block's f16 d
  float magnitudes;  // of what d multiplies, on the average
};

const std::vector<Type> kTypes = {
    {DType::kIQ2_XXS, 16, 0, 50},  {DType::kIQ2_XS, 17, 0, 50}, {DType::kIQ2_S, 22, 0, 50},
    {DType::kIQ3_XXS, 18, 0, 120}, {DType::kIQ3_S, 21, 0, 128}, {DType::kIQ1_S, 19, 0, 6},
    {DType::kIQ1_M, 29, 0, 6},     {DType::kTQ1_0, 34, 52, 1},  {DType::kTQ2_0, 35, 64, 1},
    {DType::kNVFP4, 40, 0, 1},     {DType::kQ8_K, 15, 0, 64},
};

// A power of two close to `value`.
uint16_t half_bits_near(float value) {
  return static_cast<uint16_t>((std::ilogb(value) + 15) << 10);
}

// Random blocks of values that are about 1 / sqrt(columns).
std::string random_blocks(const Type& type, int64_t values, int64_t columns, std::mt19937& random) {
  const DTypeInfo format = info(type.dtype);
  const float deviation = 1.0f / std::sqrt(static_cast<float>(columns));
  std::string data(static_cast<size_t>(row_bytes(type.dtype, values)), '\0');
  for (char& byte : data) byte = static_cast<char>(random());
  for (size_t at = 0; at < data.size(); at += static_cast<size_t>(format.block_bytes)) {
    char* block = data.data() + at;
    const uint16_t half = half_bits_near(deviation / type.magnitudes);
    if (type.dtype == DType::kQ8_K) {
      const float d = deviation / type.magnitudes;
      std::memcpy(block, &d, sizeof(d));
    } else if (type.dtype == DType::kNVFP4) {
      // 2^(e - 7) times halves of levels of 4.
      for (int i = 0; i < 4; ++i) block[i] = static_cast<char>((6 + std::ilogb(deviation)) << 3 | random() % 8);
    } else if (type.dtype == DType::kIQ1_M) {
      for (int i = 0; i < 4; ++i) {
        char& byte = block[48 + 2 * i + 1];
        byte = static_cast<char>((byte & 0x0f) | (half >> (4 * i) & 0x0f) << 4);
      }
    } else {
      std::memcpy(block + type.scale_at, &half, sizeof(half));
    }
  }
  return data;
}

// The model's file in a type, and the same with all numbers as float32.
struct Files {
  GgufWriter typed;
  GgufWriter floats;

  void matrix(const Type& type, std::string_view name, std::vector<uint64_t> dims, std::mt19937& random) {
    int64_t values = 1;
    for (const uint64_t dim : dims) values *= static_cast<int64_t>(dim);
    const std::string blocks = random_blocks(type, values, static_cast<int64_t>(dims[0]), random);
    std::string numbers;
    for (int64_t i = 0; i < values; ++i) checkpoint::put(numbers, stored_value(type.dtype, blocks.data(), i));
    typed.tensor(name, dims, type.id, blocks);
    floats.tensor(name, dims, 0, numbers);
  }
  void plain(std::string_view name, std::vector<uint64_t> dims, std::mt19937& random, float base) {
    uint64_t values = 1;
    for (const uint64_t dim : dims) values *= dim;
    std::string numbers;
    for (uint64_t i = 0; i < values; ++i)
      checkpoint::put(numbers, base + static_cast<float>(random() % 1000) / 5000.0f);
    typed.tensor(name, dims, 0, numbers);
    floats.tensor(name, dims, 0, numbers);
  }
};

Files files_of(const Type& type) {
  std::mt19937 random(11);
  Files files;
  for (GgufWriter* writer : {&files.typed, &files.floats}) {
    writer->string("general.architecture", "llama");
    writer->u32("llama.block_count", 1).u32("llama.context_length", 64);
    writer->u32("llama.embedding_length", kHidden).u32("llama.feed_forward_length", kInner);
    writer->u32("llama.attention.head_count", 4).u32("llama.attention.head_count_kv", 2);
    writer->f32("llama.attention.layer_norm_rms_epsilon", 1e-5f).f32("llama.rope.freq_base", 10000.0f);
    writer->u32("llama.expert_count", kExperts).u32("llama.expert_used_count", 2);
    writer->u32("llama.vocab_size", kTinyVocab);
  }
  files.matrix(type, "token_embd.weight", {kHidden, kTinyVocab}, random);
  files.plain("blk.0.attn_norm.weight", {kHidden}, random, 0.9f);
  files.matrix(type, "blk.0.attn_q.weight", {kHidden, kHidden}, random);
  files.matrix(type, "blk.0.attn_k.weight", {kHidden, kHidden / 2}, random);
  files.matrix(type, "blk.0.attn_v.weight", {kHidden, kHidden / 2}, random);
  files.matrix(type, "blk.0.attn_output.weight", {kHidden, kHidden}, random);
  files.plain("blk.0.ffn_norm.weight", {kHidden}, random, 0.9f);
  files.plain("blk.0.ffn_gate_inp.weight", {kHidden, kExperts}, random, -0.1f);
  files.matrix(type, "blk.0.ffn_gate_exps.weight", {kHidden, kInner, kExperts}, random);
  files.matrix(type, "blk.0.ffn_up_exps.weight", {kHidden, kInner, kExperts}, random);
  files.matrix(type, "blk.0.ffn_down_exps.weight", {kInner, kHidden, kExperts}, random);
  files.plain("output_norm.weight", {kHidden}, random, 0.9f);
  files.matrix(type, "output.weight", {kHidden, kTinyVocab}, random);
  return files;
}

class TinyGgufTypes : public testing::TestWithParam<std::tuple<size_t, std::string>> {
 protected:
  const Type& type() const { return kTypes[std::get<0>(GetParam())]; }
};

// Of the logits' size, which is about 1.
double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::fabs(static_cast<double>(a[i]) - b[i]));
  return largest;
}

TEST_P(TinyGgufTypes, AModelOfThisTypeAnswersAsTheSameNumbersInFloat32) {
  const std::string& isa = std::get<1>(GetParam());
  const auto backend_of = [&isa](ActivationDType activations) -> std::unique_ptr<ops::Backend> {
    if (isa == "reference") return ops::make_reference_backend();
    auto backend =
        ops::make_cpu_backend({.threads = 2, .isa = parse_choice<Isa>(isa).value(), .activation_dtype = activations});
    return backend.ok() ? std::move(*backend) : nullptr;
  };
  const auto exact = backend_of(ActivationDType::kFloat32);
  const auto rounding = backend_of(ActivationDType::kAuto);
  if (exact == nullptr) GTEST_SKIP() << "this machine has no " << isa;
  const checkpoint::TemporaryDirectory directory;
  const Files files = files_of(type());
  const std::string typed = checkpoint::write_file(directory.path() / "typed.gguf", files.typed.build());
  const std::string floats = checkpoint::write_file(directory.path() / "floats.gguf", files.floats.build());

  const std::vector<TokenId> tokens = {3, 14, 15, 9, 26, 5, 35, 47, 0, 31, 3, 8};
  const auto reference = ops::make_reference_backend();
  const std::vector<float> expected = TinyModel(floats, *reference, "float32").logits(tokens, 64).back();
  double size = 0;
  for (const float logit : expected) size = std::max(size, std::fabs(static_cast<double>(logit)));
  EXPECT_GT(size, 0.5);

  TinyModel model(typed, *exact, "float32");
  const auto rows = model.logits(tokens, 64);
  EXPECT_LT(largest_difference(rows.back(), expected), 1e-4 * size);
  EXPECT_EQ(model.logits(tokens, 5), rows) << "in pieces";
  const double rounded = largest_difference(TinyModel(typed, *rounding, "float32").logits(tokens, 64).back(), expected);
  EXPECT_LT(rounded, 0.03 * size) << "with activations of 8 or 16 bits";
}

INSTANTIATE_TEST_SUITE_P(EveryType, TinyGgufTypes,
                         testing::Combine(testing::Range(size_t{0}, kTypes.size()),
                                          testing::Values("reference", "portable", "avx2", "avx512")),
                         [](const auto& test) {
                           return std::string(name(kTypes[std::get<0>(test.param)].dtype)) + "_" +
                                  std::get<1>(test.param);
                         });

TEST(WidenedWeights, OnlyFormatsThatTakeMoreThanTheirFileAreNamed) {
  const auto backend = make_test_backend("portable");
  const checkpoint::TemporaryDirectory directory;
  const auto plan_of = [&](DType dtype) {
    const auto type = std::find_if(kTypes.begin(), kTypes.end(), [dtype](const Type& t) { return t.dtype == dtype; });
    const std::string path = checkpoint::write_file(directory.path() / "model.gguf", files_of(*type).typed.build());
    const auto checkpoint = checkpoint::Checkpoint::open(path);
    const auto planned = plan_model({.kv_cache_memory_bytes = 1 << 20}, **checkpoint, *backend, 0);
    EXPECT_TRUE(planned.ok()) << planned.status().message();
    return planned->memory;
  };
  // q, k, v and output; gate, up and down of 3 experts; the head of 48 rows (64 in panels): of 66 and 138 bytes a block
  // of 256 values. The embedding's rows are read from the file.
  constexpr int64_t kBlocks = 3 * 256 + 3 * 3 * 512;
  EXPECT_EQ(plan_of(DType::kIQ2_XXS).widened_weights,
            fmt::format("IQ2_XXS: 14 matrices of {} in the file take {}", format_bytes((kBlocks + 48) * 66),
                        format_bytes((kBlocks + 64) * 138)));
  EXPECT_EQ(plan_of(DType::kNVFP4).widened_weights, "");
  EXPECT_EQ(plan_of(DType::kTQ2_0).widened_weights, "");
  EXPECT_EQ(plan_of(DType::kQ8_K).widened_weights, "");
  EXPECT_GT(plan_of(DType::kIQ2_XXS).weight_bytes, (kBlocks + 64) * 138 + 48 * 66);
}

// What a scale of a whole matrix would multiply is not known to the format: it is refused, not left out.
TEST(Nvfp4, AMatrixWithAScaleInATensorOfItsOwnIsRefusedByName) {
  const auto backend = make_test_backend("portable");
  const checkpoint::TemporaryDirectory directory;
  const auto type = std::find_if(kTypes.begin(), kTypes.end(), [](const Type& t) { return t.dtype == DType::kNVFP4; });
  Files files = files_of(*type);
  files.typed.tensor("blk.0.attn_q.scale", {1}, 0, checkpoint::bytes_of<float>({0.5f}));
  const std::string path = checkpoint::write_file(directory.path() / "model.gguf", files.typed.build());
  const auto checkpoint = checkpoint::Checkpoint::open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto planned = plan_model({.kv_cache_memory_bytes = 1 << 20}, **checkpoint, *backend, 0);
  ASSERT_FALSE(planned.ok());
  EXPECT_NE(planned.status().message().find("blk.0.attn_q.scale"), std::string::npos) << planned.status().message();
}

}  // namespace
}  // namespace quire::runner
