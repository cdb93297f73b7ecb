#include "server/openapi.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "server/openapi_schemas.h"

namespace quire::server {
namespace json = boost::json;

namespace {

constexpr const char* kJson = "application/json";
constexpr const char* kForm = "multipart/form-data";
constexpr const char* kBytes = "application/octet-stream";
constexpr const char* kPlainText = "text/plain; version=0.0.4; charset=utf-8";
constexpr const char* kEvents = "text/event-stream; charset=utf-8";

// Which errors a route may answer with, beside 401 and those of HTTP itself.
enum class Errors {
  kNone,        // it always succeeds
  kHealth,      // 503
  kRead,        // of what is kept: 400, 404, and a full queue
  kRequest,     // of a body: all that a request can get wrong
  kGeneration,  // and all that can go wrong while it is answered
};

struct Operation {
  const char* method;
  const char* path;  // as the route has it
  const char* name;  // operationId
  const char* summary;
  const char* request;  // schema of the body; nullptr: none
  const char* request_type;
  const char* answer;  // schema of a 200; nullptr: any bytes
  const char* answer_type;
  Errors errors;
  std::string_view query;  // parameters, separated by spaces
};

constexpr std::string_view kPaging = "limit order after";

constexpr Operation kOperations[] = {
    {"GET", "/v1/models", "listModels", "The models by their names", nullptr, "", "Models", kJson, Errors::kNone, ""},
    {"GET", "/v1/models/{model...}", "findModel", "One model", nullptr, "", "Model", kJson, Errors::kRead, ""},
    {"GET", "/health", "health", "Whether the engine works", nullptr, "", "Health", kJson, Errors::kHealth, ""},
    {"GET", "/ready", "ready", "The same", nullptr, "", "Health", kJson, Errors::kHealth, ""},
    {"GET", "/ping", "ping", "The same", nullptr, "", "Health", kJson, Errors::kHealth, ""},
    {"POST", "/ping", "postPing", "The same", nullptr, "", "Health", kJson, Errors::kHealth, ""},
    {"GET", "/version", "version", "The program's version", nullptr, "", "Version", kJson, Errors::kNone, ""},
    {"GET", "/load", "load", "How many requests are being answered", nullptr, "", "Any", kJson, Errors::kNone, ""},
    {"GET", "/metrics", "metrics", "Prometheus' text", nullptr, "", nullptr, kPlainText, Errors::kNone, ""},
    {"GET", "/openapi.json", "openapi", "This document", nullptr, "", "Any", kJson, Errors::kNone, ""},
    {"POST", "/v1/chat/completions", "createChat", "Answers a conversation", "ChatRequest", kJson, "Chat", kJson,
     Errors::kGeneration, ""},
    {"POST", "/v1/completions", "createCompletion", "Goes on from a text", "CompletionRequest", kJson, "Completion",
     kJson, Errors::kGeneration, ""},
    {"POST", "/v1/responses", "createResponse", "Answers items, and keeps the answer", "ResponsesRequest", kJson,
     "Response", kJson, Errors::kGeneration, ""},
    {"GET", "/v1/responses/{response_id}", "findResponse", "A response that is kept", nullptr, "", "Response", kJson,
     Errors::kRead, ""},
    {"DELETE", "/v1/responses/{response_id}", "deleteResponse", "Forgets a response", nullptr, "", "Deleted", kJson,
     Errors::kRead, ""},
    {"POST", "/v1/responses/{response_id}/cancel", "cancelResponse", "Stops a response in the background", nullptr, "",
     "Response", kJson, Errors::kRequest, ""},
    {"GET", "/v1/responses/{response_id}/input_items", "listInputItems", "What a response was asked", nullptr, "",
     "Page", kJson, Errors::kRead, kPaging},
    {"POST", "/v1/messages", "createMessage", "Anthropic's messages", "MessagesRequest", kJson, "Message", kJson,
     Errors::kGeneration, ""},
    {"POST", "/v1/messages/count_tokens", "countTokens", "The tokens of a message's prompt", "CountRequest", kJson,
     "TokenCount", kJson, Errors::kRequest, ""},
    {"POST", "/tokenize", "tokenize", "Text or a conversation to token ids", "TokenizeRequest", kJson, "Tokens", kJson,
     Errors::kRequest, ""},
    {"POST", "/detokenize", "detokenize", "Token ids to text", "DetokenizeRequest", kJson, "Text", kJson,
     Errors::kRequest, ""},
    {"GET", "/tokenizer_info", "tokenizerInfo", "A tokenizer's configuration with its chat template", nullptr, "",
     "Any", kJson, Errors::kRead, "model"},
    {"POST", "/v1/files", "uploadFile", "Keeps a file for batches", "UploadRequest", kForm, "File", kJson,
     Errors::kRequest, ""},
    {"GET", "/v1/files", "listFiles", "The files that are kept", nullptr, "", "Page", kJson, Errors::kRead,
     "limit order after purpose"},
    {"GET", "/v1/files/{file_id}", "findFile", "One file", nullptr, "", "File", kJson, Errors::kRead, ""},
    {"DELETE", "/v1/files/{file_id}", "deleteFile", "Deletes a file", nullptr, "", "Deleted", kJson, Errors::kRead, ""},
    {"GET", "/v1/files/{file_id}/content", "fileContent", "A file's bytes", nullptr, "", nullptr, kBytes, Errors::kRead,
     ""},
    {"POST", "/v1/batches", "createBatch", "Answers a file of requests in idle time", "BatchRequest", kJson, "Batch",
     kJson, Errors::kRequest, ""},
    {"GET", "/v1/batches", "listBatches", "The batches", nullptr, "", "Page", kJson, Errors::kRead, kPaging},
    {"GET", "/v1/batches/{batch_id}", "findBatch", "One batch", nullptr, "", "Batch", kJson, Errors::kRead, ""},
    {"POST", "/v1/batches/{batch_id}/cancel", "cancelBatch", "Stops a batch", nullptr, "", "Batch", kJson,
     Errors::kRequest, ""},
    {"POST", "/v1/embeddings", "createEmbeddings", "Texts to vectors", "EmbeddingsRequest", kJson, "Embeddings", kJson,
     Errors::kGeneration, ""},
    {"POST", "/v1/embed", "cohereEmbed", "Texts to vectors, as Cohere has it", "CohereEmbedRequest", kJson,
     "CohereEmbeddings", kJson, Errors::kGeneration, ""},
    {"POST", "/v2/embed", "cohereEmbedV2", "The same, its second version", "CohereEmbedRequest", kJson,
     "CohereEmbeddings", kJson, Errors::kGeneration, ""},
    {"POST", "/pooling", "createPooling", "Texts to what the model gives", "EmbeddingsRequest", kJson, "Embeddings",
     kJson, Errors::kGeneration, ""},
    {"POST", "/classify", "classify", "Texts to the probabilities of classes", "EmbeddingsRequest", kJson, "Classes",
     kJson, Errors::kGeneration, ""},
    {"POST", "/v1/score", "createScore", "How well pairs of texts go together", "ScoreRequest", kJson, "Scores", kJson,
     Errors::kGeneration, ""},
    {"POST", "/score", "createScoreAlias", "The same", "ScoreRequest", kJson, "Scores", kJson, Errors::kGeneration, ""},
    {"POST", "/v1/rerank", "rerank", "Documents by how well they answer a query", "RerankRequest", kJson, "Ranking",
     kJson, Errors::kGeneration, ""},
    {"POST", "/v2/rerank", "rerankV2", "The same", "RerankRequest", kJson, "Ranking", kJson, Errors::kGeneration, ""},
    {"POST", "/rerank", "rerankAlias", "The same", "RerankRequest", kJson, "Ranking", kJson, Errors::kGeneration, ""},
    {"POST", "/reset_prefix_cache", "resetPrefixCache", "Forgets all cached prefixes", nullptr, "", "Success", kJson,
     Errors::kRequest, ""},
    {"POST", "/sleep", "sleep", "Unloads all models when what they answer is done", nullptr, "", nullptr, kPlainText,
     Errors::kRequest, "level"},
    {"POST", "/wake_up", "wakeUp", "Loads the first model again", nullptr, "", nullptr, kPlainText, Errors::kRequest,
     "tags"},
    {"GET", "/is_sleeping", "isSleeping", "Whether no model is loaded", nullptr, "", "Any", kJson, Errors::kRead, ""},
    {"POST", "/v1/load_lora_adapter", "loadAdapter", "Loads an adapter from the folder of adapters", "AdapterToLoad",
     kJson, nullptr, kPlainText, Errors::kRequest, ""},
    {"POST", "/v1/unload_lora_adapter", "unloadAdapter", "Forgets an adapter's name", "AdapterName", kJson, nullptr,
     kPlainText, Errors::kRequest, ""},
    {"POST", "/models/load", "loadModel", "Loads a model", "ModelName", kJson, "Success", kJson, Errors::kRequest, ""},
    {"POST", "/models/unload", "unloadModel", "Unloads a model when what it answers is done", "ModelName", kJson,
     "Success", kJson, Errors::kRequest, ""},
    {"GET", "/admin/flight_recorder", "flightRecorder", "The last steps", nullptr, "", "Any", kJson, Errors::kRead,
     "steps model"},
    {"GET", "/admin/requests/{id...}", "requestLife", "The life of a request's answers", nullptr, "", "Any", kJson,
     Errors::kRead, ""},
};

bool is_page(const Route& route) {
  return route.path == "/" || route.path == "/dashboard" || route.path.starts_with("/page/");
}

// "{name...}" is "{name}" there.
std::string documented_path(std::string path) {
  if (const size_t dots = path.find("...}"); dots != std::string::npos) path.erase(dots, 3);
  return path;
}

std::vector<std::string_view> statuses(Errors errors) {
  switch (errors) {
    case Errors::kNone:
      return {};
    case Errors::kHealth:
      return {"503"};
    case Errors::kRead:
      return {"400", "404", "429", "503"};
    case Errors::kRequest:
      return {"400", "404", "408", "413", "415", "429", "501", "503"};
    case Errors::kGeneration:
      return {"400", "404", "408", "413", "415", "429", "500", "501", "503"};
  }
  return {};
}

json::object reference(std::string_view schema) {
  return {{"$ref", "#/components/schemas/" + std::string(schema)}};
}

json::object content(std::string_view type, const char* schema) {
  json::object media;
  if (schema != nullptr) media["schema"] = reference(schema);
  return {{type, std::move(media)}};
}

json::array parameters(const Operation& operation) {
  json::array out;
  const std::string path = documented_path(operation.path);
  if (const size_t open = path.find('{'); open != std::string::npos) {
    const std::string name = path.substr(open + 1, path.find('}') - open - 1);
    out.push_back(
        {{"name", name}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}, {"minLength", 1}}}});
  }
  std::string_view left = operation.query;
  while (!left.empty()) {
    const std::string_view name = left.substr(0, left.find(' '));
    left.remove_prefix(std::min(left.size(), name.size() + 1));
    json::object schema{{"type", "string"}};
    if (name == "limit") schema = {{"type", "integer"}, {"minimum", 1}, {"maximum", 100}};
    if (name == "steps") schema = {{"type", "integer"}, {"minimum", 0}};
    if (name == "order") schema = {{"type", "string"}, {"enum", {"asc", "desc"}}};
    out.push_back({{"name", name}, {"in", "query"}, {"required", false}, {"schema", std::move(schema)}});
  }
  return out;
}

