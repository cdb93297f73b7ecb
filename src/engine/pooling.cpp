#include "engine/pooling.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <fmt/ranges.h>

namespace quire::engine {

// Texts that have something new. Streams tell it, perhaps when the job is gone.
struct PoolingJob::Ready {
  std::mutex mutex;
  std::vector<size_t> texts;  // guarded by mutex
  std::function<void()> wake;

  void add(size_t text) {
    bool first = false;
    {
      const std::lock_guard lock(mutex);
      first = texts.empty();
      texts.push_back(text);
    }
    if (first) wake();
  }
  std::vector<size_t> take() {
    const std::lock_guard lock(mutex);
    return std::exchange(texts, {});
  }
};

// The logits are by rising id.
float Judgement::margin(const std::vector<float>& logits) const {
  const float difference = logits[1] - logits[0];
  return yes > no ? difference : -difference;
}

Result<Judgement> judgement_of(const PoolingConfig& pooling, const text::Tokenizer* tokenizer) {
  if (pooling.judges_by) return Judgement{.no = pooling.judges_by->no, .yes = pooling.judges_by->yes};
  const auto no = tokenizer == nullptr ? std::nullopt : tokenizer->token_to_id("no");
  const auto yes = tokenizer == nullptr ? std::nullopt : tokenizer->token_to_id("yes");
  if (!no || !yes) {
    return invalid_argument("the model is to answer \"yes\" or \"no\", and its vocabulary does not have both words");
  }
  return Judgement{.no = *no, .yes = *yes};
}

namespace {

std::string_view described(PoolingType type) {
  switch (type) {
    case PoolingType::kLast:
      return "the last token";
    case PoolingType::kMean:
      return "the mean of all tokens";
    case PoolingType::kCls:
      return "the first token";
    case PoolingType::kMax:
      return "the largest numbers of all tokens";
    case PoolingType::kMeanSqrtLength:
      return "the sum of all tokens over the root of their number";
    case PoolingType::kWeightedMean:
      return "the mean of all tokens, later ones counted more";
  }
  return "";
}

}  // namespace

std::string describe_pooling(const ModelConfig& model) {
  const PoolingConfig& pooling = model.pooling;
  std::string of;
  for (const PoolingType type : pooling.types) of += (of.empty() ? "" : " and ") + std::string(described(type));
  if (model.task == ModelTask::kEmbed) {
    return fmt::format("embeddings of {} numbers, {}{}", pooling.vector_size, of,
                       pooling.normalize ? ", normalised" : "");
  }
  const char* after = pooling.activation == ScoreActivation::kSigmoid   ? ", sigmoid"
                      : pooling.activation == ScoreActivation::kSoftmax ? ", softmax"
                                                                        : "";
  if (pooling.num_labels == 0) return fmt::format("scores by \"yes\" and \"no\"{}", after);
  return fmt::format("scores of {} classes, {}{}", pooling.num_labels, of, after);
}

OutputKind output_kind_of(ModelTask task) {
  switch (task) {
    case ModelTask::kGenerate:
      return OutputKind::kToken;
    case ModelTask::kEmbed:
      return OutputKind::kHiddenState;
    case ModelTask::kClassify:
      return OutputKind::kScore;
  }
  return OutputKind::kToken;
}

PoolingJob::PoolingJob(Engine& engine, std::vector<PooledText> texts, PoolingJobOptions options,
                       std::function<void()> wake)
    : engine_(engine),
      kind_(output_kind_of(engine.model().task)),
      texts_(std::move(texts)),
      options_(std::move(options)),
      deadline_(options_.timeout ? std::optional(std::chrono::steady_clock::now() + *options_.timeout) : std::nullopt),
      ready_(std::make_shared<Ready>()),
      lengths_(texts_.size()) {
  ready_->wake = std::move(wake);
  const std::optional<TokenId> padding = engine.model().pooling.padding;
  for (PooledText& text : texts_) {
    while (padding && text.ids.size() > 1 && text.ids.back() == *padding) text.ids.pop_back();
  }
}

PoolingJob::~PoolingJob() = default;

Status PoolingJob::fail(Status status) {
  running_.clear();
  next_ = texts_.size();
  return status;
}

Result<bool> PoolingJob::pump() {
  if (Status status = take_ready(); !status.ok()) return fail(std::move(status));
  if (Status status = submit_some(); !status.ok()) return fail(std::move(status));
  return num_done_ == texts_.size();
}

Status PoolingJob::take_ready() {
  for (const size_t text : ready_->take()) {
    const auto found = running_.find(text);
    if (found == running_.end()) continue;
    std::optional<TokenEvent> event = found->second->try_take();
    if (!event || event->finish == FinishReason::kNone) continue;
    if (event->finish == FinishReason::kError) return event->error;
    if (event->finish == FinishReason::kAbort) return unavailable("the engine was stopped");
    if (judgement_.yes != kNoToken) event->pooled = {judgement_.margin(event->pooled)};
    done_.push_back({text, std::move(event->pooled)});
    running_.erase(found);
    num_tokens_ += lengths_[text];
    ++num_done_;
  }
  return {};
}

// As many as may run at once wait beside those that do: the engine never lacks one.
Status PoolingJob::submit_some() {
  const size_t most = 2 * static_cast<size_t>(engine_.config().max_num_seqs);
  if (next_ < texts_.size() && !prepared_) {
    SamplingParams params;
    params.max_tokens = 0;
    params.detokenize = false;
    if (kind_ == OutputKind::kScore && engine_.model().pooling.num_labels == 0) {
      QUIRE_ASSIGN_OR_RETURN(judgement_, judgement_of(engine_.model().pooling, engine_.tokenizer()));
      params.allowed_token_ids = TokenSet({judgement_.no, judgement_.yes});
    }
    QUIRE_ASSIGN_OR_RETURN(prepared_, engine_.prepare(std::move(params), /*shows_logprobs=*/false, options_.tenant));
  }
  while (next_ < texts_.size() && running_.size() < most) {
    std::optional<std::chrono::milliseconds> left;
    if (deadline_) {
      left = std::chrono::duration_cast<std::chrono::milliseconds>(*deadline_ - std::chrono::steady_clock::now());
      if (left->count() <= 0) return deadline_exceeded("the request took longer than its timeout allows");
    }
    PooledText& text = texts_[next_];
    // What is refused for the moment is submitted again: the engine takes what it is given.
    GenerationRequest request{.prompt = text.ids, .params = {}, .prepared = prepared_};
    request.output_kind = kind_;
    request.second_text = text.second_text;
    request.pooled_from = text.pooled_from;
    request.label = options_.label;
    request.priority = options_.priority;
    request.cache_salt = options_.cache_salt;
    request.tenant = options_.tenant;
    request.weight = options_.weight;
    request.timeout = left;
    request.timeline = options_.timeline;
    auto started = engine_.submit(std::move(request));
    if (!started.ok()) {
      if (started.status().code() == StatusCode::kResourceExhausted && !running_.empty()) return {};
      return started.status();
    }
    lengths_[next_] = static_cast<int64_t>(text.ids.size());
    text.ids = {};
    const size_t number = next_++;
    TokenStream& stream = *running_.emplace(number, std::move(started->front())).first->second;
    stream.on_ready([ready = ready_, number] { ready->add(number); });
  }
  return {};
}

Status check_dimensions(const ModelConfig& model, int64_t dimensions) {
  const auto refused = [](Status status) { return std::move(status).with_param("dimensions"); };
  const PoolingConfig& pooling = model.pooling;
  if (dimensions < 1 || dimensions > pooling.vector_size) {
    return refused(invalid_argument("dimensions is {}; the model's vectors have {}.", dimensions, pooling.vector_size));
  }
  if (dimensions == pooling.vector_size || pooling.cuts_anywhere ||
      std::ranges::count(pooling.dimensions, dimensions)) {
    return {};
  }
  if (!pooling.dimensions.empty()) {
    return refused(invalid_argument("dimensions is {}; the model was trained for {}.", dimensions,
                                    fmt::join(pooling.dimensions, ", ")));
  }
  return refused(
      invalid_argument("dimensions is {}, but the model's vectors of {} were not made to be cut (Matryoshka); leave it "
                       "out. A server whose model was is told by --pooler-config '{{\"is_matryoshka\": true}}'.",
                       dimensions, pooling.vector_size));
}

void finish_embedding(std::vector<float>& vector, int64_t dimensions, bool normalize) {
  if (dimensions > 0 && dimensions < static_cast<int64_t>(vector.size())) {
    vector.resize(static_cast<size_t>(dimensions));
  }
  if (!normalize) return;
  double squares = 0;
  for (const float value : vector) squares += static_cast<double>(value) * static_cast<double>(value);
  if (squares == 0) return;
  const double scale = 1 / std::sqrt(squares);
  for (float& value : vector) value = static_cast<float>(static_cast<double>(value) * scale);
}

void activate_scores(std::vector<float>& scores, ScoreActivation activation) {
  switch (activation) {
    case ScoreActivation::kNone:
      return;
    case ScoreActivation::kSigmoid:
      for (float& score : scores) score = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(score))));
      return;
    case ScoreActivation::kSoftmax: {
      if (scores.empty()) return;
      const double largest = *std::ranges::max_element(scores);
      double sum = 0;
      for (const float score : scores) sum += std::exp(score - largest);
      for (float& score : scores) score = static_cast<float>(std::exp(score - largest) / sum);
      return;
    }
  }
}

