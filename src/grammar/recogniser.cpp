#include "grammar/recogniser.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "text/utf8.h"

namespace quire::grammar {

namespace {

constexpr size_t kMostWays = 1000;
constexpr size_t kMostVisits = 20000;
constexpr int64_t kWorkPerCharacter = 2000;
constexpr int32_t kMostDepth = 15000;
constexpr int64_t kMostExcluded = 1 << 20;
constexpr int64_t kNever = int64_t{1} << 40;  // more characters than any token has

using Kind = Rules::Node::Kind;

}  // namespace

Recogniser::Recogniser(std::shared_ptr<const Rules> rules, int64_t work)
    : rules_(std::move(rules)), most_work_(work), work_(work) {
  enter(rules_->root(), nullptr, false);
  ways_.swap(next_);
  visits_.clear();
}

bool Recogniser::same(const FramePtr& one, const FramePtr& other) {
  const Frame* a = one.get();
  const Frame* b = other.get();
  while (a != b) {
    if (a == nullptr || b == nullptr || a->hash != b->hash || a->node != b->node || a->at != b->at) return false;
    a = a->then.get();
    b = b->then.get();
  }
  return true;
}

Recogniser::FramePtr Recogniser::frame(int32_t node, int64_t at, const FramePtr& then) {
  const size_t below = then == nullptr ? 0x9E3779B97F4A7C15U : then->hash;
  const size_t hash = (below ^ (static_cast<size_t>(node) << 20) ^ static_cast<size_t>(at)) * 0xD6E8FEB86659FD93U;
  return std::make_shared<const Frame>(Frame{node, at, then, hash ^ (hash >> 32)});
}

bool Recogniser::visited(int32_t node, int64_t at, const FramePtr& then) {
  const size_t key = (then == nullptr ? 0 : then->hash) ^ (static_cast<size_t>(node) << 20) ^ static_cast<size_t>(at);
  const auto [first, last] = visits_.equal_range(key);
  for (auto it = first; it != last; ++it) {
    const Visit& visit = it->second;
    if (visit.node == node && visit.at == at && same(visit.then, then)) return true;
  }
  if (visits_.size() >= kMostVisits || --work_ < 0) lost_ = true;
  visits_.emplace(key, Visit{node, at, then});
  return lost_;
}

void Recogniser::add(Way way) {
  for (Way& other : next_) {
    if (other.node != way.node || other.at != way.at || other.spent != way.spent || !same(other.then, way.then)) {
      continue;
    }
    other.behind_loose = other.behind_loose && way.behind_loose;
    return;
  }
  work_ -= static_cast<int64_t>(next_.size());
  if (next_.size() >= kMostWays || work_ < 0) lost_ = true;
  if (!lost_) next_.push_back(std::move(way));
}

void Recogniser::enter(int32_t index, const FramePtr& then, bool behind_loose) {
  if (level_ >= kMostDepth) lost_ = true;
  if (lost_) return;
  ++level_;
  enter_node(index, then, behind_loose);
  --level_;
}

void Recogniser::enter_node(int32_t index, const FramePtr& then, bool behind_loose) {
  const Rules::Node& node = rules_->node(index);
  switch (node.kind) {
    case Kind::kText:
      if (node.text.empty()) return leave(then, behind_loose);
      return add({index, 0, then, behind_loose});
    case Kind::kSet:
      return add({index, 0, then, behind_loose});
    case Kind::kRun:
      if (node.most != 0) add({index, 0, then, behind_loose});
      if (node.least == 0) leave(then, behind_loose || node.loose);
      return;
    case Kind::kFree:
      add({index, 0, then, behind_loose});
      return leave(then, behind_loose);
    case Kind::kSequence:
      return enter_part(index, 0, then, behind_loose);
    case Kind::kChoice:
      for (const int32_t part : node.parts) enter(part, then, behind_loose);
      return;
    case Kind::kRepeat:
      return enter_round(index, 0, then, behind_loose);
    case Kind::kRule:
      // What may be nothing may be reached by many ways; each once.
      if (!visited(index, 0, then)) enter(node.parts.front(), then, behind_loose);
      return;
  }
}

void Recogniser::enter_part(int32_t index, int64_t at, const FramePtr& then, bool behind_loose) {
  const Rules::Node& node = rules_->node(index);
  const auto place = static_cast<size_t>(at);
  if (place == node.parts.size()) return leave(then, behind_loose);
  // Behind the last part there is nothing to come back for: recursion at the end takes no room.
  const bool last = place + 1 == node.parts.size();
  enter(node.parts[place], last ? then : frame(index, at + 1, then), behind_loose);
}

void Recogniser::enter_round(int32_t index, int64_t had, const FramePtr& then, bool behind_loose) {
  const Rules::Node& node = rules_->node(index);
  if (node.most < 0) had = std::min(had, node.least);  // beyond it rounds are all alike
  if (visited(index, had, then)) return;
  if (had >= node.least) leave(then, behind_loose);
  if (node.most < 0 || had < node.most) enter(node.parts.front(), frame(index, had + 1, then), behind_loose);
}

void Recogniser::leave(const FramePtr& then, bool behind_loose) {
  if (then == nullptr) {
    complete_ = true;
    return;
  }
  if (rules_->node(then->node).kind == Kind::kSequence)
    return enter_part(then->node, then->at, then->then, behind_loose);
  enter_round(then->node, then->at, then->then, behind_loose);
}

// `way` with one more of its run's characters.
void Recogniser::go_on_in_run(const Way& way) {
  const Rules::Node& node = rules_->node(way.node);
  const int64_t had = node.most < 0 ? std::min(way.at + 1, node.least) : way.at + 1;
  if (way.spent || (node.most >= 0 && had >= node.most)) {
    if (node.loose) {
      const int64_t at = way.spent ? node.most + 1 : node.most;
      add({.node = way.node, .at = at, .then = way.then, .behind_loose = false, .spent = true});
    }
    if (!way.spent) leave(way.then, node.loose);
    return;
  }
  add({way.node, had, way.then, false});
  if (had >= node.least) leave(way.then, node.loose);
}

// `at` is how much of an excluded text the last characters are, the most of any: its place in the list times
// kMostExcluded and its characters.
void Recogniser::go_on_in_free(const Way& way, char32_t point) {
  const std::vector<std::u32string>& excluded = rules_->node(way.node).excluded;
  int64_t at = 0;
  if (!excluded.empty()) {
    const auto characters = static_cast<size_t>(way.at % kMostExcluded);
    std::u32string last = excluded[static_cast<size_t>(way.at / kMostExcluded)].substr(0, characters) + point;
    if (std::ranges::any_of(excluded, [&](const std::u32string& one) { return last.ends_with(one); })) return;
    for (; !last.empty() && at == 0; last.erase(0, 1)) {
      const auto found = std::ranges::find_if(excluded, [&](const auto& one) { return one.starts_with(last); });
      if (found == excluded.end()) continue;
      at = (found - excluded.begin()) * kMostExcluded + static_cast<int64_t>(last.size());
    }
  }
  add({way.node, at, way.then, false});
  leave(way.then, false);
}

bool Recogniser::step(char32_t point) {
  next_.clear();
  visits_.clear();
  complete_ = false;
  work_ = std::min(work_ + kWorkPerCharacter, most_work_);
  for (const Way& way : ways_) {
    if (lost_) return false;
    const Rules::Node& node = rules_->node(way.node);
    if (node.kind == Kind::kText) {
      if (node.text[static_cast<size_t>(way.at)] != point) continue;
      if (static_cast<size_t>(way.at) + 1 < node.text.size()) {
        add({way.node, way.at + 1, way.then, false});
      } else {
        leave(way.then, false);
      }
    } else if (node.kind == Kind::kFree) {
      go_on_in_free(way, point);
    } else if (node.set.contains(point)) {
      if (node.kind == Kind::kRun) {
        go_on_in_run(way);
      } else {
        leave(way.then, false);
      }
    }
  }
  ways_.swap(next_);
  return !lost_ && (complete_ || std::ranges::any_of(ways_, [](const Way& way) { return !way.spent; }));
}

// Is there a character that begins with these bytes and may follow?
bool Recogniser::may_complete_character() const {
  std::string low = partial_;
  std::string high = partial_;
  const auto first = static_cast<unsigned char>(partial_[0]);
  const size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  while (low.size() < length) {
    const bool second = low.size() == 1;  // whose range depends on the first
    low += static_cast<char>(second && first == 0xE0 ? 0xA0 : second && first == 0xF0 ? 0x90 : 0x80);
    high += static_cast<char>(second && first == 0xED ? 0x9F : second && first == 0xF4 ? 0x8F : 0xBF);
  }
  const char32_t from = text::decode_code_point(low.data()).value;
  const char32_t to = text::decode_code_point(high.data()).value;
  return std::ranges::any_of(ways_, [&](const Way& way) {
    if (way.spent) return false;
    const Rules::Node& node = rules_->node(way.node);
    if (node.kind == Kind::kFree) return true;
    if (node.kind == Kind::kText) {
      const char32_t next = node.text[static_cast<size_t>(way.at)];
      return from <= next && next <= to;
    }
    return std::ranges::any_of(
        node.set.ranges(), [&](const CodePoints::Range& range) { return range.first <= to && from <= range.second; });
  });
}

bool Recogniser::accept(std::string_view bytes) {
  if (lost_) return false;
  const std::vector<Way> ways = ways_;
  const std::string partial = partial_;
  const bool complete = complete_;
  const auto back = [&] {
    ways_ = ways;
    partial_ = partial;
    complete_ = complete;
    return false;
  };
  std::string text = partial_;
  text += bytes;
  partial_.clear();
  for (size_t at = 0; at < text.size();) {
    const text::Utf8Sequence sequence = text::next_utf8_sequence(text, at);
    if (sequence.state == text::Utf8State::kIncomplete) {
      partial_ = text.substr(at);
      return may_complete_character() || back();
    }
    if (sequence.state != text::Utf8State::kWellFormed) return back();
    if (!step(text::decode_code_point(text.data() + at).value)) return back();
    at += sequence.length;
  }
  return true;
}

Recogniser::Counts Recogniser::counts() const {
  Counts counts;
  const auto is_loose = [this](const Way& way) {
    const Rules::Node& node = rules_->node(way.node);
    return node.kind == Kind::kRun && node.loose;
  };
  for (const Way& way : ways_) {
    if (!is_loose(way)) continue;
    const Rules::Node& node = rules_->node(way.node);
    if (way.spent) {
      counts.runs.push_back({way.node, way.at > node.most ? kNever : 0, 0});
    } else {
      counts.runs.push_back(
          {way.node, std::max<int64_t>(node.least - way.at, 0), node.most < 0 ? -1 : node.most - way.at});
    }
  }
  for (const Way& way : ways_) {
    if (way.behind_loose || is_loose(way)) continue;
    counts.alone = false;
    const Rules::Node& node = rules_->node(way.node);
    CodePoints next = node.set;
    if (node.kind == Kind::kText)
      next = CodePoints{{node.text[static_cast<size_t>(way.at)], node.text[static_cast<size_t>(way.at)]}};
    for (const Count& run : counts.runs) counts.clear = counts.clear && !rules_->node(run.node).set.intersects(next);
  }
  return counts;
}

// `at`, or what stands for all such counts from which no bound can be come to.
int64_t Recogniser::near_bounds(int32_t index, int64_t at, int64_t reach) const {
  constexpr int64_t kFarBelow = -1;
  constexpr int64_t kBetween = -2;
  const Rules::Node& node = rules_->node(index);
  if (node.kind == Kind::kRepeat) {
    const int64_t characters = rules_->least_characters(node.parts.front());
    if (characters == 0) return at;
    reach = reach / characters + 1;
  } else if (node.kind != Kind::kRun) {
    return at;
  }
  if (at < node.least) return node.least - at > reach ? kFarBelow : at;
  return node.most < 0 || node.most - at > reach ? kBetween : at;
}

std::string Recogniser::signature(int64_t reach) const {
  std::string out;
  const auto put = [&out](int64_t number) { out.append(reinterpret_cast<const char*>(&number), sizeof(number)); };
  for (const Way& way : ways_) {
    put(way.node);
    put(way.spent ? way.at : near_bounds(way.node, way.at, reach));
    put((way.behind_loose ? 1 : 0) + (way.spent ? 2 : 0));
    for (const Frame* frame = way.then.get(); frame != nullptr; frame = frame->then.get()) {
      put(frame->node);
      put(near_bounds(frame->node, frame->at, reach));
    }
    put(-1);
  }
  put(complete_ ? 1 : 0);
  return out + partial_;
}

}  // namespace quire::grammar
