#include "quantize/gguf_source.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "checkpoint/gguf_architecture.h"
#include "checkpoint/gguf_description.h"
#include "models/registry.h"
#include "nn/rotary.h"
#include "quantize/vocabulary_writer.h"

namespace quire::quantize {
namespace {

using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;

struct WrittenFamily {
  std::string_view model_class;
  std::string_view architecture;
  bool neighbours = false;  // pairs that rotate together are neighbours in GGUF
};
constexpr auto kFamilies = std::to_array<WrittenFamily>({
    {"LlamaForCausalLM", "llama", true},
    {"MistralForCausalLM", "llama", true},
    {"Qwen2ForCausalLM", "qwen2"},
    {"Qwen3ForCausalLM", "qwen3"},
    {"MixtralForCausalLM", "llama", true},
    {"Qwen2MoeForCausalLM", "qwen2moe"},
    {"Qwen3MoeForCausalLM", "qwen3moe"},
});

Result<WrittenFamily> find_written_family(const std::string& architecture) {
  const auto family =
      std::ranges::find_if(kFamilies, [&](const WrittenFamily& f) { return f.model_class == architecture; });
  if (family != kFamilies.end()) return *family;
  std::string names;
  for (const WrittenFamily& known : kFamilies) names += (names.empty() ? "" : ", ") + std::string(known.model_class);
  return unimplemented(
      "{} is not written as GGUF from a Hugging Face checkpoint yet; those that are: {}. Start from a GGUF file of F16 "
      "or F32 for others.",
      architecture, names);
}

Status refuse_what_has_no_place(const ModelConfig& config) {
  const bool has_window = std::ranges::any_of(
      config.layer_windows, [&](int32_t window) { return window > 0 && window < config.max_position; });
  if (has_window)
    return unimplemented("config.json: sliding windows have no place in a GGUF file of {}", config.architecture);
  if (config.rope.scaling == RopeScaling::kLongRope)
    return unimplemented("config.json: rope scaling \"longrope\" is not written as GGUF for {}", config.architecture);
  if (config.rope.scaling == RopeScaling::kYarn && !config.rope.truncate)
    return unimplemented("config.json: the rope scaling's \"truncate\": false has no place in a GGUF file");
  // Readers of GGUF take one for each architecture.
  if (config.activation != Activation::kSilu)
    return unimplemented("config.json: an activation other than silu has no place in a GGUF file of {}",
                         config.architecture);
  if (config.moe.num_experts == 0) return {};
  if (std::ranges::find(config.moe.sparse_layers, false) != config.moe.sparse_layers.end())
    return unimplemented("config.json: layers without experts among those that have some have no place in a GGUF file");
  // Readers of GGUF know it by the architecture alone.
  const bool normalises = config.architecture != "Qwen2MoeForCausalLM";
  if (config.moe.normalise != normalises) {
    return unimplemented("config.json: norm_topk_prob {} has no place in a GGUF file of {}", config.moe.normalise,
                         config.architecture);
  }
  return {};
}

int64_t trained_context(const Checkpoint& checkpoint, const ModelConfig& config) {
  const boost::json::value* said = checkpoint.config().if_contains("max_position_embeddings");
  return said != nullptr && said->is_int64() ? said->get_int64() : config.max_position;
}

void set_rope(const RopeConfig& rope, const std::string& prefix, GgufHeader& header) {
  header.set(prefix + "rope.freq_base", static_cast<float>(rope.theta));
  header.set(prefix + "rope.dimension_count", static_cast<uint32_t>(rope.rotary_dim));
  if (rope.scaling != RopeScaling::kLinear && rope.scaling != RopeScaling::kYarn) return;
  header.set(prefix + "rope.scaling.type", std::string_view(rope.scaling == RopeScaling::kLinear ? "linear" : "yarn"));
  header.set(prefix + "rope.scaling.factor", static_cast<float>(rope.factor));
  if (rope.scaling == RopeScaling::kLinear) return;
  header.set(prefix + "rope.scaling.original_context_length", static_cast<uint32_t>(rope.original_max_position));
  header.set(prefix + "rope.scaling.yarn_beta_fast", static_cast<float>(rope.beta_fast));
  header.set(prefix + "rope.scaling.yarn_beta_slow", static_cast<float>(rope.beta_slow));
  // Given, or of the two numbers of "mscale".
  if (rope.attention_factor || (rope.mscale != 0 && rope.mscale_all_dim != 0)) {
    header.set(prefix + "rope.scaling.attn_factor",
               static_cast<float>(nn::rotary_attention_factor(rope) / (0.1 * std::log(rope.factor) + 1)));
  }
}

void set_numbers(const ModelConfig& config, int64_t context, std::string_view architecture, GgufHeader& header) {
  const std::string prefix = std::string(architecture) + ".";
  const auto set = [&](const char* key, int64_t number) { header.set(prefix + key, static_cast<uint32_t>(number)); };
  header.set("general.architecture", architecture);
  header.set("general.type", std::string_view("model"));
  if (!config.name.empty()) header.set("general.name", std::string_view(config.name));
  set("block_count", config.num_layers);
  set("context_length", context);
  set("embedding_length", config.hidden_size);
  set("feed_forward_length", config.intermediate_size);
  set("attention.head_count", config.num_heads);
  set("attention.head_count_kv", config.num_kv_heads);
  set("attention.key_length", config.head_dim);
  set("attention.value_length", config.head_dim);
  set("vocab_size", config.vocab_size);
  header.set(prefix + "attention.layer_norm_rms_epsilon", static_cast<float>(config.norm_eps));
  set_rope(config.rope, prefix, header);
  if (config.moe.num_experts == 0) return;
  set("expert_count", config.moe.num_experts);
  set("expert_used_count", config.moe.experts_per_token);
  if (architecture == "llama") return;
  set("expert_feed_forward_length", config.moe.intermediate_size);
  if (config.moe.shared_intermediate_size > 0)
    set("expert_shared_feed_forward_length", config.moe.shared_intermediate_size);
}

// Every name that a layer's tensors may have, GGUF's beside Hugging Face's: what the reader's table says, turned round.
std::string gguf_name(const checkpoint::GgufArchitecture& architecture, const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return {};
  const std::string stem = name.substr(0, dot);
  const std::string suffix = name.substr(dot);
  std::string found;
  if (!stem.starts_with(architecture.layer_prefix)) {
    for (const auto& rule : architecture.model_names) {
      if (rule.name == stem) found = std::string(rule.stored);
    }
  } else {
    const size_t begin = architecture.layer_prefix.size();
    const size_t end = stem.find('.', begin);
    if (end == std::string::npos) return {};
    for (const auto names : {architecture.layer_names, architecture.own_layer_names}) {
      for (const auto& rule : names) {
        if (rule.name == stem.substr(end + 1))
          found = fmt::format("blk.{}.{}", stem.substr(begin, end - begin), rule.stored);
      }
    }
  }
  if (found.empty()) return {};
  found += suffix;
  return checkpoint::hugging_face_name(architecture, found) == name ? found : std::string();
}

void replace_in(std::string& text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at != std::string::npos) text.replace(at, from.size(), to);
}

// A tensor's name as the tables have it: Mixtral's own words in those of the others, and for an expert's matrix that of
// the stack, with its number (-1: it is of none).
struct TableName {
  std::string name;
  int32_t expert = -1;
};

TableName table_name(const std::string& stored) {
  TableName out{stored};
  replace_in(out.name, ".block_sparse_moe.", ".mlp.");
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = out.name.find(kExperts);
  if (at == std::string::npos) return out;
  const size_t begin = at + kExperts.size();
  const size_t end = out.name.find('.', begin);
  if (end == std::string::npos) return out;
  const auto [rest, error] = std::from_chars(out.name.data() + begin, out.name.data() + end, out.expert);
  if (error != std::errc() || rest != out.name.data() + end) {
    out.expert = -1;
    return out;
  }
  out.name.erase(begin, end - begin + 1);
  replace_in(out.name, ".w1.", ".gate_proj.");
  replace_in(out.name, ".w3.", ".up_proj.");
  replace_in(out.name, ".w2.", ".down_proj.");
  return out;
}

// Puts an expert's matrix into its stack, which the first of them begins.
Status add_to_stack(const CheckpointTensor& tensor, int32_t expert, int32_t num_experts, GgufSourceTensor written,
                    std::vector<GgufSourceTensor>& tensors) {
  const Shape& shape = tensor.view.shape;
  if (shape.rank() != 2 || expert >= num_experts) {
    return data_loss("tensor {} is {}, expected a matrix of one of {} experts", tensor.name, shape.to_string(),
                     num_experts);
  }
  const Shape stacked = {num_experts, shape[0], shape[1]};
  auto stack = std::ranges::find(tensors, written.name, &GgufSourceTensor::name);
  if (stack == tensors.end()) {
    written.view = {nullptr, tensor.view.dtype, stacked};
    written.experts.resize(static_cast<size_t>(num_experts));
    written.expert_modules.resize(static_cast<size_t>(num_experts));
    tensors.push_back(std::move(written));
    stack = tensors.end() - 1;
  }
  if (stack->view.shape != stacked || stack->view.dtype != tensor.view.dtype) {
    return unimplemented("tensor {} is {} {}, unlike that of the other experts", tensor.name, name(tensor.view.dtype),
                         shape.to_string());
  }
  stack->experts[static_cast<size_t>(expert)] = tensor.view;
  stack->expert_modules[static_cast<size_t>(expert)] = tensor.name.substr(0, tensor.name.rfind('.'));
  return {};
}

Status check_stacks(const std::vector<GgufSourceTensor>& tensors) {
  for (const GgufSourceTensor& tensor : tensors) {
    for (size_t expert = 0; expert < tensor.experts.size(); ++expert) {
      if (tensor.experts[expert].data == nullptr)
        return data_loss("{}: the matrix of expert {} is missing", tensor.name, expert);
    }
  }
  return {};
}

int32_t rotated_heads(const std::string& name, const ModelConfig& config) {
  if (name.find("self_attn.q_proj.") != std::string::npos) return config.num_heads;
  return name.find("self_attn.k_proj.") != std::string::npos ? config.num_kv_heads : 0;
}

Status add_tensors(const Checkpoint& checkpoint, const ModelConfig& config, const WrittenFamily& family,
                   GgufSource& out) {
  const checkpoint::GgufArchitecture* architecture = checkpoint::find_gguf_architecture(family.architecture);
  QUIRE_CHECK(architecture != nullptr);
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (tensor.name.ends_with(".rotary_emb.inv_freq")) continue;
    if (config.tie_word_embeddings && tensor.name == "lm_head.weight") continue;
    const TableName known = table_name(tensor.name);
    GgufSourceTensor written{.name = gguf_name(*architecture, known.name), .module = {}, .view = tensor.view};
    if (written.name.empty()) {
      return unimplemented("tensor {} has no name in a GGUF file of {}", tensor.name, family.architecture);
    }
    if (known.expert >= 0) {
      QUIRE_RETURN_IF_ERROR(
          add_to_stack(tensor, known.expert, config.moe.num_experts, std::move(written), out.tensors));
      continue;
    }
    written.module = tensor.name.substr(0, tensor.name.rfind('.'));
    // A matrix of one row, which files have as a vector.
    if (written.name.ends_with("ffn_gate_inp_shexp.weight")) written.view.shape = {written.view.shape.num_elements()};
    if (family.neighbours) written.heads = rotated_heads(tensor.name, config);
    out.tensors.push_back(std::move(written));
  }
  QUIRE_RETURN_IF_ERROR(check_stacks(out.tensors));
  if (config.rope.scaling != RopeScaling::kLlama3) return {};
  // The scaling of Llama 3.1 and later is divisors of the frequencies, worked out here.
  RopeConfig plain = config.rope;
  plain.scaling = RopeScaling::kNone;
  const std::vector<double> scaled = nn::rotary_frequencies(config.rope);
  const std::vector<double> whole = nn::rotary_frequencies(plain);
  GgufSourceTensor divisors{.name = "rope_freqs.weight", .module = {}, .view = {}};
  for (size_t i = 0; i < scaled.size(); ++i) divisors.made.push_back(static_cast<float>(whole[i] / scaled[i]));
  divisors.view = {nullptr, DType::kF32, {std::ssize(divisors.made)}};
  out.tensors.push_back(std::move(divisors));
  return {};
}

