#include "server/pooling_api.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "engine/pooling.h"
#include "server/api_error.h"
#include "server/model_request.h"
#include "server/pooling_schema.h"
#include "server/pooling_writers.h"

namespace quire::server {
namespace {

constexpr int64_t kBytesPerNumber = 16;  // a float and its text
constexpr int64_t kBytesPerText = 96;    // what stands around it

std::string_view served_for(ModelTask task) {
  switch (task) {
    case ModelTask::kGenerate:
      return "generates text";
    case ModelTask::kEmbed:
      return "gives embeddings";
    case ModelTask::kClassify:
      return "gives scores";
  }
  return "";
}

Status unsupported(const engine::Engine& engine, std::string_view what) {
  const ModelTask task = engine.model().task;
  return unimplemented(
             "The model {}; it does not support {}{}.", served_for(task), what,
             task == ModelTask::kGenerate ? ": that takes a model with a pooling head (--runner pooling)" : "")
      .with_param("model");
}

PoolingAnswerContext context_of(const ModelRequest& asked, const PoolingFields& fields, std::string_view prefix) {
  const HttpRequest& request = asked.exchange->request();
  const bool own_id = !fields.request_id.empty() && request.header("X-Request-Id").empty();
  return {.id = std::string(prefix) + (own_id ? fields.request_id : request.id),
          .model = fields.model.empty() ? asked.generator().model_name() : fields.model,
          .created = static_cast<int64_t>(std::time(nullptr))};
}

engine::PoolingJobOptions options_of(const PoolingFields& fields) {
  engine::PoolingJobOptions options;
  options.priority = fields.priority;
  options.cache_salt = fields.cache_salt;
  return options;
}

// How many tokens of a text are kept. Errors: invalid_argument: more than the context has.
Result<std::optional<int64_t>> kept_of(const ModelRequest& asked, const PoolingFields& fields) {
  if (!fields.truncate_prompt_tokens) return std::optional<int64_t>();
  const int64_t context = asked.generator().engine().max_model_len();
  if (*fields.truncate_prompt_tokens > context) {
    return invalid_argument("truncate_prompt_tokens is {}, but the model's context has {} tokens.",
                            *fields.truncate_prompt_tokens, context)
        .with_param("truncate_prompt_tokens");
  }
  return std::optional(*fields.truncate_prompt_tokens < 0 ? context : *fields.truncate_prompt_tokens);
}

Result<std::vector<engine::PooledText>> encode_inputs(const ModelRequest& asked, const EmbeddingsRequest& request) {
  const Generator& generator = asked.generator();
  QUIRE_RETURN_IF_ERROR(
      generator.check_answer_bytes(static_cast<int64_t>(request.inputs.size()) * kBytesPerText, "input"));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> kept, kept_of(asked, request.fields));
  QUIRE_ASSIGN_OR_RETURN(const std::string before,
                         engine::prompt_named(generator.engine().text(), request.prompt_name));
  const PreparationBudget budget = generator.budget();
  QUIRE_ASSIGN_OR_RETURN(const int32_t pooled_from,
                         engine::unpooled_tokens(generator.engine(), before, request.fields.add_special_tokens,
                                                 {.is_over = [&budget] { return budget.is_over(); }}));
  std::vector<engine::PooledText> texts;
  texts.reserve(request.inputs.size());
  for (const PoolingInput& input : request.inputs) {
    if (const auto* ids = std::get_if<std::vector<TokenId>>(&input)) {
      texts.push_back({.ids = *ids});
      if (kept && static_cast<int64_t>(ids->size()) > *kept) texts.back().ids.resize(static_cast<size_t>(*kept));
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(
        engine::PooledText text,
        generator.encode_text(before + std::get<std::string>(input), request.fields.add_special_tokens, kept, budget));
    text.pooled_from = pooled_from;
    texts.push_back(std::move(text));
  }
  return texts;
}

ScoreActivation activation_of(const ModelConfig& model, std::optional<bool> wanted) {
  return wanted.value_or(true) ? model.pooling.activation : ScoreActivation::kNone;
}

Status answer_vectors(const ModelRequest& asked, bool is_pooling) {
  const engine::Engine& engine = asked.generator().engine();
  const ModelConfig& model = engine.model();
  const bool embeds = model.task == ModelTask::kEmbed;
  if (!embeds && !(is_pooling && model.task == ModelTask::kClassify)) return unsupported(engine, "embeddings");
  QUIRE_ASSIGN_OR_RETURN(const EmbeddingsRequest request, parse_embeddings_request(asked.body));
  if (!request.task.empty() && request.task != (embeds ? "embed" : "classify")) {
    return invalid_argument("task is {}, and the model {}.", in_quotes(request.task), served_for(model.task))
        .with_param("task");
  }
  EmbeddingsWriter::Form form{.is_pooling = is_pooling, .base64 = request.base64};
  if (request.dimensions) {
    if (!embeds)
      return invalid_argument("dimensions is for vectors, and the model gives scores.").with_param("dimensions");
    QUIRE_RETURN_IF_ERROR(engine::check_dimensions(model, *request.dimensions));
    form.dimensions = *request.dimensions;
  }
  form.normalize = request.normalize.value_or(model.pooling.normalize);
  if (!embeds) form.activation = activation_of(model, request.use_activation);
  PoolingWork work;
  QUIRE_ASSIGN_OR_RETURN(work.texts, encode_inputs(asked, request));
  const int64_t size = embeds ? (form.dimensions > 0 ? form.dimensions : model.pooling.vector_size)
                              : std::max<int64_t>(model.pooling.num_labels, 1);
  work.answer_bytes = static_cast<int64_t>(work.texts.size()) * (kBytesPerText + size * kBytesPerNumber);
  work.options = options_of(request.fields);
  work.writer = std::make_unique<EmbeddingsWriter>(context_of(asked, request.fields, is_pooling ? "pool-" : "embd-"),
                                                   work.texts.size(), form);
  return asked.generator().start_pooling(asked.exchange, std::move(work), "input");
}

// The prompt that stands for what Cohere calls an input's type: "search_query", or the word behind it; else the usual.
std::string prompt_for(const TextSource& text, std::string_view input_type) {
  constexpr std::string_view kSearch = "search_";
  for (const std::string_view wanted :
       {input_type, input_type.starts_with(kSearch) ? input_type.substr(kSearch.size()) : input_type}) {
    for (const auto& [name, prompt] : text.prompts) {
      if (name == wanted) return name;
    }
  }
  return "";
}

Status answer_cohere_vectors(const ModelRequest& asked) {
  const engine::Engine& engine = asked.generator().engine();
  const ModelConfig& model = engine.model();
  if (model.task != ModelTask::kEmbed) return unsupported(engine, "embeddings");
  CohereEmbedWriter::Answer answer{.normalize = model.pooling.normalize,
                                   .second_version = asked.exchange->request().path == "/v2/embed"};
  QUIRE_ASSIGN_OR_RETURN(CohereEmbedRequest cohere, parse_cohere_embed_request(asked.body, answer.second_version));
  EmbeddingsRequest& request = cohere.request;
  if (request.dimensions) {
    QUIRE_RETURN_IF_ERROR(engine::check_dimensions(model, *request.dimensions).with_param("output_dimension"));
    answer.dimensions = *request.dimensions;
  }
  request.prompt_name = prompt_for(engine.text(), cohere.input_type);
  // Their max_tokens bounds, and asks for no more than there is.
  if (std::optional<int64_t>& most = request.fields.truncate_prompt_tokens)
    most = std::min(*most, engine.max_model_len());
  PoolingWork work;
  QUIRE_ASSIGN_OR_RETURN(work.texts, encode_inputs(asked, request));
  int64_t bytes = 0;
  for (PoolingInput& input : request.inputs) {
    answer.texts.push_back(std::move(std::get<std::string>(input)));
    bytes += static_cast<int64_t>(2 * answer.texts.back().size());
  }
  const int64_t size = answer.dimensions > 0 ? answer.dimensions : model.pooling.vector_size;
  const auto forms = static_cast<int64_t>(std::max<size_t>(cohere.forms.size(), 1));
  work.answer_bytes =
      bytes + static_cast<int64_t>(work.texts.size()) * (kBytesPerText + forms * size * kBytesPerNumber);
  work.options = options_of(request.fields);
  answer.forms = std::move(cohere.forms);
  work.writer = std::make_unique<CohereEmbedWriter>(context_of(asked, request.fields, "embd-"), std::move(answer));
  return asked.generator().start_pooling(asked.exchange, std::move(work), "texts");
}

Status answer_classes(const ModelRequest& asked) {
  const engine::Engine& engine = asked.generator().engine();
  const ModelConfig& model = engine.model();
  if (model.task != ModelTask::kClassify) return unsupported(engine, "classification");
  QUIRE_ASSIGN_OR_RETURN(const EmbeddingsRequest request, parse_embeddings_request(asked.body));
  if (request.dimensions) return invalid_argument("dimensions is for vectors.").with_param("dimensions");
  PoolingWork work;
  QUIRE_ASSIGN_OR_RETURN(work.texts, encode_inputs(asked, request));
  const int64_t size = std::max<int64_t>(model.pooling.num_labels, 1);
  work.answer_bytes = static_cast<int64_t>(work.texts.size()) * (2 * kBytesPerText + size * kBytesPerNumber);
  work.options = options_of(request.fields);
  work.writer = std::make_unique<ClassesWriter>(context_of(asked, request.fields, "classify-"), work.texts.size(),
                                                model.pooling.labels, activation_of(model, request.use_activation));
  return asked.generator().start_pooling(asked.exchange, std::move(work), "input");
}

struct PreparedPairs {
  PoolingWork work;
  PairsForm form;
};

// Texts that are put together of fewer than they are: their tokens take memory as an answer does, and are bounded with
// it while they are made. A text that is too long is the last: start_pooling() says so.
class TextsInPairs {
 public:
  // field: of the request, that the texts are of.
  TextsInPairs(const Generator& generator, std::vector<engine::PooledText>& texts, int64_t bytes_each,
               const char* field)
      : generator_(generator), texts_(texts), bytes_each_(bytes_each), field_(field) {}

