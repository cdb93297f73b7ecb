#include "models/mamba_family.h"

#include <cmath>
#include <limits>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "nn/mamba2.h"

namespace quire::models {

Result<int64_t> expanded_size(const boost::json::object& config, const ModelConfig& model) {
  QUIRE_ASSIGN_OR_RETURN(const int64_t expand, ConfigReader(config).integer_or("mamba_expand", 2, 1, 64));
  return expand * model.hidden_size;
}

Status read_mamba(const boost::json::object& config, const ModelConfig& model, int64_t inner_size,
                  Mamba2Config& sizes) {
  if (model.activation != Activation::kSilu) {
    return unimplemented("config: hidden_act of layers of Mamba; supported: silu");
  }
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer_or("mamba_n_heads", 128, 1, 1 << 16));
  QUIRE_ASSIGN_OR_RETURN(const int64_t groups, reader.integer_or("mamba_n_groups", 1, 1, heads));
  QUIRE_ASSIGN_OR_RETURN(const int64_t state, reader.integer_or("mamba_d_state", 256, 1, ops::kMostRecurrenceKeyDim));
  QUIRE_ASSIGN_OR_RETURN(const int64_t kernel, reader.integer_or("mamba_d_conv", 4, 2, ops::kMostConvTokens));
  int64_t head_dim = inner_size / heads;
  const boost::json::value* stated = config.if_contains("mamba_d_head");
  if (stated != nullptr && !stated->is_null() && *stated != "auto") {
    QUIRE_ASSIGN_OR_RETURN(head_dim, reader.integer("mamba_d_head", 1, 1 << 16));
  }
  if (heads * head_dim != inner_size || heads % groups != 0) {
    return invalid_argument(
        "config: {} heads of {} (mamba_n_heads, mamba_d_head) in {} groups (mamba_n_groups), expected a multiple of "
        "the groups that makes {} numbers (mamba_d_ssm, or mamba_expand x hidden_size)",
        heads, head_dim, groups, inner_size);
  }
  sizes.num_heads = static_cast<int32_t>(heads);
  sizes.head_dim = static_cast<int32_t>(head_dim);
  sizes.state_size = static_cast<int32_t>(state);
  sizes.num_groups = static_cast<int32_t>(groups);
  sizes.conv_kernel = static_cast<int32_t>(kernel);
  QUIRE_ASSIGN_OR_RETURN(sizes.conv_bias, reader.boolean_or("mamba_conv_bias", true));
  QUIRE_ASSIGN_OR_RETURN(sizes.projection_bias, reader.boolean_or("mamba_proj_bias", false));
  sizes.output_bias = sizes.projection_bias;
  return read_step_limits(config, sizes);
}

Status read_step_limits(const boost::json::object& config, Mamba2Config& sizes) {
  const boost::json::value* found = config.if_contains("time_step_limit");
  if (found == nullptr || found->is_null()) return {};
  const boost::json::array* limits = found->if_array();
  // Infinity is written as a number that JSON has not, as text, or as null.
  const auto number = [](const boost::json::value& value) {
    return value.is_number() ? value.to_number<double>() : std::numeric_limits<double>::infinity();
  };
  if (limits == nullptr || limits->size() != 2 || !limits->front().is_number() || number(limits->front()) < 0 ||
      number(limits->back()) < number(limits->front())) {
    return invalid_argument(
        "config: time_step_limit is {}, expected two numbers, the first at least 0 and at most the second",
        boost::json::serialize(*found));
  }
  sizes.least_step = number(limits->front());
  const double most = number(limits->back());
  sizes.most_step = std::isinf(most) ? 0 : most;
  return {};
}

Status read_gguf_mamba(const GgufReader& reader, Mamba2Config& sizes) {
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer("ssm.time_step_rank", 1, 1 << 16));
  QUIRE_ASSIGN_OR_RETURN(const int64_t groups, reader.integer("ssm.group_count", 1, heads));
  QUIRE_ASSIGN_OR_RETURN(const int64_t state, reader.integer("ssm.state_size", 1, ops::kMostRecurrenceKeyDim));
  QUIRE_ASSIGN_OR_RETURN(const int64_t inner, reader.integer("ssm.inner_size", 1, 1 << 24));
  QUIRE_ASSIGN_OR_RETURN(const int64_t kernel, reader.integer("ssm.conv_kernel", 2, ops::kMostConvTokens));
  if (inner % heads != 0 || heads % groups != 0) {
    return invalid_argument(
        "metadata: {} heads ({}) in {} groups ({}) of {} numbers ({}), expected whole heads in whole groups", heads,
        reader.full("ssm.time_step_rank"), groups, reader.full("ssm.group_count"), inner,
        reader.full("ssm.inner_size"));
  }
  sizes.num_heads = static_cast<int32_t>(heads);
  sizes.head_dim = static_cast<int32_t>(inner / heads);
  sizes.state_size = static_cast<int32_t>(state);
  sizes.num_groups = static_cast<int32_t>(groups);
  sizes.conv_kernel = static_cast<int32_t>(kernel);
  sizes.conv_bias = reader.has_tensor_that_ends_with(".mamba.conv1d.bias");
  sizes.projection_bias = reader.has_tensor_that_ends_with(".mamba.in_proj.bias");
  sizes.output_bias = sizes.projection_bias;
  return {};
}

std::unique_ptr<nn::SelfAttention> mamba_or_attention(nn::Loader& loader, const std::string& prefix,
                                                      const ModelConfig& config, int32_t layer) {
  if (config.recurrent_layers.empty() || !config.recurrent_layers[static_cast<size_t>(layer)]) {
    return std::make_unique<nn::Attention>(loader, prefix + "self_attn", attention_config({}, config, layer));
  }
  return std::make_unique<nn::Mamba2>(loader, prefix + "mamba",
                                      nn::Mamba2Options{.sizes = std::get<Mamba2Config>(config.family),
                                                        .hidden_size = config.hidden_size,
                                                        .norm_eps = config.norm_eps});
}

}  // namespace quire::models
