#include "grammar/rules.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/hex.h"
#include "text/utf8.h"

namespace quire::grammar {

namespace {

using Node = Rules::Node;

constexpr int kMostLevels = 1000;
constexpr size_t kMostNodes = 400000;
constexpr size_t kMostAnalysed = 40000;
// A run of fewer than so many characters of a set of fewer than so many costs masks little.
constexpr size_t kLargeSet = 24;
constexpr int64_t kLongRun = 12;

bool is_name(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' || c == '-' || c == '.';
}

size_t size_of(const CodePoints& set) {
  size_t size = 0;
  for (const auto& [first, last] : set.ranges()) size += static_cast<size_t>(last - first) + 1;
  return size;
}

std::u32string decoded(std::string_view text) {
  std::u32string out;
  for (size_t at = 0; at < text.size();) {
    const text::CodePoint point = text::decode_code_point(text.data() + at);
    out += point.value;
    at += point.length;
  }
  return out;
}

}  // namespace

// -----------------------------------------------------------------------------------------------------------
// reading

class RulesParser {
 public:
  RulesParser(std::string_view text, RulesBuilder& builder)
      : text_(text), builder_(builder), nodes_(builder.rules_->nodes_) {}

  Result<int32_t> run() {
    std::unordered_map<std::string, int32_t> bodies;
    blank();
    while (at_ < text_.size()) {
      QUIRE_ASSIGN_OR_RETURN(const std::string name, rule_name());
      if (peek() == '[') return unknown("attributes of a rule");
      blank();
      if (!take("::=")) return refuse("no \"::=\" behind a rule's name");
      QUIRE_ASSIGN_OR_RETURN(const int32_t body, choice(0));
      if (!bodies.emplace(name, body).second) return refuse("a rule twice");
      blank();
    }
    for (const auto& [node, name] : references_) {
      const auto found = bodies.find(name);
      if (found == bodies.end()) return refuse("a rule that is nowhere");
      nodes_[static_cast<size_t>(node)].parts = {found->second};
    }
    const auto root = bodies.find("root");
    if (root == bodies.end()) return refuse("no rule root");
    return root->second;
  }

 private:
  Status refuse(std::string_view what) const { return invalid_argument("the grammar has, at byte {}, {}", at_, what); }
  Status unknown(std::string_view what) const { return unimplemented("the grammar has, at byte {}, {}", at_, what); }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(std::string_view what) {
    if (!text_.substr(at_).starts_with(what)) return false;
    at_ += what.size();
    return true;
  }

  void blank() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        at_ = std::min(text_.find_first_of("\r\n", at_), text_.size());
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }

