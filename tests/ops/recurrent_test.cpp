// Ops that read a text into a state: against the reference, and the same bits however a text is cut into runs.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "ops/reference/reference_backend.h"
#include "tests/ops/ops_test_support.h"

namespace quire::ops {
namespace {

using testing::is_card;
using testing::kDevices;
using testing::largest_difference;
using testing::Random;
using testing::same_bits;

constexpr int32_t kStateBlock = 5;
constexpr int32_t kMostDrafts = 3;

// How a text is cut into runs: up to so many tokens each, and with `guesses` up to kMostDrafts draft tokens behind
// them, of which some hold.
struct Cuts {
  int32_t most = 0;
  std::shared_ptr<Random> guesses = nullptr;
};

// Some texts whose states lie in blocks of a pool, in a scattered order, with other bytes between them.
class States {
 public:
  States(std::vector<int32_t> lengths, int64_t size) : lengths_(std::move(lengths)), size_(size) {
    for (const int32_t length : lengths_)
      most_blocks_ = std::max<int64_t>(most_blocks_, (length - 1) / kStateBlock + 1);
    const int64_t num_blocks = most_blocks_ * num_texts();
    for (int64_t i = 0; i < num_blocks; ++i) tables_.push_back(static_cast<BlockId>(i * 11 % num_blocks));
    // 11 and the number of blocks have no common factor.
    QUIRE_CHECK(num_blocks % 11 != 0);
    memory_.assign(static_cast<size_t>(num_blocks * stride()), 1e30F);  // what stood there before
    starts_.assign(1, 0);
    std::partial_sum(lengths_.begin(), lengths_.end(), std::back_inserter(starts_));
  }

  int64_t num_texts() const { return std::ssize(lengths_); }
  int64_t num_tokens() const { return starts_.back(); }
  // Of all texts' tokens, one text behind the other.
  int64_t row_of(int64_t text, int64_t position) const { return starts_[static_cast<size_t>(text)] + position; }
  const std::vector<float>& memory() const { return memory_; }
  // The state behind the last token of a text's block, `size` numbers without those of drafts.
  std::vector<float> state(int64_t text, int64_t block, int64_t size) const {
    const auto begin = memory_.begin() + tables_[static_cast<size_t>(text * most_blocks_ + block)] * stride();
    return {begin, begin + size};
  }

  // Calls step(runs, rows, places) until all tokens are taken; rows: of all tokens those of the step, in its order;
  // places: where what comes of them belongs, -1 of a draft that did not hold.
  template <typename Step>
  void walk(const Cuts& cuts, const Step& step) {
    std::vector<int32_t> done(lengths_.size());
    std::vector<int32_t> held(lengths_.size());
    for (bool any = true; any;) {
      std::vector<int32_t> offsets = {0};
      std::vector<int32_t> contexts;
      std::vector<BlockId> tables;
      std::vector<int32_t> num_drafts;
      std::vector<int32_t> num_replayed;
      std::vector<int64_t> rows;
      std::vector<int64_t> places;
      for (size_t text = 0; text < lengths_.size(); ++text) {
        const int32_t count = std::min(cuts.most, lengths_[text] - done[text]);
        if (count == 0) continue;
        const auto take = [&](int64_t row, bool holds) {
          rows.push_back(holds ? row : (row + 7) % num_tokens());
          places.push_back(holds ? row : -1);
        };
        for (int32_t i = 0; i < count; ++i) take(row_of(static_cast<int64_t>(text), done[text]++), true);
        num_replayed.push_back(std::exchange(held[text], 0));
        const int32_t drafts =
            cuts.guesses == nullptr ? 0 : drafts_behind(done[text] - 1, lengths_[text], *cuts.guesses);
        num_drafts.push_back(drafts);
        if (drafts > 0) held[text] = static_cast<int32_t>(cuts.guesses->between(0, drafts));
        for (int32_t i = 0; i < drafts; ++i) {
          take(row_of(static_cast<int64_t>(text), done[text] + i), i < held[text]);
        }
        offsets.push_back(static_cast<int32_t>(rows.size()));
        contexts.push_back(done[text] + drafts);
        done[text] += held[text];
        const auto table = tables_.begin() + static_cast<int64_t>(text) * most_blocks_;
        tables.insert(tables.end(), table, table + most_blocks_);
      }
      any = !rows.empty();
      if (!any) break;
      const bool guesses = cuts.guesses != nullptr;
      step(StateRuns{.cache = {.states = memory_.data(),
                               .num_blocks = std::ssize(tables_),
                               .block_size = kStateBlock,
                               .size = size_,
                               .most_drafts = kMostDrafts,
                               .stride = stride() * static_cast<int64_t>(sizeof(float))},
                     .num_sequences = static_cast<int32_t>(contexts.size()),
                     .query_offsets = offsets.data(),
                     .context_lengths = contexts.data(),
                     .block_tables = tables.data(),
                     .block_table_stride = most_blocks_,
                     .num_drafts = guesses ? Mirrored<int32_t>(num_drafts.data()) : Mirrored<int32_t>(),
                     .num_replayed = guesses ? Mirrored<int32_t>(num_replayed.data()) : Mirrored<int32_t>()},
           rows, places);
    }
  }

