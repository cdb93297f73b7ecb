#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/text_quote.h"

namespace quire::checkpoint {
namespace {

constexpr size_t kMostListed = 8;

// One kind of misfit: "2 missing: a, b".
class Misfits {
 public:
  explicit Misfits(std::string_view kind) : kind_(kind) {}
  void add(std::string what) { items_.push_back(std::move(what)); }

  void append_to(std::string& message) const {
    if (items_.empty()) return;
    message += fmt::format("{}{} {}: ", message.empty() ? "" : "; ", items_.size(), kind_);
    const size_t listed = std::min(items_.size(), kMostListed);
    for (size_t i = 0; i < listed; ++i) message += (i == 0 ? "" : ", ") + items_[i];
    if (listed < items_.size()) message += fmt::format(" and {} more", items_.size() - listed);
  }

 private:
  std::string_view kind_;
  std::vector<std::string> items_;
};

bool is_parameter_dtype(DType dtype) {
  return dtype != DType::kI32 && dtype != DType::kI64;
}

bool is_ignored(std::string_view name, std::span<const std::string_view> suffixes,
                std::span<const std::string_view> prefixes) {
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); }) ||
         std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

}  // namespace

Status match_parameters(const Checkpoint& checkpoint, std::span<const ParameterSpec> specs,
                        std::span<const std::string_view> ignored_suffixes,
                        std::span<const std::string_view> ignored_prefixes) {
  Misfits missing("missing");
  Misfits extra("that the model does not know");
  Misfits misshaped("with another shape");
  Misfits mistyped("of a type that is no parameter's");
  std::unordered_set<std::string_view> declared;
  for (const ParameterSpec& spec : specs) {
    if (!declared.insert(spec.name).second) continue;  // shared by two layers, as tied embeddings are
    const CheckpointTensor* tensor = checkpoint.find(spec.name);
    if (tensor == nullptr) {
      if (!spec.optional) missing.add(spec.name);
    } else if (tensor->view.shape != spec.shape) {
      misshaped.add(
          fmt::format("{} (found {}, expected {})", spec.name, tensor->view.shape.to_string(), spec.shape.to_string()));
    } else if (!spec.is_codes && !is_parameter_dtype(tensor->view.dtype)) {
      mistyped.add(fmt::format("{} ({})", spec.name, name(tensor->view.dtype)));
    }
  }
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (declared.contains(tensor.name) || is_ignored(tensor.name, ignored_suffixes, ignored_prefixes)) continue;
    extra.add(in_quotes(tensor.name));
  }
  std::string message;
  missing.append_to(message);
  extra.append_to(message);
  misshaped.append_to(message);
  mistyped.append_to(message);
  if (message.empty()) return {};
  return data_loss("the checkpoint's tensors are not the model's: {}", message);
}

std::string describe_left_alone(const Checkpoint& checkpoint, std::span<const std::string_view> prefixes) {
  std::string described;
  for (const std::string_view prefix : prefixes) {
    int64_t count = 0, bytes = 0;
    for (const CheckpointTensor& tensor : checkpoint.tensors()) {
      if (!tensor.name.starts_with(prefix)) continue;
      ++count;
      bytes += tensor.view.bytes();
    }
    if (count == 0) continue;
    described += fmt::format("{}{} tensor{} ({:.1f} MB) of {}", described.empty() ? "" : ", ", count,
                             count == 1 ? "" : "s", static_cast<double>(bytes) / 1e6, prefix);
  }
  return described;
}

}  // namespace quire::checkpoint
