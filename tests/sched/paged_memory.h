// A runner without a model: it carries out plans on a paged memory whose cells say which text was computed into them,
// so that whatever a plan shares, copies, swaps or reuses wrongly is read back as the wrong text.
//
// The cell of position p holds a digest of all tokens up to p (and of the context they were read in), as real keys and
// values are a function of just that. Of a group of recurrent layers a block's first cell holds the digest up to the
// last of its tokens that was computed and no draft, and those behind it the digests of the drafts that followed: a run
// goes on from these. A sequence's next token is a function of the digest of its text and of its seed.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include <gtest/gtest.h>

#include "sched/scheduler.h"

namespace quire::sched::testing_support {

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

// Small vocabularies make answers stop, repeat and meet.
struct Language {
  TokenId vocabulary = 30;
  static constexpr TokenId kEos = 2;
  static constexpr TokenId kStop = 3;

  static uint64_t begin(const kv::CacheContext& context) {
    uint64_t digest = mix(static_cast<uint64_t>(context.lora_id) + 77);
    for (const char c : context.salt) digest = mix(digest ^ static_cast<uint64_t>(c));
    return digest;
  }
  static uint64_t extend(uint64_t digest, TokenId token) { return mix(digest * 31 + static_cast<uint64_t>(token) + 1); }

  TokenId next(uint64_t digest, uint64_t seed) const {
    return static_cast<TokenId>(mix(digest ^ mix(seed)) % static_cast<uint64_t>(vocabulary));
  }
  // For a beam: every token with a log-probability, falling.
  std::vector<TokenLogprob> candidates(uint64_t digest, int32_t count) const {
    std::vector<TokenLogprob> all;
    for (TokenId token = 0; token < vocabulary; ++token) {
      const uint64_t noise = mix(digest ^ mix(static_cast<uint64_t>(token) + 5)) % 100000;
      all.push_back({token, -static_cast<float>(noise) / 10000.0f - 0.1f, 0});
    }
    std::ranges::sort(all, [](const auto& a, const auto& b) {
      return a.logprob > b.logprob || (a.logprob == b.logprob && a.id < b.id);
    });
    if (all.size() > static_cast<size_t>(count)) all.resize(static_cast<size_t>(count));
    return all;
  }
};

class PagedMemory {
 public:
  PagedMemory(const SchedulerConfig& config, Language language)
      : config_(config),
        language_(language),
        pool_(static_cast<size_t>(config.num_blocks * config.block_size), 0),
        slots_(static_cast<size_t>(config.num_swap_blocks * config.block_size), 0),
        offload_(static_cast<size_t>(config.num_offload_slots * config.block_size), 0) {}

  // Contexts are no business of a runner; the test tells them.
  void set_context(SequenceId id, const kv::CacheContext& context) { contexts_[id] = context; }

  StepResult execute(const StepPlan& plan) {
    learn(plan);
    if (config_.num_stages > 1) follow(plan);
    copy(plan);
    for (const ScheduledSequence& run : plan.scheduled) go_on(run);
    std::span<const TokenId> drafts = plan.draft_tokens;
    for (const ScheduledSequence& run : plan.scheduled) {
      const auto count = static_cast<size_t>(run.num_draft_tokens);
      write(run, drafts.first(count));
      drafts = drafts.subspan(count);
    }
    EXPECT_TRUE(drafts.empty());
    StepResult result;
    result.step = plan.step;
    drafts = plan.draft_tokens;
    for (const ScheduledSequence& run : plan.scheduled) {
      const auto count = static_cast<size_t>(run.num_draft_tokens);
      result.sequences.push_back(read(run, drafts.first(count)));
      drafts = drafts.subspan(count);
    }
    store(plan);
    return result;
  }

  // The cells of a block in host memory, for what stands in for a disk.
  std::span<uint64_t> offload_cells(OffloadSlot slot) {
    return std::span(offload_).subspan(static_cast<size_t>(slot * config_.block_size),
                                       static_cast<size_t>(config_.block_size));
  }

