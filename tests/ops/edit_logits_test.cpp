// Logits that are changed, and looked at, on the device.
#include "ops/edit_logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "ops/top_logprobs.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops::testing {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();

// --- what the definitions say, by hand

struct Seen {
  float repetition = 1;
  int32_t output_count = 1;
  float frequency = 0;
  float presence = 0;
};

float edited(float logit, float bias, std::optional<Seen> seen = {}) {
  const LogitEdit edit = {.bias = bias};
  ListedToken list[] = {{.token = seen ? 1 : 0}, {}};
  RowEdits row = {.num_edits = 1, .list = 0, .list_room = 2};
  if (seen) {
    list[1].value = seen->output_count;
    row.repetition = seen->repetition;
    row.frequency = seen->frequency;
    row.presence = seen->presence;
  }
  const EditLogitsArgs args = {.in = &logit,
                               .num_rows = 1,
                               .size = 1,
                               .rows = &row,
                               .edits = &edit,
                               .lists = list,
                               .lists_size = 2,
                               .out = &logit};
  check(args);
  edit_logits(args, 0);
  return logit;
}

TEST(EditLogits, ChangesALogitStepByStep) {
  EXPECT_EQ(edited(3, 0), 3.0f);
  EXPECT_EQ(edited(3, -5), -2.0f);
  EXPECT_EQ(edited(3, 0, {{.repetition = 2}}), 1.5f);
  EXPECT_EQ(edited(-3, 0, {{.repetition = 2}}), -6.0f);
  EXPECT_EQ(edited(3, -5, {{.repetition = 2}}), -4.0f);
  EXPECT_EQ(edited(3, 1, {{.repetition = 2, .output_count = 1, .frequency = 0.5f, .presence = 0.25f}}), 1.25f);
  EXPECT_EQ(edited(3, 1, {{.repetition = 2, .output_count = 2, .frequency = 0.5f, .presence = 0.25f}}), 0.75f);
  EXPECT_EQ(edited(3, 1, {{.repetition = 2, .output_count = 0, .frequency = 0.5f, .presence = 0.25f}}), 2.0f);
  // A ban needs no number to be one.
  for (const float logit : {1.0f, -kInf, kInf, kNaN}) EXPECT_EQ(edited(logit, kBanned, {{.repetition = 2}}), -kInf);
  // Divided by next to nothing a number stays one.
  EXPECT_EQ(edited(3, 0, {{.repetition = 1e-40f}}), kLargest);
  EXPECT_EQ(edited(kInf, 0, {{.repetition = 2}}), kInf);
  EXPECT_EQ(edited(-kInf, 3, {{.repetition = 2, .frequency = -1}}), -kInf);
}

