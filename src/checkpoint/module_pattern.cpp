#include "checkpoint/module_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

constexpr size_t kMostPatternBytes = 16384;
constexpr uint32_t kMostSteps = 100'000;
constexpr uint32_t kMostDepth = 1000;
constexpr uint32_t kMostKibibytes = 1024;

struct Freed {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

PCRE2_SPTR bytes_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

}  // namespace

struct ModulePattern::Compiled {
  std::unique_ptr<pcre2_code, Freed> code;
  std::unique_ptr<pcre2_match_context, Freed> limits;
};

Result<ModulePattern> ModulePattern::parse(std::string_view text, bool expression) {
  constexpr std::string_view kPrefix = "re:";
  ModulePattern pattern;
  pattern.text_ = text;
  if (!expression && !text.starts_with(kPrefix)) return pattern;
  if (!expression) text.remove_prefix(kPrefix.size());
  QUIRE_RETURN_IF_ERROR(pattern.compile(text, PCRE2_ANCHORED));
  return pattern;
}

Result<ModulePattern> ModulePattern::parse_whole(std::string_view expression) {
  ModulePattern pattern;
  pattern.text_ = expression;
  QUIRE_RETURN_IF_ERROR(pattern.compile(expression, PCRE2_ANCHORED | PCRE2_ENDANCHORED));
  return pattern;
}

Result<ModulePattern> ModulePattern::parse_anywhere(std::string_view expression) {
  ModulePattern pattern;
  pattern.text_ = expression;
  QUIRE_RETURN_IF_ERROR(pattern.compile(expression, 0));
  return pattern;
}

Status ModulePattern::compile(std::string_view expression, uint32_t anchors) {
  if (expression.size() > kMostPatternBytes) {
    return invalid_argument("an expression of {} bytes; at most {} are taken", expression.size(), kMostPatternBytes);
  }
  int error = 0;
  size_t offset = 0;
  auto compiled = std::make_shared<Compiled>();
  compiled->code.reset(pcre2_compile(bytes_of(expression), expression.size(), PCRE2_NEVER_BACKSLASH_C | anchors, &error,
                                     &offset, nullptr));
  if (compiled->code == nullptr) {
    return invalid_argument("the expression {} does not compile: see its byte {}", in_quotes(expression), offset);
  }
  compiled->limits.reset(pcre2_match_context_create(nullptr));
  if (compiled->limits == nullptr) return resource_exhausted("no memory for an expression");
  pcre2_set_match_limit(compiled->limits.get(), kMostSteps);
  pcre2_set_depth_limit(compiled->limits.get(), kMostDepth);
  pcre2_set_heap_limit(compiled->limits.get(), kMostKibibytes);
  compiled_ = std::move(compiled);
  return {};
}

Result<bool> ModulePattern::matches(std::string_view module) const {
  if (compiled_ == nullptr) return module == text_;
  const std::unique_ptr<pcre2_match_data, Freed> data(pcre2_match_data_create(1, nullptr));
  if (data == nullptr) return resource_exhausted("no memory for an expression");
  const int found =
      pcre2_match(compiled_->code.get(), bytes_of(module), module.size(), 0, 0, data.get(), compiled_->limits.get());
  if (found >= 0 || found == PCRE2_ERROR_NOMATCH) return found >= 0;
  return invalid_argument("the expression {} takes too many steps for {}", in_quotes(text_), in_quotes(module));
}

bool ends_with_module(std::string_view name, std::string_view key) {
  if (!name.ends_with(key)) return false;
  return name.size() == key.size() || name[name.size() - key.size() - 1] == '.';
}

}  // namespace quire::checkpoint
