#include "models/qwen_vl.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/qwen2.h"
#include "models/qwen3.h"

namespace quire::models {
namespace {

Result<std::unique_ptr<Model>> build_text(nn::QkNorm qk_norm, const ModelConfig& config, int64_t num_positions,
                                          nn::Loader& loader) {
  DecoderShape shape{.qk_norm = qk_norm, .others = {"visual."}};
  find_text_model(loader, shape);
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace

Result<boost::json::object> text_of_qwen(const boost::json::object& config) {
  QUIRE_ASSIGN_OR_RETURN(boost::json::object text, text_config(config));
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    boost::json::value* found = text.if_contains(key);
    boost::json::object* rope = found == nullptr ? nullptr : found->if_object();
    if (rope == nullptr) continue;
    for (const char* spelling : {"rope_type", "type"}) {
      if (rope->contains(spelling) && rope->at(spelling) == "mrope") (*rope)[spelling] = "default";
    }
  }
  return text;
}

Result<ModelConfig> read_qwen2_vl_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object text, text_of_qwen(config));
  return read_qwen2_config(text, generation);
}

Result<ModelConfig> read_qwen3_vl_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object text, text_of_qwen(config));
  return read_qwen3_config(text, generation);
}

Result<std::unique_ptr<Model>> build_qwen2_vl(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_text(nn::QkNorm::kNone, config, num_positions, loader);
}

Result<std::unique_ptr<Model>> build_qwen3_vl(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_text(nn::QkNorm::kHead, config, num_positions, loader);
}

}  // namespace quire::models
