#include "models/phi3.h"

#include "models/config_reader.h"
#include "models/gguf_reader.h"

namespace quire::models {
namespace {

constexpr int64_t kPhi3TrainedContext = 4096;  // of the first releases, which do not say it

Status set_phi3(std::optional<int32_t> window, ModelConfig& out) {
  out.architecture = "Phi3ForCausalLM";
  out.attention_bias = out.attention_output_bias = false;
  if (out.rope.scaling != RopeScaling::kNone && out.rope.scaling != RopeScaling::kLongRope) {
    return invalid_argument("config: Phi-3 has rope types default and longrope, found another one");
  }
  if (window) out.layer_windows.assign(static_cast<size_t>(out.num_layers), *window);
  return {};
}

// Earlier releases called longrope "su" or "yarn", and left the trained length to the reader.
boost::json::object in_present_words(boost::json::object config) {
  if (!config.contains("original_max_position_embeddings"))
    config["original_max_position_embeddings"] = kPhi3TrainedContext;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    boost::json::value* found = config.if_contains(key);
    boost::json::object* entry = found == nullptr ? nullptr : found->if_object();
    if (entry == nullptr) continue;
    for (const char* type : {"rope_type", "type"}) {
      if (entry->contains(type) && entry->at(type) == "yarn") entry->at(type) = "longrope";
    }
  }
  return config;
}

}  // namespace

Result<ModelConfig> read_phi3_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_decoder_config(in_present_words(config), generation,
                                             {.max_position = 4096, .norm_eps = 1e-5, .partial_rotary = true}));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config));
  QUIRE_RETURN_IF_ERROR(set_phi3(window, out));
  return out;
}

Result<ModelConfig> read_phi3_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.trained_context = kPhi3TrainedContext}));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, reader.window());
  QUIRE_RETURN_IF_ERROR(set_phi3(window, out));
  return out;
}

}  // namespace quire::models
