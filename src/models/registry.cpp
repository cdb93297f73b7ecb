#include "models/registry.h"

#include <fmt/ranges.h>

#include "models/llama.h"
#include "models/mistral.h"

namespace quire::models {
namespace {

struct Entry {
  const char* architecture;
  Family family;
};

constexpr Entry kFamilies[] = {
    {"LlamaForCausalLM", kLlamaFamily},
    {"MistralForCausalLM", kMistralFamily},
};

}  // namespace

std::vector<std::string> supported_architectures() {
  std::vector<std::string> names;
  for (const Entry& entry : kFamilies) names.emplace_back(entry.architecture);
  return names;
}

Result<Family> find_family(const boost::json::object& config) {
  const boost::json::value* architectures = config.if_contains("architectures");
  const boost::json::array* list = architectures != nullptr ? architectures->if_array() : nullptr;
  if (list == nullptr || list->empty() || !list->front().is_string()) {
    return invalid_argument("config: \"architectures\" must be a list with the name of one architecture");
  }
  const std::string_view wanted = list->front().as_string();
  for (const Entry& entry : kFamilies) {
    if (wanted == entry.architecture) return entry.family;
  }
  return unimplemented("the architecture \"{}\" is not supported yet; supported: {}", wanted,
                       fmt::join(supported_architectures(), ", "));
}

}  // namespace quire::models
