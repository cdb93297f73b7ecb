// Logits that are changed, and looked at, on the device.
#include "ops/edit_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "ops/top_logprobs.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

// --- what the definitions say, by hand

TEST(EditLogits, ChangesALogitStepByStep) {
  const auto edited = [](float logit, const LogitEdit& edit) {
    edit_logits(&logit, 1, &edit, 1, nullptr, &logit);
    return logit;
  };
  EXPECT_EQ(edited(3, {}), 3.0f);
  EXPECT_EQ(edited(3, {.bias = -5}), -2.0f);
  EXPECT_EQ(edited(3, {.repetition = 2}), 1.5f);
  EXPECT_EQ(edited(-3, {.repetition = 2}), -6.0f);
  EXPECT_EQ(edited(3, {.bias = -5, .repetition = 2}), -4.0f);
  EXPECT_EQ(edited(3, {.bias = 1, .repetition = 2, .frequency = 0.5f, .presence = 0.25f}), 1.25f);
  // A ban needs no number to be one.
  for (const float logit : {1.0f, -kInf, kInf, kNaN}) EXPECT_EQ(edited(logit, {.bias = -kInf, .repetition = 2}), -kInf);
  // Divided by next to nothing a number stays one.
  EXPECT_EQ(edited(3, {.repetition = 1e-40f}), kLargest);
  EXPECT_EQ(edited(kInf, {.repetition = 2}), kInf);
  EXPECT_EQ(edited(-kInf, {.bias = 3, .repetition = 2, .frequency = -1}), -kInf);
}

TEST(EditLogits, LeavesWhatAMaskAllows) {
  std::vector<float> logits(34, 1.0f);
  const uint32_t mask[2] = {0x80000001u, 2u};
  const LogitEdit edits[] = {{.token = 31, .bias = 2}, {.token = 5, .bias = 2}};
  edit_logits(logits.data(), 34, edits, 2, mask, logits.data());
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_EQ(logits[i], i == 0 || i == 33 ? 1.0f : i == 31 ? 3.0f : -kInf) << i;
  }
}

TEST(TopLogprobs, RanksAndSharesByHand) {
  // Shares 1/8, 1/2, 1/8, 0, 1/4.
  const std::vector<float> row = {std::log(1.0f), std::log(4.0f), std::log(1.0f), -kInf, std::log(2.0f)};
  RankedToken out[7];
  top_logprobs(row.data(), 5, 6, 2, out);
  const auto expect = [](const RankedToken& one, int32_t token, int32_t rank, double share) {
    EXPECT_EQ(one.token, token);
    EXPECT_EQ(one.rank, rank);
    EXPECT_NEAR(one.logprob, share > 0 ? std::log(share) : 0, 1e-6);
  };
  expect(out[0], 2, 3, 0.125);
  expect(out[1], 1, 1, 0.5);
  expect(out[2], 4, 2, 0.25);
  expect(out[3], 0, 3, 0.125);  // two that are equal are both third
  expect(out[4], 2, 3, 0.125);
  expect(out[5], -1, 0, 0);  // of no share
  expect(out[6], -1, 0, 0);
  top_logprobs(row.data(), 5, 0, 3, out);
  EXPECT_EQ(out[0].token, 3);
  EXPECT_EQ(out[0].rank, 5);
  EXPECT_EQ(out[0].logprob, -kInf);
  top_logprobs(row.data(), 5, 1, -1, out);
  expect(out[0], -1, 0, 0);
  expect(out[1], 1, 1, 0.5);
  for (const float bad : {kNaN, kInf}) {
    std::vector<float> spoilt = row;
    spoilt[3] = bad;
    top_logprobs(spoilt.data(), 5, 1, 2, out);
    expect(out[0], -1, 0, 0);
    expect(out[1], -1, 0, 0);
  }
}

// --- every backend

class EditLogitsTest : public ::testing::TestWithParam<std::string> {};

float awkward_logit(Random& random) {
  switch (random.between(0, 9)) {
    case 0:
      return -kInf;
    case 1:
      return static_cast<float>(random.between(-2, 2));  // many that are equal, 0 among them
    case 2:
      return -0.0f;
    default:
      return 4 * random.normal();
  }
}

// To the bit, but that a NaN is a NaN.
void expect_same(const std::vector<float>& out, const std::vector<float>& expected) {
  for (size_t i = 0; i < out.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(out[i])) continue;
    EXPECT_TRUE(same_bits(&out[i], &expected[i], 1)) << i << ": " << out[i] << ", expected " << expected[i];
  }
}

std::vector<float> awkward_rows(Random& random, int64_t rows, int64_t size) {
  std::vector<float> in(static_cast<size_t>(rows * size));
  std::ranges::generate(in, [&] { return awkward_logit(random); });
  return in;
}

LogitEdit any_edit(Random& random, int32_t token) {
  const auto sometimes = [&](float value, float otherwise) { return random.between(0, 2) == 0 ? value : otherwise; };
  return {.token = token,
          .bias = sometimes(-kInf, sometimes(10 * random.normal(), 0)),
          .repetition = sometimes(std::exp(random.normal()), sometimes(1e-40f, 1)),
          .frequency = sometimes(random.normal(), 0),
          .presence = sometimes(random.normal(), 0)};
}

