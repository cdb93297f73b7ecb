#include "quantize/compressed_layout.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "tensor/stored_values.h"

namespace quire::quantize {
namespace {

namespace json = boost::json;
using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;

// "model.layers.17.mlp.up_proj" -> 17; -1: of no layer.
int32_t layer_of_module(const std::string& module) {
  constexpr std::string_view kLayers = "layers.";
  const size_t begin = module.find(kLayers);
  int32_t layer = -1;
  if (begin == std::string::npos) return layer;
  std::from_chars(module.data() + begin + kLayers.size(), module.data() + module.size(), layer);
  return layer;
}

// A router decides with its outputs alone, and is small: such stay as they are.
bool is_router(const std::string& module) {
  return module.ends_with(".gate") || module.ends_with(".router") || module.ends_with("_gate");
}

Status check_weight(const CheckpointTensor& weight) {
  const DType dtype = weight.view.dtype;
  if (weight.view.shape.rank() == 2 && (dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16)) {
    return {};
  }
  return invalid_argument("tensor {} is {} {}, expected a matrix of F32, F16 or BF16", weight.name, name(dtype),
                          weight.view.shape.to_string());
}

struct FoundModules {
  std::vector<CodedModule> coded;
  std::vector<std::string> routers;
};

Result<FoundModules> find_modules(const Checkpoint& checkpoint, const nn::AdaptableLayers& products) {
  FoundModules found;
  std::set<std::string> seen;
  for (const auto& product : products) {
    using Kind = nn::AdaptableLayer::Kind;
    if (product->kind != Kind::kProduct && product->kind != Kind::kExperts) continue;
    for (const auto& part : product->parts) {
      const std::string& module = stored_module(part);
      const CheckpointTensor* weight = checkpoint.find(module + ".weight");
      if (weight == nullptr || !seen.insert(module).second) continue;
      if (is_router(module)) {
        found.routers.push_back(module);
        continue;
      }
      QUIRE_RETURN_IF_ERROR(check_weight(*weight));
      if (part.transposed) {
        return unimplemented("tensor {} is stored transposed, which compressed-tensors does not know", weight->name);
      }
      const int32_t layer = layer_of_module(module);
      if (layer < 0) return unimplemented("the product {} is of no layer", module);
      found.coded.push_back(
          {.name = module, .layer = layer, .rows = weight->view.shape[0], .columns = weight->view.shape[1]});
    }
  }
  // What lies in a stack would be left out without a word.
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (tensor.view.shape.rank() > 2 && layer_of_module(tensor.name) >= 0)
      return unimplemented("tensor {} is a stack of experts; w4a16 is written of experts with tensors of their own",
                           tensor.name);
  }
  std::ranges::stable_sort(found.coded, {}, &CodedModule::layer);
  if (found.coded.empty()) return invalid_argument("the checkpoint has no matrix to round");
  return found;
}

Result<int64_t> choose_group_size(const std::vector<CodedModule>& modules, int64_t asked) {
  const auto fits = [&](int64_t size) {
    return std::ranges::all_of(modules, [size](const CodedModule& module) { return module.columns % size == 0; });
  };
  for (const int64_t size : {128, 64, 32}) {
    if (asked == 0 && fits(size)) return size;
  }
  const bool is_size = asked >= 8 && asked % 8 == 0;
  if (is_size && fits(asked)) return asked;
  const auto other = std::ranges::find_if(
      modules, [&](const CodedModule& module) { return module.columns % (is_size ? asked : 32) != 0; });
  if (asked == 0 && other != modules.end()) {
    return invalid_argument(
        "{} has {} columns, which are no groups of 128, 64 or 32: give --group-size, a multiple of 8 that divides the "
        "columns of all matrices",
        other->name, other->columns);
  }
  return invalid_argument("--group-size {}: expected a multiple of 8 that divides the columns of all matrices{}", asked,
                          other == modules.end() ? "" : fmt::format("; {} has {}", other->name, other->columns));
}

// The entries of the header, which lie one behind the other in the order of these calls.
class Header {
 public:
  int64_t add(const std::string& name, const char* dtype, std::vector<int64_t> shape, int64_t bytes) {
    entries_[name] = {{"dtype", dtype},
                      {"shape", json::array(shape.begin(), shape.end())},
                      {"data_offsets", json::array{position_, position_ + bytes}}};
    const int64_t begin = position_;
    position_ += bytes;
    return begin;
  }
  int64_t data_bytes() const { return position_; }
  std::vector<uint8_t> bytes() {
    entries_["__metadata__"] = {{"format", "pt"}};
    std::string text = json::serialize(entries_);
    while (text.size() % 8 != 0) text += ' ';
    std::vector<uint8_t> out(8 + text.size());
    const uint64_t size = text.size();
    std::memcpy(out.data(), &size, sizeof(size));
    std::memcpy(out.data() + 8, text.data(), text.size());
    return out;
  }

