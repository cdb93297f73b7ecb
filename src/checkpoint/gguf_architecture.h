// What GGUF files of one model family call things, as a table: another family is another table.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace quire::checkpoint {

struct GgufNameRule {
  std::string_view stored;  // "attn_q"; of a layer's own names also with its suffix: "ffn_gate_inp.scale"
  std::string_view name;    // "self_attn.q_proj"; then the whole: "router.scale"
};

struct GgufArchitecture {
  std::string_view name;         // general.architecture
  std::string_view model_class;  // config.json "architectures"
  // The class of files of this architecture that have experts; empty: it has none of them.
  std::string_view expert_model_class;
  // The same of files whose routers take sigmoids.
  std::string_view sigmoid_model_class;
  std::span<const GgufNameRule> model_names;      // "token_embd" -> "model.embed_tokens"
  std::span<const GgufNameRule> own_layer_names;  // before layer_names, which several architectures share
  std::span<const GgufNameRule> layer_names;      // behind "blk.<n>."
  // Behind "blk.<n>.", with the number of an expert behind them: files from before experts were stacks.
  std::span<const GgufNameRule> expert_names;
  std::string_view layer_prefix;  // "model.layers."
};

// nullptr: an architecture without a table.
const GgufArchitecture* find_gguf_architecture(std::string_view name);

// Hugging Face's name of the stored tensor; the stored name itself when the table does not know it.
std::string hugging_face_name(const GgufArchitecture& architecture, std::string_view stored);

}  // namespace quire::checkpoint
