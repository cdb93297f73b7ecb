#include "server/openai_api.h"

#include <ctime>

#include "server/api_error.h"
#include "server/json_fields.h"
#include "server/openai_writer.h"
#include "server/url.h"

namespace quire::server {
namespace json = boost::json;

OpenAiApi::OpenAiApi(Models& models) : models_(models), started_(static_cast<int64_t>(std::time(nullptr))) {}

// ---------------------------------------------------------------------------------------------------------------
// models

json::object OpenAiApi::card(const Models::Listed& model) const {
  json::object card{
      {"id", model.name},         {"object", "model"},
      {"created", started_},      {"owned_by", "quire"},
      {"root", model.root},       {"parent", model.parent.empty() ? json::value(nullptr) : json::value(model.parent)},
      {"max_model_len", nullptr}, {"status", {{"value", model.status}}}};
  if (model.max_model_len > 0) card["max_model_len"] = model.max_model_len;
  if (model.chat_sampling) card["chat_sampling"] = to_json(*model.chat_sampling);
  return card;
}

json::object OpenAiApi::model_list() const {
  json::array data;
  for (const Models::Listed& model : models_.list()) data.emplace_back(card(model));
  return {{"object", "list"}, {"data", std::move(data)}};
}

Result<json::object> OpenAiApi::model_card(std::string_view name) const {
  if (name.empty()) return not_found("A model's name is missing.").with_param("model");
  for (const Models::Listed& model : models_.list()) {
    if (model.name == name) return card(model);
  }
  return unknown_model(name);
}

// --------------------------------------------------------------------------------------------------------------
// generating

namespace {

Status answer_chat(const ModelRequest& asked) {
  const Generator& generator = asked.generator();
  QUIRE_ASSIGN_OR_RETURN(const ChatRequest request, parse_chat_request(asked.body, generator.limits()));
  return generator.start_chat(asked.exchange, request, "chatcmpl-", [](AnswerContext context, size_t num_choices) {
    return std::make_unique<ChatWriter>(std::move(context), num_choices);
  });
}

Status answer_completions(const ModelRequest& asked) {
  const Generator& generator = asked.generator();
  QUIRE_ASSIGN_OR_RETURN(const CompletionRequest request, parse_completion_request(asked.body, generator.limits()));
  return generator.start_completion(asked.exchange, request, "cmpl-", [](AnswerContext context, size_t num_choices) {
    return std::make_unique<CompletionWriter>(std::move(context), num_choices);
  });
}

// ---------------------------------------------------------------------------------------------------------------
// tokens

Status answer_tokenize(const ModelRequest& asked) {
  const Generator& generator = asked.generator();
  QUIRE_ASSIGN_OR_RETURN(const TokenizeRequest request, parse_tokenize_request(asked.body, generator.limits()));
  const text::Tokenizer* tokenizer = generator.engine().tokenizer();
  if (tokenizer == nullptr) return invalid_argument("This server runs without a tokenizer.");
  std::vector<TokenId> ids;
  if (request.prompt) {
    QUIRE_ASSIGN_OR_RETURN(ids, generator.encode(*request.prompt, request.add_special_tokens, generator.budget()));
  } else {
    QUIRE_ASSIGN_OR_RETURN(PreparedPrompt prompt, generator.render(request.chat, generator.budget(), /*whole=*/true));
    ids = std::move(prompt.ids);
  }
  json::array tokens(ids.begin(), ids.end());
  json::value spellings = nullptr;
  if (request.return_token_strs) {
    json::array list;
    for (TokenId id : ids) list.emplace_back(tokenizer->id_to_token(id).value_or(""));
    spellings = std::move(list);
  }
  asked.exchange->respond({200,
                           "application/json",
                           {},
                           json::serialize(json::object{{"count", ids.size()},
                                                        {"max_model_len", generator.engine().max_model_len()},
                                                        {"tokens", std::move(tokens)},
                                                        {"token_strs", std::move(spellings)}})});
  return {};
}

Status answer_detokenize(const ModelRequest& asked) {
  const Generator& generator = asked.generator();
  QUIRE_ASSIGN_OR_RETURN(const DetokenizeRequest request, parse_detokenize_request(asked.body, generator.limits()));
  const text::Tokenizer* tokenizer = generator.engine().tokenizer();
  if (tokenizer == nullptr) return invalid_argument("This server runs without a tokenizer.");
  for (TokenId id : request.tokens) {
    if (id < tokenizer->vocab_size()) continue;
    return invalid_argument("tokens contains token id {}, which is not in the vocabulary of {} tokens.", id,
                            tokenizer->vocab_size())
        .with_param("tokens");
  }
  const std::string text = tokenizer->decode(request.tokens, /*skip_special_tokens=*/false);
  asked.exchange->respond({200, "application/json", {}, json::serialize(json::object{{"prompt", text}})});
  return {};
}

json::object described_tokenizer(const engine::Engine& engine) {
  const auto spelled = [](const std::string& text) { return text.empty() ? json::value(nullptr) : json::value(text); };
  const TextSource& text = engine.text();
  boost::system::error_code failed;
  json::value config = json::parse(text.tokenizer_config, failed);
  json::object info = !failed && config.is_object() ? std::move(config.get_object()) : json::object();
  info.emplace("tokenizer_class", "PreTrainedTokenizerFast");  // of a file that does not say
  info["model_max_length"] = engine.max_model_len();
  info["bos_token"] = spelled(text.bos_token);
  info["eos_token"] = spelled(text.eos_token);
  info["chat_template"] = spelled(text.chat_template);
  return info;
}

}  // namespace

HttpResponse OpenAiApi::tokenizer_info(std::string_view query) const {
  const auto lease = models_.loaded(query_value(query, "model").value_or(""));
  if (!lease.ok()) return error_response(to_api_error(lease.status()));
  const engine::Engine& engine = (*lease)->generator().engine();
  if (engine.tokenizer() == nullptr) {
    return error_response(to_api_error(invalid_argument("This server runs without a tokenizer.")));
  }
  return {200, "application/json", {}, json::serialize(described_tokenizer(engine))};
}

void OpenAiApi::chat_completions(const std::shared_ptr<Exchange>& exchange) const {
  with_model(models_, exchange, answer_chat);
}
void OpenAiApi::completions(const std::shared_ptr<Exchange>& exchange) const {
  with_model(models_, exchange, answer_completions);
}
void OpenAiApi::tokenize(const std::shared_ptr<Exchange>& exchange) const {
  with_model(models_, exchange, answer_tokenize);
}
void OpenAiApi::detokenize(const std::shared_ptr<Exchange>& exchange) const {
  with_model(models_, exchange, answer_detokenize);
}

}  // namespace quire::server