Result<std::string> prompt_named(const TextSource& text, std::string_view name) {
  const std::string_view wanted = name.empty() ? std::string_view(text.default_prompt) : name;
  std::string known;
  for (const auto& [one, prompt] : text.prompts) {
    if (one == wanted) return prompt;
    known += (known.empty() ? "" : ", ") + one;
  }
  if (name.empty()) return std::string();
  return invalid_argument("The model has no prompt named \"{}\"; it has: {}.", name.substr(0, 100),
                          known.empty() ? "none" : known)
      .with_param("prompt_name");
}

float cosine(std::span<const float> a, std::span<const float> b) {
  double product = 0;
  double squares_a = 0;
  double squares_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto x = static_cast<double>(a[i]);
    const auto y = static_cast<double>(b[i]);
    product += x * y;
    squares_a += x * x;
    squares_b += y * y;
  }
  const double lengths = std::sqrt(squares_a * squares_b);
  return lengths > 0 ? static_cast<float>(product / lengths) : 0.0f;
}

Status check_scores_pairs(const ModelConfig& model) {
  if (model.pooling.num_labels <= 1) return {};
  return invalid_argument("The model's head gives {} numbers; a score of two texts is one of a head of one number.",
                          model.pooling.num_labels);
}

void truncate_text(const Engine& engine, int64_t most, std::vector<TokenId>& ids) {
  if (static_cast<int64_t>(ids.size()) <= most) return;
  const text::SpecialFrame frame = engine.tokenizer()->frame(/*of_pair=*/false);
  if (engine.text().truncates_left) {
    const int64_t kept = std::max<int64_t>(most - static_cast<int64_t>(frame.before.size()), 0);
    ids.erase(ids.begin(), ids.end() - static_cast<ptrdiff_t>(kept));
    ids.insert(ids.begin(), frame.before.begin(), frame.before.end());
    return;
  }
  const std::vector<TokenId>& after = frame.after;
  const int64_t kept = std::max<int64_t>(most - static_cast<int64_t>(after.size()), 0);
  ids.resize(static_cast<size_t>(kept));
  ids.insert(ids.end(), after.begin(), after.end());
}