 private:
  int64_t stride() const { return size_ + 3; }
  // In the block of the last token before them, and not at its end; nor is the last token of a text one.
  static int32_t drafts_behind(int32_t last, int32_t length, Random& random) {
    const int32_t most = std::min({kMostDrafts, kStateBlock - 2 - last % kStateBlock, length - last - 2});
    return most < 1 ? 0 : static_cast<int32_t>(random.between(0, most));
  }

  std::vector<int32_t> lengths_;
  int64_t size_;
  int64_t most_blocks_ = 0;
  std::vector<int32_t> starts_;
  std::vector<BlockId> tables_;
  std::vector<float> memory_;
};

std::vector<float> taken_rows(const std::vector<float>& all, const std::vector<int64_t>& rows, int64_t size) {
  std::vector<float> out;
  for (const int64_t row : rows) out.insert(out.end(), all.begin() + row * size, all.begin() + (row + 1) * size);
  return out;
}

void put_rows(const std::vector<float>& some, const std::vector<int64_t>& rows, int64_t size, std::vector<float>& all) {
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0) continue;
    std::copy_n(some.begin() + static_cast<int64_t>(i) * size, size, all.begin() + rows[i] * size);
  }
}

// What came of all tokens, and of the state behind each block of each text.
struct TextOutcome {
  std::vector<float> out;
  std::vector<float> states;

  void add_states(const States& states_of, const std::vector<int32_t>& lengths, int64_t size) {
    for (size_t text = 0; text < lengths.size(); ++text) {
      for (int64_t block = 0; block <= (lengths[text] - 1) / kStateBlock; ++block) {
        const std::vector<float> state = states_of.state(static_cast<int64_t>(text), block, size);
        states.insert(states.end(), state.begin(), state.end());
      }
    }
  }
};

class RecurrentTest : public ::testing::TestWithParam<std::string> {
 protected:
  // `run` makes an outcome with a backend, texts cut as it is told.
  template <typename Run>
  void compare(const Run& run, double tolerance) {
    QUIRE_BACKEND_OR_SKIP(backend, GetParam());
    auto reference = make_reference_backend();
    const TextOutcome expected = run(*reference, Cuts{1000});
    const TextOutcome whole = run(*backend, Cuts{1000});
    EXPECT_LT(largest_difference(whole.out, expected.out), tolerance);
    EXPECT_LT(largest_difference(whole.states, expected.states), tolerance);
    for (const int32_t most : {1, 2, 3, 7}) {
      const TextOutcome cut = run(*backend, Cuts{most});
      EXPECT_EQ(cut.out, whole.out) << "runs of " << most;
      EXPECT_EQ(cut.states, whole.states) << "runs of " << most;
      if (is_card(GetParam())) break;
    }
    for (const int32_t most : {1, 2}) {
      const TextOutcome drafted = run(*backend, Cuts{most, std::make_shared<Random>(74)});
      EXPECT_EQ(drafted.out, whole.out) << "runs of " << most << " and drafts";
      EXPECT_EQ(drafted.states, whole.states) << "runs of " << most << " and drafts";
      if (is_card(GetParam())) break;
    }
    const TextOutcome drafted = run(*reference, Cuts{1, std::make_shared<Random>(75)});
    EXPECT_EQ(drafted.out, expected.out);
    EXPECT_EQ(drafted.states, expected.states);
  }
};

