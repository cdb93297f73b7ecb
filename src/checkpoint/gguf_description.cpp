#include "checkpoint/gguf_description.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace quire::checkpoint {
namespace {

namespace json = boost::json;

// Whether routers take sigmoids: 2; softmax is 1.
Result<bool> has_sigmoid_router(const GgufMetadata& metadata, const std::string& key) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> function, metadata.integer(key));
  if (function && *function != 1 && *function != 2) {
    return unimplemented("metadata \"{}\" is {}, which is not supported yet; supported: 1 (softmax), 2 (sigmoid)", key,
                         *function);
  }
  return function.value_or(1) == 2;
}

Result<std::string_view> model_class(const GgufMetadata& metadata, const GgufArchitecture& architecture) {
  if (!architecture.expert_model_class.empty()) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> experts,
                           metadata.integer(fmt::format("{}.expert_count", architecture.name)));
    if (experts.value_or(0) > 0) return architecture.expert_model_class;
  }
  if (!architecture.sigmoid_model_class.empty()) {
    QUIRE_ASSIGN_OR_RETURN(const bool sigmoid,
                           has_sigmoid_router(metadata, fmt::format("{}.expert_gating_func", architecture.name)));
    if (sigmoid) return architecture.sigmoid_model_class;
  }
  return architecture.model_class;
}

}  // namespace

Result<GgufDescription> describe_gguf(const GgufMetadata& metadata, std::string_view name,
                                      const GgufArchitecture* architecture) {
  GgufDescription out{.architecture = std::string(name), .model_class = std::string(name), .metadata = metadata};
  if (architecture != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(out.model_class, model_class(metadata, *architecture));
  }
  return out;
}

Result<json::object> read_gguf_generation_config(const GgufMetadata& metadata) {
  json::object out;
  json::array ends;
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> id, metadata.integer(key));
    if (id && std::find(ends.begin(), ends.end(), json::value(*id)) == ends.end()) ends.emplace_back(*id);
  }
  if (!ends.empty()) out["eos_token_id"] = std::move(ends);
  // Keys that generation_config.json has no name for (xtc, mirostat, the order of the samplers) are left out.
  for (const auto& [key, name] :
       {std::pair{"general.sampling.temp", "temperature"}, std::pair{"general.sampling.top_p", "top_p"},
        std::pair{"general.sampling.min_p", "min_p"},
        std::pair{"general.sampling.penalty_repeat", "repetition_penalty"}}) {
    QUIRE_ASSIGN_OR_RETURN(const std::optional<double> value, metadata.number(key));
    if (value) out[name] = *value;
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int64_t> top_k, metadata.integer("general.sampling.top_k"));
  if (top_k) out["top_k"] = *top_k;
  return out;
}

}  // namespace quire::checkpoint
