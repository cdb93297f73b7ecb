// The model's modules as adapters name them.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/adapter_file.h"
#include "checkpoint/checkpoint.h"
#include "nn/adaptable_layer.h"
#include "types/model_config.h"

namespace quire::runner {

// Where a module's outputs are made.
struct ModulePlace {
  const nn::AdaptableLayer* layer = nullptr;
  size_t part = 0;  // unless it is the layer's stack
  bool is_stack = false;
};

// Checkpoints leave out a first component that the classes have ("transformer."), or have one more ("language_model.").
class ModuleNames {
 public:
  explicit ModuleNames(const nn::AdaptableLayers& layers);
  // nullptr: the model has none of this name that can be adapted.
  const ModulePlace* find(const std::string& module);
  // As the classes have it, by what find() has seen of this adapter's names.
  std::string full_name(const std::string& module, nn::AdaptableLayer::Kind kind) const;
  const std::map<std::string, ModulePlace>& all() const { return places_; }

 private:
  std::map<std::string, ModulePlace> places_;
  std::string left_out_;
  // What stands before the text model's layers in the checkpoint and in this adapter, where these are not the same.
  std::string stored_root_;
  std::string given_root_;
};

// A few names for a message.
std::string listed(const std::vector<std::string>& names);

// Whether the module belongs to what is beside the text model: encoders of images and sound.
bool is_beside_text(std::string_view module);

// Whether the module chooses experts.
bool is_router(std::string_view module);

// Whether the configuration names the module, by its name there, so that it is to have factors. Of GGUF files: it does.
Result<bool> names_module(const checkpoint::AdapterFile& file, const std::string& module, const ModulePlace& place);

// Falcon-H1's GGUF files have its multipliers in the weights, and adapters made for them in their factors. Errors:
// unimplemented for those of one kind of file over the other. base: nullptr: safetensors.
Status check_multipliers(const checkpoint::AdapterFile& file, const ModelConfig& config,
                         const checkpoint::Checkpoint* base);

// Errors: data_loss naming modules that the configuration names and that are not among those found. `has_experts`,
// `has_routers`: whether there are any, for classes of some releases have no modules for these, whatever the names say.
Status check_complete(const checkpoint::AdapterFile& file, const ModuleNames& names, const std::set<std::string>& found,
                      bool has_experts, bool has_routers);

}  // namespace quire::runner