  // The text's place.
  Result<size_t> add(Result<engine::PooledText> text) {
    QUIRE_RETURN_IF_ERROR(text.status());
    bytes_ += bytes_each_ + static_cast<int64_t>(text->ids.size() * sizeof(TokenId));
    QUIRE_RETURN_IF_ERROR(generator_.check_answer_bytes(bytes_, field_));
    is_full_ |= static_cast<int64_t>(text->ids.size()) > generator_.engine().max_model_len();
    texts_.push_back(*std::move(text));
    return texts_.size() - 1;
  }
  bool is_full() const { return is_full_; }
  int64_t bytes() const { return bytes_; }

 private:
  const Generator& generator_;
  std::vector<engine::PooledText>& texts_;
  const int64_t bytes_each_;
  const char* const field_;
  int64_t bytes_ = 0;
  bool is_full_ = false;
};

// Pairs as the model takes them: each a text of its own, or, where it embeds, each text once. first: one of all pairs,
// or one of each.
Result<PreparedPairs> prepare_pairs(const ModelRequest& asked, const PoolingFields& fields,
                                    const std::vector<std::string>& first, const std::vector<std::string>& second,
                                    std::optional<bool> use_activation, const char* field,
                                    std::optional<int64_t> most_of_second = std::nullopt) {
  const Generator& generator = asked.generator();
  const engine::Engine& engine = generator.engine();
  const ModelConfig& model = engine.model();
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> kept, kept_of(asked, fields));
  std::optional<int64_t> kept_of_second = kept;
  if (most_of_second) kept_of_second = std::min(*most_of_second, kept.value_or(engine.max_model_len()));
  const PreparationBudget budget = generator.budget();
  // Which of two texts is cut goes by how long both are.
  text::EncodeLimits limits{.is_over = [&budget] { return budget.is_over(); }};
  if (!kept) limits.max_ids = static_cast<size_t>(engine.max_model_len()) + 1;
  PreparedPairs prepared;
  const bool embeds = model.task == ModelTask::kEmbed;
  const int64_t numbers = embeds ? model.pooling.vector_size : 1;
  TextsInPairs texts(generator, prepared.work.texts, kBytesPerText + numbers * static_cast<int64_t>(sizeof(float)),
                     field);
  if (embeds) {
    QUIRE_ASSIGN_OR_RETURN(const std::string before, engine::prompt_named(engine.text(), ""));
    QUIRE_ASSIGN_OR_RETURN(const int32_t pooled_from,
                           engine::unpooled_tokens(engine, before, fields.add_special_tokens, limits));
    const auto encode = [&](const std::string& text, std::optional<int64_t> most) {
      auto out = generator.encode_text(before + text, fields.add_special_tokens, most, budget);
      if (out.ok()) out->pooled_from = pooled_from;
      return out;
    };
    for (size_t i = 0; i < second.size() && !texts.is_full(); ++i) {
      size_t place = 0;
      if (i < first.size()) {
        QUIRE_ASSIGN_OR_RETURN(place, texts.add(encode(first[i], kept)));
      }
      QUIRE_ASSIGN_OR_RETURN(const size_t other, texts.add(encode(second[i], kept_of_second)));
      prepared.form.places.emplace_back(place, other);
    }
  } else {
    QUIRE_RETURN_IF_ERROR(engine::check_scores_pairs(model));
    prepared.form.activation = activation_of(model, use_activation);
    auto encoder = engine::PairEncoder::create(engine, limits);
    QUIRE_RETURN_IF_ERROR(budget.check());
    QUIRE_RETURN_IF_ERROR(encoder.status());
    for (size_t i = 0; i < second.size() && !texts.is_full(); ++i) {
      auto text = encoder->encode(first[first.size() == 1 ? 0 : i], second[i], kept, most_of_second);
      QUIRE_RETURN_IF_ERROR(budget.check());
      QUIRE_RETURN_IF_ERROR(texts.add(std::move(text)).status());
    }
  }
  prepared.work.answer_bytes = texts.bytes();
  prepared.work.options = options_of(fields);
  return prepared;
}

Status answer_scores(const ModelRequest& asked) {
  const engine::Engine& engine = asked.generator().engine();
  if (engine.model().task == ModelTask::kGenerate) return unsupported(engine, "scores");
  QUIRE_ASSIGN_OR_RETURN(const ScoreRequest request, parse_score_request(asked.body));
  QUIRE_ASSIGN_OR_RETURN(PreparedPairs prepared, prepare_pairs(asked, request.fields, request.first, request.second,
                                                               request.use_activation, "text_2"));
  const size_t num_texts = prepared.work.texts.size();
  prepared.work.writer =
      std::make_unique<ScoresWriter>(context_of(asked, request.fields, "score-"), num_texts, std::move(prepared.form));
  return asked.generator().start_pooling(asked.exchange, std::move(prepared.work), "text_2");
}

// Cohere's version 2 never gives the documents back; Jina's and the first do, unless asked not to.
Status answer_ranking(const ModelRequest& asked) {
  const engine::Engine& engine = asked.generator().engine();
  if (engine.model().task == ModelTask::kGenerate) return unsupported(engine, "reranking");
  QUIRE_ASSIGN_OR_RETURN(RerankRequest request, parse_rerank_request(asked.body));
  QUIRE_ASSIGN_OR_RETURN(PreparedPairs prepared,
                         prepare_pairs(asked, request.fields, {request.query}, request.documents,
                                       request.use_activation, "documents", request.max_tokens_per_doc));
  if (!request.return_documents.value_or(asked.exchange->request().path != "/v2/rerank")) {
    request.documents.clear();
  } else {
    for (const std::string& document : request.documents) {
      prepared.work.answer_bytes += static_cast<int64_t>(2 * document.size());
    }
  }
  const size_t num_texts = prepared.work.texts.size();
  prepared.work.writer =
      std::make_unique<RankingWriter>(context_of(asked, request.fields, "rerank-"), num_texts, std::move(prepared.form),
                                      request.top_n, std::move(request.documents));
  return asked.generator().start_pooling(asked.exchange, std::move(prepared.work), "documents");
}

}  // namespace

void PoolingApi::embeddings(const std::shared_ptr<Exchange>& exchange) const {
  with_model(models_, exchange, [](const ModelRequest& asked) { return answer_vectors(asked, /*is_pooling=*/false); });
}
void PoolingApi::pooling(const std::shared_ptr<Exchange>& exchange) const {
  with_model(models_, exchange, [](const ModelRequest& asked) { return answer_vectors(asked, /*is_pooling=*/true); });
}
void PoolingApi::classify(const std::shared_ptr<Exchange>& exchange) const {
  with_model(models_, exchange, answer_classes);
}
void PoolingApi::score(const std::shared_ptr<Exchange>& exchange) const {
  with_model(models_, exchange, answer_scores);
}
void PoolingApi::cohere_embed(const std::shared_ptr<Exchange>& exchange) const {
  with_model(models_, exchange, answer_cohere_vectors);
}
void PoolingApi::rerank(const std::shared_ptr<Exchange>& exchange) const {
  with_model(models_, exchange, answer_ranking);
}

}  // namespace quire::server
