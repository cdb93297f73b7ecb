// What lies beyond 2^31 elements is found where it is (F6): rows, strides and slots are counted in 64 bits on the way
// to memory. The memory is mapped and takes none but where it is touched.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <numeric>

#include "ops/reference/reference_backend.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::kDevices;
using testing::largest_difference;
using testing::Random;
using testing::same_bits;

class MappedMemory {
 public:
  explicit MappedMemory(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
    void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped != MAP_FAILED) memory_ = mapped;
  }
  ~MappedMemory() {
    if (memory_ != nullptr) ::munmap(memory_, bytes_);
  }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  template <typename T>
  T* as() const {
    return static_cast<T*>(memory_);
  }

 private:
  size_t bytes_;
  void* memory_ = nullptr;  // nullptr: this machine maps no so much
};

class LargeTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (cards::is_card(GetParam()) && !cards::is_emulated(GetParam()))
      GTEST_SKIP() << "a card does not reach such memory";
    backend_ = cards::is_card(GetParam()) ? cards::make_card(2, {.batch_invariant = true, .rounds_activations = false})
                                          : testing::make_backend(GetParam());
    if (backend_ == nullptr) GTEST_SKIP() << "this machine lacks " << GetParam();
  }
  std::unique_ptr<Backend> backend_;
};

#define QUIRE_MAP_OR_SKIP(memory, bytes) \
  const MappedMemory memory(bytes);      \
  if (memory.as<void>() == nullptr) GTEST_SKIP() << "this machine maps no " << (bytes) << " bytes"

TEST_P(LargeTest, RowsOfATableOfMoreElementsThan31BitsCountAreRead) {
  constexpr int64_t kColumns = 40'000;
  constexpr int64_t kRows = 70'001;
  static_assert(kRows * kColumns > int64_t{1} << 31);
  QUIRE_MAP_OR_SKIP(table, kRows * kColumns * 2);
  const std::vector<TokenId> ids = {static_cast<TokenId>(kRows - 1), 60'000, 1};
  for (const TokenId id : ids) {
    for (int64_t i = 0; i < kColumns; ++i)
      table.as<uint16_t>()[id * kColumns + i] = testing::half_bits(static_cast<float>((id + i) % 2048));
  }
  std::vector<float> out(ids.size() * kColumns, -1.0f);
  EmbeddingArgs embed;
  embed.ids = ids.data();
  embed.num_tokens = std::ssize(ids);
  embed.table = {table.as<void>(), DType::kF16, Shape{kRows, kColumns}};
  embed.out = out.data();
  (*backend_)(embed);
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int64_t i = 0; i < kColumns; ++i)
      ASSERT_EQ(out[t * kColumns + static_cast<size_t>(i)], static_cast<float>((ids[t] + i) % 2048)) << t << " " << i;
  }

  constexpr int64_t kSize = 4'000;
  const std::vector<int32_t> rows = {690'000, 3};
  static_assert(690'000 * kSize > int64_t{1} << 31);
  QUIRE_MAP_OR_SKIP(floats, 690'001 * kSize * 4);
  for (const int32_t row : rows) {
    for (int64_t i = 0; i < kSize; ++i) floats.as<float>()[row * kSize + i] = static_cast<float>(row + i);
  }
  std::vector<float> gathered(rows.size() * kSize, -1.0f);
  GatherRowsArgs gather;
  gather.in = floats.as<float>();
  gather.size = kSize;
  gather.rows = rows.data();
  gather.num_rows = std::ssize(rows);
  gather.out = gathered.data();
  (*backend_)(gather);
  for (size_t r = 0; r < rows.size(); ++r)
    EXPECT_TRUE(same_bits(gathered.data() + r * kSize, floats.as<float>() + rows[r] * kSize, kSize))
        << "row " << rows[r];
}

TEST_P(LargeTest, ProductsOfRowsThatLieFartherApartThan31BitsCountAreThoseOfRowsSideBySide) {
  constexpr int64_t kColumns = 256;
  constexpr int64_t kOutputs = 96;
  constexpr int64_t kStride = (int64_t{1} << 30) + 64;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kQ4_1, DType::kQ6_K}) {
    SCOPED_TRACE(name(dtype));
    Random random(5);
    const testing::StoredWeights weights(dtype, kOutputs, kColumns, random);
    const TensorView part = weights.view();
    auto packed = backend_->pack({&part, 1});
    ASSERT_TRUE(packed.ok()) << packed.status().message();
    for (const int64_t num_rows : {int64_t{3}, int64_t{20}}) {
      QUIRE_MAP_OR_SKIP(x, num_rows * kStride * 4);
      QUIRE_MAP_OR_SKIP(out, num_rows * kStride * 4);
      const std::vector<float> values = random.normals(num_rows * kColumns);
      for (int64_t m = 0; m < num_rows; ++m)
        std::copy_n(values.data() + m * kColumns, kColumns, x.as<float>() + m * kStride);
      std::vector<float> together(static_cast<size_t>(num_rows * kOutputs));
      LinearArgs args;
      args.x = values.data();
      args.x_stride = kColumns;
      args.num_rows = num_rows;
      args.weight = packed->get();
      args.out = together.data();
      args.out_stride = kOutputs;
      (*backend_)(args);
      args.x = x.as<float>();
      args.x_stride = kStride;
      args.out = out.as<float>();
      args.out_stride = kStride;
      (*backend_)(args);
      for (int64_t m = 0; m < num_rows; ++m)
        ASSERT_TRUE(same_bits(out.as<float>() + m * kStride, together.data() + m * kOutputs, kOutputs)) << "row " << m;
    }
  }
}

