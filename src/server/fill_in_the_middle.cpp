#include "server/fill_in_the_middle.h"

#include <optional>
#include <span>
#include <string>
#include <variant>

namespace quire::server {

namespace {

struct Spelling {
  const char* before_prefix;
  const char* before_suffix;
  const char* before_middle;
};

constexpr Spelling kSpellings[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"},
    {"<\uFF5Cfim\u2581begin\uFF5C>", "<\uFF5Cfim\u2581hole\uFF5C>", "<\uFF5Cfim\u2581end\uFF5C>"},
};

struct Marks {
  TokenId prefix;
  TokenId suffix;
  TokenId middle;
};

std::optional<Marks> marks_of(const text::Tokenizer& tokenizer) {
  for (const Spelling& spelling : kSpellings) {
    const auto prefix = tokenizer.token_to_id(spelling.before_prefix);
    const auto suffix = tokenizer.token_to_id(spelling.before_suffix);
    const auto middle = tokenizer.token_to_id(spelling.before_middle);
    if (prefix && suffix && middle) return Marks{*prefix, *suffix, *middle};
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<TokenId>> fill_in_the_middle(const text::Tokenizer& tokenizer, const Prompt& prefix,
                                                std::string_view suffix, bool add_special_tokens,
                                                const text::EncodeLimits& limits) {
  const std::optional<Marks> marks = marks_of(tokenizer);
  if (!marks) {
    return invalid_argument(
               "suffix is not supported by this model: its vocabulary has no tokens for filling in the middle "
               "(<|fim_prefix|>, <fim_prefix>, <PRE> or <\uFF5Cfim\u2581begin\uFF5C> and their kin). Leave it out.")
        .with_param("suffix");
  }
  std::vector<TokenId> ids;
  const auto append = [&](const std::vector<TokenId>& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  // The beginning of the sequence alone: the marks go behind it.
  if (add_special_tokens) append(tokenizer.encode("", /*add_special_tokens=*/true));
  ids.push_back(marks->prefix);
  // Text that spells a mark is none.
  const auto untrusted = [&](std::string_view text) {
    const text::TextPiece piece{.text = std::string(text), .trusted = false};
    return tokenizer.encode_within(std::span(&piece, 1), /*add_special_tokens=*/false, limits);
  };
  if (const auto* text = std::get_if<std::string>(&prefix)) {
    QUIRE_ASSIGN_OR_RETURN(const std::vector<TokenId> before, untrusted(*text));
    append(before);
  } else {
    append(std::get<std::vector<TokenId>>(prefix));
  }
  ids.push_back(marks->suffix);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TokenId> after, untrusted(suffix));
  append(after);
  ids.push_back(marks->middle);
  return ids;
}

}  // namespace quire::server
