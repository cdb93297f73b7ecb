#include "text/pretokenizer.h"

#include <algorithm>
#include <utility>

#include "text/unicode.h"
#include "text/utf8.h"

namespace quire::text {
namespace {

class LiteralPattern final : public Pattern {
 public:
  explicit LiteralPattern(std::string literal) : literal_(std::move(literal)) {}
  size_t longest() const override { return literal_.size(); }

  void find(std::string_view text, std::vector<PatternSpan>& spans) const override {
    size_t done = 0;
    while (!literal_.empty()) {
      const size_t begin = text.find(literal_, done);
      if (begin == std::string_view::npos) break;
      if (begin > done) spans.push_back({done, begin, false});
      done = begin + literal_.size();
      spans.push_back({begin, done, true});
    }
    if (done < text.size()) spans.push_back({done, text.size(), false});
  }

 private:
  std::string literal_;
};

class ClassPattern final : public Pattern {
 public:
  explicit ClassPattern(int any_of) : any_of_(any_of) {}

  void find(std::string_view text, std::vector<PatternSpan>& spans) const override {
    const CharacterTable& table = CharacterTable::get();
    size_t gap = 0;
    for (size_t i = 0; i < text.size();) {
      const CodePoint point = decode_code_point(text.data() + i);
      const size_t next = i + point.length;
      if (table.is(point.value, any_of_)) {
        if (gap < i) spans.push_back({gap, i, false});
        spans.push_back({i, next, true});
        gap = next;
      }
      i = next;
    }
    if (gap < text.size()) spans.push_back({gap, text.size(), false});
  }

 private:
  int any_of_;
};

// The merges below follow Hugging Face's NormalizedString::split: of several matches in a row only the first joins its
// neighbour.
std::vector<PatternSpan> merge_with_previous(const std::vector<PatternSpan>& spans) {
  std::vector<PatternSpan> merged;
  bool previous_match = false;
  for (const PatternSpan& span : spans) {
    if (span.is_match && !previous_match && !merged.empty()) {
      merged.back().end = span.end;
    } else {
      merged.push_back(span);
    }
    previous_match = span.is_match;
  }
  return merged;
}

std::vector<PatternSpan> merge_with_next(const std::vector<PatternSpan>& spans) {
  std::vector<PatternSpan> merged;
  bool previous_match = false;
  for (auto span = spans.rbegin(); span != spans.rend(); ++span) {
    if (span->is_match && !previous_match && !merged.empty()) {
      merged.back().begin = span->begin;
    } else {
      merged.push_back(*span);
    }
    previous_match = span->is_match;
  }
  std::reverse(merged.begin(), merged.end());
  return merged;
}

std::vector<PatternSpan> merge_contiguous(const std::vector<PatternSpan>& spans) {
  std::vector<PatternSpan> merged;
  bool previous_match = false;
  for (const PatternSpan& span : spans) {
    if (span.is_match == previous_match && !merged.empty()) {
      merged.back().end = span.end;
    } else {
      merged.push_back(span);
    }
    previous_match = span.is_match;
  }
  return merged;
}

class SplitStep final : public PreTokenizerStep {
 public:
  SplitStep(std::unique_ptr<Pattern> pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  bool drops() const override { return behavior_ == SplitBehavior::kRemoved; }

  void split(std::string_view piece, bool, PreTokenized& out) const override {
    std::vector<PatternSpan> spans;
    pattern_->find(piece, spans);
    if (invert_) {
      for (PatternSpan& span : spans) span.is_match = !span.is_match;
    }
    switch (behavior_) {
      case SplitBehavior::kIsolated:
        break;
      case SplitBehavior::kRemoved:
        std::erase_if(spans, [](const PatternSpan& span) { return span.is_match; });
        break;
      case SplitBehavior::kMergedWithPrevious:
        spans = merge_with_previous(spans);
        break;
      case SplitBehavior::kMergedWithNext:
        spans = merge_with_next(spans);
        break;
      case SplitBehavior::kContiguous:
        spans = merge_contiguous(spans);
        break;
    }
    for (const PatternSpan& span : spans) {
      if (span.end > span.begin) out.pieces.push_back(piece.substr(span.begin, span.end - span.begin));
    }
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class PrefixSpaceStep final : public PreTokenizerStep {
 public:
  bool rewrites() const override { return true; }
  void split(std::string_view piece, bool, PreTokenized& out) const override {
    if (piece.starts_with(' ')) {
      out.pieces.push_back(piece);
      return;
    }
    std::string& text = out.owned.emplace_back(" ");
    text.append(piece);
    out.pieces.push_back(text);
  }
};

class WordStep final : public PreTokenizerStep {
 public:
  bool drops() const override { return true; }
  void split(std::string_view piece, bool, PreTokenized& out) const override {
    const CharacterTable& table = CharacterTable::get();
    enum class Kind { kSpace, kWord, kOther };
    Kind run = Kind::kSpace;
    size_t begin = 0;
    const auto close = [&](size_t end) {
      if (run != Kind::kSpace && end > begin) out.pieces.push_back(piece.substr(begin, end - begin));
    };
    for (size_t i = 0; i < piece.size();) {
      const CodePoint point = decode_code_point(piece.data() + i);
      const uint16_t bits = table.classes(point.value);
      const Kind kind = (bits & kWord) != 0 ? Kind::kWord : (bits & kSpace) != 0 ? Kind::kSpace : Kind::kOther;
      if (kind != run) {
        close(i);
        run = kind;
        begin = i;
      }
      i += point.length;
    }
    close(piece.size());
  }
};

}  // namespace

bool PreTokenizer::drops() const {
  return std::ranges::any_of(steps_, [](const auto& step) { return step->drops(); });
}

PreTokenized PreTokenizer::split(std::string_view text, bool at_start) const {
  PreTokenized current;
  current.at_start = at_start;
  if (!text.empty()) current.pieces.push_back(text);
  for (const auto& step : steps_) {
    PreTokenized next;
    next.owned = std::move(current.owned);
    for (size_t i = 0; i < current.pieces.size(); ++i) {
      step->split(current.pieces[i], current.at_start && i == 0, next);
    }
    const bool keeps_start = !current.pieces.empty() && !next.pieces.empty() &&
                             (step->rewrites() || next.pieces[0].data() == current.pieces[0].data());
    next.at_start = current.at_start && keeps_start;
    current = std::move(next);
  }
  return current;
}

std::unique_ptr<Pattern> make_literal_pattern(std::string literal) {
  return std::make_unique<LiteralPattern>(std::move(literal));
}

std::unique_ptr<Pattern> make_class_pattern(int any_of) {
  return std::make_unique<ClassPattern>(any_of);
}

std::unique_ptr<PreTokenizerStep> make_split_step(std::unique_ptr<Pattern> pattern, SplitBehavior behavior,
                                                  bool invert) {
  return std::make_unique<SplitStep>(std::move(pattern), behavior, invert);
}

std::unique_ptr<PreTokenizerStep> make_prefix_space_step() {
  return std::make_unique<PrefixSpaceStep>();
}

std::unique_ptr<PreTokenizerStep> make_word_step() {
  return std::make_unique<WordStep>();
}

Result<std::unique_ptr<Pattern>> make_regex_pattern(std::string_view regex) {
  if (auto scanner = make_scanner_pattern(regex)) return scanner;
  return make_pcre2_pattern(regex);
}

}  // namespace quire::text