json::object described(const Operation& operation, bool open) {
  const bool anthropic = std::string_view(operation.path).starts_with("/v1/messages");
  json::object responses;
  if (*operation.answer_type != '\0') {
    json::object media = content(operation.answer_type, operation.answer);
    if (operation.errors == Errors::kGeneration) media[kEvents] = json::object();
    responses["200"] = {{"description", operation.summary}, {"content", std::move(media)}};
  }
  std::vector<std::string_view> errors = statuses(operation.errors);
  if (!open) errors.emplace_back("401");
  errors.emplace_back("403");  // a stranger's page, whatever it asks for
  for (const std::string_view status : errors) {
    responses[status] = {{"description", "What went wrong"},
                         {"content", content(kJson, anthropic ? "AnthropicError" : "Error")}};
  }
  json::object out{{"operationId", operation.name},
                   {"summary", operation.summary},
                   {"parameters", parameters(operation)},
                   {"responses", std::move(responses)}};
  if (operation.request != nullptr) {
    out["requestBody"] = {{"required", true}, {"content", content(operation.request_type, operation.request)}};
  }
  if (open) out["security"] = json::array();
  return out;
}

// A file of the chat page.
json::object described_page(const Route& route) {
  return {
      {"operationId", "page" + route.path},
      {"summary", "A file of the chat page"},
      {"security", json::array()},
      {"responses", {{"200", {{"description", "The file"}}}, {"304", {{"description", "The client's copy is good"}}}}}};
}

