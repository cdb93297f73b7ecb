#include "grammar/regex.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "base/check.h"
#include "base/hex.h"
#include "text/utf8.h"

namespace quire::grammar {

namespace {

constexpr size_t kMostStates = 200000;
constexpr int64_t kMostSpelled = 8;

// -----------------------------------------------------------------------------------------------------------
// reading

// A class that a letter stands for: what all dialects agree is in it, and what any of them has in it (so that the
// complement is what none has).
struct NamedClass {
  CodePoints narrow;
  CodePoints wide;
};

NamedClass opposite(const NamedClass& named) {
  return {named.wide.complement(), named.narrow.complement()};
}

// Between these, nothing is a decimal digit or a letter's digit for any dialect but the ASCII ones.
NamedClass digits() {
  CodePoints narrow{{'0', '9'}};
  // Blocks without decimal digits of other scripts: Latin to Arabic, then kana, Han and Hangul's neighbours, emoji.
  CodePoints surely_not{{0, '0' - 1}, {'9' + 1, 0x65F}, {0x2000, 0xA61F}, {0x1F000, 0x1FBEF}};
  return {narrow, surely_not.complement()};
}

NamedClass word_characters() {
  CodePoints narrow{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  // Punctuation and signs of ASCII, Latin-1, General Punctuation, currencies, arrows to dingbats' beginning, emoji.
  CodePoints surely_not{{0, '0' - 1},     {'9' + 1, 'A' - 1}, {'Z' + 1, '^'},   {'`', '`'},         {'z' + 1, 0x7F},
                        {0xA1, 0xA9},     {0xAB, 0xB1},       {0xB4, 0xB4},     {0xB6, 0xB8},       {0xBB, 0xBB},
                        {0xBF, 0xBF},     {0x2010, 0x2027},   {0x2030, 0x203E}, {0x20A0, 0x20C0},   {0x2190, 0x23FF},
                        {0x2500, 0x26FF}, {0x3001, 0x3002},   {0x3008, 0x3011}, {0x1F300, 0x1F64F}, {0x1F680, 0x1F6C5}};
  return {narrow, surely_not.complement()};
}

NamedClass spaces() {
  return {CodePoints{{'\t', '\r'}, {' ', ' '}}, CodePoints{{'\t', '\r'},
                                                           {0x1C, ' '},
                                                           {0x85, 0x85},
                                                           {0xA0, 0xA0},
                                                           {0x1680, 0x1680},
                                                           {0x180E, 0x180E},
                                                           {0x2000, 0x200A},
                                                           {0x2028, 0x2029},
                                                           {0x202F, 0x202F},
                                                           {0x205F, 0x205F},
                                                           {0x3000, 0x3000},
                                                           {0xFEFF, 0xFEFF}}};
}

CodePoints dot() {
  return CodePoints{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}.complement();
}

}  // namespace

class RegexParser {
 public:
  RegexParser(std::string_view pattern, const GrammarLimits& limits) : pattern_(pattern), limits_(limits) {}

  Result<Regex> run() {
    Regex regex;
    QUIRE_ASSIGN_OR_RETURN(regex.root_, choice(0));
    if (at_ < pattern_.size()) return refuse("a ')' that closes nothing");
    return regex;
  }

 private:
  using Node = Regex::Node;

  // A letter's class or a single character.
  struct Escape {
    bool is_class = false;
    NamedClass named;
    char32_t point = 0;
  };

  Status refuse(std::string_view what) const {
    return invalid_argument("the regular expression has, at byte {}, {}", at_, what);
  }

  bool peek(char c) const { return at_ < pattern_.size() && pattern_[at_] == c; }
  bool take(std::string_view text) {
    if (!pattern_.substr(at_).starts_with(text)) return false;
    at_ += text.size();
    return true;
  }

  static Node set_node(CodePoints set) {
    Node node;
    node.kind = Node::Kind::kSet;
    node.set = std::move(set);
    return node;
  }