TEST_P(EditLogitsTest, EditsBitForBitAsTheReference) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  for (const int64_t size : {1, 31, 33, 1024, 2500}) {
    constexpr int64_t kRows = 12;
    std::vector<float> in = awkward_rows(random, kRows, size);
    in[static_cast<size_t>(size - 1)] = kNaN;
    in[static_cast<size_t>(2 * size - 1)] = kInf;
    const int64_t words = (size + 31) / 32 + size % 2;
    std::vector<uint32_t> masks;
    std::vector<RowEdits> rows(kRows);
    std::vector<LogitEdit> edits;
    for (int64_t t = 0; t < kRows; ++t) {
      RowEdits& row = rows[static_cast<size_t>(t)];
      row.first_edit = static_cast<int32_t>(edits.size());
      if (t % 3 != 0) {
        for (int32_t token = 0; token < size; ++token) {
          if (random.between(0, 3) == 0) edits.push_back(any_edit(random, token));
        }
        std::shuffle(edits.begin() + row.first_edit, edits.end(), std::mt19937(7));
      }
      row.num_edits = static_cast<int32_t>(edits.size()) - row.first_edit;
      if (t % 4 < 2) continue;
      row.mask = static_cast<int32_t>(static_cast<int64_t>(masks.size()) / words);
      for (int64_t w = 0; w < words; ++w) {
        masks.push_back(t == 2 ? 0 : static_cast<uint32_t>(random.between(0, 0xffffffff)));
      }
    }
    std::vector<float> expected(in.size());
    for (int64_t t = 0; t < kRows; ++t) {
      const RowEdits& row = rows[static_cast<size_t>(t)];
      edit_logits(in.data() + t * size, size, edits.data() + row.first_edit, row.num_edits,
                  row.mask < 0 ? nullptr : masks.data() + row.mask * words, expected.data() + t * size);
    }
    EditLogitsArgs args{.in = in.data(),
                        .num_rows = kRows,
                        .size = size,
                        .rows = rows.data(),
                        .edits = edits.data(),
                        .masks = masks.data(),
                        .mask_words = words};
    std::vector<float> out(in.size(), 77.0f);
    args.out = out.data();
    (*backend)(args);
    SCOPED_TRACE(::testing::Message() << "size " << size);
    expect_same(out, expected);
    args.out = in.data();
    (*backend)(args);
    expect_same(in, expected);
  }
}

TEST_P(EditLogitsTest, RowsWithoutEditsAreCopied) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  const std::vector<float> in = {1, -kInf, 3, 4, kNaN, 6};
  std::vector<float> out(in.size());
  const RowEdits rows[2];
  (*backend)(EditLogitsArgs{.in = in.data(), .num_rows = 2, .size = 3, .rows = rows, .out = out.data()});
  expect_same(out, in);
}

TEST_P(EditLogitsTest, LogprobsAreTheReferences) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  for (const int64_t size : {1, 5, 40, 1025, 5003}) {
    constexpr int64_t kRows = 12;
    std::vector<float> in = awkward_rows(random, kRows, size);
    for (int64_t t = 0; t < kRows; ++t) {
      float* row = in.data() + t * size;
      if (t == 2) row[size / 2] = kNaN;
      if (t == 3) row[size - 1] = kInf;
      if (t == 4) std::fill_n(row, size, -kInf);
      if (t == 5) std::fill_n(row, size, -7.0f);
      // All of the likeliest in the hands of one thread.
      if (t == 6)
        for (int64_t i = 0; i < size; ++i) row[i] = i % 1024 == 3 ? 5 + static_cast<float>(i) / 8192 : 0.0f;
    }
    std::vector<RowLogprobs> rows(kRows);
    std::vector<int32_t> chosen(kRows);
    int32_t end = 0;
    for (int64_t t = 0; t < kRows; ++t) {
      RowLogprobs& row = rows[static_cast<size_t>(t)];
      row.num_top = t == 7 ? -1 : t % 3 == 0 ? kMostTopLogprobs : static_cast<int32_t>(random.between(0, 6));
      row.token = t % 4 == 0 ? static_cast<int32_t>(random.between(0, size - 1)) : -1;
      row.first_rank = end;
      end += 1 + std::max(row.num_top, 0);
      chosen[static_cast<size_t>(t)] = t % 4 == 1 ? -1 : static_cast<int32_t>(random.between(0, size - 1));
    }
    const std::vector<RankedToken> untouched(static_cast<size_t>(end), {77, 77, 77});
    std::vector<RankedToken> out = untouched;
    std::vector<RankedToken> expected = untouched;
    TopLogprobsArgs args{.in = in.data(),
                         .num_rows = kRows,
                         .size = size,
                         .rows = rows.data(),
                         .chosen = chosen.data(),
                         .out = expected.data()};
    for (int64_t t = 0; t < kRows; ++t) top_logprobs(args, t);
    args.out = out.data();
    (*backend)(args);
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i].token, expected[i].token) << "size " << size << ", place " << i;
      EXPECT_EQ(out[i].rank, expected[i].rank) << "size " << size << ", place " << i;
      if (expected[i].logprob == -kInf) {
        EXPECT_EQ(out[i].logprob, -kInf);
      } else {
        EXPECT_NEAR(out[i].logprob, expected[i].logprob, 2e-5) << "size " << size << ", place " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EditLogitsTest, ::testing::ValuesIn(kDevices),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::ops::testing
