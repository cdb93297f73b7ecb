// Vectors and scores of the C++ API.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "engine/llm_impl.h"
#include "engine/pooling.h"

namespace quire {
namespace {

using engine::PooledText;

// Runs a job to its end on the calling thread, which makes the steps where nobody else does.
Result<std::vector<std::vector<float>>> run(engine::Engine& engine, std::vector<PooledText> texts, bool shows) {
  struct Bell {
    std::mutex mutex;
    std::condition_variable rung;
    bool is_rung = false;
  };
  const auto bell = std::make_shared<Bell>();
  const size_t total = texts.size();
  const bool terminal = shows && isatty(STDERR_FILENO) != 0;
  engine::PoolingJob job(engine, std::move(texts), {}, [bell] {
    const std::lock_guard lock(bell->mutex);
    bell->is_rung = true;
    bell->rung.notify_one();
  });
  std::vector<std::vector<float>> results(total);
  const bool makes_steps = engine.drive() == Drive::kCaller;
  while (true) {
    QUIRE_ASSIGN_OR_RETURN(const bool done, job.pump());
    for (engine::PoolingJob::Done& one : job.take_done()) results[one.text] = std::move(one.numbers);
    if (terminal) std::fprintf(stderr, "\rtexts %zu/%zu ", job.num_done(), total);
    if (done) break;
    if (makes_steps) {
      QUIRE_RETURN_IF_ERROR(engine.step());
      continue;
    }
    std::unique_lock lock(bell->mutex);
    bell->rung.wait(lock, [&] { return bell->is_rung; });
    bell->is_rung = false;
  }
  if (terminal) std::fputc('\n', stderr);
  return results;
}

Status check_task(const engine::Engine& engine, ModelTask task, std::string_view call) {
  if (engine.model().task == task) return {};
  constexpr std::string_view kServed[] = {"generates text", "gives embeddings", "gives scores"};
  return invalid_argument("{}: the model {}{}", call, kServed[static_cast<size_t>(engine.model().task)],
                          engine.model().task == ModelTask::kGenerate
                              ? "; create it with config.runner kPooling, if it is made for that"
                              : "");
}

// Checks each before any is computed.
Result<std::vector<PooledText>> texts_of(const engine::Engine& engine, const std::vector<Prompt>& prompts,
                                         const PoolingOptions& options) {
  std::vector<PooledText> texts(prompts.size());
  SamplingParams params;
  params.max_tokens = 0;
  const int64_t context = engine.max_model_len();
  QUIRE_ASSIGN_OR_RETURN(const std::string before, engine::prompt_named(engine.text(), options.prompt_name));
  QUIRE_ASSIGN_OR_RETURN(const int32_t pooled_from, engine::unpooled_tokens(engine, before, true, {}));
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto* text = std::get_if<std::string>(&prompts[i]);
    if (text != nullptr) texts[i].pooled_from = pooled_from;
    QUIRE_ASSIGN_OR_RETURN(texts[i].ids, text != nullptr && !before.empty() ? prompt_ids(engine, Prompt(before + *text))
                                                                            : prompt_ids(engine, prompts[i]));
    if (options.max_tokens != 0 && engine.tokenizer() != nullptr) {
      engine::truncate_text(engine, options.max_tokens > 0 ? std::min(options.max_tokens, context) : context,
                            texts[i].ids);
    }
    QUIRE_RETURN_IF_ERROR(engine.check(texts[i].ids, params));
  }
  return texts;
}

std::vector<std::vector<TokenId>> ids_of(const std::vector<PooledText>& texts) {
  std::vector<std::vector<TokenId>> ids;
  for (const PooledText& text : texts) ids.push_back(text.ids);
  return ids;
}

}  // namespace

