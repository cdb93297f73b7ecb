// What a sampler holds and what a copy of it costs, which a beam search makes for every beam at every step.
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sampling/sequence_sampler.h"
#include "tests/sampling/edited_row.h"
#include "tests/suites/allocations.h"

namespace quire::sampling {
namespace {

constexpr int64_t kManyTokens = 200'000;

std::vector<TokenId> counted_up(TokenId first, TokenId end) {
  std::vector<TokenId> ids;
  for (TokenId id = first; id < end; ++id) ids.push_back(id);
  return ids;
}

// One that looks at all of its text and has seen `length` different tokens.
SequenceSampler busy_sampler(TokenId length) {
  SamplingParams params{.repetition_penalty = 1.2f};
  for (TokenId id = 0; id < 1000; ++id) params.logit_bias.emplace_back(5000 + 2 * id, 1.0f);
  params.bad_words_ids.push_back(counted_up(0, 4000));
  for (TokenId id = 0; id < 500; ++id) params.bad_words_ids.push_back({id, id + 1});
  params.stop_token_ids = counted_up(40'000, 180'000);
  params.min_tokens = 1 << 20;
  params.max_tokens.reset();
  SequenceSampler sampler(std::make_shared<const SamplingParams>(params), counted_up(0, 3), 1, kManyTokens, {2});
  for (TokenId id = 0; id < length; ++id) sampler.accept(id);
  return sampler;
}

TEST(SamplerCosts, ACopySharesListsAndTextWithWhatItIsACopyOf) {
  const SequenceSampler sampler = busy_sampler(8000);
  std::optional<SequenceSampler> copy;
  const Allocations made = allocations_of([&] { copy.emplace(sampler); });
  EXPECT_LE(made.count, 8);
  EXPECT_LE(made.bytes, 4096);
}

TEST(SamplerCosts, ManyBansAreAMaskForADeviceAndNotAnEditEach) {
  const auto edits_of = [](TokenId num_stops) {
    SamplingParams params{.logit_bias = {{50'001, 3.0f}, {199'999, 2.0f}}, .min_tokens = 4};
    params.stop_token_ids = counted_up(50'000, 50'000 + num_stops);
    const SequenceSampler sampler(std::make_shared<const SamplingParams>(params), {}, 1, kManyTokens, {2});
    SamplingScratch scratch;
    std::vector<ops::LogitEdit> edits;
    std::vector<uint32_t> masks;
    const bool masked = sampler.add_edits(0, edits, masks, scratch);
    EXPECT_EQ(masks.size(), masked ? kManyTokens / 32 : 0u);
    const std::vector<float> logits = EditedRow(sampler)(std::vector<float>(kManyTokens, 1.0f), edits, masked, masks);
    const auto last = static_cast<size_t>(50'000 + num_stops);
    for (const size_t banned : {size_t{2}, size_t{50'000}, size_t{50'001}, last - 1}) {
      EXPECT_EQ(logits[banned], -std::numeric_limits<float>::infinity()) << banned;
    }
    EXPECT_EQ(logits[199'999], 3.0f);
    for (const size_t free : {size_t{1}, size_t{49'999}, last}) EXPECT_EQ(logits[free], 1.0f) << free;
    return std::pair(edits.size(), masked);
  };
  EXPECT_EQ(edits_of(5), std::pair(size_t{5 + 1}, false));
  EXPECT_EQ(edits_of(140'000), std::pair(size_t{0}, true));
}

TEST(SamplerCosts, ACopyGoesOnAsTheOneItIsACopyOf) {
  SequenceSampler sampler = busy_sampler(4100);
  SamplingScratch scratch;
  for (TokenId id = 7000; id < 8000; ++id) {
    SequenceSampler copy = sampler;
    SequenceSampler whole = sampler;
    copy.accept(id);
    whole.accept(id + 1);
    sampler = copy;
    if (id % 100 != 0) continue;
    std::vector<float> logits(kManyTokens, 1.0f);
    std::vector<float> same = logits;
    const auto first = sampler.beam_candidates(logits, 300, scratch);
    const auto second = copy.beam_candidates(same, 300, scratch);
    ASSERT_TRUE(first.ok() && second.ok());
    ASSERT_EQ(first->size(), second->size());
    for (size_t i = 0; i < first->size(); ++i) {
      EXPECT_EQ((*first)[i].id, (*second)[i].id);
      EXPECT_EQ((*first)[i].logprob, (*second)[i].logprob);
    }
    EXPECT_EQ(logits, same);
    EXPECT_LT(logits[static_cast<size_t>(id)], logits[10'000]) << "what has been said is penalised";
    EXPECT_EQ(logits[static_cast<size_t>(id) + 1], logits[10'001]) << "what another has said is not";
  }
}

}  // namespace
}  // namespace quire::sampling