MixModel mix_model(const ModelConfig& config, std::string_view architecture, bool has_output) {
  return {.architecture = std::string(architecture),
          .num_layers = config.num_layers,
          .num_experts = config.moe.num_experts,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .has_output = has_output};
}

Result<GgufSource> of_gguf(const Checkpoint& checkpoint, const ModelConfig& config) {
  GgufSource out;
  for (const auto& [key, value] : checkpoint.gguf()->metadata.values()) {
    if (!key.starts_with("split.") && key != "general.alignment") out.header.set(key, value);
  }
  bool has_output = false;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    const size_t dot = tensor.name.rfind('.');
    has_output = has_output || tensor.stored_name == "output.weight";
    out.tensors.push_back({.name = tensor.stored_name, .module = tensor.name.substr(0, dot), .view = tensor.view});
  }
  out.model = mix_model(config, checkpoint.gguf()->architecture, has_output);
  return out;
}

}  // namespace

Result<GgufSource> describe_source(const Checkpoint& checkpoint, const TextSource& text) {
  QUIRE_ASSIGN_OR_RETURN(const models::Family family, models::find_family(checkpoint));
  QUIRE_ASSIGN_OR_RETURN(const ModelConfig config, models::read_model_config(family, checkpoint));
  if (checkpoint.gguf() != nullptr) return of_gguf(checkpoint, config);
  QUIRE_ASSIGN_OR_RETURN(const WrittenFamily written, find_written_family(config.architecture));
  QUIRE_RETURN_IF_ERROR(refuse_what_has_no_place(config));
  GgufSource out;
  set_numbers(config, trained_context(checkpoint, config), written.architecture, out.header);
  QUIRE_ASSIGN_OR_RETURN(const auto vocabulary, make_vocabulary(text, config));
  if (vocabulary) {
    set_vocabulary(*vocabulary, config, text.chat_template, out.header);
  } else {
    set_special_ids(config.bos_id, std::nullopt, std::nullopt, config, out.header);
  }
  QUIRE_RETURN_IF_ERROR(add_tensors(checkpoint, config, written, out));
  out.model = mix_model(config, written.architecture, !config.tie_word_embeddings);
  return out;
}

int64_t source_row(const GgufSourceTensor& tensor, int64_t num_rows, int64_t index) {
  if (tensor.heads == 0) return index;
  const int64_t head_rows = num_rows / tensor.heads;
  const int64_t within = index % head_rows;
  return index - within + within % 2 * (head_rows / 2) + within / 2;
}

}  // namespace quire::quantize