Result<std::vector<EmbeddingOutput>> LLM::embed(const std::vector<Prompt>& prompts, const PoolingOptions& options) {
  engine::Engine& engine = *impl_->engine;
  QUIRE_RETURN_IF_ERROR(check_task(engine, ModelTask::kEmbed, "embed()"));
  if (options.dimensions != 0) QUIRE_RETURN_IF_ERROR(engine::check_dimensions(engine.model(), options.dimensions));
  QUIRE_ASSIGN_OR_RETURN(std::vector<PooledText> texts, texts_of(engine, prompts, options));
  std::vector<std::vector<TokenId>> ids = ids_of(texts);
  QUIRE_ASSIGN_OR_RETURN(auto vectors, run(engine, std::move(texts), options.progress));
  std::vector<EmbeddingOutput> outputs(vectors.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    engine::finish_embedding(vectors[i], options.dimensions,
                             options.normalize.value_or(engine.model().pooling.normalize));
    outputs[i] = {.prompt_token_ids = std::move(ids[i]), .embedding = std::move(vectors[i])};
  }
  return outputs;
}

Result<std::vector<ClassificationOutput>> LLM::classify(const std::vector<Prompt>& prompts,
                                                        const PoolingOptions& options) {
  engine::Engine& engine = *impl_->engine;
  QUIRE_RETURN_IF_ERROR(check_task(engine, ModelTask::kClassify, "classify()"));
  QUIRE_ASSIGN_OR_RETURN(std::vector<PooledText> texts, texts_of(engine, prompts, options));
  std::vector<std::vector<TokenId>> ids = ids_of(texts);
  QUIRE_ASSIGN_OR_RETURN(auto numbers, run(engine, std::move(texts), options.progress));
  const PoolingConfig& pooling = engine.model().pooling;
  std::vector<ClassificationOutput> outputs(numbers.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    engine::activate_scores(numbers[i], pooling.activation);
    const auto best = static_cast<size_t>(std::ranges::max_element(numbers[i]) - numbers[i].begin());
    outputs[i] = {.prompt_token_ids = std::move(ids[i]),
                  .probabilities = std::move(numbers[i]),
                  .label = best < pooling.labels.size() ? pooling.labels[best] : ""};
  }
  return outputs;
}

Result<std::vector<float>> LLM::score(const std::vector<std::pair<std::string, std::string>>& pairs,
                                      const PoolingOptions& options) {
  engine::Engine& engine = *impl_->engine;
  const ModelConfig& model = engine.model();
  std::vector<float> scores;
  if (model.task == ModelTask::kEmbed) {
    std::vector<Prompt> texts;
    for (const auto& [first, second] : pairs) {
      texts.emplace_back(first);
      texts.emplace_back(second);
    }
    PoolingOptions normal = options;
    normal.normalize = true;
    QUIRE_ASSIGN_OR_RETURN(const auto vectors, embed(texts, normal));
    for (size_t i = 0; i < vectors.size(); i += 2) {
      scores.push_back(engine::cosine(vectors[i].embedding, vectors[i + 1].embedding));
    }
    return scores;
  }
  QUIRE_RETURN_IF_ERROR(check_task(engine, ModelTask::kClassify, "score()"));
  QUIRE_RETURN_IF_ERROR(engine::check_scores_pairs(model));
  std::optional<int64_t> most;
  if (options.max_tokens != 0) {
    most = options.max_tokens > 0 ? std::min(options.max_tokens, engine.max_model_len()) : engine.max_model_len();
  }
  std::vector<PooledText> texts;
  SamplingParams params;
  params.max_tokens = 0;
  QUIRE_ASSIGN_OR_RETURN(engine::PairEncoder encoder, engine::PairEncoder::create(engine, {}));
  for (const auto& [first, second] : pairs) {
    QUIRE_ASSIGN_OR_RETURN(PooledText text, encoder.encode(first, second, most));
    QUIRE_RETURN_IF_ERROR(engine.check(text.ids, params));
    texts.push_back(std::move(text));
  }
  QUIRE_ASSIGN_OR_RETURN(auto numbers, run(engine, std::move(texts), options.progress));
  for (std::vector<float>& one : numbers) {
    engine::activate_scores(one, model.pooling.activation);
    scores.push_back(one.front());
  }
  return scores;
}

}  // namespace quire