const std::vector<int32_t> kTextLengths = {1, 5, 13, 31};

TEST_P(RecurrentTest, AConvolutionGoesOnFromTheInputsBefore) {
  Random random(71);
  for (const int64_t channels : {1, 8, 19, 600}) {
    for (const int32_t kernel : {2, 3, 4, 7}) {
      SCOPED_TRACE(::testing::Message() << channels << " channels, kernel " << kernel);
      const bool silu = kernel != 3;
      const std::vector<float> in = random.normals(50 * channels);
      const std::vector<float> weight = random.normals(kernel * channels);
      const std::vector<float> bias = random.normals(channels);
      compare(
          [&](Backend& backend, const Cuts& cuts) {
            constexpr int64_t kOffset = 2;  // something else stands in front of it
            const int64_t size = (kernel - 1) * channels + kOffset;
            States states(kTextLengths, size + kMostDrafts * channels);
            TextOutcome outcome;
            outcome.out.resize(in.size());
            states.walk(
                cuts, [&](const StateRuns& runs, const std::vector<int64_t>& rows, const std::vector<int64_t>& places) {
                  const std::vector<float> some = taken_rows(in, rows, channels);
                  std::vector<float> out(some.size());
                  backend(ShortConvArgs{.runs = runs,
                                        .state_offset = kOffset,
                                        .in = some.data(),
                                        .in_stride = channels,
                                        .num_tokens = std::ssize(rows),
                                        .num_channels = channels,
                                        .kernel = kernel,
                                        .weight = weight.data(),
                                        .bias = kernel == 4 ? nullptr : bias.data(),
                                        .silu = silu,
                                        .out = out.data(),
                                        .out_stride = channels});
                  backend.synchronise();
                  put_rows(out, places, channels, outcome.out);
                });
            outcome.add_states(states, kTextLengths, size);
            return outcome;
          },
          1e-5);
    }
  }
}

