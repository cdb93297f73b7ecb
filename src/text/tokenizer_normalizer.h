// What happens to text before it is pre-tokenised: Unicode normalisation (Unicode Standard Annex 15) and the other
// normalizers of Hugging Face's tokenizers, and SentencePiece's own.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/pretokenizer.h"
#include "text/tokenizer_charsmap.h"
#include "text/tokenizer_trie.h"

namespace quire::text {

enum class NormalizationForm { kNfc, kNfd, kNfkc, kNfkd };

// By the name a tokenizer.json has for it ("NFC"); nullopt: no such form.
std::optional<NormalizationForm> normalization_form(std::string_view name);

// Where a stretch of text stands: a prefix space may depend on it.
struct StretchPlace {
  // It begins where the whole text does, not behind an added token; a step that drops the first character ends that.
  bool at_start = true;
};

class NormalizerStep {
 public:
  virtual ~NormalizerStep() = default;
  // REQUIRES: valid UTF-8, and leaves it so. Time O(n log n) at most, constant stack. Thread-safe.
  virtual void apply(std::string& text, StretchPlace& place) const = 0;
  // A text has at most so many bytes for each byte of what becomes of it; 0: any number.
  virtual size_t most_shrinking() const { return 0; }
};

class Normalizer {
 public:
  void add(std::unique_ptr<NormalizerStep> step) { steps_.push_back(std::move(step)); }  // applied in order
  void add(NormalizationForm form);
  bool empty() const { return steps_.empty(); }
  size_t most_shrinking() const;  // of all steps together
  // nullopt: the text is as it was. REQUIRES: valid UTF-8.
  std::optional<std::string> apply(std::string_view text, StretchPlace& place) const;
  std::optional<std::string> apply(std::string_view text) const {
    StretchPlace place;
    return apply(text, place);
  }

 private:
  std::vector<std::unique_ptr<NormalizerStep>> steps_;
};

std::unique_ptr<NormalizerStep> make_form_step(NormalizationForm form);
// Hugging Face's way with compiled rules: a grapheme cluster of less than 6 bytes is looked up whole, then each
// character; the shortest rule counts.
std::unique_ptr<NormalizerStep> make_precompiled_step(PrecompiledCharsmap map);
std::unique_ptr<NormalizerStep> make_replace_step(std::unique_ptr<Pattern> pattern, std::string content);
std::unique_ptr<NormalizerStep> make_strip_step(bool left, bool right);  // white space
std::unique_ptr<NormalizerStep> make_prepend_step(std::string prefix);   // not before an empty text
std::unique_ptr<NormalizerStep> make_lowercase_step();
std::unique_ptr<NormalizerStep> make_strip_accents_step();  // every combining mark
std::unique_ptr<NormalizerStep> make_nmt_step();
std::unique_ptr<NormalizerStep> make_byte_level_step();  // every byte becomes its character of ByteAlphabet
struct BertNormalizerOptions {
  bool clean_text = true, handle_chinese_chars = true, strip_accents = true, lowercase = true;
};
std::unique_ptr<NormalizerStep> make_bert_step(const BertNormalizerOptions& options);

struct SentencePieceNormalizerOptions {
  PrecompiledCharsmap charsmap;                  // the longest rule counts
  std::shared_ptr<const ByteTrie> user_defined;  // symbols that stay as they are; may be null
  bool add_dummy_prefix = true;
  bool prefix_only_at_start = false;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;  // a space becomes U+2581
  bool whitespace_as_suffix = false;
};
std::unique_ptr<NormalizerStep> make_sentencepiece_step(SentencePieceNormalizerOptions options);

// "▁", U+2581: what stands for a space in SentencePiece's vocabularies.
inline constexpr std::string_view kSpaceSymbol = "\xE2\x96\x81";

}  // namespace quire::text