  size_t num_sequences() const { return states_.size(); }
  const std::vector<TokenId>& tokens(SequenceId id) const { return states_.at(id).tokens; }
  // As the plans so far have told of it.
  const BlockTables& tables(SequenceId id) const { return tables_.at(id); }

 private:
  struct State {
    std::vector<TokenId> tokens;
    std::vector<uint64_t> digests;  // of each token and all before it
    uint64_t beginning = 0;
    size_t num_prompt = 0;
    uint64_t seed = 0;
    std::shared_ptr<const SamplingParams> params;

    void append(TokenId token) {
      digests.push_back(Language::extend(digests.empty() ? beginning : digests.back(), token));
      tokens.push_back(token);
    }
  };

  void learn(const StepPlan& plan) {
    std::vector<State> moved;
    for (const BeamMove& move : plan.moves) {
      const State& source = states_.at(move.source);
      State& state = moved.emplace_back(states_.at(move.id));
      state.tokens = source.tokens;
      state.digests = source.digests;
      state.append(move.token);
    }
    for (size_t i = 0; i < moved.size(); ++i) states_.at(plan.moves[i].id) = std::move(moved[i]);
    for (const SequenceId id : plan.retired) {
      ASSERT_EQ(states_.erase(id), 1u) << "retired twice or never known: " << id;
      tables_.erase(id);
    }
    for (const NewSequence& added : plan.added) {
      ASSERT_FALSE(states_.contains(added.id)) << added.id;
      State& state = states_[added.id];
      state.beginning = Language::begin(contexts_[added.id]);
      state.num_prompt = added.prompt.size();
      state.seed = added.seed;
      state.params = added.params;
      for (const TokenId token : added.prompt) state.append(token);
      for (const TokenId token : added.output) state.append(token);
    }
    for_each_table_change(plan, [this](const TableChange& change, std::span<const BlockId> blocks) {
      ASSERT_TRUE(states_.contains(change.id)) << change.id;
      tables_[change.id].take(change, blocks);
    });
  }

  // A stage that does not sample knows what plans tell it, which is all that it computes.
  void follow(const StepPlan& plan) {
    for (const SampledToken& sampled : plan.sampled) {
      ASSERT_TRUE(followed_.contains(sampled.id)) << "a token of sequence " << sampled.id << ", which is unknown";
      followed_[sampled.id].push_back(sampled.token);
    }
    std::vector<std::vector<TokenId>> moved;
    for (const BeamMove& move : plan.moves) {
      moved.push_back(followed_.at(move.source));
      moved.back().push_back(move.token);
    }
    for (size_t i = 0; i < moved.size(); ++i) followed_.at(plan.moves[i].id) = std::move(moved[i]);
    for (const SequenceId id : plan.retired) followed_.erase(id);
    for (const NewSequence& added : plan.added) {
      std::vector<TokenId>& tokens = followed_[added.id] = added.prompt;
      tokens.insert(tokens.end(), added.output.begin(), added.output.end());
    }
    for (const ScheduledSequence& run : plan.scheduled) {
      const auto end = static_cast<size_t>(run.num_computed_tokens + run.num_new_tokens);
      const std::vector<TokenId>& known = followed_.at(run.id);
      ASSERT_GE(known.size(), end) << "sequence " << run.id << " goes on from a token that is not told";
      ASSERT_TRUE(std::equal(known.begin(), known.end(), states_.at(run.id).tokens.begin())) << run.id;
      ASSERT_TRUE(!run.samples || known.size() == end) << run.id;
    }
  }

