// Low-rank adapters of some rows: every backend against the reference, and a row's bits whatever stands beside it.
#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "ops/reference/reference_backend.h"
#include "tensor/stored_values.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::largest_difference;
using testing::Random;
using testing::same_bits;

std::vector<uint8_t> stored_as(DType dtype, const std::vector<float>& values) {
  std::vector<uint8_t> bytes(static_cast<size_t>(row_bytes(dtype, static_cast<int64_t>(values.size()))));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(bytes.data() + i * 4, &values[i], 4);
    } else {
      const uint16_t code = dtype == DType::kF16 ? float_to_half(values[i]) : float_to_bfloat16(values[i]);
      std::memcpy(bytes.data() + i * 2, &code, 2);
    }
  }
  return bytes;
}

struct LowRankShape {
  int64_t in_features;
  std::vector<int64_t> sizes;    // of the parts
  std::vector<int32_t> ranks;    // of the parts
  std::vector<int64_t> skipped;  // columns before each part that no part has
};

// Factors with memory of their own.
struct Adapter {
  Adapter(const LowRankShape& shape, DType dtype, Random& random, bool embeds = false, bool decomposed = false) {
    factors.dtype = dtype;
    factors.in_features = shape.in_features;
    int64_t column = 0;
    for (size_t p = 0; p < shape.sizes.size(); ++p) {
      const int64_t numbers = low_rank_up_bytes(dtype, shape.sizes[p], shape.ranks[p]) / row_bytes(dtype, 1);
      std::vector<float> up(static_cast<size_t>(numbers));
      for (int64_t n = 0; n < shape.sizes[p]; ++n) {
        for (int64_t r = 0; r < shape.ranks[p]; ++r) {
          const int64_t at = low_rank_up_place(n, r, shape.ranks[p], dtype == DType::kBF16);
          up[static_cast<size_t>(at)] = random.normals(1, 0.5f).front();
        }
      }
      ups.push_back(stored_as(dtype, up));
      column += shape.skipped[p];
      parts.push_back({.column = column,
                       .size = shape.sizes[p],
                       .first = factors.rank,
                       .rank = shape.ranks[p],
                       .scale = 0.25f * static_cast<float>(p + 1)});
      column += shape.sizes[p];
      factors.rank += shape.ranks[p];
    }
    for (size_t p = 0; p < parts.size(); ++p) parts[p].up = ups[p].data();
    for (size_t p = 0; decomposed && p < parts.size(); ++p) {
      gains.push_back(random.normals(parts[p].size));
      shifts.push_back(random.normals(parts[p].size));
      parts[p].gain = gains.back().data();
      parts[p].shift = shifts.back().data();
    }
    down = stored_as(dtype, random.normals(shape.in_features * factors.rank, embeds ? 1.0f : 0.1f));
    factors.down = down.data();
    factors.parts = parts;
    out_features = column;
  }
  Adapter(const Adapter&) = delete;

  std::vector<uint8_t> down;
  std::vector<std::vector<uint8_t>> ups;
  std::vector<std::vector<float>> gains;
  std::vector<std::vector<float>> shifts;
  std::vector<LowRankPart> parts;
  LowRankFactors factors;
  int64_t out_features = 0;
};

const std::vector<LowRankShape> kLowRankShapes = {
    {64, {64}, {4}, {0}},
    {576, {576, 192, 192}, {16, 16, 16}, {0, 0, 0}},
    {100, {33, 7}, {3, 11}, {0, 5}},  // nothing is a whole vector, and a part in between has no adapter
    {1536, {3000}, {64}, {0}},
};

// Factors of which no ranks are paired, as a device with memory of its own has them.
struct Unpaired {
  explicit Unpaired(const LowRankFactors& paired) : parts(paired.parts.begin(), paired.parts.end()), factors(paired) {
    for (LowRankPart& part : parts) {
      if (paired.dtype != DType::kBF16) break;
      const int64_t columns = (part.size + kLowRankColumns - 1) / kLowRankColumns * kLowRankColumns;
      std::vector<uint16_t>& up = ups.emplace_back(static_cast<size_t>(columns * part.rank));
      for (int64_t n = 0; n < columns; ++n) {
        for (int64_t r = 0; r < part.rank; ++r) {
          up[static_cast<size_t>(low_rank_up_place(n, r, part.rank, /*paired=*/false))] =
              static_cast<const uint16_t*>(part.up)[low_rank_up_place(n, r, part.rank, /*paired=*/true)];
        }
      }
      part.up = up.data();
    }
    factors.parts = parts;
  }
  Unpaired(const Unpaired&) = delete;

