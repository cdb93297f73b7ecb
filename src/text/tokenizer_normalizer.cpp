#include "text/tokenizer_normalizer.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "text/unicode.h"
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

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
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

class FormStep final : public NormalizerStep {
 public:
  explicit FormStep(NormalizationForm form) : form_(form) {}
  void apply(std::string& text, StretchPlace&) const override {
    if (!is_ascii(text)) text = normalize(text, form_);
  }
  // Three jamo become a syllable of as many bytes as one of them; a letter of mathematics one of ASCII.
  size_t most_shrinking() const override {
    return form_ == NormalizationForm::kNfkc || form_ == NormalizationForm::kNfkd ? 4 : 3;
  }

 private:
  NormalizationForm form_;
};

// Hands every character to `put(code point, its bytes, out)`.
template <typename Put>
void map_characters(std::string& text, StretchPlace& place, const Put& put) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const CodePoint point = decode_code_point(text.data() + i);
    put(point.value, std::string_view(text).substr(i, point.length), out);
    if (i == 0 && out.empty()) place.at_start = false;
    i += point.length;
  }
  text = std::move(out);
}

class ReplaceStep final : public NormalizerStep {
 public:
  ReplaceStep(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::string& text, StretchPlace& place) const override {
    std::vector<PatternSpan> spans;
    pattern_->find(text, spans);
    std::string out;
    out.reserve(text.size());
    for (const PatternSpan& span : spans) {
      if (span.is_match) {
        if (span.begin == 0 && span.end > 0 && content_.empty()) place.at_start = false;
        out.append(content_);
      } else {
        out.append(text, span.begin, span.end - span.begin);
      }
    }
    text = std::move(out);
  }
  size_t most_shrinking() const override {
    const size_t most = pattern_->longest();
    return most == 0 || content_.empty() ? 0 : (most + content_.size() - 1) / content_.size();
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

class StripStep final : public NormalizerStep {
 public:
  StripStep(bool left, bool right) : left_(left), right_(right) {}
  void apply(std::string& text, StretchPlace& place) const override {
    const CharacterTable& table = CharacterTable::get();
    size_t begin = 0;
    size_t end = text.size();
    while (left_ && begin < end) {
      const CodePoint point = decode_code_point(text.data() + begin);
      if (!table.is(point.value, kSpace)) break;
      begin += point.length;
    }
    while (right_ && end > begin) {
      const size_t last = previous_code_point(text, end);
      if (!table.is(decode_code_point(text.data() + last).value, kSpace)) break;
      end = last;
    }
    if (begin > 0) place.at_start = false;
    text = text.substr(begin, end - begin);
  }

 private:
  bool left_, right_;
};

class PrependStep final : public NormalizerStep {
 public:
  explicit PrependStep(std::string prefix) : prefix_(std::move(prefix)) {}
  void apply(std::string& text, StretchPlace&) const override {
    if (!text.empty()) text.insert(0, prefix_);
  }
  size_t most_shrinking() const override { return 1; }

 private:
  std::string prefix_;
};

void append_lowercase(char32_t c, std::string& out) {
  if (c == 0x130) {  // the one character whose lowercase is two: i and a dot above
    out.append("i\xCC\x87");
  } else {
    append_code_point(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
  }
}

void lowercase(std::string& text, StretchPlace& place) {
  map_characters(text, place, [](char32_t c, std::string_view, std::string& out) { append_lowercase(c, out); });
}

class LowercaseStep final : public NormalizerStep {
 public:
  void apply(std::string& text, StretchPlace& place) const override { lowercase(text, place); }
};

class StripAccentsStep final : public NormalizerStep {
 public:
  void apply(std::string& text, StretchPlace& place) const override {
    if (is_ascii(text)) return;
    map_characters(text, place, [](char32_t c, std::string_view bytes, std::string& out) {
      if (!CharacterTable::get().is(c, kMark)) out.append(bytes);
    });
  }
};

// The rules of Google's neural machine translation: control characters vanish, odd spaces become plain.
class NmtStep final : public NormalizerStep {
 public:
  void apply(std::string& text, StretchPlace& place) const override {
    map_characters(text, place, [](char32_t c, std::string_view bytes, std::string& out) {
      const bool vanishes =
          (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
      const bool is_space = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 ||
                            (c >= 0x200B && c <= 0x200F) || c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF ||
                            c == 0xFFFD;
      if (is_space) {
        out.push_back(' ');
      } else if (!vanishes) {
        out.append(bytes);
      }
    });
  }
};

class ByteLevelStep final : public NormalizerStep {
 public:
  size_t most_shrinking() const override { return 1; }
  void apply(std::string& text, StretchPlace&) const override {
    std::string out;
    out.reserve(2 * text.size());
    for (const char byte : text) {
      append_code_point(ByteAlphabet::get().character(static_cast<unsigned char>(byte)), out);
    }
    text = std::move(out);
  }
};

bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

// Cc, Cf and Co but for the three that count as white space.
bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CF || category == UTF8PROC_CATEGORY_CO;
}

class BertStep final : public NormalizerStep {
 public:
  explicit BertStep(const BertNormalizerOptions& options) : options_(options) {}
  void apply(std::string& text, StretchPlace& place) const override {
    if (options_.clean_text) {
      map_characters(text, place, [](char32_t c, std::string_view bytes, std::string& out) {
        if (c == 0 || c == 0xFFFD || is_control(c)) return;
        out.append(CharacterTable::get().is(c, kSpace) ? std::string_view(" ") : bytes);
      });
    }
    if (options_.handle_chinese_chars && !is_ascii(text)) {
      map_characters(text, place, [](char32_t c, std::string_view bytes, std::string& out) {
        const bool chinese = is_chinese(c);
        if (chinese) out.push_back(' ');
        out.append(bytes);
        if (chinese) out.push_back(' ');
      });
    }
    if (options_.strip_accents && !is_ascii(text)) {
      text = normalize(text, NormalizationForm::kNfd);
      map_characters(text, place, [](char32_t c, std::string_view bytes, std::string& out) {
        const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
        if (category != UTF8PROC_CATEGORY_MN) out.append(bytes);
      });
    }
    if (options_.lowercase) lowercase(text, place);
  }

 private:
  BertNormalizerOptions options_;
};

class PrecompiledStep final : public NormalizerStep {
 public:
  explicit PrecompiledStep(PrecompiledCharsmap map) : map_(std::move(map)) {}
  void apply(std::string& text, StretchPlace& place) const override {
    std::string out;
    out.reserve(text.size());
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = cluster_end(text, begin);
      const std::string_view cluster = std::string_view(text).substr(begin, end - begin);
      begin = end;
      const PrecompiledCharsmap::Match whole =
          cluster.size() < kLongestCluster ? map_.shortest(cluster) : PrecompiledCharsmap::Match{};
      if (whole.length > 0) {
        out.append(whole.replacement);
        if (out.empty()) place.at_start = false;
        continue;
      }
      for (size_t i = 0; i < cluster.size();) {
        const size_t length = decode_code_point(cluster.data() + i).length;
        const std::string_view character = cluster.substr(i, length);
        const PrecompiledCharsmap::Match match = map_.shortest(character);
        out.append(match.length > 0 ? match.replacement : character);
        i += length;
      }
    }
    text = std::move(out);
  }

 private:
  static constexpr size_t kLongestCluster = 6;  // bytes; the reference looks up only shorter ones

  static size_t cluster_end(std::string_view text, size_t begin) {
    CodePoint point = decode_code_point(text.data() + begin);
    size_t end = begin + point.length;
    utf8proc_int32_t state = 0;
    while (end < text.size()) {
      const CodePoint next = decode_code_point(text.data() + end);
      const bool both_ascii = point.value < 0x80 && next.value < 0x80 && point.value != '\r';
      if (both_ascii || utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(point.value),
                                                         static_cast<utf8proc_int32_t>(next.value), &state)) {
        break;
      }
      end += next.length;
      point = next;
    }
    return end;
  }

  PrecompiledCharsmap map_;
};

class SentencePieceStep final : public NormalizerStep {
 public:
  explicit SentencePieceStep(SentencePieceNormalizerOptions options) : options_(std::move(options)) {}
  size_t most_shrinking() const override {
    return options_.remove_extra_whitespaces || !options_.charsmap.empty() ? 0 : 1;
  }