TEST_P(LargeTest, BlocksOfACacheOfMoreElementsThan31BitsCountAreWrittenCopiedAndAttendedTo) {
  constexpr int64_t kBlocks = 140'000;
  constexpr int32_t kLength = 45;
  Random random(6);
  KvCacheView view{.dtype = DType::kF16,
                   .num_blocks = kBlocks,
                   .num_kv_heads = 8,
                   .head_dim = 128,
                   .block_size = 16,
                   .keys_by_token = backend_->keys_by_token()};
  ASSERT_GT(kBlocks * view.num_kv_heads * view.head_dim * view.block_size, int64_t{1} << 31);
  QUIRE_MAP_OR_SKIP(keys, kBlocks * block_bytes(view));
  QUIRE_MAP_OR_SKIP(values, kBlocks * block_bytes(view));
  view.keys = keys.as<void>();
  view.values = values.as<void>();

  const int64_t token = int64_t{view.num_kv_heads} * view.head_dim;
  const std::vector<float> kv = random.normals(kLength * 2 * token);
  const std::vector<float> queries = random.normals(2 * 2 * token, 2.0f);
  // Through these blocks of the cache, whose first was computed as block `from` and then copied to its place.
  const auto attend = [&](Backend& backend, const KvCacheView& cache, BlockId from, const std::vector<BlockId>& table) {
    std::vector<int64_t> slots;
    for (int32_t p = 0; p < kLength; ++p)
      slots.push_back(int64_t{p < 16 ? from : table[static_cast<size_t>(p / 16)]} * 16 + p % 16);
    KvWriteArgs write;
    write.keys = kv.data();
    write.values = kv.data() + token;
    write.token_stride = 2 * token;
    write.num_tokens = kLength;
    write.slots = slots.data();
    write.cache = cache;
    backend(write);
    const std::vector<BlockCopy> copies = {{from, table[0]}};
    CopyBlocksArgs copy;
    copy.source = block_memory(cache);
    copy.destination = block_memory(cache);
    copy.copies = copies.data();
    copy.num_copies = 1;
    backend(copy);
    const std::vector<int32_t> offsets = {0, 2};
    std::vector<float> out(queries.size());
    PagedAttentionArgs args;
    args.queries = queries.data();
    args.query_stride = 2 * token;
    args.num_heads = 2 * view.num_kv_heads;
    args.cache = cache;
    args.num_sequences = 1;
    args.query_offsets = offsets.data();
    args.context_lengths = &kLength;
    args.block_tables = table.data();
    args.block_table_stride = std::ssize(table);
    args.scale = 0.1f;
    args.out = out.data();
    backend(args);
    return out;
  };
  const std::vector<float> found = attend(*backend_, view, 3, {kBlocks - 1, 1, kBlocks - 3});

  auto reference = make_reference_backend();
  KvCacheView small = view;
  small.num_blocks = 4;
  small.keys_by_token = reference->keys_by_token();
  std::vector<uint8_t> small_keys(static_cast<size_t>(4 * block_bytes(small)));
  std::vector<uint8_t> small_values(small_keys.size());
  small.keys = small_keys.data();
  small.values = small_values.data();
  EXPECT_LT(largest_difference(found, attend(*reference, small, 3, {0, 1, 2})), 2e-5);
}

INSTANTIATE_TEST_SUITE_P(Isa, LargeTest, ::testing::ValuesIn(kDevices));

}  // namespace
}  // namespace quire::ops
