#include "bench/name_filter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace quire::bench {

Result<NameFilter> NameFilter::compile(const std::string& expression) {
  NameFilter filter;
  if (expression.empty()) return filter;
  int error = 0;
  PCRE2_SIZE place = 0;
  pcre2_code* const code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), 0, &error, &place, nullptr);
  if (code != nullptr) {
    filter.code_ = std::shared_ptr<void>(code, [](void* made) { pcre2_code_free(static_cast<pcre2_code*>(made)); });
    return filter;
  }
  char message[128] = {};
  pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
  return invalid_argument("--filter \"{}\": at {}: {}", expression, place, message);
}

bool NameFilter::matches(const std::string& name) const {
  if (code_ == nullptr) return true;
  const auto* code = static_cast<const pcre2_code*>(code_.get());
  const std::unique_ptr<pcre2_match_data, void (*)(pcre2_match_data*)> match(
      pcre2_match_data_create_from_pattern(code, nullptr), pcre2_match_data_free);
  return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(), 0, 0, match.get(), nullptr) >= 0;
}

}  // namespace quire::bench