  Result<Node> choice(int64_t depth) {
    if (depth > limits_.max_depth) return refuse(fmt::format("groups more than {} deep", limits_.max_depth));
    Node node;
    node.kind = Node::Kind::kChoice;
    do {
      QUIRE_ASSIGN_OR_RETURN(Node part, sequence(depth));
      node.parts.push_back(std::move(part));
    } while (take("|"));
    if (node.parts.size() > 1) return node;
    Node only = std::move(node.parts.front());
    return only;
  }

  Result<Node> sequence(int64_t depth) {
    Node node;
    // An anchor says nothing where the whole text must match; elsewhere it would.
    if (take("^") && depth > 0) return refuse("a '^' within a group, which is not supported");
    while (at_ < pattern_.size() && !peek('|') && !peek(')')) {
      if (take("$")) {
        const bool ends = at_ == pattern_.size() || peek('|');
        if (depth > 0 || !ends) return refuse("a '$' that is not at the end, which is not supported");
        break;
      }
      QUIRE_ASSIGN_OR_RETURN(Node part, item(depth));
      QUIRE_RETURN_IF_ERROR(quantify(part));
      node.parts.push_back(std::move(part));
    }
    if (node.parts.size() != 1) return node;
    Node only = std::move(node.parts.front());
    return only;
  }

  Result<Node> item(int64_t depth) {
    if (take("(")) return group(depth);
    if (take("[")) return character_class();
    if (take(".")) return set_node(dot());
    if (take("^")) return refuse("a '^' that is not at the beginning, which is not supported");
    if (peek('*') || peek('+') || peek('?') || peek('{')) return refuse("a count with nothing before it");
    if (take("\\")) {
      QUIRE_ASSIGN_OR_RETURN(const Escape escape, escape_sequence());
      return set_node(escape.is_class ? escape.named.narrow : CodePoints{{escape.point, escape.point}});
    }
    QUIRE_ASSIGN_OR_RETURN(const char32_t point, character());
    return set_node({{point, point}});
  }

  Result<Node> group(int64_t depth) {
    if (take("?<") && !peek('=') && !peek('!')) {
      const size_t end = pattern_.find('>', at_);
      const auto is_name = [](char c) { return is_alphanumeric(static_cast<unsigned char>(c)) || c == '_'; };
      const std::string_view name = end == std::string_view::npos ? "" : pattern_.substr(at_, end - at_);
      if (name.empty() || !std::ranges::all_of(name, is_name)) return refuse("a group with a name that is none");
      at_ = end + 1;
    } else if (!take("?:") && peek('?')) {
      return refuse("a group of a kind that is not supported");
    }
    QUIRE_ASSIGN_OR_RETURN(Node node, choice(depth + 1));
    if (!take(")")) return refuse("the end, with a group that is not closed");
    return node;
  }

  Status quantify(Node& part) {
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
      return {};
    }
    take("?");  // what is preferred makes no difference to what matches
    if (peek('*') || peek('+') || peek('?') || peek('{')) return refuse("a count behind a count");
    Node repeat;
    repeat.kind = Node::Kind::kRepeat;
    repeat.least = least;
    repeat.most = most;
    repeat.parts.push_back(std::move(part));
    part = std::move(repeat);
    return {};
  }

  Status counts(int64_t& least, int64_t& most) {
    QUIRE_ASSIGN_OR_RETURN(least, number());
    most = least;
    if (take(",")) {
      most = -1;
      if (!peek('}')) {
        QUIRE_ASSIGN_OR_RETURN(most, number());
        if (most < least) return refuse("a count whose second number is the smaller");
      }
    }
    return take("}") ? Status() : refuse("a '{' that is no count");
  }

  Result<int64_t> number() {
    int64_t value = 0;
    const size_t begin = at_;
    for (; at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9'; ++at_) {
      value = std::min(value * 10 + (pattern_[at_] - '0'), limits_.max_count + 1);
    }
    if (at_ == begin) return refuse("a '{' that is no count");
    if (value > limits_.max_count) return refuse(fmt::format("a count above {}", limits_.max_count));
    return value;
  }