  void apply(std::string& text, StretchPlace& place) const override {
    const bool prefix = options_.add_dummy_prefix && (place.at_start || !options_.prefix_only_at_start);
    const std::string_view space = options_.escape_whitespaces ? kSpaceSymbol : std::string_view(" ");
    std::string_view rest = text;
    while (options_.remove_extra_whitespaces && !rest.empty()) {
      const PrecompiledCharsmap::Match match = replaced(rest);
      if (match.replacement != " ") break;
      rest.remove_prefix(match.length);
    }
    std::string out;
    if (rest.empty()) {
      text.clear();
      return;
    }
    out.reserve(text.size() + text.size() / 2 + space.size());
    if (prefix && !options_.whitespace_as_suffix) out.append(space);
    bool after_space = options_.remove_extra_whitespaces;
    while (!rest.empty()) {
      const PrecompiledCharsmap::Match match = replaced(rest);
      std::string_view part = match.replacement;
      while (after_space && part.starts_with(' ')) part.remove_prefix(1);
      if (!part.empty()) {
        append_escaped(part, space, out);
        after_space = part.ends_with(' ');
      }
      rest.remove_prefix(match.length);
      if (!options_.remove_extra_whitespaces) after_space = false;
    }
    while (options_.remove_extra_whitespaces && out.ends_with(space)) out.resize(out.size() - space.size());
    if (prefix && options_.whitespace_as_suffix) out.append(space);
    text = std::move(out);
  }