  Result<std::string> rule_name() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    if (at_ == begin) return unknown("a sign that is not understood");
    return std::string(text_.substr(begin, at_ - begin));
  }

  // Whether a rule begins here.
  bool at_rule() {
    const size_t begin = at_;
    while (at_ < text_.size() && is_name(text_[at_])) ++at_;
    blank();
    const bool is_rule = at_ > begin && text_.substr(at_).starts_with("::=");
    at_ = begin;
    return is_rule;
  }

  int32_t add(Node node) { return builder_.add(std::move(node)); }

  Result<int32_t> choice(int level) {
    if (level > kMostLevels || nodes_.size() > kMostNodes) return unknown("too much to look at");
    std::vector<int32_t> parts;
    do {
      QUIRE_ASSIGN_OR_RETURN(const int32_t part, sequence(level));
      parts.push_back(part);
    } while (take("|"));
    if (parts.size() == 1) return parts.front();
    return add({.kind = Node::Kind::kChoice, .parts = std::move(parts)});
  }

  Result<int32_t> sequence(int level) {
    std::vector<int32_t> parts;
    for (blank(); at_ < text_.size() && peek() != '|' && peek() != ')'; blank()) {
      if (is_name(peek()) && at_rule()) break;
      QUIRE_ASSIGN_OR_RETURN(const int32_t part, item(level));
      parts.push_back(part);
    }
    if (parts.size() == 1) return parts.front();
    return add({.kind = Node::Kind::kSequence, .parts = std::move(parts)});
  }

  Result<int32_t> item(int level) {
    const size_t begin = at_;
    int32_t part = 0;
    if (peek() == '"') {
      QUIRE_ASSIGN_OR_RETURN(part, literal());
    } else if (peek() == '[') {
      QUIRE_ASSIGN_OR_RETURN(part, character_class());
    } else if (take("(")) {
      if (peek() == '=') return unknown("an assertion");
      QUIRE_ASSIGN_OR_RETURN(part, choice(level + 1));
      if (!take(")")) return refuse("a '(' without its ')'");
    } else {
      QUIRE_ASSIGN_OR_RETURN(std::string name, rule_name());
      if (peek() == '(') return unknown("a macro");
      part = add({.kind = Node::Kind::kRule});
      references_.emplace_back(part, std::move(name));
    }
    return counted(part, begin);
  }

  Result<int32_t> counted(int32_t part, size_t begin) {
    const size_t end = at_;
    blank();
    int64_t least = 0;
    int64_t most = -1;
    if (take("*")) {
    } else if (take("+")) {
      least = 1;
    } else if (take("?")) {
      most = 1;
    } else if (take("{")) {
      QUIRE_RETURN_IF_ERROR(counts(least, most));
    } else {
      at_ = end;
      return part;
    }
    Node& inner = nodes_[static_cast<size_t>(part)];
    if (inner.kind == Node::Kind::kSet) {
      inner.kind = Node::Kind::kRun;
      inner.least = least;
      inner.most = most;
      builder_.runs_.push_back({part, builder_.grammars_.size() - 1, begin, end, at_});
      return part;
    }
    return add({.kind = Node::Kind::kRepeat, .least = least, .most = most, .parts = {part}});
  }

  Status counts(int64_t& least, int64_t& most) {
    QUIRE_ASSIGN_OR_RETURN(least, number());
    most = least;
    blank();
    if (take(",")) {
      blank();
      most = -1;
      if (peek() != '}') {
        QUIRE_ASSIGN_OR_RETURN(most, number());
      }
      blank();
    }
    if (!take("}") || (most >= 0 && most < least)) return refuse("a '{' that is no count");
    return {};
  }

  Result<int64_t> number() {
    blank();
    const size_t begin = at_;
    int64_t value = 0;
    for (; peek() >= '0' && peek() <= '9' && value < 1000000000; ++at_) value = value * 10 + (peek() - '0');
    if (at_ == begin) return refuse("a '{' that is no count");
    return value;
  }

  Result<int32_t> literal() {
    ++at_;
    Node node{.kind = Node::Kind::kText};
    while (peek() != '"') {
      QUIRE_ASSIGN_OR_RETURN(const char32_t point, character());
      node.text += point;
    }
    ++at_;
    return add(std::move(node));
  }

  Result<int32_t> character_class() {
    ++at_;
    const bool negated = take("^");
    std::vector<CodePoints::Range> ranges;
    while (peek() != ']') {
      QUIRE_ASSIGN_OR_RETURN(const char32_t first, character());
      char32_t last = first;
      if (peek() == '-' && !text_.substr(at_).starts_with("-]")) {
        ++at_;
        QUIRE_ASSIGN_OR_RETURN(last, character());
        if (last < first) return refuse("a range whose end is before its beginning");
      }
      ranges.emplace_back(first, last);
    }
    ++at_;
    CodePoints set;
    for (const auto& [first, last] : ranges) set.add(first, last);
    return add({.kind = Node::Kind::kSet, .set = negated ? set.complement() : std::move(set)});
  }

  // One of a literal or a class.
  Result<char32_t> character() {
    if (at_ >= text_.size() || peek() == '\n' || peek() == '\r') return refuse("the end within quotes or brackets");
    if (!take("\\")) {
      if (text::next_utf8_sequence(text_, at_).state != text::Utf8State::kWellFormed) return refuse("ill-formed UTF-8");
      const text::CodePoint point = text::decode_code_point(text_.data() + at_);
      at_ += point.length;
      return point.value;
    }
    const char c = peek();
    ++at_;
    switch (c) {
      case 'n':
        return U'\n';
      case 't':
        return U'\t';
      case 'r':
        return U'\r';
      case '"':
      case '\\':
      case ']':
      case '[':
      case '-':
      case '^':
        return static_cast<char32_t>(c);
      case 'u':
        return hexadecimal(4);
      case 'U':
        return hexadecimal(8);
      default:
        return unknown("an escape that is not understood");
    }
  }

  Result<char32_t> hexadecimal(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const int digit = hex_digit(peek());
      if (digit < 0) return refuse("an escape that lacks hexadecimal digits");
      value = value * 16 + static_cast<uint32_t>(digit);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return unknown("an escape that is no character");
    return static_cast<char32_t>(value);
  }

  std::string_view text_;
  size_t at_ = 0;
  RulesBuilder& builder_;
  std::vector<Node>& nodes_;
  std::vector<std::pair<int32_t, std::string>> references_;
};

// -----------------------------------------------------------------------------------------------------------
// what may stand where

