// How many draft tokens a step is worth: expected tokens against the measured cost of rows.
//
// A step of x tokens' worth of work takes about T(x) = s (1 + c (x - 1)): weights are read once, each further row costs
// its arithmetic; of few rows by how much it is more or less than that is known for itself, for the first ones are
// often free and kernels take rows by the four. Of a step that samples for n sequences, with drafts that add g expected
// tokens and make it x + d, the rate is (n + g) / T(x + d): drafts are added, the likeliest first, as far as that rises
// by more than a margin. So one sequence on a machine bound by memory gets many, and a full batch, where a row costs
// what a token costs, none.
//
// How likely a draft is follows from what became of guesses that matched as much of the text and agreed as much. That
// is learned whether they were computed or not: when the token comes, everybody sees if the guess was right. So a
// sequence that is quiet goes on learning, at no cost of the model's.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "types/draft_proposer.h"
#include "types/ids.h"

namespace quire::sched {

// What a step takes, learned as steps go by.
class StepCost {
 public:
  // cost: of the step, in tokens that attend to nothing (sched::cost_in_tokens).
  void observe(double cost, double seconds);
  // In steps of one token; 1 for that. Before anything was observed, as of a machine where a row is a third of a step.
  double relative(double cost) const { return line(cost) * shape_[size_of(cost)]; }
  double slope() const { return slope_; }
  double seconds() const { return seconds_; }  // of a step of one token; 0: not known

 private:
  static constexpr size_t kSizes = 9;  // 1, 2, 3, 4, 5 to 6, 7 to 8, 9 to 12, 13 to 16, more
  static size_t size_of(double cost);
  double line(double cost) const { return 1 + slope_ * (cost > 1 ? cost - 1 : 0); }

  double seconds_ = 0;
  double slope_ = 1.0 / 3;
  std::array<double, kSizes> shape_ = {1, 1, 1, 1, 1,
                                       1, 1, 1, 1};  // by what the line is wrong; of the first and the last 1
};

// How often guesses were right, by what was known of them.
class DraftRates {
 public:
  // num_matched: of the text's end, with the guesses before this one.
  void observe(int32_t num_matched, float agreement, DraftSource source, bool right);
  // The probability, with what is known of all texts as a beginning (nullptr: none).
  double rate(int32_t num_matched, float agreement, DraftSource source, const DraftRates* all) const;
  // Of a model's guesses, before one is made.
  double rate_of_model(const DraftRates* all) const;

 private:
  static constexpr size_t kMatchClasses = 6;  // 1, 2, 3 to 4, 5 to 8, 9 to 16, more
  static constexpr size_t kModelClasses = 5;  // by its probability: to 0.3, 0.6, 0.8, 0.95, more
  static constexpr size_t kFirstOfModel = 2 * kMatchClasses + 2;
  static constexpr size_t kClasses = kFirstOfModel + kModelClasses;
  struct Count {
    float right = 0;
    float all = 0;
  };
  static size_t class_of(int32_t num_matched, float agreement, DraftSource source);
  Count of_model() const;

  std::array<Count, kClasses> counts_{};
};

// A sequence's guesses for a step.
struct DraftBid {
  const DraftProposal* proposal = nullptr;
  const DraftRates* rates = nullptr;  // of the sequence
  int32_t most = 0;                   // tokens that it may have
  double cost = 1;                    // of one of them, in tokens
  int32_t granted = 0;                // out
};

// Grants each bid so many of its first tokens that the step's rate is best, at most `most_tokens` in all. cost: of the
// step without them; num_sampling: sequences that sample in it.
void grant_drafts(std::span<DraftBid> bids, const DraftRates& all, const StepCost& step, double cost,
                  int32_t num_sampling, int32_t most_tokens);

// What a model's guesses of a sequence take by themselves, in steps of one token.
struct GuessCost {
  double once = 0;  // before the first of them
  double each = 0;
};
// How many guesses a model is to make for each of `num_drafting` sequences, where each is right with this probability;
// row_cost: of one of them in the step, in tokens.
int32_t worth_computing(const StepCost& step, double cost, int32_t num_sampling, int32_t num_drafting, double row_cost,
                        const GuessCost& guess, double rate, int32_t most);

// Whether a draft that is sure to be right would be worth its cost in such a step.
bool may_gain(const StepCost& step, double cost, int32_t num_sampling);

}  // namespace quire::sched
