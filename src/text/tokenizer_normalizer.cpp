#include "text/tokenizer_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

int options_of(NormalizationForm form) {
  const bool compatibility = form == NormalizationForm::kNfkc || form == NormalizationForm::kNfkd;
  return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0);
}

bool composes(NormalizationForm form) {
  return form == NormalizationForm::kNfc || form == NormalizationForm::kNfkc;
}

int combining_class(utf8proc_int32_t c) {
  return utf8proc_get_property(c)->combining_class;
}

// utf8proc's own ordering of marks takes quadratic time; this one sorts each run.
void order_marks(std::vector<utf8proc_int32_t>& text) {
  for (size_t i = 0; i < text.size();) {
    if (combining_class(text[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < text.size() && combining_class(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + static_cast<std::ptrdiff_t>(i), text.begin() + static_cast<std::ptrdiff_t>(end),
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    i = end;
  }
}

std::string normalize(std::string_view text, NormalizationForm form) {
  std::vector<utf8proc_int32_t> decomposed;
  decomposed.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = decode_code_point(text.data() + i);
    i += point.length;
    std::array<utf8proc_int32_t, 32> parts{};  // U+FDFA has the longest decomposition: 18
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(point.value), parts.data(),
                                                           static_cast<utf8proc_ssize_t>(parts.size()),
                                                           static_cast<utf8proc_option_t>(options_of(form)), &boundary);
    QUIRE_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()));
    decomposed.insert(decomposed.end(), parts.begin(), parts.begin() + count);
  }
  order_marks(decomposed);
  auto length = static_cast<utf8proc_ssize_t>(decomposed.size());
  if (composes(form)) {
    length = utf8proc_normalize_utf32(decomposed.data(), length,
                                      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    QUIRE_CHECK(length >= 0);
  }
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    append_code_point(static_cast<char32_t>(decomposed[static_cast<size_t>(i)]), out);
  }
  return out;
}

}  // namespace

std::optional<NormalizationForm> normalization_form(std::string_view name) {
  if (name == "NFC") return NormalizationForm::kNfc;
  if (name == "NFD") return NormalizationForm::kNfd;
  if (name == "NFKC") return NormalizationForm::kNfkc;
  if (name == "NFKD") return NormalizationForm::kNfkd;
  return std::nullopt;
}

std::optional<std::string> Normalizer::apply(std::string_view text) const {
  const bool ascii = std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (forms_.empty() || ascii) return std::nullopt;
  std::string current(text);
  for (const NormalizationForm form : forms_) current = normalize(current, form);
  if (current == text) return std::nullopt;
  return current;
}

}  // namespace quire::text