namespace {

// How Qwen3-Reranker (Zhang et al., 2025) is asked; it answers "yes" or "no".
constexpr std::string_view kJudgeBefore =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    "provided. "
    "Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n<Instruct>: Given a web search "
    "query, retrieve relevant passages that answer the query\n<Query>: ";
constexpr std::string_view kJudgeBetween = "\n<Document>: ";
constexpr std::string_view kJudgeAfter = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

Result<std::vector<TokenId>> encode(const text::Tokenizer& tokenizer, std::string_view text, bool trusted,
                                    const text::EncodeLimits& limits) {
  const text::TextPiece piece{.text = std::string(text), .trusted = trusted};
  return tokenizer.encode_within(std::span(&piece, 1), /*add_special_tokens=*/false, limits);
}

// Of `left`: the last ones are kept.
void keep(std::vector<TokenId>& ids, size_t count, bool left) {
  if (left && count < ids.size()) ids.erase(ids.begin(), ids.end() - static_cast<ptrdiff_t>(count));
  ids.resize(std::min(count, ids.size()));
}

// As the tokenizers library cuts a pair to its room: the shorter text stays whole where it can.
void shorten_longer(std::vector<TokenId>& first, std::vector<TokenId>& second, int64_t most, bool left) {
  const auto room = static_cast<size_t>(std::max<int64_t>(most, 0));
  if (first.size() + second.size() <= room) return;
  std::vector<TokenId>& shorter = second.size() < first.size() ? second : first;
  std::vector<TokenId>& longer = second.size() < first.size() ? first : second;
  const size_t of_longer = shorter.size() > room ? shorter.size() : std::max(shorter.size(), room - shorter.size());
  if (shorter.size() + of_longer <= room) return keep(longer, of_longer, left);
  keep(shorter, room / 2, left);
  keep(longer, room - room / 2, left);
}

}  // namespace