 private:
  json::object entries_;
  int64_t position_ = 0;
};

const char* spelled(DType dtype) {
  return name(dtype).data();
}

std::vector<int64_t> dims_of(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return dims;
}

json::object describe(int64_t group_size, json::array ignored) {
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"quantization_status", "compressed"},
          {"ignore", std::move(ignored)},
          {"kv_cache_scheme", nullptr},
          {"config_groups",
           {{"group_0",
             {{"targets", json::array{"Linear"}},
              {"weights",
               {{"num_bits", 4},
                {"type", "int"},
                {"symmetric", true},
                {"strategy", "group"},
                {"group_size", group_size},
                {"dynamic", false}}},
              {"input_activations", nullptr},
              {"output_activations", nullptr}}}}}};
}

// Places kept tensors whose elements have so many bytes, so that all lie at multiples of their own.
void keep_tensors(const Checkpoint& checkpoint, const std::set<std::string>& coded, int64_t element_bytes,
                  Header& header, CompressedLayout& out) {
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    if (coded.contains(tensor.name) || row_bytes(tensor.view.dtype, 1) != element_bytes) continue;
    out.kept[tensor.name] =
        header.add(tensor.name, spelled(tensor.view.dtype), dims_of(tensor.view.shape), tensor.view.bytes());
  }
}

}  // namespace

const std::string& stored_module(const nn::AdaptableLayer::Part& part) {
  return part.stored.empty() ? part.module : part.stored;
}

Result<CompressedLayout> lay_out_compressed(const Checkpoint& checkpoint, const nn::AdaptableLayers& products,
                                            int64_t group_size) {
  if (checkpoint.format() != checkpoint::Format::kSafetensors) {
    return invalid_argument("--type w4a16 starts from a Hugging Face checkpoint (a folder with config.json), not GGUF");
  }
  if (checkpoint.quantization() != nullptr) {
    return invalid_argument("the checkpoint is quantised already (quantization_config): start from F32, F16 or BF16");
  }
  CompressedLayout out;
  QUIRE_ASSIGN_OR_RETURN(FoundModules found, find_modules(checkpoint, products));
  out.modules = std::move(found.coded);
  QUIRE_ASSIGN_OR_RETURN(out.group_size, choose_group_size(out.modules, group_size));
  const CheckpointTensor* first = checkpoint.find(out.modules.front().name + ".weight");
  out.scale_dtype = first->view.dtype == DType::kBF16 ? DType::kBF16 : DType::kF16;
  std::set<std::string> coded;
  for (const CodedModule& module : out.modules) coded.insert(module.name + ".weight");
  Header header;
  keep_tensors(checkpoint, coded, 8, header, out);
  for (const CodedModule& module : out.modules)
    out.shapes[module.name] = header.add(module.name + ".weight_shape", "I64", {2}, 16);
  keep_tensors(checkpoint, coded, 4, header, out);
  for (CodedModule& module : out.modules) {
    module.packed_offset = header.add(module.name + ".weight_packed", "I32", {module.rows, module.columns / 8},
                                      module.rows * module.columns / 2);
  }
  for (CodedModule& module : out.modules) {
    const int64_t groups = module.columns / out.group_size;
    module.scales_offset = header.add(module.name + ".weight_scale", spelled(out.scale_dtype), {module.rows, groups},
                                      module.rows * groups * 2);
  }
  keep_tensors(checkpoint, coded, 2, header, out);
  keep_tensors(checkpoint, coded, 1, header, out);
  out.header = header.bytes();
  const std::ptrdiff_t begin = std::ssize(out.header);
  for (CodedModule& module : out.modules) {
    module.packed_offset += begin;
    module.scales_offset += begin;
  }
  for (auto& [name, offset] : out.kept) offset += begin;
  for (auto& [name, offset] : out.shapes) offset += begin;
  out.file_bytes = begin + header.data_bytes();
  json::array ignored{"lm_head"};
  for (const std::string& router : found.routers) ignored.emplace_back(router);
  out.quantization_config = describe(out.group_size, std::move(ignored));
  return out;
}

}  // namespace quire::quantize
