#include "server/openai_api.h"

#include <ctime>

#include "server/json_fields.h"
#include "server/openai_writer.h"

namespace quire::server {
namespace json = boost::json;

OpenAiApi::OpenAiApi(const Generator& generator)
    : generator_(generator), started_(static_cast<int64_t>(std::time(nullptr))) {}

// ---------------------------------------------------------------------------------------------------------------
// models

json::object OpenAiApi::card(const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", started_},
          {"owned_by", "quire"},
          {"root", generator_.config().root_model.empty() ? name : generator_.config().root_model},
          {"parent", nullptr},
          {"max_model_len", generator_.engine().max_model_len()}};
}

json::object OpenAiApi::model_list() const {
  json::array data;
  for (const std::string& name : generator_.config().served_model_names) data.emplace_back(card(name));
  return {{"object", "list"}, {"data", std::move(data)}};
}

Result<json::object> OpenAiApi::model_card(std::string_view name) const {
  if (name.empty()) return not_found("A model's name is missing.").with_param("model");
  QUIRE_RETURN_IF_ERROR(generator_.check_model(std::string(name)));
  return card(std::string(name));
}

// --------------------------------------------------------------------------------------------------------------
// generating

Status OpenAiApi::answer_chat(const std::shared_ptr<Exchange>& exchange) const {
  QUIRE_ASSIGN_OR_RETURN(const json::object body, parse_json_object(exchange->take_body()));
  QUIRE_ASSIGN_OR_RETURN(const ChatRequest request, parse_chat_request(body, generator_.limits()));
  return generator_.start_chat(exchange, request, "chatcmpl-", [](AnswerContext context, size_t num_choices) {
    return std::make_unique<ChatWriter>(std::move(context), num_choices);
  });
}

Status OpenAiApi::answer_completions(const std::shared_ptr<Exchange>& exchange) const {
  QUIRE_ASSIGN_OR_RETURN(const json::object body, parse_json_object(exchange->take_body()));
  QUIRE_ASSIGN_OR_RETURN(const CompletionRequest request, parse_completion_request(body, generator_.limits()));
  return generator_.start_completion(exchange, request, "cmpl-", [](AnswerContext context, size_t num_choices) {
    return std::make_unique<CompletionWriter>(std::move(context), num_choices);
  });
}

// ---------------------------------------------------------------------------------------------------------------
// tokens

Status OpenAiApi::answer_tokenize(const std::shared_ptr<Exchange>& exchange) const {
  QUIRE_ASSIGN_OR_RETURN(const json::object body, parse_json_object(exchange->take_body()));
  QUIRE_ASSIGN_OR_RETURN(const TokenizeRequest request, parse_tokenize_request(body, generator_.limits()));
  QUIRE_RETURN_IF_ERROR(generator_.check_model(request.model));
  const text::Tokenizer* tokenizer = generator_.engine().tokenizer();
  if (tokenizer == nullptr) return invalid_argument("This server runs without a tokenizer.");
  std::vector<TokenId> ids;
  if (request.prompt) {
    ids = tokenizer->encode(*request.prompt, request.add_special_tokens);
  } else {
    QUIRE_ASSIGN_OR_RETURN(PreparedPrompt prompt, generator_.render(request.chat));
    ids = std::move(prompt.ids);
  }
  json::array tokens(ids.begin(), ids.end());
  json::value spellings = nullptr;
  if (request.return_token_strs) {
    json::array list;
    for (TokenId id : ids) list.emplace_back(tokenizer->id_to_token(id).value_or(""));
    spellings = std::move(list);
  }
  exchange->respond({200,
                     "application/json",
                     {},
                     json::serialize(json::object{{"count", ids.size()},
                                                  {"max_model_len", generator_.engine().max_model_len()},
                                                  {"tokens", std::move(tokens)},
                                                  {"token_strs", std::move(spellings)}})});
  return {};
}

Status OpenAiApi::answer_detokenize(const std::shared_ptr<Exchange>& exchange) const {
  QUIRE_ASSIGN_OR_RETURN(const json::object body, parse_json_object(exchange->take_body()));
  QUIRE_ASSIGN_OR_RETURN(const DetokenizeRequest request, parse_detokenize_request(body, generator_.limits()));
  QUIRE_RETURN_IF_ERROR(generator_.check_model(request.model));
  const text::Tokenizer* tokenizer = generator_.engine().tokenizer();
  if (tokenizer == nullptr) return invalid_argument("This server runs without a tokenizer.");
  for (TokenId id : request.tokens) {
    if (id < tokenizer->vocab_size()) continue;
    return invalid_argument("tokens contains token id {}, which is not in the vocabulary of {} tokens.", id,
                            tokenizer->vocab_size())
        .with_param("tokens");
  }
  const std::string text = tokenizer->decode(request.tokens, /*skip_special_tokens=*/false);
  exchange->respond({200, "application/json", {}, json::serialize(json::object{{"prompt", text}})});
  return {};
}

void OpenAiApi::chat_completions(const std::shared_ptr<Exchange>& exchange) const {
  generator_.answer(exchange, answer_chat(exchange));
}
void OpenAiApi::completions(const std::shared_ptr<Exchange>& exchange) const {
  generator_.answer(exchange, answer_completions(exchange));
}
void OpenAiApi::tokenize(const std::shared_ptr<Exchange>& exchange) const {
  generator_.answer(exchange, answer_tokenize(exchange));
}
void OpenAiApi::detokenize(const std::shared_ptr<Exchange>& exchange) const {
  generator_.answer(exchange, answer_detokenize(exchange));
}

}  // namespace quire::server
