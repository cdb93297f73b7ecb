// How long the texts of an expression are, and the same expression with counts that keep them within bounds.
#include <algorithm>
#include <utility>

#include "grammar/regex.h"

namespace quire::grammar {

namespace {

constexpr int64_t kLongest = int64_t{1} << 40;  // no count comes near

int64_t product(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return 0;
  return a > kLongest / b ? kLongest : a * b;
}

}  // namespace

Regex::Lengths Regex::lengths(const Node& node) {
  if (node.kind == Node::Kind::kSet) return {1, 1};
  Lengths out;
  if (node.kind == Node::Kind::kRepeat) {
    const Lengths part = lengths(node.parts.front());
    out.least = product(part.least, node.least);
    const bool is_bounded = part.most == 0 || node.most == 0 || (part.most > 0 && node.most > 0);
    out.most = is_bounded ? product(part.most, std::max<int64_t>(node.most, 0)) : -1;
    return out;
  }
  const bool is_choice = node.kind == Node::Kind::kChoice;
  for (size_t i = 0; i < node.parts.size(); ++i) {
    const Lengths part = lengths(node.parts[i]);
    const bool no_bound = part.most < 0 || out.most < 0;
    if (is_choice && i > 0) {
      out = {std::min(out.least, part.least), no_bound ? -1 : std::max(out.most, part.most)};
    } else {
      out = {std::min(out.least + part.least, kLongest), no_bound ? -1 : std::min(out.most + part.most, kLongest)};
    }
  }
  return out;
}

// Raises counts so that no text is shorter. False: it cannot, and the node is spoiled.
bool Regex::lengthen(Node& node, int64_t least) {
  const Lengths now = lengths(node);
  if (now.least >= least) return true;
  if (now.most >= 0 && now.most < least) return false;
  switch (node.kind) {
    case Node::Kind::kSet:
      return false;
    case Node::Kind::kChoice:
      std::erase_if(node.parts, [least](Node& part) { return !lengthen(part, least); });
      return !node.parts.empty();
    case Node::Kind::kRepeat: {
      const int64_t each = lengths(node.parts.front()).least;
      if (each == 0) return false;
      const int64_t rounds = (least + each - 1) / each;
      if (node.most >= 0 && rounds > node.most) return false;
      node.least = rounds;
      return true;
    }
    case Node::Kind::kSequence:
      break;
  }
  for (Node& part : node.parts) {
    Node longer = part;
    if (!lengthen(longer, lengths(part).least + least - now.least)) continue;
    part = std::move(longer);
    return true;
  }
  return false;
}

// Lowers counts so that no text is longer. False: it cannot, and the node is spoiled.
bool Regex::shorten(Node& node, int64_t most) {
  const Lengths now = lengths(node);
  if (now.most >= 0 && now.most <= most) return true;
  if (now.least > most) return false;
  switch (node.kind) {
    case Node::Kind::kSet:
      return false;
    case Node::Kind::kChoice:
      std::erase_if(node.parts, [most](Node& part) { return !shorten(part, most); });
      return !node.parts.empty();
    case Node::Kind::kRepeat: {
      const Lengths part = lengths(node.parts.front());
      if (part.most > 0 && product(part.most, std::max<int64_t>(node.least, 1)) <= most) {
        node.most = most / part.most;
        return true;
      }
      // Of texts that may be long the fewest rounds, and these shorter.
      if (node.least == 0 && part.least > most) {
        node.most = 0;
        return true;
      }
      node.most = std::max<int64_t>(node.least, 1);
      return shorten(node.parts.front(), most / node.most);
    }
    case Node::Kind::kSequence:
      return shorten_parts(node, most);
  }
  return false;
}

// What is left beside the least that each part takes goes to those that may be longer, alike, the smallest first.
bool Regex::shorten_parts(Node& sequence, int64_t most) {
  std::vector<Node*> longer;
  int64_t left = most;
  const auto room = [](const Node& part) {
    const Lengths of = lengths(part);
    return of.most < 0 ? kLongest : of.most - of.least;
  };
  for (Node& part : sequence.parts) {
    left -= lengths(part).least;
    if (room(part) > 0) longer.push_back(&part);
  }
  std::ranges::stable_sort(longer, {}, [&](const Node* part) { return room(*part); });
  for (size_t i = 0; i < longer.size(); ++i) {
    Node& part = *longer[i];
    const int64_t share = left / static_cast<int64_t>(longer.size() - i);
    const int64_t least = lengths(part).least;
    if (!shorten(part, least + share)) return false;
    left -= lengths(part).most - least;
  }
  return left >= 0;
}

std::optional<std::string> Regex::ebnf(Spelling spelling, int64_t least, int64_t most) const {
  Node node = root_;
  if (!lengthen(node, least) || (most >= 0 && !shorten(node, most))) return std::nullopt;
  std::string out;
  write(node, spelling, out);
  return "(" + out + ")";
}

}  // namespace quire::grammar