// Which nodes may be nothing, what they may begin with and what may come behind them: the sets of an LL parser.
class RulesAnalysis {
 public:
  explicit RulesAnalysis(Rules& rules) : rules_(rules), nullable_(rules.nodes_.size(), false) {
    for (bool more = true; more;) {
      more = false;
      for (size_t i = 0; i < nullable_.size(); ++i) {
        if (nullable_[i] || !is_nullable(rules_.nodes_[i])) continue;
        nullable_[i] = true;
        more = true;
      }
    }
  }

  // Does some rule come back to itself with nothing read?
  bool left_recursive() const {
    enum : uint8_t { kNew, kOpen, kDone };
    std::vector<uint8_t> seen(rules_.nodes_.size(), kNew);
    std::vector<std::pair<int32_t, bool>> open;  // bool: its parts were looked at
    for (size_t start = 0; start < seen.size(); ++start) {
      open.emplace_back(static_cast<int32_t>(start), false);
      while (!open.empty()) {
        const auto [index, left] = open.back();
        open.pop_back();
        uint8_t& state = seen[static_cast<size_t>(index)];
        if (left) {
          state = kDone;
          continue;
        }
        if (state == kOpen) return true;
        if (state == kDone) continue;
        state = kOpen;
        open.emplace_back(index, true);
        const Node& node = rules_.node(index);
        for (const int32_t part : node.parts) {
          if (seen[static_cast<size_t>(part)] == kOpen) return true;
          open.emplace_back(part, false);
          if (node.kind == Node::Kind::kSequence && !nullable(part)) break;
        }
      }
    }
    return false;
  }

  // Of each node the fewest characters that it stands for; kNone of one that never ends.
  std::vector<int64_t> least_characters() const {
    std::vector<int64_t> least(rules_.nodes_.size(), kNone);
    for (bool more = true; more;) {
      more = false;
      for (size_t i = least.size(); i-- > 0;) {
        const int64_t now = least_of(rules_.nodes_[i], least);
        more |= now < least[i];
        least[i] = std::min(now, least[i]);
      }
    }
    return least;
  }

  // Marks the runs that may go uncounted.
  void loosen(const std::vector<RulesBuilder::RunPlace>& runs) {
    const auto wanted = [this](const RulesBuilder::RunPlace& run) {
      const Node& node = rules_.node(run.node);
      const bool many = size_of(node.set) >= kLargeSet || node.least >= kLongRun || node.most >= kLongRun;
      return many && (node.least > 1 || node.most > 1);
    };
    if (rules_.nodes_.size() > kMostAnalysed || std::ranges::none_of(runs, wanted)) return;
    find_first();
    find_behind();
    for (const RulesBuilder::RunPlace& run : runs) {
      Node& node = rules_.nodes_[static_cast<size_t>(run.node)];
      if (!wanted(run) || node.set.intersects(behind_[static_cast<size_t>(run.node)])) continue;
      node.loose = true;
      rules_.any_loose_ = true;
    }
  }

 private:
  bool nullable(int32_t index) const { return nullable_[static_cast<size_t>(index)]; }

  bool is_nullable(const Node& node) const {
    const auto may = [this](int32_t part) { return nullable(part); };
    switch (node.kind) {
      case Node::Kind::kText:
        return node.text.empty();
      case Node::Kind::kSet:
        return false;
      case Node::Kind::kRun:
        return node.least == 0;
      case Node::Kind::kSequence:
      case Node::Kind::kRule:
        return std::ranges::all_of(node.parts, may);
      case Node::Kind::kChoice:
        return std::ranges::any_of(node.parts, may);
      case Node::Kind::kRepeat:
        return node.least == 0 || nullable(node.parts.front());
      case Node::Kind::kFree:
        return true;
    }
    return true;
  }

  static constexpr int64_t kNone = int64_t{1} << 40;

  static int64_t least_of(const Node& node, const std::vector<int64_t>& least) {
    const auto of = [&](int32_t part) { return least[static_cast<size_t>(part)]; };
    int64_t sum = 0;
    switch (node.kind) {
      case Node::Kind::kText:
        return static_cast<int64_t>(node.text.size());
      case Node::Kind::kSet:
        return 1;
      case Node::Kind::kRun:
        return node.least;
      case Node::Kind::kSequence:
      case Node::Kind::kRule:
        for (const int32_t part : node.parts) sum = std::min(sum + of(part), kNone);
        return sum;
      case Node::Kind::kChoice:
        return of(*std::ranges::min_element(node.parts, {}, of));
      case Node::Kind::kRepeat:
        return node.least == 0 ? 0 : std::min(of(node.parts.front()), kNone / node.least) * node.least;
      case Node::Kind::kFree:
        return 0;
    }
    return 0;
  }

  static bool grow(CodePoints& set, const CodePoints& more) {
    CodePoints grown = set;
    grown.add(more);
    if (grown == set) return false;
    set = std::move(grown);
    return true;
  }

