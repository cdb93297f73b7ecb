// Any other expression of a tokenizer.json, through PCRE2. The files are written for Oniguruma's Ruby syntax: what
// means something else in PCRE2 is translated, what PCRE2 cannot say is refused.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "text/pretokenizer.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

constexpr size_t kMaxPatternBytes = 1 << 16;
constexpr uint32_t kHeapLimitKibibytes = 64 << 10;
constexpr uint32_t kDepthLimit = 1'000'000;

// The inside of a class; Oniguruma's \s is White_Space, \d is Nd, \w is Alphabetic, M, Nd, Pc and
// Latin-1's superscripts and fractions.
constexpr std::string_view kSpaceSet =
    R"(\x{9}-\x{d} \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";
constexpr std::string_view kNotSpaceSet =
    R"(\x{0}-\x{8}\x{e}-\x{1f}!-\x{84}\x{86}-\x{9f}\x{a1}-\x{167f}\x{1681}-\x{1fff}\x{200b}-\x{2027}\x{202a}-\x{202e}\x{2030}-\x{205e}\x{2060}-\x{2fff}\x{3001}-\x{d7ff}\x{e000}-\x{10ffff})";
constexpr std::string_view kWordSet =
    R"(\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{b2}\x{b3}\x{b9}\x{bc}-\x{be}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189})";

struct PropertyName {
  std::string_view oniguruma, pcre2;
};
constexpr std::array kPropertyNames = {PropertyName{"Letter", "L"},
                                       PropertyName{"Mark", "M"},
                                       PropertyName{"Number", "N"},
                                       PropertyName{"Punctuation", "P"},
                                       PropertyName{"Symbol", "S"},
                                       PropertyName{"Separator", "Z"},
                                       PropertyName{"Other", "C"},
                                       PropertyName{"Punct", "P"},
                                       PropertyName{"Uppercase_Letter", "Lu"},
                                       PropertyName{"Lowercase_Letter", "Ll"},
                                       PropertyName{"Titlecase_Letter", "Lt"},
                                       PropertyName{"Modifier_Letter", "Lm"},
                                       PropertyName{"Other_Letter", "Lo"},
                                       PropertyName{"Decimal_Number", "Nd"},
                                       PropertyName{"Letter_Number", "Nl"},
                                       PropertyName{"Other_Number", "No"},
                                       PropertyName{"Nonspacing_Mark", "Mn"},
                                       PropertyName{"Spacing_Mark", "Mc"},
                                       PropertyName{"Enclosing_Mark", "Me"}};

// Oniguruma's Ruby syntax to PCRE2's.
class Translator {
 public:
  explicit Translator(std::string_view regex) : in_(regex) {}

