// Requests for vectors and scores as their clients spell them: OpenAI's embeddings, vLLM's pooling, classify and score,
// Jina's and Cohere's rerank.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <boost/json.hpp>

#include "base/status.h"
#include "types/ids.h"

namespace quire::server {

using PoolingInput = std::variant<std::string, std::vector<TokenId>>;

// What all of them may say.
struct PoolingFields {
  std::string model;
  std::string request_id;
  std::optional<int64_t> truncate_prompt_tokens;  // -1: to the context
  bool add_special_tokens = true;
  int32_t priority = 0;
  std::string cache_salt;
};

struct EmbeddingsRequest {
  PoolingFields fields;
  std::vector<PoolingInput> inputs;
  bool base64 = false;
  std::optional<int64_t> dimensions;
  std::optional<bool> normalize;
  std::string prompt_name;
  std::optional<bool> use_activation;  // of scores (/pooling, /classify)
  std::string task;                    // /pooling: "embed", "classify" or nothing
};

struct ScoreRequest {
  PoolingFields fields;
  std::vector<std::string> first;  // one, of all pairs, or as many as there are second ones
  std::vector<std::string> second;
  std::optional<bool> use_activation;
};

// Cohere's: the parts of an EmbeddingsRequest under other names, and vectors in several forms at once.
struct CohereEmbedRequest {
  enum class Form { kFloat, kBase64, kBinary, kUnsignedBinary };
  EmbeddingsRequest request;  // inputs are texts
  std::string input_type;
  std::vector<Form> forms;  // none: the first version's plain list
};
std::string_view name_of(CohereEmbedRequest::Form form);

struct RerankRequest {
  PoolingFields fields;
  std::string query;
  std::vector<std::string> documents;
  size_t top_n = 0;  // as many as there are documents, at most
  std::optional<bool> return_documents;
  std::optional<bool> use_activation;
  std::optional<int64_t> max_tokens_per_doc;  // of a document longer ones lose the end
};

// Errors: invalid_argument with param().
Result<EmbeddingsRequest> parse_embeddings_request(const boost::json::object& body);
Result<CohereEmbedRequest> parse_cohere_embed_request(const boost::json::object& body, bool second_version);
Result<ScoreRequest> parse_score_request(const boost::json::object& body);
Result<RerankRequest> parse_rerank_request(const boost::json::object& body);

}  // namespace quire::server