Result<int32_t> unpooled_tokens(const Engine& engine, std::string_view prompt, bool add_special_tokens,
                                const text::EncodeLimits& limits) {
  const text::Tokenizer* tokenizer = engine.tokenizer();
  if (!engine.model().pooling.leaves_prompt_out || prompt.empty() || tokenizer == nullptr) return 0;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, encode(*tokenizer, prompt, /*trusted=*/true, limits));
  const size_t before = add_special_tokens ? tokenizer->frame(/*of_pair=*/false).before.size() : 0;
  return static_cast<int32_t>(before + ids.size());
}

Result<PairEncoder> PairEncoder::create(const Engine& engine, text::EncodeLimits limits) {
  PairEncoder out;
  out.tokenizer_ = engine.tokenizer();
  out.limits_ = std::move(limits);
  out.truncates_left_ = engine.text().truncates_left;
  if (out.truncates_left_) out.limits_.max_ids = text::EncodeLimits().max_ids;  // the end of all counts
  if (out.tokenizer_ == nullptr)
    return invalid_argument("pairs of texts need a tokenizer, and this engine runs without one");
  const ModelConfig& model = engine.model();
  out.judges_ = model.task == ModelTask::kClassify && model.pooling.num_labels == 0;
  out.frame_ = out.tokenizer_->frame(/*of_pair=*/true);
  if (!out.judges_) return out;
  const auto words = [&out](std::string_view text) {
    return engine::encode(*out.tokenizer_, text, /*trusted=*/true, out.limits_);
  };
  QUIRE_ASSIGN_OR_RETURN(out.frame_.before, words(kJudgeBefore));
  QUIRE_ASSIGN_OR_RETURN(out.frame_.between, words(kJudgeBetween));
  QUIRE_ASSIGN_OR_RETURN(out.frame_.after, words(kJudgeAfter));
  return out;
}

Result<PooledText> PairEncoder::encode(std::string_view first, std::string_view second, std::optional<int64_t> most,
                                       std::optional<int64_t> most_of_second) {
  // A user's text spells no special token to a model that obeys them.
  if (!first_ids_ || first.data() != first_.data() || first.size() != first_.size()) {
    QUIRE_ASSIGN_OR_RETURN(first_ids_, engine::encode(*tokenizer_, first, !judges_, limits_));
    first_ = first;
  }
  std::vector<TokenId> a = *first_ids_;
  QUIRE_ASSIGN_OR_RETURN(std::vector<TokenId> b, engine::encode(*tokenizer_, second, !judges_, limits_));
  if (most_of_second && static_cast<int64_t>(b.size()) > *most_of_second) {
    b.resize(static_cast<size_t>(*most_of_second));
  }
  if (most) {
    const size_t special = frame_.before.size() + frame_.between.size() + frame_.after.size();
    shorten_longer(a, b, *most - static_cast<int64_t>(special), truncates_left_);
  }
  PooledText text{.ids = frame_.before};
  const auto append = [&text](const std::vector<TokenId>& ids) {
    text.ids.insert(text.ids.end(), ids.begin(), ids.end());
  };
  append(a);
  append(frame_.between);
  text.second_text = static_cast<int32_t>(text.ids.size());
  append(b);
  append(frame_.after);
  return text;
}

}  // namespace quire::engine