  Result<Node> character_class() {
    const bool negated = take("^");
    CodePoints set;
    bool empty = true;
    while (!peek(']')) {
      if (at_ >= pattern_.size()) return refuse("a '[' without its ']'");
      if (pattern_.substr(at_).starts_with("[:")) return refuse("a POSIX class, which is not supported");
      empty = false;
      QUIRE_ASSIGN_OR_RETURN(const Escape first, class_member());
      if (first.is_class) {
        // Followed by '-' it would be read in more ways than one.
        if (peek('-') && !pattern_.substr(at_).starts_with("-]")) return refuse("a range that begins with a class");
        set.add(negated ? first.named.wide : first.named.narrow);
        continue;
      }
      char32_t last = first.point;
      if (peek('-') && !pattern_.substr(at_).starts_with("-]")) {
        ++at_;
        QUIRE_ASSIGN_OR_RETURN(const Escape second, class_member());
        if (second.is_class) return refuse("a range that ends with a class");
        last = second.point;
        if (last < first.point) return refuse("a range whose end is before its beginning");
      }
      set.add(first.point, last);
    }
    ++at_;
    if (empty) return refuse("an empty class");
    if (negated) set = set.complement();
    if (set.empty()) return refuse("a class of nothing");
    return set_node(std::move(set));
  }

  Result<Escape> class_member() {
    if (at_ >= pattern_.size()) return refuse("a '[' without its ']'");
    if (take("\\")) {
      if (take("b")) return Escape{.point = '\b'};
      return escape_sequence();
    }
    QUIRE_ASSIGN_OR_RETURN(const char32_t point, character());
    return Escape{.point = point};
  }

  Result<char32_t> character() {
    const text::Utf8Sequence sequence = text::next_utf8_sequence(pattern_, at_);
    if (sequence.state != text::Utf8State::kWellFormed) return refuse("ill-formed UTF-8");
    const char32_t point = text::decode_code_point(pattern_.data() + at_).value;
    at_ += sequence.length;
    return point;
  }