  std::vector<std::vector<uint16_t>> ups;
  std::vector<LowRankPart> parts;
  LowRankFactors factors;
};

// The same as a device with memory of its own is told it: each row's factors in a table of all heads.
class ToldByRow {
 public:
  explicit ToldByRow(LowRankArgs args) : args_(args) {
    std::set<std::pair<int64_t, int64_t>> heads;
    for (const LowRankRun& run : args.runs) heads.emplace(run.x_column, run.out_column);
    LowRankRows& rows = args_.rows;
    rows.num_heads = static_cast<int32_t>(heads.size());
    if (heads.size() > 1) {
      rows.x_head = std::next(heads.begin())->first;
      rows.out_head = std::next(heads.begin())->second;
    }
    // The first of every table is another product's.
    rows.entry = 1;
    tables_.resize(static_cast<size_t>(args.num_rows));
    of_token_.resize(static_cast<size_t>(args.num_rows), nullptr);
    for (const LowRankRun& run : args.runs) {
      const auto head = std::distance(heads.begin(), heads.find({run.x_column, run.out_column}));
      for (int64_t row = run.row; row < run.row + run.num_rows; ++row) {
        std::vector<LowRankFactors>& table = tables_[static_cast<size_t>(row)];
        table.resize(1 + heads.size());
        table[static_cast<size_t>(1 + head)] = unpaired_.try_emplace(run.factors, *run.factors).first->second.factors;
        of_token_[static_cast<size_t>(row)] = table.data();
      }
      int64_t& most = run.factors->replaces ? rows.most_replaced : rows.most_ranks;
      most = std::max<int64_t>(most, run.factors->rank);
    }
    share_tables();
    rows.of_token = of_token_.data();
    args_.runs = {};
  }
  ToldByRow(const ToldByRow&) = delete;
  const LowRankArgs& args() const { return args_; }

 private:
  // Neighbours of one adapter have the same table, as those of one request have.
  void share_tables() {
    const auto is_same = [](const LowRankFactors& a, const LowRankFactors& b) { return a.down == b.down; };
    for (size_t row = 1; row < tables_.size(); ++row) {
      if (of_token_[row] == nullptr || of_token_[row - 1] == nullptr) continue;
      const std::span<const LowRankFactors> before(of_token_[row - 1], tables_[row].size());
      if (std::ranges::equal(tables_[row], before, is_same)) of_token_[row] = of_token_[row - 1];
    }
  }

  LowRankArgs args_;
  std::map<const LowRankFactors*, Unpaired> unpaired_;
  std::vector<std::vector<LowRankFactors>> tables_;
  std::vector<const LowRankFactors*> of_token_;
};

class LowRank : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  void SetUp() override {
    backend_ = testing::make_backend(std::get<0>(GetParam()));
    if (backend_ == nullptr) GTEST_SKIP() << "this machine lacks " << std::get<0>(GetParam());
  }
  DType dtype() const { return std::get<1>(GetParam()); }
  // The runs, as the backend is told of them.
  static void call(Backend& backend, const LowRankArgs& args) {
    if (backend.computes_in_host_memory()) return backend(args);
    backend(ToldByRow(args).args());
  }
  std::unique_ptr<Backend> backend_;
};

TEST_P(LowRank, RowsOfSeveralAdaptersAgreeWithTheReference) {
  Random random(3);
  const auto reference = make_reference_backend();
  for (const LowRankShape& shape : kLowRankShapes) {
    const Adapter first(shape, dtype(), random);
    const Adapter second(shape, dtype(), random, /*embeds=*/false, /*decomposed=*/true);
    constexpr int64_t kRows = 40;
    const std::vector<float> x = random.normals(kRows * shape.in_features);
    const std::vector<float> before = random.normals(kRows * first.out_features);
    const std::vector<LowRankRun> runs = {{&second.factors, 0, 1}, {&first.factors, 2, 17}, {&second.factors, 25, 9}};
    std::vector<float> expected = before;
    std::vector<float> found = before;
    for (auto [backend, out] : {std::pair(reference.get(), &expected), {backend_.get(), &found}}) {
      call(*backend, LowRankArgs{.x = x.data(),
                                 .x_stride = shape.in_features,
                                 .num_rows = kRows,
                                 .runs = runs,
                                 .out = out->data(),
                                 .out_stride = first.out_features,
                                 .out_features = first.out_features});
    }
    EXPECT_LT(largest_difference(found, expected), 2e-5) << shape.in_features;
    EXPECT_GT(largest_difference(found, before), 0.01) << "nothing was added";
    // Rows without a run are as they were.
    for (const int64_t row : {1, 19, 24, 34, 39}) {
      EXPECT_TRUE(same_bits(found.data() + row * first.out_features, before.data() + row * first.out_features,
                            first.out_features))
          << row;
    }
  }
}

