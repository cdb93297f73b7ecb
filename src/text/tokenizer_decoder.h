// From tokens back to text: the decoders of Hugging Face's tokenizers and SentencePiece's, as a chain of stages through
// which tokens stream. One answer's whole decoding is the stream of its tokens, so that both agree by construction.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/pretokenizer.h"

namespace quire::text {

// One stage at work on one answer.
class DecoderStage {
 public:
  using Sink = std::function<void(std::string)>;
  virtual ~DecoderStage() = default;
  virtual void push(std::string token, const Sink& sink) = 0;
  virtual void finish(const Sink& sink) { (void)sink; }  // no token follows
};

// What a file says a stage is; immutable, makes stages.
using DecoderStep = std::function<std::unique_ptr<DecoderStage>()>;

DecoderStep byte_level_decoder();
DecoderStep byte_fallback_decoder();
// Joins all tokens into one before the next stage sees it; `streams` says the next stage can do with parts of it.
DecoderStep gather_decoder();
// `everywhere`: every replacement becomes a space; else those of the first token vanish.
DecoderStep metaspace_decoder(std::string replacement, bool everywhere);
// Up to `start` and `stop` of `content` (one character) at the ends of each token, or of the text that all are.
DecoderStep strip_decoder(std::string content, int64_t start, int64_t stop, bool of_whole_text);
DecoderStep replace_decoder(std::shared_ptr<const Pattern> pattern, std::string content);
DecoderStep word_piece_decoder(std::string prefix, bool cleanup);
DecoderStep bpe_decoder(std::string suffix);
DecoderStep ctc_decoder(std::string pad, std::string word_delimiter, bool cleanup);
DecoderStep join_decoder(std::string separator);  // no decoder at all: tokens with a space between
struct SentencePieceDecoderOptions {
  bool strips_one_space = true;    // of the first token: the dummy prefix
  bool strips_all_spaces = false;  // at the beginning: remove_extra_whitespaces
};
// Bytes "<0x41>" become characters, U+FFFD for each byte that is part of none.
DecoderStep sentencepiece_decoder(const SentencePieceDecoderOptions& options);

// The byte that "<0x41>" stands for; nullopt for any other spelling.
std::optional<unsigned char> byte_of_token(std::string_view token);

class DecoderChain {
 public:
  void add(DecoderStep step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  // An answer in the making. The chain must outlive it.
  class Stream {
   public:
    explicit Stream(const DecoderChain& chain);
    void push(std::string_view token, std::string& text);
    void finish(std::string& text);

   private:
    void push_from(size_t stage, std::string token, std::string& text);
    std::vector<std::unique_ptr<DecoderStage>> stages_;
  };

 private:
  std::vector<DecoderStep> steps_;
};

}  // namespace quire::text