 private:
  // What the beginning of `rest` becomes; never of length 0.
  PrecompiledCharsmap::Match replaced(std::string_view rest) const {
    if (options_.user_defined != nullptr) {
      const size_t length = options_.user_defined->longest(rest).length;
      if (length > 0) return {length, rest.substr(0, length)};
    }
    const PrecompiledCharsmap::Match match = options_.charsmap.longest(rest);
    if (match.length > 0) return match;
    const size_t length = decode_code_point(rest.data()).length;
    return {length, rest.substr(0, length)};
  }

  static void append_escaped(std::string_view part, std::string_view space, std::string& out) {
    for (const char byte : part) {
      if (byte == ' ') {
        out.append(space);
      } else {
        out.push_back(byte);
      }
    }
  }

  SentencePieceNormalizerOptions options_;
};

}  // namespace

std::optional<NormalizationForm> normalization_form(std::string_view name) {
  if (name == "NFC") return NormalizationForm::kNfc;
  if (name == "NFD") return NormalizationForm::kNfd;
  if (name == "NFKC") return NormalizationForm::kNfkc;
  if (name == "NFKD") return NormalizationForm::kNfkd;
  return std::nullopt;
}

void Normalizer::add(NormalizationForm form) {
  steps_.push_back(make_form_step(form));
}

size_t Normalizer::most_shrinking() const {
  size_t most = 1;
  for (const auto& step : steps_) most *= step->most_shrinking();
  return most;
}

std::optional<std::string> Normalizer::apply(std::string_view text, StretchPlace& place) const {
  if (steps_.empty()) return std::nullopt;
  std::string current(text);
  for (const auto& step : steps_) step->apply(current, place);
  if (current == text) return std::nullopt;
  return current;
}

std::unique_ptr<NormalizerStep> make_form_step(NormalizationForm form) {
  return std::make_unique<FormStep>(form);
}
std::unique_ptr<NormalizerStep> make_precompiled_step(PrecompiledCharsmap map) {
  return std::make_unique<PrecompiledStep>(std::move(map));
}
std::unique_ptr<NormalizerStep> make_replace_step(std::unique_ptr<Pattern> pattern, std::string content) {
  return std::make_unique<ReplaceStep>(std::move(pattern), std::move(content));
}
std::unique_ptr<NormalizerStep> make_strip_step(bool left, bool right) {
  return std::make_unique<StripStep>(left, right);
}
std::unique_ptr<NormalizerStep> make_prepend_step(std::string prefix) {
  return std::make_unique<PrependStep>(std::move(prefix));
}
std::unique_ptr<NormalizerStep> make_lowercase_step() {
  return std::make_unique<LowercaseStep>();
}
std::unique_ptr<NormalizerStep> make_strip_accents_step() {
  return std::make_unique<StripAccentsStep>();
}
std::unique_ptr<NormalizerStep> make_nmt_step() {
  return std::make_unique<NmtStep>();
}
std::unique_ptr<NormalizerStep> make_byte_level_step() {
  return std::make_unique<ByteLevelStep>();
}
std::unique_ptr<NormalizerStep> make_bert_step(const BertNormalizerOptions& options) {
  return std::make_unique<BertStep>(options);
}
std::unique_ptr<NormalizerStep> make_sentencepiece_step(SentencePieceNormalizerOptions options) {
  return std::make_unique<SentencePieceStep>(std::move(options));
}

}  // namespace quire::text