// What a device with memory of its own may compute another way, for it is told that there are few runs.
TEST_P(LowRank, LongRunsAgreeWithTheReference) {
  Random random(7);
  const auto reference = make_reference_backend();
  std::vector<LowRankShape> shapes = kLowRankShapes;
  shapes.push_back({72, {40, 40, 20}, {16, 3, 7}, {0, 0, 0}});
  shapes.push_back({72, {48}, {90}, {0}});
  for (const LowRankShape& shape : shapes) {
    const Adapter first(shape, dtype(), random);
    const Adapter second(shape, dtype(), random, /*embeds=*/false, /*decomposed=*/true);
    constexpr int64_t kRows = 111;
    const std::vector<float> x = random.normals(kRows * shape.in_features);
    const std::vector<float> before = random.normals(kRows * first.out_features);
    const std::vector<LowRankRun> runs = {
        {&second.factors, 0, 37}, {&first.factors, 40, 41}, {&second.factors, 81, 29}};
    const LowRankArgs args{.x = x.data(),
                           .x_stride = shape.in_features,
                           .num_rows = kRows,
                           .runs = runs,
                           .out_stride = first.out_features,
                           .out_features = first.out_features};
    LowRankArgs expected_args = args;
    std::vector<float> expected = before;
    expected_args.out = expected.data();
    (*reference)(expected_args);
    std::vector<float> one_by_one = before;
    std::vector<float> found = before;
    if (backend_->computes_in_host_memory()) {
      LowRankArgs own = args;
      own.out = found.data();
      (*backend_)(own);
      EXPECT_LT(largest_difference(found, expected), 2e-5) << shape.in_features;
      continue;
    }
    const ToldByRow told(args);
    for (auto [num_runs, out] : {std::pair(int64_t{0}, &one_by_one), {std::ssize(runs), &found}}) {
      LowRankArgs own = told.args();
      own.rows.num_runs = num_runs;
      own.out = out->data();
      (*backend_)(own);
    }
    EXPECT_LT(largest_difference(found, expected), 2e-4) << shape.in_features;
    EXPECT_LT(largest_difference(one_by_one, expected), 2e-5) << shape.in_features;
    for (const int64_t row : {37, 39, 110}) {
      EXPECT_TRUE(same_bits(found.data() + row * first.out_features, before.data() + row * first.out_features,
                            first.out_features))
          << row;
    }
    // The other way is another: but where nothing is a whole vector, the last bits of some sum differ.
    if (shape.in_features % 4 == 0) {
      EXPECT_FALSE(same_bits(found.data(), one_by_one.data(), std::ssize(found)));
    }
  }
}

TEST_P(LowRank, ARowHasTheSameBitsAloneAndAmongOthers) {
  Random random(4);
  for (const LowRankShape& shape : kLowRankShapes) {
    const Adapter first(shape, dtype(), random);
    const Adapter second(shape, dtype(), random, /*embeds=*/false, /*decomposed=*/true);
    constexpr int64_t kRows = 77;
    const std::vector<float> x = random.normals(kRows * shape.in_features);
    const std::vector<float> before = random.normals(kRows * first.out_features);
    const std::vector<LowRankRun> together = {{&first.factors, 0, 31}, {&second.factors, 31, 46}};
    std::vector<float> all = before;
    const auto add = [&](const std::vector<LowRankRun>& runs, int64_t row, int64_t rows, float* out) {
      call(*backend_, LowRankArgs{.x = x.data() + row * shape.in_features,
                                  .x_stride = shape.in_features,
                                  .num_rows = rows,
                                  .runs = runs,
                                  .out = out,
                                  .out_stride = first.out_features,
                                  .out_features = first.out_features});
    };
    add(together, 0, kRows, all.data());
    for (int64_t row = 0; row < kRows; row += row < 28 ? 5 : row < 34 ? 1 : 7) {
      std::vector<float> alone(before.begin() + row * first.out_features,
                               before.begin() + (row + 1) * first.out_features);
      add({{row < 31 ? &first.factors : &second.factors, 0, 1}}, row, 1, alone.data());
      ASSERT_TRUE(same_bits(alone.data(), all.data() + row * first.out_features, first.out_features))
          << "row " << row << " of " << shape.in_features;
    }
  }
}