  Result<std::string> run() {
    while (i_ < in_.size()) {
      const char c = in_[i_];
      if (c == '\\') {
        QUIRE_RETURN_IF_ERROR(escape(/*in_class=*/false));
      } else if (c == '[') {
        QUIRE_RETURN_IF_ERROR(character_class());
      } else if (in_.substr(i_).starts_with("(?")) {
        group_options();
      } else if (c == '{') {
        QUIRE_RETURN_IF_ERROR(interval());
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  void copy(size_t bytes) {
    out_.append(in_.substr(i_, bytes));
    i_ += bytes;
  }
  void replace(size_t bytes, std::string_view with) {
    out_.append(with);
    i_ += bytes;
  }
  void replace_set(std::string_view set, bool negated, bool in_class) {
    if (!in_class) out_.append(negated ? "[^" : "[");
    out_.append(set);
    if (!in_class) out_.push_back(']');
    i_ += 2;
  }
  Status refuse(std::string_view what) const { return unimplemented("{} at byte {} is not supported", what, i_); }

  Status escape(bool in_class) {
    if (i_ + 1 >= in_.size()) return invalid_argument("the pattern ends in a backslash");
    switch (in_[i_ + 1]) {
      case 's':
        replace_set(kSpaceSet, false, in_class);
        return {};
      case 'S':
        if (in_class) {
          replace_set(kNotSpaceSet, false, true);
        } else {
          replace_set(kSpaceSet, true, false);
        }
        return {};
      case 'w':
        replace_set(kWordSet, false, in_class);
        return {};
      case 'W':
        if (in_class) return refuse("\\W inside a character class");
        replace_set(kWordSet, true, false);
        return {};
      case 'd':
        replace(2, "\\p{Nd}");
        return {};
      case 'D':
        replace(2, "\\P{Nd}");
        return {};
      case 'h':
        replace_set("0-9a-fA-F", false, in_class);
        return {};
      case 'H':
        if (in_class) return refuse("\\H inside a character class");
        replace_set("0-9a-fA-F", true, false);
        return {};
      case 'b':
      case 'B':
        if (in_class) {
          copy(2);
          return {};
        }
        word_boundary(in_[i_ + 1] == 'b');
        return {};
      case 'u':
        return code_unit();
      case 'p':
      case 'P':
        property();
        return {};
      default:
        copy(2);
        return {};
    }
  }

  void word_boundary(bool positive) {
    std::string word = "[";
    word.append(kWordSet).push_back(']');
    out_.append("(?:(?<=").append(word);
    out_.append(positive ? ")(?!" : ")(?=").append(word);
    out_.append(")|(?<!").append(word);
    out_.append(positive ? ")(?=" : ")(?!").append(word).append("))");
    i_ += 2;
  }

  // \uHHHH
  Status code_unit() {
    const std::string_view digits = in_.substr(i_ + 2, 4);
    if (digits.size() < 4 || digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      return invalid_argument("\\u at byte {} needs four hexadecimal digits", i_);
    }
    out_.append("\\x{").append(digits).push_back('}');
    i_ += 6;
    return {};
  }

  void property() {
    const size_t close = in_.find('}', i_);
    if (i_ + 2 >= in_.size() || in_[i_ + 2] != '{' || close == std::string_view::npos) {
      copy(2);
      return;
    }
    std::string_view name = in_.substr(i_ + 3, close - i_ - 3);
    bool negated = in_[i_ + 1] == 'P';
    if (name.starts_with('^')) {
      negated = !negated;
      name.remove_prefix(1);
    }
    for (const PropertyName& known : kPropertyNames) {
      if (known.oniguruma == name) name = known.pcre2;
    }
    out_.append(negated ? "\\P{" : "\\p{").append(name).push_back('}');
    i_ = close + 1;
  }

  Status character_class() {
    copy(1);
    if (i_ < in_.size() && in_[i_] == '^') copy(1);
    bool first = true;
    while (i_ < in_.size()) {
      const char c = in_[i_];
      if (c == ']' && !first) {
        copy(1);
        return {};
      }
      first = false;
      QUIRE_RETURN_IF_ERROR(class_member());
    }
    return invalid_argument("a character class is not closed");
  }

  // [ab[cd]] is [abcd], which is all that PCRE2 knows; where i_ is at the inner class.
  Status inner_class() {
    constexpr int kMostClasses = 8;
    if (++depth_ > kMostClasses) return refuse("so many classes inside one another");
    replace(1, "");
    if (in_.substr(i_).starts_with("^")) return refuse("what is in no class inside a class");
    if (in_.substr(i_).starts_with("]")) return refuse("a class inside a class that begins with ]");
    bool first = true;
    while (i_ < in_.size()) {
      if (in_[i_] == ']') {
        replace(1, "");
        --depth_;
        if (in_.substr(i_).starts_with("-") && !in_.substr(i_).starts_with("-]")) {
          return refuse("a range that begins with a class");
        }
        return {};
      }
      // No range with what stands before or behind it.
      if (in_[i_] == '-' && (first || in_.substr(i_).starts_with("-]"))) {
        replace(1, "\\-");
      } else {
        QUIRE_RETURN_IF_ERROR(class_member());
      }
      first = false;
    }
    return invalid_argument("a character class is not closed");
  }

  Status class_member() {
    const char c = in_[i_];
    if (c == '\\') {
      return escape(/*in_class=*/true);
    }
    if (in_.substr(i_).starts_with("[:")) {
      const size_t close = in_.find(":]", i_);
      if (close == std::string_view::npos) return refuse("a class inside a class");
      copy(close + 2 - i_);
    } else if (c == '[') {
      return inner_class();
    } else if (in_.substr(i_).starts_with("&&")) {
      return refuse("an intersection of classes");
    } else if (in_.substr(i_).starts_with("-[")) {
      return refuse("a range that ends with a class");
    } else {
      copy(1);
    }
    return {};
  }

  // Ruby's (?m) lets a dot match line ends: PCRE2's (?s).
  void group_options() {
    copy(2);
    while (i_ < in_.size() && (in_[i_] == 'i' || in_[i_] == 'm' || in_[i_] == 'x' || in_[i_] == '-')) {
      if (in_[i_] == 'm') {
        replace(1, "s");
      } else {
        copy(1);
      }
    }
  }

  // {,n} is {0,n}; {n,m}+ is a repeated repetition in Ruby, a possessive one in PCRE2.
  Status interval() {
    const size_t close = in_.find('}', i_);
    const std::string_view body = close == std::string_view::npos ? "" : in_.substr(i_ + 1, close - i_ - 1);
    const bool is_interval =
        !body.empty() && body.find_first_not_of("0123456789,") == std::string_view::npos && body != ",";
    if (!is_interval) {
      copy(1);
      return {};
    }
    if (close + 1 < in_.size() && in_[close + 1] == '+') return refuse("{n,m}+");
    out_.append(body.starts_with(',') ? "{0" : "{").append(body).push_back('}');
    i_ = close + 1;
    return {};
  }

  std::string_view in_;
  size_t i_ = 0;
  std::string out_;
  int depth_ = 0;  // of classes inside a class
};

struct Pcre2Deleter {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

class Pcre2Pattern final : public Pattern {
 public:
  Pcre2Pattern(std::unique_ptr<pcre2_code, Pcre2Deleter> code,
               std::unique_ptr<pcre2_match_context, Pcre2Deleter> limits)
      : code_(std::move(code)), limits_(std::move(limits)) {}

  // Matches one after the other as Oniguruma's scan does: an empty match right behind a match is passed over.
  void find(std::string_view text, std::vector<PatternSpan>& spans) const override {
    const std::unique_ptr<pcre2_match_data, Pcre2Deleter> data(pcre2_match_data_create(1, nullptr));
    QUIRE_CHECK(data != nullptr);
    size_t done = 0;      // end of the spans so far
    size_t position = 0;  // where to search from
    bool matched_before = false;
    while (position <= text.size()) {
      if (match(text, position, data.get()) < 0) break;
      const size_t* bounds = pcre2_get_ovector_pointer(data.get());
      // \K could put the beginning before what is already cut.
      const size_t begin = std::max(bounds[0], done);
      const size_t end = std::max(bounds[1], begin);
      if (begin == end && matched_before && end == done) {
        if (position >= text.size()) break;
        position += decode_code_point(text.data() + position).length;
        matched_before = false;
        continue;
      }
      if (begin > done) spans.push_back({done, begin, false});
      spans.push_back({begin, end, true});
      done = end;
      position = end;
      matched_before = true;
    }
    if (done < text.size()) spans.push_back({done, text.size(), false});
  }

 private:
  // The text has been checked once; checking it again for every match would be quadratic.
  int match(std::string_view text, size_t position, pcre2_match_data* data) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const int found = pcre2_match(code_.get(), subject, text.size(), position, PCRE2_NO_UTF_CHECK, data, limits_.get());
    if (found != PCRE2_ERROR_JIT_STACKLIMIT) return found;
    return pcre2_match(code_.get(), subject, text.size(), position, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data,
                       limits_.get());
  }

  std::unique_ptr<pcre2_code, Pcre2Deleter> code_;
  std::unique_ptr<pcre2_match_context, Pcre2Deleter> limits_;
};

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

Result<std::unique_ptr<Pattern>> make_pcre2_pattern(std::string_view regex, uint32_t match_limit) {
  if (regex.size() > kMaxPatternBytes) {
    return invalid_argument("a pattern of {} bytes; at most {} are accepted", regex.size(), kMaxPatternBytes);
  }
  if (!is_valid_utf8(regex)) return invalid_argument("the pattern is not valid UTF-8");
  QUIRE_ASSIGN_OR_RETURN(const std::string translated, Translator(regex).run());

  const std::unique_ptr<pcre2_compile_context, Pcre2Deleter> context(pcre2_compile_context_create(nullptr));
  QUIRE_CHECK(context != nullptr);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  size_t offset = 0;
  // Ruby's ^ and $ always match at lines.
  std::unique_ptr<pcre2_code, Pcre2Deleter> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get()));
  if (code == nullptr) {
    return invalid_argument("the pattern does not compile: {} (near byte {} of {:?})", pcre2_message(error), offset,
                            translated.substr(0, 200));
  }
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);  // where there is no JIT, the interpreter does the same

  std::unique_ptr<pcre2_match_context, Pcre2Deleter> limits(pcre2_match_context_create(nullptr));
  QUIRE_CHECK(limits != nullptr);
  pcre2_set_match_limit(limits.get(), match_limit);
  pcre2_set_depth_limit(limits.get(), kDepthLimit);
  pcre2_set_heap_limit(limits.get(), kHeapLimitKibibytes);
  return std::unique_ptr<Pattern>(std::make_unique<Pcre2Pattern>(std::move(code), std::move(limits)));
}

}  // namespace quire::text