  Result<char32_t> hexadecimal(size_t count) {
    char32_t value = 0;
    for (size_t i = 0; i < count; ++i, ++at_) {
      const int digit = at_ < pattern_.size() ? hex_digit(pattern_[at_]) : -1;
      if (digit < 0) return refuse("an escape that lacks hexadecimal digits");
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  Result<char32_t> unicode_escape() {
    if (take("{")) {
      const size_t end = pattern_.find('}', at_);
      if (end == std::string_view::npos || end == at_ || end - at_ > 6) return refuse("an escape that is not complete");
      QUIRE_ASSIGN_OR_RETURN(const char32_t point, hexadecimal(end - at_));
      ++at_;
      return scalar(point);
    }
    QUIRE_ASSIGN_OR_RETURN(const char32_t first, hexadecimal(4));
    if (first < kFirstSurrogate || first > 0xDBFF || !take("\\u")) return scalar(first);
    QUIRE_ASSIGN_OR_RETURN(const char32_t second, hexadecimal(4));
    if (second < 0xDC00 || second > kLastSurrogate) return refuse("half of a surrogate pair");
    return 0x10000 + ((first - kFirstSurrogate) << 10) + (second - 0xDC00);
  }

  Result<char32_t> scalar(char32_t point) const {
    if (point > kLastCodePoint || (point >= kFirstSurrogate && point <= kLastSurrogate)) {
      return refuse("an escape that is no character");
    }
    return point;
  }

  // Behind the backslash.
  Result<Escape> escape_sequence() {
    if (at_ >= pattern_.size()) return refuse("a backslash at its end");
    const char c = pattern_[at_++];
    switch (c) {
      case 'd':
        return Escape{.is_class = true, .named = digits()};
      case 'D':
        return Escape{.is_class = true, .named = opposite(digits())};
      case 'w':
        return Escape{.is_class = true, .named = word_characters()};
      case 'W':
        return Escape{.is_class = true, .named = opposite(word_characters())};
      case 's':
        return Escape{.is_class = true, .named = spaces()};
      case 'S':
        return Escape{.is_class = true, .named = opposite(spaces())};
      case 't':
        return Escape{.point = '\t'};
      case 'n':
        return Escape{.point = '\n'};
      case 'v':
        return Escape{.point = '\v'};
      case 'f':
        return Escape{.point = '\f'};
      case 'r':
        return Escape{.point = '\r'};
      case '0':
        if (at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9') return refuse("an octal escape");
        return Escape{.point = 0};
      case 'x': {
        QUIRE_ASSIGN_OR_RETURN(const char32_t point, hexadecimal(2));
        return Escape{.point = point};
      }
      case 'u': {
        QUIRE_ASSIGN_OR_RETURN(const char32_t point, unicode_escape());
        return Escape{.point = point};
      }
      default:
        break;
    }
    const auto byte = static_cast<unsigned char>(c);
    // A letter that means nothing here may mean something elsewhere.
    if (byte >= 0x80 || byte < 0x20 || is_alphanumeric(byte)) {
      return refuse(fmt::format("the escape \\{}, which is not supported", byte < 0x80 ? std::string(1, c) : "?"));
    }
    return Escape{.point = byte};
  }

  std::string_view pattern_;
  const GrammarLimits& limits_;
  size_t at_ = 0;
};

Result<Regex> Regex::parse(std::string_view pattern, const GrammarLimits& limits) {
  QUIRE_RETURN_IF_ERROR(check_regex(pattern, limits));
  QUIRE_ASSIGN_OR_RETURN(Regex regex, RegexParser(pattern, limits).run());
  QUIRE_RETURN_IF_ERROR(regex.build(kMostStates));
  return regex;
}

void Regex::take_out(const CodePoints& set, Node& node) {
  if (node.kind == Node::Kind::kSet) node.set = node.set.without(set);
  for (Node& part : node.parts) take_out(set, part);
}

Regex Regex::without(const CodePoints& set) const {
  Regex regex;
  regex.root_ = root_;
  take_out(set, regex.root_);
  // No larger than this one, so that there is room for it.
  QUIRE_CHECK(regex.build(kMostStates).ok());
  return regex;
}

// -----------------------------------------------------------------------------------------------------------
// the grammar's notation

void Regex::write(const Node& node, Spelling spelling, std::string& out) {
  switch (node.kind) {
    case Node::Kind::kSet:
      out += ebnf_of(node.set, spelling);
      return;
    case Node::Kind::kSequence:
    case Node::Kind::kChoice: {
      if (node.parts.empty()) {
        out += "\"\"";
        return;
      }
      const char* between = node.kind == Node::Kind::kChoice ? " | " : " ";
      out += '(';
      for (size_t i = 0; i < node.parts.size(); ++i) {
        if (i > 0) out += between;
        write(node.parts[i], spelling, out);
      }
      out += ')';
      return;
    }
    case Node::Kind::kRepeat:
      if (node.most == 0) {
        out += "\"\"";
        return;
      }
      if (node.most == -1 && node.least == 0 && node.parts.front().kind == Node::Kind::kChoice) {
        return write_free_choice(node.parts.front(), spelling, out);
      }
      if (node.least == node.most && node.most <= kMostSpelled && node.parts.front().kind == Node::Kind::kSet) {
        // Said so often it stays within its rule, so that no mask has tokens to try that go beyond a rule's end.
        for (int64_t i = 0; i < node.most; ++i) {
          if (i > 0) out += ' ';
          write(node.parts.front(), spelling, out);
        }
        return;
      }
      out += '(';
      write(node.parts.front(), spelling, out);
      out += ')';
      if (node.most == -1 && node.least <= 1) {
        out += node.least == 0 ? '*' : '+';
      } else if (node.least == 0 && node.most == 1) {
        out += '?';
      } else if (node.most == -1) {
        out += fmt::format("{{{},}}", node.least);
      } else {
        out += fmt::format("{{{},{}}}", node.least, node.most);
      }
      return;
  }
}

// ([ab] | rest)* is [ab]* (rest [ab]*)*: a run of characters is one state of the grammar, and a mask of it is at hand,
// where each round of a choice would have its tokens tried.
void Regex::write_free_choice(const Node& choice, Spelling spelling, std::string& out) {
  Node run;
  run.kind = Node::Kind::kRepeat;
  run.parts.emplace_back();
  run.parts.front().kind = Node::Kind::kSet;
  Node rest;
  rest.kind = Node::Kind::kChoice;
  for (const Node& part : choice.parts) {
    if (part.kind == Node::Kind::kSet) {
      run.parts.front().set.add(part.set);
    } else {
      rest.parts.push_back(part);
    }
  }
  out += '(';
  if (!run.parts.front().set.empty()) write(run, spelling, out);
  if (!rest.parts.empty()) {
    out += " (";
    write(rest, spelling, out);
    if (!run.parts.front().set.empty()) {
      out += ' ';
      write(run, spelling, out);
    }
    out += ")*";
  }
  out += ')';
}

std::string Regex::ebnf(Spelling spelling) const {
  std::string out;
  write(root_, spelling, out);
  return "(" + out + ")";
}

// -----------------------------------------------------------------------------------------------------------
// matching, by all states at once

int32_t Regex::add_state(State state) {
  if (states_.size() > most_states_) return 0;
  states_.push_back(state);
  return static_cast<int32_t>(states_.size()) - 1;
}

Status Regex::build(size_t most_states) {
  most_states_ = most_states;
  states_.emplace_back();
  start_ = build(root_, 0);
  if (states_.size() <= most_states) return {};
  return invalid_argument("the regular expression is too large: counts within it add up to more than {} characters",
                          most_states);
}

// Built from its end: returns the state before `node` whose way leads to `next`.
int32_t Regex::build(const Node& node, int32_t next) {
  if (states_.size() > most_states_) return 0;
  switch (node.kind) {
    case Node::Kind::kSet: {
      const auto found = std::ranges::find(sets_, node.set);
      const auto index = static_cast<int32_t>(found - sets_.begin());
      if (found == sets_.end()) sets_.push_back(node.set);
      return add_state({index, next, -1});
    }
    case Node::Kind::kSequence:
      for (size_t i = node.parts.size(); i-- > 0;) next = build(node.parts[i], next);
      return next;
    case Node::Kind::kChoice: {
      int32_t ways = build(node.parts.back(), next);
      for (size_t i = node.parts.size() - 1; i-- > 0;) {
        const int32_t way = build(node.parts[i], next);
        ways = add_state({-1, way, ways});
      }
      return ways;
    }
    case Node::Kind::kRepeat: {
      const Node& part = node.parts.front();
      if (node.most == -1) {
        const int32_t loop = add_state({-1, -1, next});
        const int32_t body = build(part, loop);
        states_[static_cast<size_t>(loop)].next = body;
        next = loop;
      } else {
        const int32_t end = next;
        for (int64_t i = node.least; i < node.most && states_.size() <= most_states_; ++i) {
          next = add_state({-1, build(part, next), end});
        }
      }
      for (int64_t i = 0; i < node.least && states_.size() <= most_states_; ++i) next = build(part, next);
      return next;
    }
  }
  return next;
}

void Regex::enter(int32_t state, std::vector<int32_t>& entered, std::vector<uint32_t>& seen, uint32_t round) const {
  std::vector<int32_t> open{state};
  while (!open.empty()) {
    const int32_t at = open.back();
    open.pop_back();
    if (at < 0 || seen[static_cast<size_t>(at)] == round) continue;
    seen[static_cast<size_t>(at)] = round;
    const State& here = states_[static_cast<size_t>(at)];
    if (at == 0 || here.set >= 0) {
      entered.push_back(at);
    } else {
      open.push_back(here.other);
      open.push_back(here.next);
    }
  }
}

bool Regex::matches(std::string_view text) const {
  if (!text::is_valid_utf8(text)) return false;
  std::vector<uint32_t> seen(states_.size(), 0);
  std::vector<int32_t> now;
  std::vector<int32_t> then;
  uint32_t round = 1;
  enter(start_, now, seen, round);
  for (size_t i = 0; i < text.size() && !now.empty();) {
    const text::CodePoint point = text::decode_code_point(text.data() + i);
    i += point.length;
    ++round;
    then.clear();
    for (const int32_t at : now) {
      const State& here = states_[static_cast<size_t>(at)];
      if (at == 0 || !sets_[static_cast<size_t>(here.set)].contains(point.value)) continue;
      enter(here.next, then, seen, round);
    }
    now.swap(then);
  }
  return std::ranges::find(now, 0) != now.end();
}

}  // namespace quire::grammar
