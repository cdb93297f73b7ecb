#include "runner/mask_thread.h"

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace quire::runner {
namespace {

// Allows two neighbouring tokens, others at each step, and every seventh time all.
class Stepping final : public TokenConstraint {
 public:
  std::unique_ptr<State> start() const override { return std::make_unique<Step>(); }
  Status check(std::string_view) const override { return {}; }
  bool whole_only() const override { return false; }

 private:
  struct Step final : State {
    std::unique_ptr<State> clone() const override { return std::make_unique<Step>(*this); }
    bool allowed(std::span<uint32_t> mask) override {
      std::ranges::fill(mask, 0U);
      mask[0] = 3U << (had % 20);
      return had % 7 != 3;
    }
    bool accept(TokenId) override {
      ++had;
      return true;
    }
    int had = 0;
  };
};

std::vector<sampling::SequenceSampler> samplers() {
  SamplingParams params;
  params.temperature = 0.9f;
  const auto constraint = std::make_shared<Stepping>();
  const auto shared = std::make_shared<const SamplingParams>(params);
  std::vector<sampling::SequenceSampler> made;
  for (uint64_t seed = 0; seed < 8; ++seed)
    made.emplace_back(shared, std::span<const TokenId>(), seed, 100, std::vector<TokenId>(), std::span<const TokenId>(),
                      constraint);
  return made;
}

TEST(MaskThread, AnswersAreThoseWithoutIt) {
  std::vector<sampling::SequenceSampler> ahead = samplers();
  std::vector<sampling::SequenceSampler> alone = samplers();
  sampling::SamplingScratch scratch;
  for (int life = 0; life < 3; ++life) {  // it ends while it waits
    MaskThread thread;
    for (int step = 0; step < 200; ++step) {
      std::vector<sampling::SequenceSampler*> some;
      for (size_t i = 0; i < ahead.size(); ++i) {
        if ((static_cast<size_t>(step) + i) % 3 != 0) some.push_back(&ahead[i]);
      }
      thread.start(std::move(some));
      thread.wait();
      thread.wait();  // nothing is under way
      for (size_t i = 0; i < ahead.size(); ++i) {
        std::vector<float> logits(100, 1.0f);
        const TokenId token = ahead[i].sample(logits, scratch)->id;
        logits.assign(100, 1.0f);
        ASSERT_EQ(token, alone[i].sample(logits, scratch)->id);
      }
    }
    EXPECT_GT(thread.take_seconds(), 0.0);
    EXPECT_EQ(thread.take_seconds(), 0.0);
  }
}

}  // namespace
}  // namespace quire::runner