  void copy(const StepPlan& plan) {
    const auto size = static_cast<size_t>(config_.block_size);
    const auto block_at = [&](BlockId block) {
      return pool_.begin() + static_cast<int64_t>(block) * config_.block_size;
    };
    const auto slot_at = [&](SwapSlot slot) {
      return slots_.begin() + static_cast<int64_t>(slot) * config_.block_size;
    };
    std::map<SwapSlot, int> slots;
    for (const SwapCopy& swap : plan.swap_out) {
      ASSERT_EQ(++slots[swap.slot], 1) << "two blocks are swapped to slot " << swap.slot;
      std::copy_n(block_at(swap.block), size, slot_at(swap.slot));
    }
    for (const SwapCopy& swap : plan.swap_in) std::copy_n(slot_at(swap.slot), size, block_at(swap.block));
    for (const OffloadCopy& load : plan.loads) std::ranges::copy(offload_cells(load.slot), block_at(load.block));
    // Copies may run in any order, side by side: no destination may be another's source or destination.
    std::map<BlockId, int> touched;
    for (const BlockCopy& one : plan.copies) ++touched[one.destination];
    for (const BlockCopy& one : plan.copies) {
      ASSERT_EQ(touched[one.destination], 1) << "two copies to block " << one.destination;
      ASSERT_EQ(touched.count(one.source), 0u) << "block " << one.source << " is copied and overwritten";
    }
    for (const BlockCopy& one : plan.copies) std::copy_n(block_at(one.source), size, block_at(one.destination));
  }

  void store(const StepPlan& plan) {
    std::map<OffloadSlot, int> slots;
    for (const OffloadCopy& store : plan.stores) {
      ASSERT_EQ(++slots[store.slot], 1) << "two blocks are stored in slot " << store.slot;
      const std::span<uint64_t> cells = offload_cells(store.slot);
      std::copy_n(pool_.begin() + static_cast<int64_t>(store.block) * config_.block_size, cells.size(), cells.begin());
    }
  }

  std::span<const BlockId> table(const ScheduledSequence& run, size_t group) const {
    return tables_.at(run.id).table(group);
  }

  uint64_t& cell(BlockId block, int32_t position) {
    return pool_[static_cast<size_t>(block * config_.block_size + position % config_.block_size)];
  }

  // Of the tokens up to the run's end and of the drafts behind it; 0 where an answer has ended already and a step
  // planned ahead computes what nobody will look at.
  std::vector<uint64_t> digests_of(const ScheduledSequence& run, std::span<const TokenId> drafts) const {
    const State& state = states_.at(run.id);
    const auto end = static_cast<size_t>(run.num_computed_tokens + run.num_new_tokens);
    std::vector<uint64_t> digests = state.digests;
    digests.resize(end, 0);
    for (const TokenId draft : drafts) digests.push_back(Language::extend(digests.back(), draft));
    return digests;
  }

  bool keeps_states(size_t group) const { return config_.keeps_states && config_.windows[group] == 2; }
  uint64_t& state_of(BlockId block) { return pool_[static_cast<size_t>(block * config_.block_size)]; }

  // Runs read states before any of the step leaves its own.
  void go_on(const ScheduledSequence& run) {
    if (run.num_computed_tokens == 0) return;
    const int32_t last = run.num_computed_tokens - 1;
    for (size_t group = 0; group < config_.windows.size(); ++group) {
      if (!keeps_states(group)) continue;
      const BlockId block = table(run, group)[static_cast<size_t>(last / config_.block_size)];
      ASSERT_NE(block, kNoBlock) << "sequence " << run.id << " goes on from position " << last
                                 << ", whose state is gone";
      const std::vector<uint64_t> digests = digests_of(run, {});
      ASSERT_EQ(run.num_replayed_tokens == 0 ? 0 : run.num_computed_tokens / config_.block_size,
                run.num_replayed_tokens == 0 ? 0 : (last - run.num_replayed_tokens) / config_.block_size)
          << "sequence " << run.id << " replays tokens of another block than that of position " << last;
      for (int32_t i = 0; i <= run.num_replayed_tokens; ++i) {
        const auto position = static_cast<size_t>(last - run.num_replayed_tokens + i);
        ASSERT_EQ(*(&state_of(block) + i), digests[position])
            << "sequence " << run.id << " goes on from another state than that of position " << position
            << ", replaying " << run.num_replayed_tokens << " up to " << last;
      }
    }
  }