std::string lower(std::string_view method) {
  std::string out(method);
  std::ranges::transform(out, out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

}  // namespace

std::vector<std::string> described_routes() {
  std::vector<std::string> out;
  for (const Operation& operation : kOperations) out.push_back(std::string(operation.method) + " " + operation.path);
  return out;
}

json::object openapi_document(const std::vector<Route>& routes, const std::string& version,
                              const std::string& root_path) {
  json::object paths;
  for (const Route& route : routes) {
    const auto operation = std::ranges::find_if(
        kOperations, [&](const Operation& o) { return route.method == o.method && route.path == o.path; });
    QUIRE_CHECK(operation != std::end(kOperations) || is_page(route));
    json::value& path = paths.emplace(documented_path(route.path), json::object()).first->value();
    path.get_object()[lower(route.method)] = is_page(route) ? described_page(route) : described(*operation, route.open);
  }
  json::object schemas = json::parse(kRequestSchemas).get_object();
  const json::value answers = json::parse(kAnswerSchemas);
  for (const auto& [name, schema] : answers.get_object()) schemas[name] = schema;
  json::object document{
      {"openapi", "3.1.0"},
      {"info",
       {{"title", "quire"},
        {"version", version},
        {"description", "OpenAI's API with vLLM's extensions, and Anthropic's messages: docs/api.md"}}},
      {"security", {json::object{{"bearer", json::array()}}, json::object{{"header", json::array()}}}},
      {"paths", std::move(paths)},
      {"components",
       {{"schemas", std::move(schemas)},
        {"securitySchemes",
         {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}},
          {"header", {{"type", "apiKey"}, {"in", "header"}, {"name", "x-api-key"}}}}}}}};
  if (!root_path.empty()) document["servers"] = {json::object{{"url", root_path}}};
  return document;
}

}  // namespace quire::server
