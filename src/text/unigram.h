// Unigram language model segmentation (Kudo, 2018): of all ways to write a piece as tokens the one whose scores (log
// probabilities) have the greatest sum, by Viterbi's algorithm.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "text/tokenizer_model.h"
#include "text/tokenizer_trie.h"
#include "text/tokenizer_vocab.h"

namespace quire::text {

struct UnigramOptions {
  std::optional<TokenId> unk;  // for characters that no token covers; without it they vanish
  bool byte_fallback = false;  // unknown text becomes tokens "<0x41>" of its bytes, where all of these exist
  // What an unknown character costs. Hugging Face: the least score of all tokens - 10.
  double unk_score = 0;
  // Sums are rounded to float at every step, as SentencePiece keeps them; Hugging Face keeps doubles.
  bool float_sums = false;
};

// One token that text may become.
struct UnigramPiece {
  TokenId id = kNoToken;
  double score = 0;
};

class UnigramModel final : public TokenModel {
 public:
  // `pieces`: their spellings are the table's. Errors: invalid_argument for a score that is not finite or beyond 1e30
  // (sums must stay finite), an unk that is no token.
  static Result<std::unique_ptr<TokenModel>> make(const TokenTable& tokens, std::span<const UnigramPiece> pieces,
                                                  const UnigramOptions& options);

  // O(n * longest token) time, constant stack; memory by the longest stretch that tokens overlap without a gap. Unknown
  // characters in a row become one unk.
  void encode(std::string_view piece, std::vector<TokenId>& out) const override;
  bool keeps_all() const override;

 private:
  // The best way to write text up to some position: what its last token is and where that begins.
  struct Node {
    double score = 0;
    uint32_t begin = UINT32_MAX;  // relative to the stretch; UINT32_MAX: not reached
    TokenId id = kNoToken;        // kNoToken: an unknown character
  };
  class Emitter;

  explicit UnigramModel(UnigramOptions options) : options_(options) {}
  void offer(Node& target, double score, size_t begin, TokenId id) const;

  UnigramOptions options_;
  ByteTrie trie_;               // spelling -> index into scores_ and ids_
  std::vector<double> scores_;  // of the pieces
  std::vector<TokenId> ids_;
  std::array<TokenId, 256> fallback_tokens_{};
};

}  // namespace quire::text
