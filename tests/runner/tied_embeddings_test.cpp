// An embedding that is the head as well: on a card the table's rows are the weight's, held once.
#include <algorithm>
#include <cmath>
#include <random>

#include "nn/embedding.h"
#include "nn/linear.h"
#include "tests/nn/bare_step.h"
#include "tests/nn/memory_checkpoint.h"
#include "tests/runner/tiny_model.h"

namespace quire::runner {
namespace {

constexpr int64_t kVocab = 40;

struct Stored {
  DType dtype;
  int64_t size;                 // of a row
  std::vector<size_t> numbers;  // where a block has halves
};

// Random codes of small numbers.
std::vector<uint8_t> random_rows(const Stored& stored) {
  std::mt19937 random(5);
  std::vector<uint8_t> bytes(static_cast<size_t>(kVocab * row_bytes(stored.dtype, stored.size)));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  const auto block = static_cast<size_t>(info(stored.dtype).block_bytes);
  for (size_t at = 0; at < bytes.size(); at += block) {
    for (const size_t number : stored.numbers) bytes[at + number + 1] = static_cast<uint8_t>(0x3c | random() % 2);
  }
  return bytes;
}

// What a model takes, its embeddings of some tokens, and the head's outputs for those.
struct Tied {
  int64_t planned = 0;
  int64_t loaded = 0;
  std::vector<float> rows;
  std::vector<float> outputs;

  Tied(const checkpoint::Checkpoint& checkpoint, const Stored& stored, ops::Backend& backend,
       Quantization quantization = Quantization::kNone) {
    nn::Loader plan(nn::Loader::Mode::kPlan, checkpoint, backend, quantization);
    nn::Embedding(plan, "embed.weight", kVocab, stored.size);
    nn::Linear(plan, "embed", stored.size, kVocab, false, nn::WeightRole::kHead);
    EXPECT_TRUE(plan.finish({}).ok());
    planned = plan.bytes();

    auto loader = std::make_unique<nn::Loader>(nn::Loader::Mode::kLoad, checkpoint, backend, quantization);
    auto table = std::make_unique<nn::Embedding>(*loader, "embed.weight", kVocab, stored.size);
    const nn::Linear head(*loader, "embed", stored.size, kVocab, false, nn::WeightRole::kHead);
    EXPECT_TRUE(loader->finish({}).ok()) << loader->finish({}).message();
    loaded = loader->bytes();
    loader.reset();

    const std::vector<TokenId> ids = {7, 0, static_cast<TokenId>(kVocab) - 1};
    const auto count = static_cast<int64_t>(ids.size());
    StepNumbers numbers(backend);
    numbers.begin(StepNumbers::room(ids.size() * sizeof(TokenId)));
    const Mirrored<TokenId> on_device = numbers.add(ids);
    numbers.upload();
    rows.resize(static_cast<size_t>(count * stored.size));
    outputs.resize(static_cast<size_t>(count * kVocab));
    Buffer x(backend.allocator(), rows.size() * sizeof(float));
    Buffer out(backend.allocator(), outputs.size() * sizeof(float));
    const nn::BareStep step(backend);
    (*table)(step, on_device, ops::View(x.data(), count, stored.size));
    backend.synchronise();
    table.reset();  // the head stays
    head(step, ops::ConstView(x.data(), count, stored.size), ops::View(out.data(), count, kVocab));
    backend.download(rows.data(), x.data(), x.bytes());
    backend.download(outputs.data(), out.data(), out.bytes());
  }
};

class TiedEmbeddings : public testing::TestWithParam<std::string> {};

TEST_P(TiedEmbeddings, AreHeldOnceWhereATableIsAWeight) {
  const auto backend = make_test_backend(GetParam(), ActivationDType::kFloat32);
  if (backend == nullptr) GTEST_SKIP() << "this machine has no " << GetParam();
  const auto reference = ops::make_reference_backend();
  // Rows of 140, 32, 90, 360 and 612 bytes, and those of a format that a card holds as floats.
  for (const Stored& stored : std::vector<Stored>{{DType::kF32, 35, {2}},
                                                  {DType::kF16, 16, {0}},
                                                  {DType::kBF16, 45, {0}},
                                                  {DType::kQ4_1, 576, {0, 2}},
                                                  {DType::kQ8_0, 576, {0}},
                                                  {DType::kIQ2_XXS, 256, {0}}}) {
    SCOPED_TRACE(name(stored.dtype));
    nn::MemoryCheckpoint checkpoint;
    checkpoint.add("embed.weight", stored.dtype, {kVocab, stored.size}, random_rows(stored));
    const TensorView& view = checkpoint.find("embed.weight")->view;
    const Tied tied(checkpoint, stored, *backend);
    EXPECT_EQ(tied.planned, tied.loaded);
    const int64_t packed = backend->packed_bytes(stored.dtype, kVocab, stored.size);
    const bool once = cards::is_card(GetParam());
    EXPECT_EQ(backend->tables_are_weights(), once);
    EXPECT_EQ(tied.loaded, once ? packed : backend->table_bytes(view) + packed);
    const Tied expected(checkpoint, stored, *reference);
    EXPECT_EQ(tied.rows, expected.rows);
    float largest = 0;
    for (const float output : expected.outputs) largest = std::max(largest, std::fabs(output));
    for (size_t i = 0; i < expected.outputs.size(); ++i)
      ASSERT_NEAR(tied.outputs[i], expected.outputs[i], 1e-5 * largest);
  }
}

// The codes are not the rows.
TEST_P(TiedEmbeddings, AreHeldTwiceWhereTheHeadIsRounded) {
  const auto backend = make_test_backend(GetParam());
  if (backend == nullptr) GTEST_SKIP() << "this machine has no " << GetParam();
  const Stored stored{DType::kBF16, 64, {0}};
  nn::MemoryCheckpoint checkpoint;
  checkpoint.add("embed.weight", stored.dtype, {kVocab, stored.size}, random_rows(stored));
  const Tied tied(checkpoint, stored, *backend, Quantization::kInt8);
  EXPECT_EQ(tied.planned, tied.loaded);
  EXPECT_EQ(tied.loaded, backend->table_bytes(checkpoint.find("embed.weight")->view) +
                             backend->packed_bytes(DType::kQ8_0, kVocab, stored.size));
}

INSTANTIATE_TEST_SUITE_P(Backends, TiedEmbeddings, testing::Values("portable", "cuda"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::runner
