#include "text/tokenizer_added.h"

#include <algorithm>

#include "text/unicode.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

uint64_t edge_key(uint32_t node, char byte) {
  return static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(byte);
}

bool class_before(std::string_view text, size_t position, size_t begin, int classes) {
  if (position <= begin) return false;
  const size_t start = previous_code_point(text, position);
  return CharacterTable::get().is(decode_code_point(text.data() + start).value, classes);
}

bool class_at(std::string_view text, size_t position, size_t end, int classes) {
  if (position >= end) return false;
  return CharacterTable::get().is(decode_code_point(text.data() + position).value, classes);
}

}  // namespace

void AddedTokenMatcher::add(const AddedToken& token) {
  if (token.content.empty()) return;
  uint32_t node = 0;
  for (const char byte : token.content) {
    const auto [edge, is_new] = edges_.emplace(edge_key(node, byte), static_cast<uint32_t>(token_at_.size()));
    if (is_new) token_at_.push_back(-1);
    node = edge->second;
  }
  if (token_at_[node] >= 0) return;  // the same spelling twice: the first stays
  token_at_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  begins_[static_cast<unsigned char>(token.content[0])] = true;
}

AddedTokenMatcher::Found AddedTokenMatcher::longest_at(std::string_view text, size_t position, size_t end,
                                                       size_t trusted_until) const {
  Found found;
  uint32_t node = 0;
  for (size_t i = position; i < end; ++i) {
    const auto edge = edges_.find(edge_key(node, text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (token_at_[node] < 0) continue;
    const AddedToken& token = tokens_[static_cast<size_t>(token_at_[node])];
    if (!token.special || i + 1 <= trusted_until) found = {i + 1, &token};
  }
  return found;
}

void AddedTokenMatcher::split(std::string_view text, size_t begin, size_t end, const TrustedRanges& trusted,
                              std::vector<AddedSpan>& spans) const {
  auto range = std::partition_point(trusted.begin(), trusted.end(), [&](const auto& r) { return r.second <= begin; });
  size_t done = begin;
  for (size_t i = begin; i < end;) {
    if (!begins_[static_cast<unsigned char>(text[i])]) {
      ++i;
      continue;
    }
    while (range != trusted.end() && range->second <= i) ++range;
    const size_t trusted_until = range != trusted.end() && range->first <= i ? range->second : 0;
    const Found found = longest_at(text, i, end, trusted_until);
    if (found.token == nullptr) {
      ++i;
      continue;
    }
    size_t token_begin = i;
    size_t token_end = found.end;
    i = found.end;  // also a token that is no single word hides those inside it
    if (found.token->single_word &&
        (class_before(text, token_begin, begin, kWord) || class_at(text, token_end, end, kWord))) {
      continue;
    }
    if (found.token->lstrip) {
      token_begin = std::max(token_begin, done);  // white space that an rstrip before took
      while (token_begin > done && class_before(text, token_begin, done, kSpace)) {
        token_begin = previous_code_point(text, token_begin);
      }
    }
    if (found.token->rstrip) {
      while (class_at(text, token_end, end, kSpace)) {
        token_end += decode_code_point(text.data() + token_end).length;
      }
    }
    if (done < token_begin) spans.push_back({done, token_begin, kNoToken});
    if (token_begin < token_end) spans.push_back({token_begin, token_end, found.token->id});
    done = token_end;
  }
  if (done < end) spans.push_back({done, end, kNoToken});
}

}  // namespace quire::text