  void write(const ScheduledSequence& run, std::span<const TokenId> drafts) {
    const std::vector<uint64_t> digests = digests_of(run, drafts);
    for (size_t group = 0; group < config_.windows.size(); ++group) {
      const std::span<const BlockId> blocks = table(run, group);
      if (keeps_states(group)) {
        const int32_t end = run.num_computed_tokens + run.num_new_tokens;
        for (int32_t p = run.num_computed_tokens; p < end; ++p) {
          state_of(blocks[static_cast<size_t>(p / config_.block_size)]) = digests[static_cast<size_t>(p)];
        }
        ASSERT_LT(run.num_draft_tokens, config_.block_size);
        uint64_t* last = &state_of(blocks[static_cast<size_t>((end - 1) / config_.block_size)]);
        for (int32_t i = 0; i < run.num_draft_tokens; ++i) last[1 + i] = digests[static_cast<size_t>(end + i)];
        continue;
      }
      for (int32_t p = run.num_computed_tokens; p < run.num_computed_tokens + run.num_rows(); ++p) {
        const BlockId block = blocks[static_cast<size_t>(p / config_.block_size)];
        ASSERT_TRUE(block >= 0 && block < config_.num_blocks) << "no block to write position " << p;
        cell(block, p) = digests[static_cast<size_t>(p)];
      }
    }
  }

  SequenceResult read(const ScheduledSequence& run, std::span<const TokenId> drafts) {
    State& state = states_.at(run.id);
    const std::vector<uint64_t> digests = digests_of(run, drafts);
    SequenceResult result;
    result.id = run.id;
    const int32_t begin = run.num_computed_tokens;
    const int32_t end = begin + run.num_new_tokens;
    for (size_t group = 0; group < config_.windows.size(); ++group) {
      if (keeps_states(group)) continue;
      const std::span<const BlockId> blocks = table(run, group);
      const int32_t window = config_.windows[group];
      const int32_t first = window == 0 ? 0 : std::max(begin - window + 1, 0);
      for (int32_t p = first; p < end + run.num_draft_tokens; ++p) {
        const BlockId block = blocks[static_cast<size_t>(p / config_.block_size)];
        EXPECT_NE(block, kNoBlock) << "sequence " << run.id << " reads position " << p << ", whose block is gone";
        if (block == kNoBlock) return result;
        EXPECT_EQ(cell(block, p), digests[static_cast<size_t>(p)])
            << "step sees another text: sequence " << run.id << " position " << p << " of " << end << ", group "
            << group;
      }
    }
    if (state.params->prompt_logprobs) {
      for (int32_t p = begin; p < std::min(end, static_cast<int32_t>(state.num_prompt) - 1); ++p) {
        result.prompt_logprobs.emplace_back().chosen.id = state.tokens[static_cast<size_t>(p) + 1];
      }
    }
    if (!run.samples) return result;
    EXPECT_EQ(static_cast<size_t>(end), state.tokens.size()) << "samples before the end";
    const uint64_t digest = state.digests.back();
    if (run.num_candidates > 0) {
      result.candidates = language_.candidates(digest, run.num_candidates);
      return result;
    }
    for (size_t row = 0; row <= drafts.size(); ++row) {
      result.tokens.push_back(language_.next(state.digests.back(), state.seed));
      state.append(result.tokens.back());
      if (row < drafts.size() && drafts[row] != result.tokens.back()) break;
    }
    return result;
  }

  SchedulerConfig config_;
  Language language_;
  std::vector<uint64_t> pool_;     // [num_blocks, block_size]
  std::vector<uint64_t> slots_;    // [num_swap_blocks, block_size]
  std::vector<uint64_t> offload_;  // [num_offload_slots, block_size]
  std::unordered_map<SequenceId, State> states_;
  std::unordered_map<SequenceId, BlockTables> tables_;
  std::unordered_map<SequenceId, std::vector<TokenId>> followed_;
  std::unordered_map<SequenceId, kv::CacheContext> contexts_;
};

}  // namespace quire::sched::testing_support