TEST_P(LowRank, AnEmbeddingsRowsGetTheColumnsOfTheirIds) {
  Random random(5);
  const auto reference = make_reference_backend();
  const LowRankShape shape{300, {72}, {6}, {0}};
  const Adapter adapter(shape, dtype(), random, /*embeds=*/true);
  const std::vector<TokenId> ids = {299, 0, 7, 7, 150, 3};
  const std::vector<float> before = random.normals(static_cast<int64_t>(ids.size()) * 72);
  std::vector<float> expected = before;
  std::vector<float> found = before;
  const std::vector<LowRankRun> runs = {{&adapter.factors, 0, 3}, {&adapter.factors, 4, 2}};
  for (auto [backend, out] : {std::pair(reference.get(), &expected), {backend_.get(), &found}}) {
    call(*backend, LowRankArgs{.ids = ids.data(),
                               .num_rows = static_cast<int64_t>(ids.size()),
                               .runs = runs,
                               .out = out->data(),
                               .out_stride = 72,
                               .out_features = 72});
  }
  EXPECT_LT(largest_difference(found, expected), 2e-5);
  EXPECT_GT(largest_difference(found, before), 0.01) << "nothing was added";
  EXPECT_TRUE(same_bits(found.data() + 3 * 72, before.data() + 3 * 72, 72));
}

TEST_P(LowRank, AWeightOfItsOwnStandsForTheBases) {
  Random random(6);
  const auto reference = make_reference_backend();
  constexpr int64_t kRows = 5;
  constexpr int32_t kOut = 700;
  constexpr int64_t kIn = 100;
  const std::vector<uint8_t> weight = stored_as(dtype(), random.normals(kOut * kIn, 0.1f));
  const LowRankFactors head{
      .dtype = dtype(), .in_features = kIn, .rank = kOut, .down = weight.data(), .replaces = true};
  const std::vector<float> x = random.normals(kRows * kIn);
  const std::vector<float> before = random.normals(kRows * kOut);
  std::vector<float> expected = before;
  std::vector<float> found = before;
  const auto replace = [&](Backend& backend, std::vector<LowRankRun> runs, float* out) {
    call(backend, LowRankArgs{.x = x.data(),
                              .x_stride = kIn,
                              .num_rows = kRows,
                              .runs = runs,
                              .out = out,
                              .out_stride = kOut,
                              .out_features = kOut});
  };
  replace(*reference, {{&head, 1, 3}}, expected.data());
  replace(*backend_, {{&head, 1, 3}}, found.data());
  EXPECT_LT(largest_difference(found, expected), 2e-5);
  EXPECT_TRUE(same_bits(found.data(), before.data(), kOut));
  EXPECT_TRUE(same_bits(found.data() + 4 * kOut, before.data() + 4 * kOut, kOut));
  std::vector<float> alone = before;
  replace(*backend_, {{&head, 2, 1}}, alone.data());
  EXPECT_TRUE(same_bits(found.data() + 2 * kOut, alone.data() + 2 * kOut, kOut));

  const LowRankFactors table{
      .dtype = dtype(), .in_features = kOut, .rank = kIn, .down = weight.data(), .replaces = true};
  const std::vector<TokenId> ids = {3, 699, 0};
  const std::vector<LowRankRun> runs = {{&table, 0, 2}};
  std::vector<float> rows(3 * kIn, 7.0f);
  call(*backend_,
       LowRankArgs{
           .ids = ids.data(), .num_rows = 3, .runs = runs, .out = rows.data(), .out_stride = kIn, .out_features = kIn});
  for (size_t i = 0; i < kIn; ++i) {
    EXPECT_EQ(rows[i], stored_value(dtype(), weight.data(), 3 * kIn + static_cast<int64_t>(i)));
    EXPECT_EQ(rows[2 * kIn + i], 7.0f);
  }
}

