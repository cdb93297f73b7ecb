// The tokenizer that every file format is turned into: added tokens, pre-tokenizer, model, post-processor, decoder.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_decoder.h"
#include "text/tokenizer_model.h"
#include "text/tokenizer_normalizer.h"
#include "text/tokenizer_vocab.h"

namespace quire::text {

// How a token's spelling becomes text, when that does not depend on the tokens before it.
enum class TokenSpelling {
  kByteAlphabet,  // each character stands for a byte; a token with any other character is text as it is (as Hugging
                  // Face)
  kVerbatim,
  kChain,  // it does depend: TokenizerParts::decoder says how
};

struct TokenizerParts {
  std::string kind;  // "bpe (byte level)"
  TokenTable tokens;
  std::vector<AddedToken> added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  std::vector<TokenId> prefix, suffix;  // what add_special_tokens puts around a text
  std::optional<SpecialFrame> pair;     // around two; nullopt: the same, and nothing between them
  TokenSpelling spelling = TokenSpelling::kByteAlphabet;
  DecoderChain decoder;         // kChain
  bool decodes_bytes = false;   // kChain: "<0x41>" is a byte
  std::vector<TokenId> silent;  // sorted; ids that decode to nothing
  std::string unknown_text;     // what the token `unknown` decodes to
  TokenId unknown = kNoToken;
  std::optional<TokenId> bos;
  std::vector<TokenId> eos;
};

class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerParts parts);

  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens) const override;
  std::vector<TokenId> encode(std::span<const TextPiece> pieces, bool add_special_tokens) const override;
  Result<std::vector<TokenId>> encode_within(std::span<const TextPiece> pieces, bool add_special_tokens,
                                             const EncodeLimits& limits) const override;
  SpecialFrame frame(bool of_pair) const override;
  size_t most_bytes_per_token() const override;
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override;
  std::unique_ptr<DecodeStream> start_decoding(bool skip_special_tokens) const override;
  std::string token_bytes(TokenId id) const override;
  std::optional<std::string> id_to_token(TokenId id) const override;
  std::optional<TokenId> token_to_id(std::string_view token) const override;
  bool is_special(TokenId id) const override;
  int64_t vocab_size() const override;
  std::string description() const override;
  std::optional<TokenId> bos_id() const override { return parts_.bos; }
  std::vector<TokenId> eos_ids() const override { return parts_.eos; }

 private:
  class ChainProbe;
  class ChainStream;
  class Progress;
  const std::string& spelling_of(TokenId id, const std::string& token) const;
  std::string bytes_of(const std::string& token, ChainProbe& probe) const;
  void find_bytes() const;
  // Appends the ids of a stretch that holds no verbatim added token. `at_start`: the text begins with it.
  void encode_stretch(std::string_view text, size_t begin, size_t end, const TrustedRanges& trusted, bool at_start,
                      Progress& progress, std::vector<TokenId>& ids) const;
  std::vector<TokenId> encode_text(std::string_view text, const TrustedRanges& trusted, bool add_special_tokens,
                                   Progress& progress) const;

  TokenizerParts parts_;
  AddedTokenMatcher verbatim_added_;                    // searched for first
  AddedTokenMatcher normalized_added_;                  // then these, in what is left
  std::unordered_map<TokenId, std::string> respelled_;  // added tokens whose spelling normalisation changes
  std::vector<bool> special_;                           // by id
  // By id: in running text. With a chain they take longer than all else that is loaded, and who reads answers as a
  // stream of text never asks for them: so the first who asks has them made.
  mutable std::once_flag bytes_found_;
  mutable std::vector<std::string> bytes_;
};

}  // namespace quire::text
