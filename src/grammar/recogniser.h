// Reads a text by a grammar's rules, all ways at once, counting as it goes: by other code than what makes the masks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/rules.h"

namespace quire::grammar {

// How far one text has come. A copy goes on by itself.
class Recogniser {
 public:
  // work: comparisons of ways, some nanoseconds each, beyond which it is lost; each character brings a few more.
  explicit Recogniser(std::shared_ptr<const Rules> rules, int64_t work = kMostWork);

  // The next bytes, which may end within a character. False: the text cannot go on so, and nothing changes.
  bool accept(std::string_view bytes);
  // Is it a whole text of the grammar?
  bool complete() const { return complete_ && partial_.empty(); }
  // There were too many ways to follow; nothing is known any more, and nothing is accepted.
  bool lost() const { return lost_; }
  bool in_character() const { return !partial_.empty(); }

  // A loose run that the text is in, for the uncounted grammar: characters of its set that must still come, and that
  // may (-1: any number).
  struct Count {
    int32_t node;
    int64_t least;
    int64_t most;
  };
  struct Counts {
    std::vector<Count> runs;
    bool alone = true;  // the text may be nowhere but in them or right behind
    bool clear = true;  // or where no character of their sets may come: so they alone say how many of these may
  };
  Counts counts() const;

  // The same for places from which the same texts of at most `reach` characters lead on: counts are in it only where a
  // bound is near enough to matter.
  std::string signature(int64_t reach) const;

 private:
  static constexpr int64_t kMostWork = 20'000'000;

  // What is to come once a part is read: in a sequence the part `at`, in a repetition another round after `at`.
  struct Frame {
    int32_t node;
    int64_t at;
    std::shared_ptr<const Frame> then;
    size_t hash;
  };
  using FramePtr = std::shared_ptr<const Frame>;
  // Before a character: of kText the one at `at`; kRun has had `at`;
  // kFree: how much of an excluded text may have begun.
  struct Way {
    int32_t node;
    int64_t at;
    FramePtr then;
    bool behind_loose;  // entered from a loose run that might have gone on
    // A loose run that has had all it may, or (at is more than that) too much: only the uncounted grammar is still
    // there.
    bool spent = false;
  };

  static bool same(const FramePtr& one, const FramePtr& other);
  static FramePtr frame(int32_t node, int64_t at, const FramePtr& then);
  bool visited(int32_t node, int64_t at, const FramePtr& then);
  void enter(int32_t node, const FramePtr& then, bool behind_loose);
  void enter_node(int32_t node, const FramePtr& then, bool behind_loose);
  void enter_part(int32_t node, int64_t at, const FramePtr& then, bool behind_loose);
  void enter_round(int32_t node, int64_t had, const FramePtr& then, bool behind_loose);
  void leave(const FramePtr& then, bool behind_loose);
  void add(Way way);
  void go_on_in_run(const Way& way);
  void go_on_in_free(const Way& way, char32_t point);
  bool step(char32_t point);
  bool may_complete_character() const;
  int64_t near_bounds(int32_t index, int64_t at, int64_t reach) const;

  std::shared_ptr<const Rules> rules_;
  std::vector<Way> ways_;
  std::vector<Way> next_;
  struct Visit {
    int32_t node;
    int64_t at;
    FramePtr then;
  };
  std::unordered_multimap<size_t, Visit> visits_;  // within one step
  int32_t level_ = 0;
  int64_t most_work_;
  int64_t work_;         // comparisons that may still be made
  std::string partial_;  // the beginning of a character
  bool complete_ = false;
  bool lost_ = false;
};

}  // namespace quire::grammar
