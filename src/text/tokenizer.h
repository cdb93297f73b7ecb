// Text to token ids and back. Immutable after it is made, so any thread may use it at once.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "types/ids.h"
#include "types/text_source.h"
#include "types/vocabulary.h"

namespace quire::text {

// A stretch of a prompt and where it came from. Only trusted text (a chat template's own, an operator's) may spell
// control tokens; in a user's text "<|im_end|>" is just those ten characters.
struct TextPiece {
  std::string text;
  bool trusted = false;
};

// The text of one growing answer, where what a token becomes depends on those before it. The tokenizer must outlive it.
class DecodeStream {
 public:
  virtual ~DecodeStream() = default;
  // Appends what is final once `id` is known. All that push() and finish() append is decode() of all ids.
  virtual void push(TokenId id, std::string& text) = 0;
  virtual void finish(std::string& text) = 0;
};

// What ends an encoding early.
struct EncodeLimits {
  size_t max_ids = std::numeric_limits<size_t>::max();
  std::function<bool()> is_over;  // asked now and then; empty: never
};

// The special tokens of one text (before, after), or of two: the first stands behind `before`, the second behind
// `between`.
struct SpecialFrame {
  std::vector<TokenId> before, between, after;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // From what a model's files say: the vocabulary where there is one, else the tokenizer.json, else the SentencePiece
  // model. Errors: not_found when there is none; as below.
  static Result<std::unique_ptr<Tokenizer>> from_source(const TextSource& source);
  // From the text of a tokenizer.json (Hugging Face) and of the tokenizer_config.json beside it (may be empty), which
  // may name further added tokens. Errors: invalid_argument or unimplemented, naming the field.
  static Result<std::unique_ptr<Tokenizer>> from_json(std::string_view tokenizer_json,
                                                      std::string_view tokenizer_config = {});
  // From the bytes of a SentencePiece .model and the tokenizer_config.json beside it (may be empty), which names added
  // tokens and whether a text begins and ends with special ones. Errors: the same, naming the field.
  static Result<std::unique_ptr<Tokenizer>> from_sentencepiece(std::string_view model,
                                                               std::string_view tokenizer_config);
  // From the vocabulary in a GGUF file. Errors: the same, naming the key.
  static Result<std::unique_ptr<Tokenizer>> from_vocabulary(const Vocabulary& vocabulary);

  // Token ids of a text all of which is trusted (as Hugging Face's encode: special tokens that the text spells are
  // recognised). add_special_tokens applies the post-processor (BOS and the like). Text that is not valid UTF-8 is no
  // error: each maximal ill-formed subpart is encoded as the replacement character U+FFFD.
  virtual std::vector<TokenId> encode(std::string_view text, bool add_special_tokens) const = 0;

  // The same for pieces of different trust. Merges cross the boundaries of pieces (the text is one); a special token is
  // recognised only where every one of its bytes is trusted. Added tokens that are not special are found everywhere.
  virtual std::vector<TokenId> encode(std::span<const TextPiece> pieces, bool add_special_tokens) const = 0;

  // The same within limits: of more ids than max_ids some that are more, not all. Errors: deadline_exceeded: is_over.
  virtual Result<std::vector<TokenId>> encode_within(std::span<const TextPiece> pieces, bool add_special_tokens,
                                                     const EncodeLimits& limits) const;
  // What add_special_tokens puts around a text; of_pair: around two.
  virtual SpecialFrame frame(bool of_pair) const {
    (void)of_pair;
    return {};
  }
  // A text has no fewer tokens than its bytes over this; 0: it may have (white space is dropped, a token stands for any
  // unknown word, ...).
  virtual size_t most_bytes_per_token() const { return 0; }

  // Text of the ids; ill-formed UTF-8 becomes U+FFFD. Ids outside the vocabulary give nothing.
  virtual std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const = 0;

  // nullptr: token_bytes() one after the other are the text.
  virtual std::unique_ptr<DecodeStream> start_decoding(bool skip_special_tokens) const {
    (void)skip_special_tokens;
    return nullptr;
  }

  // The bytes one token stands for in running text (may be part of a UTF-8 sequence); for a special token its spelling.
  virtual std::string token_bytes(TokenId id) const = 0;
  // The vocabulary's own spelling ("Ġthe"), and back. nullopt: no such token.
  virtual std::optional<std::string> id_to_token(TokenId id) const = 0;
  virtual std::optional<TokenId> token_to_id(std::string_view token) const = 0;

  virtual bool is_special(TokenId id) const = 0;
  virtual int64_t vocab_size() const = 0;  // highest id + 1, added tokens included
  // "bpe (byte level), 49152 tokens": for people.
  virtual std::string description() const = 0;

  // From the file where it says so (GGUF keys); tokenizer.json alone does not tell.
  virtual std::optional<TokenId> bos_id() const = 0;
  virtual std::vector<TokenId> eos_ids() const = 0;
};

}  // namespace quire::text