TEST_P(LowRank, SomeRowsOfAWeightStandForTheBases) {
  Random random(8);
  constexpr int64_t kRows = 5;
  constexpr int64_t kIn = 100;
  constexpr int64_t kOut = 700;
  std::vector<int32_t> only;
  for (int32_t id = 3; id < kOut; id += 19) only.push_back(id);
  const auto count = static_cast<int32_t>(only.size());
  const std::vector<uint8_t> weight = stored_as(dtype(), random.normals(count * kIn, 0.1f));
  const LowRankFactors head{
      .dtype = dtype(), .in_features = kIn, .rank = count, .down = weight.data(), .replaces = true, .only = only};
  const std::vector<float> x = random.normals(kRows * kIn);
  const std::vector<float> before = random.normals(kRows * kOut);
  const std::vector<LowRankRun> runs = {{&head, 1, 3}};
  std::vector<float> expected = before;
  std::vector<float> found = before;
  const auto reference = make_reference_backend();
  for (auto [backend, out] : {std::pair(reference.get(), &expected), {backend_.get(), &found}}) {
    call(*backend, LowRankArgs{.x = x.data(),
                               .x_stride = kIn,
                               .num_rows = kRows,
                               .runs = runs,
                               .out = out->data(),
                               .out_stride = kOut,
                               .out_features = kOut});
  }
  EXPECT_LT(largest_difference(found, expected), 2e-5);
  for (int64_t row = 0; row < kRows; ++row) {
    for (int32_t id = 0; id < kOut; ++id) {
      const auto at = static_cast<size_t>(row * kOut + id);
      const bool is_own = row >= 1 && row < 4 && std::ranges::binary_search(only, id);
      ASSERT_EQ(found[at] != before[at], is_own) << row << " " << id;
    }
  }

  const LowRankFactors table{
      .dtype = dtype(), .in_features = kOut, .rank = kIn, .down = weight.data(), .replaces = true, .only = only};
  const std::vector<TokenId> ids = {3, 4, 22, 699, 3};
  const std::vector<LowRankRun> of_ids = {{&table, 0, 4}};
  std::vector<float> rows(ids.size() * kIn, 7.0f);
  call(*backend_, LowRankArgs{.ids = ids.data(),
                              .num_rows = std::ssize(ids),
                              .runs = of_ids,
                              .out = rows.data(),
                              .out_stride = kIn,
                              .out_features = kIn});
  for (size_t i = 0; i < kIn; ++i) {
    const auto at = static_cast<int64_t>(i);
    EXPECT_EQ(rows[i], stored_value(dtype(), weight.data(), at));
    EXPECT_EQ(rows[kIn + i], 7.0f);
    EXPECT_EQ(rows[2 * kIn + i], stored_value(dtype(), weight.data(), kIn + at));
    EXPECT_EQ(rows[3 * kIn + i], 7.0f) << "the last token has no row";
    EXPECT_EQ(rows[4 * kIn + i], 7.0f) << "a row without a run";
  }
}

TEST_P(LowRank, HeadsSideBySideHaveFactorsOfTheirOwn) {
  Random random(7);
  const LowRankShape shape{20, {24}, {5}, {0}};
  constexpr int64_t kHeads = 3;
  constexpr int64_t kRows = 19;
  constexpr int64_t kHeadIn = 23;  // of which a head's factors read the first 20
  constexpr int64_t kHeadOut = 30;
  std::vector<std::unique_ptr<Adapter>> heads;
  std::vector<LowRankRun> runs;
  for (int64_t head = 0; head < kHeads; ++head) {
    heads.push_back(std::make_unique<Adapter>(shape, dtype(), random));
    runs.push_back({&heads.back()->factors, 0, 1, head * kHeadIn, head * kHeadOut});
    runs.push_back({&heads.back()->factors, 3, 16, head * kHeadIn, head * kHeadOut});
  }
  const std::vector<float> x = random.normals(kRows * kHeads * kHeadIn);
  const std::vector<float> before = random.normals(kRows * kHeads * kHeadOut);
  const auto add = [&](Backend& backend, const std::vector<LowRankRun>& some, int64_t x_column, int64_t out_column,
                       std::vector<float>& out) {
    call(backend, LowRankArgs{.x = x.data() + x_column,
                              .x_stride = kHeads * kHeadIn,
                              .num_rows = kRows,
                              .runs = some,
                              .out = out.data() + out_column,
                              .out_stride = kHeads * kHeadOut,
                              .out_features = kHeads * kHeadOut - out_column});
  };
  std::vector<float> together = before;
  add(*backend_, runs, 0, 0, together);
  std::vector<float> expected = before;
  add(*make_reference_backend(), runs, 0, 0, expected);
  EXPECT_LT(largest_difference(together, expected), 2e-5);
  EXPECT_GT(largest_difference(together, before), 0.01) << "nothing was added";
  std::vector<float> one_by_one = before;
  for (const LowRankRun& run : runs)
    add(*backend_, {{run.factors, run.row, run.num_rows}}, run.x_column, run.out_column, one_by_one);
  EXPECT_TRUE(same_bits(together.data(), one_by_one.data(), static_cast<int64_t>(before.size())));
}

