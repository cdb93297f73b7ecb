#include "runner/adapter_modules.h"

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/text_quote.h"

namespace quire::runner {
namespace {

using checkpoint::in_quotes;
using LayerKind = nn::AdaptableLayer::Kind;

constexpr size_t kMostListed = 8;
constexpr std::string_view kWrapper = "language_model.";
// What Mixtral's mixtures are called in checkpoints, and in classes of today.
constexpr std::string_view kStoredMixture = ".block_sparse_moe.";
constexpr std::string_view kMixture = ".mlp.";

constexpr std::string_view kBesideText[] = {"vision_tower.", "visual.",       "multi_modal_projector.",
                                            "audio_tower.",  "embed_vision.", "embed_audio."};
// What stands before a text model's layers in files of several releases of a model that sees images.
// Nemotron-H's files and classes differ in it.
constexpr std::string_view kTextRoots[] = {"model.language_model.", "language_model.model.", "model.", "backbone."};

}  // namespace

ModuleNames::ModuleNames(const nn::AdaptableLayers& layers) {
  for (const auto& layer : layers) {
    for (size_t i = 0; i < layer->parts.size(); ++i) places_[layer->parts[i].module] = {layer.get(), i};
    if (!layer->stack.empty()) places_[layer->stack] = {.layer = layer.get(), .is_stack = true};
  }
}

const ModulePlace* ModuleNames::find(const std::string& module) {
  if (const auto exact = places_.find(module); exact != places_.end()) return &exact->second;
  const size_t dot = module.find('.');
  if (dot != std::string::npos) {
    if (const auto place = places_.find(module.substr(dot + 1)); place != places_.end()) {
      left_out_ = module.substr(0, dot + 1);
      return &place->second;
    }
  }
  std::string other = module;
  if (const size_t at = module.find(kMixture); at != std::string::npos) {
    other.replace(at, kMixture.size(), kStoredMixture);
    if (const auto place = places_.find(other); place != places_.end()) return &place->second;
  }
  if (const auto place = places_.find(std::string(kWrapper) + module); place != places_.end()) return &place->second;
  for (const std::string_view given : kTextRoots) {
    if (!module.starts_with(given)) continue;
    for (const std::string_view stored : kTextRoots) {
      const auto place = places_.find(std::string(stored) + module.substr(given.size()));
      if (place == places_.end()) continue;
      stored_root_ = stored;
      given_root_ = given;
      return &place->second;
    }
    break;
  }
  return nullptr;
}

std::string ModuleNames::full_name(const std::string& module, LayerKind kind) const {
  if (!stored_root_.empty() && module.starts_with(stored_root_)) {
    return given_root_ + module.substr(stored_root_.size());
  }
  if (module.starts_with(kWrapper)) return module.substr(kWrapper.size());
  return kind == LayerKind::kHead ? module : left_out_ + module;
}

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMostListed); ++i) text += (i == 0 ? "" : ", ") + in_quotes(names[i]);
  if (names.size() > kMostListed) text += fmt::format(" and {} more", names.size() - kMostListed);
  return text;
}

bool is_beside_text(std::string_view module) {
  if (module.starts_with("model.")) module.remove_prefix(6);
  return std::ranges::any_of(kBesideText, [module](std::string_view part) { return module.starts_with(part); });
}

bool is_router(std::string_view module) {
  return module.ends_with("mlp.gate") || module.ends_with("block_sparse_moe.gate") || module.ends_with("mlp.router");
}

Result<bool> names_module(const checkpoint::AdapterFile& file, const std::string& module, const ModulePlace& place) {
  if (!file.peft) return true;
  if (place.is_stack) return file.peft->adapts_parameter(module);
  const LayerKind kind = place.layer->kind;
  return file.peft->adapts(module,
                           kind == LayerKind::kProduct || kind == LayerKind::kExperts || kind == LayerKind::kHeads);
}

Status check_multipliers(const checkpoint::AdapterFile& file, const ModelConfig& config,
                         const checkpoint::Checkpoint* base) {
  const bool is_base_gguf = base != nullptr && base->gguf() != nullptr;
  const bool is_adapter_gguf = !file.peft.has_value();
  if (config.architecture != "FalconH1ForCausalLM" || is_adapter_gguf == is_base_gguf) return {};
  return unimplemented(
      "the adapter is {} and the base {}: of Falcon-H1 GGUF files have the multipliers in their weights and others "
      "have "
      "not; give both of one kind",
      is_adapter_gguf ? "a GGUF file" : "PEFT's", is_base_gguf ? "a GGUF file" : "safetensors");
}

Status check_complete(const checkpoint::AdapterFile& file, const ModuleNames& names, const std::set<std::string>& found,
                      bool has_experts, bool has_routers) {
  if (!file.peft) return {};
  std::vector<std::string> missing;
  for (const auto& [module, place] : names.all()) {
    const LayerKind kind = place.layer->kind;
    if (found.contains(module)) continue;
    if (kind == LayerKind::kExperts && !place.is_stack && !has_experts) continue;
    if (is_router(module) && !has_routers) continue;
    const std::string full = names.full_name(module, kind);
    QUIRE_ASSIGN_OR_RETURN(const bool expected, names_module(file, full, place));
    if (expected) missing.push_back(full);
  }
  if (missing.empty()) return {};
  return data_loss("{} modules that target_modules or target_parameters names have no factors in the file: {}",
                   missing.size(), listed(missing));
}

}  // namespace quire::runner
