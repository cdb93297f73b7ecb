// Texts on their way to vectors or scores: any number of them, of which as many are under way at a time as keep the
// engine busy.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "types/pooling.h"

namespace quire::engine {

// A text's tokens, special ones included.
struct PooledText {
  std::vector<TokenId> ids;
  int32_t second_text = -1;  // as NewSequence has it
  int32_t pooled_from = 0;   // the same
};

// What all texts of a job have in common; the fields are GenerationRequest's.
struct PoolingJobOptions {
  std::string label;
  int32_t priority = 0;
  std::string cache_salt;
  int32_t tenant = 0;
  double weight = 1.0;
  std::optional<std::chrono::milliseconds> timeout;     // of the whole job; unset: the engine's own, of each text
  std::shared_ptr<RequestTimeline> timeline = nullptr;  // of all texts
};

// The words by which a model that generates judges (Qwen3-Reranker).
struct Judgement {
  TokenId no = kNoToken, yes = kNoToken;
  // By how much "yes" is more likely, of the logits of both in the order of their ids; its sigmoid is the probability.
  float margin(const std::vector<float>& logits) const;
};
// Errors: invalid_argument: the model's files do not name them, and there is no tokenizer, or a word is no token.
Result<Judgement> judgement_of(const PoolingConfig& pooling, const text::Tokenizer* tokenizer);

// By one thread at a time. Dropping it cancels what is under way. The engine outlives it.
class PoolingJob {
 public:
  // wake: called when pump() would find something new, on the engine's thread or on that of pump(). It must not block,
  // and may come when the job is gone.
  PoolingJob(Engine& engine, std::vector<PooledText> texts, PoolingJobOptions options, std::function<void()> wake);
  ~PoolingJob();
  PoolingJob(const PoolingJob&) = delete;
  PoolingJob& operator=(const PoolingJob&) = delete;

  // Takes what is there and submits what there is room for. True: all is done. Never waits. Errors: of the first text
  // that failed, with param() "input" where it is at fault, and then nothing is under way any more; those of
  // Engine::submit().
  Result<bool> pump();

  size_t num_done() const { return num_done_; }
  int64_t num_tokens() const { return num_tokens_; }  // of those that are done
  // What pump() has found since the last call, in no order: the numbers as the model gives them
  // (SequenceResult::pooled); of one that judges the margin.
  struct Done {
    size_t text = 0;
    std::vector<float> numbers;
  };
  std::vector<Done> take_done() { return std::exchange(done_, {}); }

 private:
  struct Ready;

  Status take_ready();
  Status submit_some();
  Status fail(Status status);

  Engine& engine_;
  const OutputKind kind_;
  std::vector<PooledText> texts_;  // emptied one by one
  const PoolingJobOptions options_;
  const std::optional<std::chrono::steady_clock::time_point> deadline_;
  std::optional<PreparedParams> prepared_;
  Judgement judgement_;  // of a model that judges
  const std::shared_ptr<Ready> ready_;
  std::unordered_map<size_t, std::unique_ptr<TokenStream>> running_;  // by text
  std::vector<int64_t> lengths_;
  std::vector<Done> done_;
  size_t next_ = 0;  // to be submitted
  size_t num_done_ = 0;
  int64_t num_tokens_ = 0;
};

// "embeddings of 384 numbers, the mean of all tokens, normalised": what a model that pools is served for, for people.
std::string describe_pooling(const ModelConfig& model);

// The kind of result that the model is served for.
OutputKind output_kind_of(ModelTask task);

// How many tokens of a text that begins with `prompt`, the special ones before it included, are left out of its vector:
// none but of models that are made so. Errors: those of the tokenizer.
Result<int32_t> unpooled_tokens(const Engine& engine, std::string_view prompt, bool add_special_tokens,
                                const text::EncodeLimits& limits);

// A model's vector as its user gets it: cut to `dimensions` (0: all of it), then of length 1, if that is wanted.
void finish_embedding(std::vector<float>& vector, int64_t dimensions, bool normalize);
// Errors: invalid_argument with param() "dimensions": the model's vectors cannot be cut to so many.
Status check_dimensions(const ModelConfig& model, int64_t dimensions);

// A head's numbers after their activation.
void activate_scores(std::vector<float>& scores, ScoreActivation activation);

// What is put before a text: of sentence-transformers' prompts the one of this name; empty: the usual one, if there is
// one. Errors: invalid_argument with param() "prompt_name", saying which there are.
Result<std::string> prompt_named(const TextSource& text, std::string_view name);

// Of two vectors of one length. Of those that finish_embedding() has normalised their product.
float cosine(std::span<const float> a, std::span<const float> b);
// Errors: invalid_argument: the model's head gives several numbers, so that none of them says how well texts go
// together.
Status check_scores_pairs(const ModelConfig& model);

// What of a text's tokens is kept so that there are at most `most`: the first ones, and behind them the special ones
// that end every text; of models whose files say so the last ones, behind the special ones that begin it. most: at
// least as many as those.
void truncate_text(const Engine& engine, int64_t most, std::vector<TokenId>& ids);

// Pairs of texts as the model takes them: with its special tokens around and between; of a reranker that generates (its
// score is what it answers) in the words that it was made for.
class PairEncoder {
 public:
  // Errors: invalid_argument: there is no tokenizer.
  static Result<PairEncoder> create(const Engine& engine, text::EncodeLimits limits);

  // A first text that is the one before, in the same memory, is not encoded again. Longer pairs than `most` tokens lose
  // the end of the longer text, and second texts of more than `most_of_second` theirs before.
  Result<PooledText> encode(std::string_view first, std::string_view second, std::optional<int64_t> most,
                            std::optional<int64_t> most_of_second = std::nullopt);

 private:
  const text::Tokenizer* tokenizer_ = nullptr;
  text::EncodeLimits limits_;
  text::SpecialFrame frame_;
  bool judges_ = false;
  bool truncates_left_ = false;
  std::string_view first_;
  std::optional<std::vector<TokenId>> first_ids_;
};

}  // namespace quire::engine
