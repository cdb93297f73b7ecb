// Lists of biases and seen tokens that stay on the device: what goes up, and that it is what the samplers know.
#include "runner/edit_lists.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "ops/reference/reference_backend.h"

namespace quire::runner {
namespace {

constexpr int64_t kListedVocabulary = 5000;
constexpr int64_t kMostListedTokens = 3000;  // of a sequence
constexpr int64_t kEditedRows = 4;

sampling::SequenceSampler listing_sampler(const SamplingParams& params, const std::vector<TokenId>& prompt) {
  return {std::make_shared<const SamplingParams>(params), prompt, 1, kListedVocabulary, {2}};
}

class EditListsTest : public testing::Test {
 protected:
  explicit EditListsTest(int64_t max_num_seqs = kEditedRows)
      : lists_(*backend_, {.vocab_size = kListedVocabulary,
                           .max_model_len = kMostListedTokens,
                           .max_num_seqs = max_num_seqs,
                           .max_rows = kEditedRows}) {
    EXPECT_TRUE(lists_.has_memory());
  }

  // As of a row that is edited now; the op that counts what it is told.
  void edit(SequenceId id, const sampling::SequenceSampler& sampler, TokenId last, TokenId drawn = kNoToken) {
    ops::RowEdits row;
    lists_.add(id, sampler, last, drawn == kNoToken ? -1 : 0, row);
    std::vector<float> logits(kListedVocabulary, 1.0f);
    ops::EditLogitsArgs args{.in = logits.data(),
                             .num_rows = 1,
                             .size = kListedVocabulary,
                             .rows = &row,
                             .lists = lists_.device(),
                             .lists_size = lists_.size(),
                             .drawn = &drawn,
                             .out = logits.data()};
    (*backend_)(args);
    row_ = row;
  }
  // What the device has for the row that was edited last, beside what the sampler would send anew.
  void expect_list_of(const sampling::SequenceSampler& sampler) {
    std::vector<ops::ListedToken> expected;
    sampler.make_list(expected);
    const ops::ListedToken* list = lists_.device() + row_.list;
    ASSERT_EQ(list->token, expected.front().token);
    ASSERT_EQ(list->value, expected.front().value);
    const auto sorted = [](const ops::ListedToken* first, size_t count) {
      std::map<int32_t, int32_t> values;
      for (size_t i = 0; i < count; ++i) values[first[i].token] = first[i].value;
      return values;
    };
    const auto num_biases = static_cast<size_t>(list->value);
    const auto num_seen = static_cast<size_t>(list->token);
    EXPECT_EQ(sorted(list + 1, num_biases), sorted(expected.data() + 1, num_biases));
    EXPECT_EQ(sorted(list + 1 + num_biases, num_seen), sorted(expected.data() + 1 + num_biases, num_seen));
  }

