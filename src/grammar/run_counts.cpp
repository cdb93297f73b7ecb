#include "grammar/run_counts.h"

#include <algorithm>

#include "text/utf8.h"

namespace quire::grammar {

namespace {

constexpr size_t kMostTables = 64;
constexpr size_t kBitsOfWord = 32;

void set_bits(std::span<const TokenId> ids, std::span<uint32_t> bits) {
  for (const TokenId id : ids)
    bits[static_cast<size_t>(id) / kBitsOfWord] |= uint32_t{1} << (static_cast<size_t>(id) % kBitsOfWord);
}

bool continues(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

struct Span {
  int64_t characters = 0;
  bool leaves = false;
};

Span span_of(std::string_view token, const CodePoints& set, bool beyond_ascii) {
  Span span;
  size_t at = 0;
  while (at < token.size() && continues(token[at])) ++at;  // the end of a character that counts before
  while (at < token.size()) {
    const text::Utf8Sequence sequence = text::next_utf8_sequence(token, at);
    const bool whole = sequence.state == text::Utf8State::kWellFormed;
    // Which character a beginning becomes is not known; the masks' grammar says whether it may.
    if (whole ? !set.contains(text::decode_code_point(token.data() + at).value) : !beyond_ascii) {
      span.leaves = true;
      return span;
    }
    ++span.characters;
    at += sequence.length;
  }
  return span;
}

}  // namespace

RunTable::BySpan RunTable::sorted(std::vector<std::pair<int64_t, TokenId>> spans) {
  std::ranges::sort(spans);
  BySpan out;
  for (const auto& [span, id] : spans) {
    while (static_cast<int64_t>(out.begins.size()) <= span) out.begins.push_back(out.ids.size());
    out.ids.push_back(id);
  }
  return out;
}

RunTable::RunTable(const std::vector<std::string>& tokens, const CodePoints& set) {
  const bool beyond_ascii = !set.ranges().empty() && set.ranges().back().second > 0x7F;
  std::vector<std::pair<int64_t, TokenId>> all;
  std::vector<std::pair<int64_t, TokenId>> leaving;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].empty()) continue;
    const Span span = span_of(tokens[i], set, beyond_ascii);
    longest_ = std::max(longest_, span.characters);
    if (span.characters > 0) all.emplace_back(span.characters, static_cast<TokenId>(i));
    if (span.leaves) leaving.emplace_back(span.characters, static_cast<TokenId>(i));
  }
  all_ = sorted(std::move(all));
  leaving_ = sorted(std::move(leaving));
}

void RunTable::mark(int64_t least, int64_t most, bool outside, std::span<uint32_t> bits) const {
  const auto place = [](const BySpan& tokens, int64_t span) {
    const auto index = static_cast<size_t>(span);
    return index < tokens.begins.size() ? tokens.begins[index] : tokens.ids.size();
  };
  if (most >= 0) set_bits(std::span(all_.ids).subspan(place(all_, most + 1)), bits);
  if (least <= 0) return;
  const size_t begin = outside ? 0 : place(leaving_, 1);
  const size_t end = place(leaving_, least);
  if (begin < end) set_bits(std::span(leaving_.ids).subspan(begin, end - begin), bits);
}

std::shared_ptr<const RunTable> RunTables::table(const std::vector<std::string>& tokens, const CodePoints& set) {
  const std::lock_guard lock(mutex_);
  for (const auto& [known, table] : tables_) {
    if (known == set) return table;
  }
  auto table = std::make_shared<const RunTable>(tokens, set);
  if (tables_.size() < kMostTables) tables_.emplace_back(set, table);
  return table;
}

}  // namespace quire::grammar