TEST_P(RecurrentTest, ARecurrenceGoesOnFromItsState) {
  struct Sizes {
    int32_t key_heads;
    int32_t value_heads;
    int32_t key_dim;
    int32_t value_dim;
  };
  Random random(72);
  for (const Sizes& sizes :
       {Sizes{1, 1, 1, 1}, Sizes{2, 4, 8, 12}, Sizes{1, 3, 33, 70}, Sizes{2, 2, 128, 128}, Sizes{1, 2, 200, 35}}) {
    for (const bool corrects : {true, false}) {
      SCOPED_TRACE(::testing::Message() << "delta rule " << corrects << ", " << sizes.key_heads << " key heads of "
                                        << sizes.key_dim << ", " << sizes.value_heads << " value heads of "
                                        << sizes.value_dim);
      const int64_t keys = int64_t{sizes.key_heads} * sizes.key_dim;
      const int64_t values = int64_t{sizes.value_heads} * sizes.value_dim;
      const int64_t width = 2 * keys + values;
      const std::vector<float> heads = random.normals(50 * width);
      const std::vector<float> gates = random.normals(int64_t{50} * 2 * sizes.value_heads, 2.0F);
      std::vector<float> rates = random.normals(sizes.value_heads);
      for (float& rate : rates) rate = -0.02F - 0.3F * rate * rate;
      const std::vector<float> biases = random.normals(sizes.value_heads);
      const std::vector<float> skips = random.normals(sizes.value_heads);
      compare(
          [&](Backend& backend, const Cuts& cuts) {
            constexpr int64_t kOffset = 4;
            const int64_t size = sizes.value_heads * int64_t{sizes.key_dim} * sizes.value_dim + kOffset;
            States states(kTextLengths, size + kMostDrafts * (keys + values + 2 * sizes.value_heads));
            TextOutcome outcome;
            outcome.out.resize(static_cast<size_t>(50 * values));
            states.walk(
                cuts, [&](const StateRuns& runs, const std::vector<int64_t>& rows, const std::vector<int64_t>& places) {
                  const std::vector<float> some = taken_rows(heads, rows, width);
                  const std::vector<float> own_gates = taken_rows(gates, rows, 2 * sizes.value_heads);
                  std::vector<float> out(rows.size() * static_cast<size_t>(values));
                  backend(RecurrenceArgs{.runs = runs,
                                         .state_offset = kOffset,
                                         .num_tokens = std::ssize(rows),
                                         .num_key_heads = sizes.key_heads,
                                         .num_value_heads = sizes.value_heads,
                                         .key_dim = sizes.key_dim,
                                         .value_dim = sizes.value_dim,
                                         .heads_in_turns = sizes.key_dim == 8,
                                         .queries = some.data(),
                                         .keys = some.data() + keys,
                                         .values = some.data() + 2 * keys,
                                         .token_stride = width,
                                         .updates = corrects ? own_gates.data() : nullptr,
                                         .most_update = sizes.key_dim == 33 ? 2.0F : 1.0F,
                                         .decays = own_gates.data() + sizes.value_heads,
                                         .gate_stride = 2 * sizes.value_heads,
                                         .rates = rates.data(),
                                         .decay_biases = biases.data(),
                                         .least_step = corrects ? 0.0F : 0.1F,
                                         .most_step = corrects ? std::numeric_limits<float>::infinity() : 1.5F,
                                         .normalises = corrects,
                                         .scale = 0.3F,
                                         .skips = corrects ? nullptr : skips.data(),
                                         .out = out.data()});
                  backend.synchronise();
                  put_rows(out, places, values, outcome.out);
                });
            outcome.add_states(states, kTextLengths, size);
            return outcome;
          },
          2e-5);
    }
  }
}

TEST_P(RecurrentTest, GatesOfAllTokensMayBeTheSame) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  Random random(74);
  constexpr int64_t kSize = 37;
  constexpr int64_t kTokens = 5;
  const std::vector<float> factors = random.normals(kSize);
  std::vector<float> values = random.normals(kTokens * kSize);
  std::vector<float> expected = values;
  for (size_t i = 0; i < expected.size(); ++i) expected[i] *= factors[i % kSize];
  (*backend)(GateArgs{.function = Activation::kIdentity,
                      .gates = factors.data(),
                      .values = values.data(),
                      .value_stride = kSize,
                      .num_tokens = kTokens,
                      .size = kSize});
  backend->synchronise();
  EXPECT_EQ(values, expected);
}

TEST_P(RecurrentTest, GatesTakeTheirPartOfStridedRows) {
  QUIRE_BACKEND_OR_SKIP(backend, GetParam());
  auto reference = make_reference_backend();
  Random random(73);
  for (const Activation function : {Activation::kSigmoid, Activation::kSilu, Activation::kIdentity}) {
    for (const int64_t size : {1, 16, 37}) {
      const int64_t stride = size + 3;
      const std::vector<float> gates = random.normals(9 * stride, 3.0F);
      const std::vector<float> before = random.normals(9 * stride);
      std::vector<std::vector<float>> values;
      for (Backend* each : {backend.get(), reference.get()}) {
        values.push_back(before);
        (*each)(GateArgs{.function = function,
                         .gates = gates.data(),
                         .gate_stride = stride,
                         .values = values.back().data(),
                         .value_stride = stride,
                         .num_tokens = 9,
                         .size = size});
        each->synchronise();
      }
      EXPECT_LT(largest_difference(values[0], values[1]), 2e-6) << size;
      for (int64_t t = 0; t < 9; ++t) {
        EXPECT_TRUE(same_bits(values[0].data() + t * stride + size, before.data() + t * stride + size, 3));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllDevices, RecurrentTest, ::testing::ValuesIn(kDevices),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace quire::ops