// Where the rows of experts begin is the device's to know, and which tokens they are of.
TEST_P(LowRank, RowsOfExpertsFindTheirFactorsOnTheDevice) {
  if (backend_->computes_in_host_memory()) GTEST_SKIP() << "this device is given runs";
  Random random(9);
  const LowRankShape shape{40, {24}, {5}, {0}};
  constexpr int32_t kExperts = 5;
  const std::vector<int32_t> offsets = {0, 0, 70, 70, 71, 90};  // some have no rows
  const std::vector<int32_t> tokens = [&] {
    std::vector<int32_t> all;
    for (int32_t row = 0; row < offsets.back(); ++row) all.push_back(row * 7 % 3);
    return all;
  }();
  std::vector<std::unique_ptr<Adapter>> adapters;
  std::vector<std::vector<LowRankFactors>> tables(2);  // of token 0 and of token 2
  for (std::vector<LowRankFactors>& table : tables) {
    table.resize(2 + kExperts);
    for (size_t expert = 0; expert < kExperts; ++expert) {
      if (expert == 4 && &table == &tables[1]) continue;  // an expert without factors
      adapters.push_back(std::make_unique<Adapter>(shape, dtype(), random));
      table[2 + expert] = adapters.back()->factors;
    }
  }
  std::vector<std::vector<LowRankFactors>> there = tables;
  std::deque<Unpaired> unpaired;
  for (std::vector<LowRankFactors>& table : there) {
    for (LowRankFactors& factors : table) {
      if (factors.rank > 0) factors = unpaired.emplace_back(factors).factors;
    }
  }
  const std::vector<const LowRankFactors*> of_token = {tables[0].data(), nullptr, tables[1].data()};
  const std::vector<const LowRankFactors*> of_token_there = {there[0].data(), nullptr, there[1].data()};
  const int64_t num_rows = offsets.back();
  const std::vector<float> x = random.normals(num_rows * 40);
  const std::vector<float> before = random.normals(num_rows * 24);
  LowRankArgs args{.x = x.data(), .x_stride = 40, .num_rows = num_rows, .out_stride = 24, .out_features = 24};
  std::vector<LowRankRun> runs;
  for (int32_t expert = 0; expert < kExperts; ++expert) {
    for (int32_t row = offsets[static_cast<size_t>(expert)]; row < offsets[static_cast<size_t>(expert) + 1]; ++row) {
      const LowRankFactors* table = of_token[static_cast<size_t>(tokens[static_cast<size_t>(row)])];
      if (table != nullptr && table[2 + expert].rank > 0) runs.push_back({table + 2 + expert, row, 1});
    }
  }
  ASSERT_GT(runs.size(), 50u);
  std::vector<float> expected = before;
  std::vector<float> found = before;
  args.runs = runs;
  args.out = expected.data();
  (*make_reference_backend())(args);
  args.runs = {};
  args.out = found.data();
  args.rows = {.of_token = of_token_there.data(),
               .tokens = tokens.data(),
               .entry = 2,
               .offsets = offsets.data(),
               .num_experts = kExperts,
               .most_ranks = 7};
  (*backend_)(args);
  EXPECT_LT(largest_difference(found, expected), 2e-5);
  EXPECT_GT(largest_difference(found, before), 0.01) << "nothing was added";
}

INSTANTIATE_TEST_SUITE_P(AllSets, LowRank,
                         ::testing::Combine(::testing::ValuesIn(testing::kDevices),
                                            ::testing::Values(DType::kF32, DType::kF16, DType::kBF16)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::string(name(std::get<1>(test.param)));
                         });

}  // namespace
}  // namespace quire::ops