TEST(EditLogits, LeavesWhatAMaskAllows) {
  std::vector<float> logits(34, 1.0f);
  const uint32_t mask[2] = {0x80000001u, 2u};
  const LogitEdit edits[] = {{.token = 31, .bias = 2}, {.token = 5, .bias = 2}};
  const RowEdits row = {.num_edits = 2, .mask = 0};
  edit_logits({.in = logits.data(),
               .num_rows = 1,
               .size = 34,
               .rows = &row,
               .edits = edits,
               .masks = mask,
               .mask_words = 2,
               .out = logits.data()},
              0);
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

float sometimes(Random& random, float value, float otherwise) {
  return random.between(0, 2) == 0 ? value : otherwise;
}

float any_bias(Random& random) {
  return sometimes(random, kBanned, sometimes(random, 10 * random.normal(), 0));
}

// Rows with all kinds of edits, lists and masks, and what belongs to them.
struct Edits {
  std::vector<RowEdits> rows;
  std::vector<LogitEdit> edits;
  std::vector<uint32_t> masks;
  std::vector<ListedToken> lists;
  std::vector<int32_t> drawn = {-1, 0};
  int64_t mask_words = 0;

  EditLogitsArgs args(int64_t size) {
    return {.num_rows = static_cast<int64_t>(rows.size()),
            .size = size,
            .rows = rows.data(),
            .edits = edits.data(),
            .masks = masks.data(),
            .mask_words = mask_words,
            .lists = lists.data(),
            .lists_size = static_cast<int64_t>(lists.size()),
            .drawn = drawn.data()};
  }
};

void add_list(Random& random, int64_t t, int64_t size, Edits& all) {
  RowEdits& row = all.rows[static_cast<size_t>(t)];
  row.list = static_cast<int32_t>(all.lists.size());
  row.repetition = sometimes(random, std::exp(random.normal()), sometimes(random, 1e-40f, 1));
  row.frequency = sometimes(random, random.normal(), 0);
  row.presence = sometimes(random, random.normal(), 0);
  std::vector<ListedToken> biases;
  std::vector<ListedToken> seen;
  for (int32_t token = 0; token < size; ++token) {
    if (random.between(0, 3) == 0) biases.push_back({token, std::bit_cast<int32_t>(any_bias(random))});
    if (random.between(0, 3) == 0) seen.push_back({token, static_cast<int32_t>(random.between(0, 9))});
  }
  std::shuffle(seen.begin(), seen.end(), std::mt19937(7));
  all.lists.push_back({static_cast<int32_t>(seen.size()), static_cast<int32_t>(biases.size())});
  all.lists.insert(all.lists.end(), biases.begin(), biases.end());
  all.lists.insert(all.lists.end(), seen.begin(), seen.end());
  // Room for one more, or none.
  if (t % 5 != 0) all.lists.push_back({77, 77});
  row.list_room = static_cast<int32_t>(all.lists.size()) - row.list;
  const auto token = static_cast<int32_t>(random.between(0, size - 1));
  if (t % 6 == 1) row.new_token = token;
  if (t % 6 == 2 && !seen.empty()) row.new_token = seen.back().token;
  if (t % 6 == 3) row.new_drawn = 0;  // there is none
  if (t % 6 == 4) {
    row.new_drawn = static_cast<int32_t>(all.drawn.size());
    all.drawn.push_back(token);
  }
}

Edits any_edits(Random& random, int64_t num_rows, int64_t size) {
  Edits all;
  all.rows.resize(static_cast<size_t>(num_rows));
  all.mask_words = (size + 31) / 32 + size % 2;
  for (int64_t t = 0; t < num_rows; ++t) {
    RowEdits& row = all.rows[static_cast<size_t>(t)];
    row.first_edit = static_cast<int32_t>(all.edits.size());
    for (int32_t token = 0; token < size && t % 3 != 0; ++token) {
      if (random.between(0, 3) == 0) all.edits.push_back({token, any_bias(random)});
    }
    std::shuffle(all.edits.begin() + row.first_edit, all.edits.end(), std::mt19937(7));
    row.num_edits = static_cast<int32_t>(all.edits.size()) - row.first_edit;
    if (t % 8 != 7) add_list(random, t, size, all);
    if (t % 4 < 2) continue;
    row.mask = static_cast<int32_t>(static_cast<int64_t>(all.masks.size()) / all.mask_words);
    for (int64_t w = 0; w < all.mask_words; ++w) {
      all.masks.push_back(t == 2 ? 0 : static_cast<uint32_t>(random.between(0, 0xffffffff)));
    }
  }
  return all;
}

TEST_P(EditLogitsTest, EditsBitForBitAsTheReference) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  for (const int64_t size : {1, 31, 33, 1024, 2500}) {
    SCOPED_TRACE(::testing::Message() << "size " << size);
    constexpr int64_t kRows = 24;
    std::vector<float> in = awkward_rows(random, kRows, size);
    in[static_cast<size_t>(size - 1)] = kNaN;
    in[static_cast<size_t>(2 * size - 1)] = kInf;
    Edits edits = any_edits(random, kRows, size);
    Edits same = edits;
    std::vector<float> expected(in.size());
    std::vector<float> out(in.size(), 77.0f);
    // Twice, as two steps: lists are what the first left, and logits may be edited where they are.
    for (const bool in_place : {false, true}) {
      EditLogitsArgs reference = same.args(size);
      reference.in = in.data();
      reference.out = expected.data();
      for (int64_t t = 0; t < kRows; ++t) edit_logits(reference, t);
      EditLogitsArgs args = edits.args(size);
      args.in = in.data();
      args.out = in_place ? in.data() : out.data();
      (*backend)(args);
      expect_same(in_place ? in : out, expected);
      for (size_t i = 0; i < same.lists.size(); ++i) {
        ASSERT_EQ(edits.lists[i].token, same.lists[i].token) << i;
        ASSERT_EQ(edits.lists[i].value, same.lists[i].value) << i;
      }
    }
  }
}

TEST_P(EditLogitsTest, CountsANewTokenOnceAndLeavesOutWhatHasNoRoom) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  std::vector<ListedToken> list = {{1, 0}, {4, 0}, {0, 0}};
  // All on the heap, which a card reaches in tests; no stack is a card's.
  const std::vector<int32_t> drawn = {9, 4};
  const auto step = [&](int32_t new_token, int32_t new_drawn) {
    std::vector<float> logits(12, 8.0f);
    const std::vector<RowEdits> row = {{.list = 0,
                                        .list_room = 3,
                                        .new_token = new_token,
                                        .new_drawn = new_drawn,
                                        .repetition = 2,
                                        .frequency = 1,
                                        .presence = 0.5f}};
    (*backend)(EditLogitsArgs{.in = logits.data(),
                              .num_rows = 1,
                              .size = 12,
                              .rows = row.data(),
                              .lists = list.data(),
                              .lists_size = 3,
                              .drawn = drawn.data(),
                              .out = logits.data()});
    return logits;
  };
  EXPECT_EQ(step(-1, -1)[4], 4.0f) << "of the prompt";
  EXPECT_EQ(step(-1, 1)[4], 2.5f) << "drawn";
  EXPECT_EQ(step(4, -1)[4], 1.5f) << "once more";
  EXPECT_EQ(step(-1, 0)[9], 2.5f) << "for the first time";
  EXPECT_EQ(step(11, -1)[11], 8.0f) << "there is no room";
  EXPECT_EQ(list[0].token, 2);
  EXPECT_EQ(list[1].value, 2);
  EXPECT_EQ(list[2].value, 1);
}

TEST_P(EditLogitsTest, RowsWithoutEditsAreCopied) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  const std::vector<float> in = {1, -kInf, 3, 4, kNaN, 6};
  std::vector<float> out(in.size());
  const std::vector<RowEdits> rows(2);
  (*backend)(EditLogitsArgs{.in = in.data(), .num_rows = 2, .size = 3, .rows = rows.data(), .out = out.data()});
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