  void find_first() {
    first_.resize(rules_.nodes_.size());
    for (size_t i = 0; i < first_.size(); ++i) {
      const Node& node = rules_.nodes_[i];
      if (node.kind == Node::Kind::kText && !node.text.empty()) first_[i].add(node.text.front(), node.text.front());
      if (node.kind == Node::Kind::kSet || node.kind == Node::Kind::kRun) first_[i] = node.set;
      if (node.kind == Node::Kind::kFree) first_[i].add(0, 0x10FFFF);
    }
    for (bool more = true; more;) {
      more = false;
      for (size_t i = 0; i < first_.size(); ++i) {
        const Node& node = rules_.nodes_[i];
        for (const int32_t part : node.parts) {
          more |= grow(first_[i], first_[static_cast<size_t>(part)]);
          if (node.kind == Node::Kind::kSequence && !nullable(part)) break;
        }
      }
    }
  }

  void find_behind() {
    behind_.resize(rules_.nodes_.size());
    for (bool more = true; more;) {
      more = false;
      for (size_t i = rules_.nodes_.size(); i-- > 0;) {
        const Node& node = rules_.nodes_[i];
        CodePoints next = behind_[i];
        if (node.kind == Node::Kind::kRepeat) next.add(first_[static_cast<size_t>(node.parts.front())]);
        for (size_t k = node.parts.size(); k-- > 0;) {
          const auto part = static_cast<size_t>(node.parts[k]);
          more |= grow(behind_[part], next);
          if (node.kind != Node::Kind::kSequence) continue;
          if (!nullable_[part]) next = CodePoints();
          next.add(first_[part]);
        }
      }
    }
  }

  Rules& rules_;
  std::vector<bool> nullable_;
  std::vector<CodePoints> first_;
  std::vector<CodePoints> behind_;
};

Result<std::shared_ptr<const Rules>> Rules::parse(std::string_view ebnf) {
  RulesBuilder builder;
  QUIRE_ASSIGN_OR_RETURN(const int32_t root, builder.grammar(ebnf));
  return builder.finish(root);
}

Result<int32_t> RulesBuilder::grammar(std::string_view ebnf) {
  grammars_.emplace_back(ebnf);
  return RulesParser(ebnf, *this).run();
}

int32_t RulesBuilder::add(Node node) {
  rules_->nodes_.push_back(std::move(node));
  return static_cast<int32_t>(rules_->nodes_.size()) - 1;
}

int32_t RulesBuilder::text(std::string_view text) {
  return add({.kind = Node::Kind::kText, .text = decoded(text)});
}

int32_t RulesBuilder::free(const std::vector<std::string>& excluded) {
  Node node{.kind = Node::Kind::kFree};
  for (const std::string& one : excluded) node.excluded.push_back(decoded(one));
  return add(std::move(node));
}

Result<std::shared_ptr<const Rules>> RulesBuilder::finish(int32_t root) {
  Rules& rules = *rules_;
  rules.root_ = root;
  RulesAnalysis analysis(rules);
  if (analysis.left_recursive()) return unimplemented("the grammar has a rule that begins with itself");
  analysis.loosen(runs_);
  rules.least_characters_ = analysis.least_characters();
  std::ranges::sort(runs_, {}, [](const RunPlace& run) { return std::pair(run.grammar, run.begin); });
  auto run = runs_.begin();
  for (size_t i = 0; i < grammars_.size(); ++i) {
    const std::string_view ebnf = grammars_[i];
    std::string& loose = rules.loose_ebnfs_.emplace_back();
    size_t from = 0;
    for (; run != runs_.end() && run->grammar == i; ++run) {
      const Node& node = rules.node(run->node);
      if (!node.loose) continue;
      loose += ebnf.substr(from, run->class_end - from);
      loose += node.least == 0 ? '*' : '+';
      from = run->end;
    }
    loose += ebnf.substr(from);
  }
  return std::shared_ptr<const Rules>(std::move(rules_));
}

bool Rules::counts_parts() const {
  return std::ranges::any_of(
      nodes_, [](const Node& node) { return node.kind == Node::Kind::kRepeat && (node.least > 1 || node.most > 1); });
}

size_t Rules::bytes() const {
  size_t bytes = nodes_.size() * (sizeof(Node) + sizeof(int64_t));
  for (const std::string& loose : loose_ebnfs_) bytes += loose.size();
  for (const Node& node : nodes_) {
    bytes += node.set.ranges().size() * sizeof(CodePoints::Range) + node.text.size() * sizeof(char32_t) +
             node.parts.size() * sizeof(int32_t);
  }
  return bytes;
}

}  // namespace quire::grammar