  std::unique_ptr<ops::Backend> backend_ = ops::make_reference_backend();
  EditLists lists_;
  ops::RowEdits row_;
};

std::vector<TokenId> tokens_up_to(TokenId end) {
  std::vector<TokenId> ids;
  for (TokenId id = 0; id < end; ++id) ids.push_back(id);
  return ids;
}

TEST_F(EditListsTest, AListGoesUpOnceAndThenATokenAtATime) {
  auto sampler =
      listing_sampler({.repetition_penalty = 1.1f, .logit_bias = {{4000, 1.0f}, {3, -2.0f}}}, tokens_up_to(100));
  lists_.begin();
  edit(1, sampler, 99);
  EXPECT_EQ(row_.new_token, -1);
  EXPECT_EQ(lists_.bytes_uploaded(), static_cast<int64_t>((1 + 2 + 100) * sizeof(ops::ListedToken)));
  for (const TokenId token : {7, 8, 4500, 4500, 7}) {
    sampler.accept(token);
    lists_.begin();
    edit(1, sampler, token);
    EXPECT_EQ(row_.new_token, token);
    expect_list_of(sampler);
  }
  EXPECT_EQ(lists_.num_uploaded(), 1);
}

TEST_F(EditListsTest, ATokenThatTheDeviceHasDrawnIsCountedBeforeTheHostKnowsIt) {
  auto sampler = listing_sampler({.frequency_penalty = 0.5f}, tokens_up_to(10));
  TokenId last = 9;
  for (const TokenId token : {30, 31, 30, 4999}) {
    lists_.begin();
    edit(1, sampler, last, token);
    sampler.accept(token);  // what the host learns while the next step is under way
    last = token;
    expect_list_of(sampler);
  }
  // The next is planned when all is known: it has been counted.
  lists_.begin();
  edit(1, sampler, last);
  EXPECT_EQ(row_.new_token, -1);
  expect_list_of(sampler);
  EXPECT_EQ(lists_.num_uploaded(), 1);
}

TEST_F(EditListsTest, WhoHasMissedTokensIsToldAll) {
  auto sampler = listing_sampler({.presence_penalty = 0.5f}, {});
  lists_.begin();
  edit(1, sampler, kNoToken);
  sampler.accept(5);
  sampler.accept(6);
  lists_.begin();
  edit(1, sampler, 6);
  EXPECT_EQ(lists_.num_uploaded(), 2);
  expect_list_of(sampler);
}

TEST_F(EditListsTest, AListThatHasOutgrownItsPlaceGetsALargerOne) {
  auto sampler = listing_sampler({.repetition_penalty = 1.1f}, {});
  lists_.begin();
  edit(1, sampler, kNoToken);
  for (TokenId token = 0; token < kMostListedTokens; ++token) {
    sampler.accept(token);
    lists_.begin();
    edit(1, sampler, token);
    if (token % 500 == 0) expect_list_of(sampler);
  }
  expect_list_of(sampler);
  EXPECT_LE(lists_.num_uploaded(), 6) << "each twice as large as the one before";
}

TEST_F(EditListsTest, TheLongestListsOfAStepFitWhateverElseIsHeld) {
  SamplingParams params{.repetition_penalty = 1.2f};
  for (TokenId id = 0; id < ops::kMostListedBiases; ++id) params.logit_bias.emplace_back(id, 1.0f);
  const auto longest = listing_sampler(params, tokens_up_to(kMostListedTokens));
  const auto shortest = listing_sampler({.repetition_penalty = 1.2f}, tokens_up_to(3));
  SequenceId next = 1;
  lists_.begin();
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 3 + round; ++i) {
      lists_.begin();
      edit(next++, shortest, 2);
      expect_list_of(shortest);
    }
    lists_.begin();
    for (int64_t row = 0; row < kEditedRows; ++row) {
      const auto& sampler = (row + round) % 3 == 0 ? shortest : longest;
      edit(next++, sampler, 2);
      expect_list_of(sampler);
    }
    if (round % 7 == 0) {
      for (SequenceId id = 1; id < next; id += 2) lists_.forget(id);
    }
  }
}

// More sequences than there is room for take turns, are told of tokens by either side, end and come back.
TEST_F(EditListsTest, ListsAreTheSamplersWhoeverTakesWhosePlace) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  struct Sequence {
    sampling::SequenceSampler sampler;
    TokenId last;
  };
  std::map<SequenceId, Sequence> sequences;
  SequenceId next = 0;
  const auto begin = [&] {
    std::vector<TokenId> prompt(1 + random() % (random() % 4 == 0 ? 2000 : 50));
    for (TokenId& token : prompt) token = static_cast<TokenId>(random() % kListedVocabulary);
    SamplingParams params{.frequency_penalty = 0.1f, .repetition_penalty = random() % 2 == 0 ? 1.3f : 1.0f};
    for (size_t n = random() % 2000; n > 0; --n) params.logit_bias.emplace_back(random() % kListedVocabulary, 0.5f);
    sequences.emplace(++next, Sequence{listing_sampler(params, prompt), prompt.back()});
  };
  for (int i = 0; i < 40; ++i) begin();
  for (int step = 0; step < 400; ++step) {
    lists_.begin();
    std::vector<SequenceId> ids;
    for (const auto& [id, sequence] : sequences) ids.push_back(id);
    std::ranges::shuffle(ids, random);
    for (size_t row = 0; row < kEditedRows; ++row) {
      Sequence& one = sequences.at(ids[row]);
      const auto token = static_cast<TokenId>(random() % 300);
      const bool ahead = random() % 2 == 0;
      edit(ids[row], one.sampler, one.last, ahead ? token : kNoToken);
      if (!ahead) expect_list_of(one.sampler);
      one.sampler.accept(token);
      one.last = token;
      if (ahead) expect_list_of(one.sampler);
    }
    if (step % 5 == 0) {
      lists_.forget(ids.back());
      sequences.erase(ids.back());
      begin();
    }
  }
}

TEST(EditLists, TakeMemoryForTheRowsThereAreAndNoMoreThanIsPlanned) {
  const auto bytes = [](int64_t max_model_len, int64_t max_num_seqs) {
    return EditLists::device_bytes(
        {.vocab_size = 128'256, .max_model_len = max_model_len, .max_num_seqs = max_num_seqs, .max_rows = 64});
  };
  EXPECT_EQ(bytes(2048, 256), 256 * 4096 * 8);
  EXPECT_EQ(bytes(131'072, 256), int64_t{64} << 20);
  EXPECT_EQ(bytes(131'072, 1), 131'072 * 8);
}

}  // namespace
}  // namespace quire::runner
