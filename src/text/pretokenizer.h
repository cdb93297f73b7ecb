// Pre-tokenisation: text is cut into pieces before a model (BPE) sees it, so that no token crosses a cut. The steps are
// those of Hugging Face's tokenizers; each takes time linear in the text and constant stack, whatever the text.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/tokenizer_trie.h"

namespace quire::text {

// The pieces of one stretch of text. They view the text or `owned`.
struct PreTokenized {
  std::vector<std::string_view> pieces;
  std::deque<std::string> owned;  // text that a step had to make (a prefix space)
  bool at_start = true;           // the first piece begins where the whole text does
};

class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  // Cuts one piece and appends what becomes of it to `out.pieces`. `at_start`: the piece begins where the whole text
  // does. REQUIRES: valid UTF-8, not empty. Thread-safe.
  virtual void split(std::string_view piece, bool at_start, PreTokenized& out) const = 0;
  // Parts of pieces are dropped.
  virtual bool drops() const { return false; }
  // Pieces are other text than they were, but for where they begin.
  virtual bool rewrites() const { return false; }
};

class PreTokenizer {
 public:
  void add(std::unique_ptr<PreTokenizerStep> step) { steps_.push_back(std::move(step)); }
  // The pieces of `text`, in order, none empty. They view `text`, which must outlive them. REQUIRES: valid UTF-8.
  PreTokenized split(std::string_view text, bool at_start = true) const;
  bool empty() const { return steps_.empty(); }
  bool drops() const;  // some of the text

 private:
  std::vector<std::unique_ptr<PreTokenizerStep>> steps_;  // each works on the pieces of the one before
};

// What is done with the stretches a pattern matches: names and meaning of Hugging Face's SplitDelimiterBehavior.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

// A run of text that a pattern matched, or the text between two matches.
struct PatternSpan {
  size_t begin = 0, end = 0;
  bool is_match = false;
};

// Something that is searched for in text.
class Pattern {
 public:
  virtual ~Pattern() = default;
  // Appends spans that cover `text` in order; a match may be empty, a gap never is. Thread-safe.
  virtual void find(std::string_view text, std::vector<PatternSpan>& spans) const = 0;
  // Bytes of the longest match; 0: not known.
  virtual size_t longest() const { return 0; }
};

// Regular expression in Oniguruma's syntax. A pattern of a well-known family becomes a hand-written scanner, any other
// goes to PCRE2. Errors: invalid_argument when it does not compile, unimplemented for syntax that PCRE2 lacks.
Result<std::unique_ptr<Pattern>> make_regex_pattern(std::string_view regex);
// The same, always PCRE2: what the scanners are tested against. `match_limit` bounds the work of one match (PCRE2's
// meaning); when it is exceeded, the text from the last match on is one gap.
Result<std::unique_ptr<Pattern>> make_pcre2_pattern(std::string_view regex, uint32_t match_limit = 10'000'000);
// The hand-written scanner of exactly this expression; null when there is none.
std::unique_ptr<Pattern> make_scanner_pattern(std::string_view regex);
// Every occurrence of `literal`, left to right; an empty one is never found.
std::unique_ptr<Pattern> make_literal_pattern(std::string literal);
// Single characters of a class (CharacterClass bits of text/unicode.h).
std::unique_ptr<Pattern> make_class_pattern(int any_of);

// GPT-2's expression, which ByteLevel implies.
inline constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::unique_ptr<PreTokenizerStep> make_split_step(std::unique_ptr<Pattern> pattern, SplitBehavior behavior,
                                                  bool invert);
// A space before every piece that does not begin with one (ByteLevel's add_prefix_space).
std::unique_ptr<PreTokenizerStep> make_prefix_space_step();
// Every byte as its character of ByteAlphabet (ByteLevel before another step, or before a model that knows no bytes).
std::unique_ptr<PreTokenizerStep> make_byte_alphabet_step();
// Pieces of `length` characters, the last may be shorter. REQUIRES: length > 0.
std::unique_ptr<PreTokenizerStep> make_fixed_length_step(size_t length);
// Spaces become `replacement` (one character), which is put before a piece that does not begin with it as `prepend`
// says; with `split` every replacement begins a piece.
enum class PrependScheme { kAlways, kFirst, kNever };
std::unique_ptr<PreTokenizerStep> make_metaspace_step(std::string replacement, PrependScheme prepend, bool split);
// Matches of any of the keys, the longest, left to right, are pieces of their own.
std::unique_ptr<PreTokenizerStep> make_keys_step(std::shared_ptr<const ByteTrie> keys);
// Runs of one script; Hiragana and Katakana count as Han, a space and what has no script belong to any run.
Result<std::unique_ptr<PreTokenizerStep>> make_scripts_step();
// Runs of word characters and runs of other visible characters; white space is dropped (Whitespace).
std::unique_ptr<PreTokenizerStep> make_word_step();

}  // namespace quire::text
