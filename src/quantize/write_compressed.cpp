#include "quantize/write_compressed.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <utility>

#include "base/hashing.h"
#include "models/registry.h"
#include "nn/loader.h"
#include "quantize/compressed_layout.h"
#include "quantize/partial_file.h"
#include "quantize/replaced_weights.h"
#include "tensor/stored_values.h"

namespace quire::quantize {
namespace {

namespace fs = std::filesystem;
using checkpoint::Checkpoint;
using checkpoint::CheckpointTensor;

constexpr int kBits = 4;

// Sums up the Hessians of a layer: one for all products that share their inputs.
class HessianObserver final : public InputObserver {
 public:
  explicit HessianObserver(ops::Backend& backend) : backend_(backend) {}
  // nullptr: nothing has reached the module.
  Hessian* of(const std::string& module) {
    const auto found = by_module_.find(module);
    return found == by_module_.end() ? nullptr : hessians_.at(found->second).get();
  }
  const std::string& first_of(const std::string& module) const { return by_module_.at(module); }

 protected:
  void see(const nn::AdaptableLayer& layer, size_t first, size_t count, const ops::ConstView& x) const override {
    const std::string& key = stored_module(layer.parts[first]);
    auto& hessian = hessians_[key];
    if (hessian == nullptr) hessian = std::make_unique<Hessian>(backend_, x.num_columns);
    hessian->add(x);
    for (size_t i = first; i < first + count; ++i) by_module_.emplace(stored_module(layer.parts[i]), key);
  }

 private:
  ops::Backend& backend_;
  // What is seen is what is noted: an observer of a step that is handed out as const.
  mutable std::map<std::string, std::unique_ptr<Hessian>> hessians_;
  mutable std::map<std::string, std::string> by_module_;  // the key of its Hessian
};

Result<std::vector<float>> floats_of(const CheckpointTensor& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.view.shape.num_elements()));
  read_stored_row(tensor.view.dtype, tensor.view.data, std::ssize(out), out.data());
  if (std::ranges::all_of(out, [](float x) { return std::isfinite(x); })) return out;
  return invalid_argument("tensor {} holds numbers that are infinite or none", tensor.name);
}

float as_stored(DType dtype, float scale) {
  if (dtype == DType::kBF16) return bfloat16_to_float(float_to_bfloat16(scale));
  // What float16 has no room for below its smallest number is that.
  const float half = half_to_float(float_to_half(scale));
  return scale > 0 && half == 0 ? 5.9604645e-8f : half;
}

std::vector<uint8_t> packed_codes(const CodedRows& rows) {
  std::vector<uint8_t> out(rows.codes.size() / 2);
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = static_cast<uint8_t>((rows.codes[2 * i] + 8) | (rows.codes[2 * i + 1] + 8) << 4);
  return out;
}

std::vector<uint8_t> stored_scales(DType dtype, const std::vector<float>& scales) {
  std::vector<uint8_t> out(scales.size() * 2);
  for (size_t i = 0; i < scales.size(); ++i) {
    const uint16_t bits = dtype == DType::kBF16 ? float_to_bfloat16(scales[i]) : float_to_half(scales[i]);
    std::memcpy(out.data() + 2 * i, &bits, sizeof(bits));
  }
  return out;
}

// Everything of the file but codes and scales.
Status write_kept(const Checkpoint& checkpoint, const CompressedLayout& layout, PartialFile& file) {
  QUIRE_RETURN_IF_ERROR(file.write(0, layout.header));
  for (const auto& [name, offset] : layout.kept) {
    const TensorView& view = checkpoint.find(name)->view;
    QUIRE_RETURN_IF_ERROR(
        file.write(offset, {static_cast<const uint8_t*>(view.data), static_cast<size_t>(view.bytes())}));
  }
  for (const CodedModule& module : layout.modules) {
    const int64_t shape[2] = {module.rows, module.columns};
    QUIRE_RETURN_IF_ERROR(
        file.write(layout.shapes.at(module.name), {reinterpret_cast<const uint8_t*>(shape), sizeof(shape)}));
  }
  return file.finish_piece();
}

// The modules of a layer as the file has them, as numbers once more.
Status read_back(const CompressedLayout& layout, int32_t layer, const PartialFile& file, ReplacedWeights& weights) {
  for (const CodedModule& module : layout.modules) {
    if (module.layer != layer) continue;
    const int64_t groups = module.columns / layout.group_size;
    std::vector<uint8_t> packed(static_cast<size_t>(module.rows * module.columns / 2));
    std::vector<uint8_t> scales(static_cast<size_t>(module.rows * groups * 2));
    QUIRE_RETURN_IF_ERROR(file.read(module.packed_offset, packed));
    QUIRE_RETURN_IF_ERROR(file.read(module.scales_offset, scales));
    std::vector<float> values(static_cast<size_t>(module.rows * module.columns));
    for (size_t i = 0; i < values.size(); ++i) {
      const int code = (packed[i / 2] >> (i % 2 * 4) & 0x0f) - 8;
      const float scale = stored_value(layout.scale_dtype, scales.data(), static_cast<int64_t>(i) / layout.group_size);
      values[i] = scale * static_cast<float>(code);
    }
    weights.replace(module.name + ".weight", std::move(values));
  }
  return {};
}

class Rounding {
 public:
  Rounding(std::shared_ptr<const Checkpoint> checkpoint, const CompressedLayout& layout, LayerWalk* walk,
           ops::Backend& backend, const CompressedOptions& options, const Progress& progress)
      : checkpoint_(std::move(checkpoint)),
        layout_(layout),
        walk_(walk),
        backend_(backend),
        options_(options),
        progress_(progress),
        threads_({.num_threads = backend.num_host_threads(), .pin = false}) {}

  Status run(PartialFile& file) {
    const int32_t num_layers = layout_.modules.back().layer + 1;
    if (walk_ != nullptr) QUIRE_RETURN_IF_ERROR(walk_->embed());
    for (int32_t layer = 0; layer < num_layers; ++layer) {
      progress_(fmt::format("layer {} of {}", layer + 1, num_layers));
      if (file.pieces_done() <= layer + 1) QUIRE_RETURN_IF_ERROR(round_layer(layer, file));
      if (walk_ == nullptr || layer + 1 == num_layers) continue;
      ReplacedWeights rounded(checkpoint_);
      QUIRE_RETURN_IF_ERROR(read_back(layout_, layer, file, rounded));
      QUIRE_RETURN_IF_ERROR(walk_->run_layer(layer, &rounded, nullptr, /*moves_on=*/true));
    }
    return {};
  }

 private:
  Status round_layer(int32_t layer, PartialFile& file) {
    HessianObserver seen(backend_);
    if (walk_ != nullptr) QUIRE_RETURN_IF_ERROR(walk_->run_layer(layer, nullptr, &seen, /*moves_on=*/false));
    std::map<std::string, std::vector<float>> taken;  // Hessians that more modules may want
    for (const CodedModule& module : layout_.modules) {
      if (module.layer != layer) continue;
      std::vector<float> hessian;
      if (Hessian* found = seen.of(module.name); found != nullptr) {
        auto& kept = taken[seen.first_of(module.name)];
        if (kept.empty()) {
          QUIRE_ASSIGN_OR_RETURN(kept, found->take());
        }
        hessian = kept;
      }  // else an expert that no token of the text has chosen, or no text: rounded by itself
      QUIRE_RETURN_IF_ERROR(round_module(module, std::move(hessian), file).with_prefix(module.name + ": "));
    }
    return file.finish_piece();
  }

  Status round_module(const CodedModule& module, std::vector<float> hessian, PartialFile& file) {
    QUIRE_ASSIGN_OR_RETURN(const std::vector<float> weight, floats_of(*checkpoint_->find(module.name + ".weight")));
    const DType scale_dtype = layout_.scale_dtype;
    QUIRE_ASSIGN_OR_RETURN(const CodedRows rows,
                           gptq_round(weight, module.rows, module.columns, std::move(hessian),
                                      {.bits = kBits,
                                       .group_size = layout_.group_size,
                                       .damping = options_.damping,
                                       .stored_scale = [=](float scale) { return as_stored(scale_dtype, scale); }},
                                      threads_));
    if (!std::ranges::all_of(rows.scales, [](float scale) { return std::isfinite(scale); }))
      return invalid_argument("a scale is beyond what {} has room for", name(scale_dtype));
    QUIRE_RETURN_IF_ERROR(file.write(module.packed_offset, packed_codes(rows)));
    return file.write(module.scales_offset, stored_scales(scale_dtype, rows.scales));
  }

  std::shared_ptr<const Checkpoint> checkpoint_;
  const CompressedLayout& layout_;
  LayerWalk* walk_;
  ops::Backend& backend_;
  const CompressedOptions& options_;
  const Progress& progress_;
  ThreadPool threads_;
};

// What lies beside the weights: tokenizer, template, generation_config, licence.
Status copy_other_files(const fs::path& source, const fs::path& out) {
  for (const fs::directory_entry& entry : fs::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    const std::string ending = entry.path().extension().string();
    const bool is_wanted = ending == ".json" || ending == ".txt" || ending == ".model" || ending == ".jinja" ||
                           name.starts_with("LICENSE");
    if (!is_wanted || !entry.is_regular_file() || name == "config.json" || name.ends_with(".index.json")) continue;
    std::error_code error;
    fs::copy_file(entry.path(), out / name, fs::copy_options::overwrite_existing, error);
    if (error) return invalid_argument("{}: {}", (out / name).string(), error.message());
  }
  return {};
}

Status write_config(const Checkpoint& checkpoint, const CompressedLayout& layout, const fs::path& out) {
  boost::json::object config = checkpoint.config();
  config["quantization_config"] = layout.quantization_config;
  std::ofstream file(out / "config.json", std::ios::trunc);
  file << boost::json::serialize(config) << '\n';
  file.flush();
  if (!file) return invalid_argument("{}: cannot be written", (out / "config.json").string());
  return {};
}

// The products of the model, from headers alone.
Result<nn::AdaptableLayers> products_of(const Checkpoint& checkpoint, ops::Backend& backend) {
  QUIRE_ASSIGN_OR_RETURN(const models::Family family, models::find_family(checkpoint));
  QUIRE_ASSIGN_OR_RETURN(const ModelConfig config, models::read_model_config(family, checkpoint));
  nn::Loader loader(nn::Loader::Mode::kPlan, checkpoint, backend);
  QUIRE_RETURN_IF_ERROR(family.build(config, 1, loader).status());
  return loader.adaptable_layers();
}

}  // namespace

Result<WrittenFile> write_compressed(std::shared_ptr<const Checkpoint> checkpoint, LayerWalk* walk,
                                     ops::Backend& backend, const CompressedOptions& options,
                                     const Progress& progress) {
  if (!(options.damping > 0 && options.damping <= 1))
    return invalid_argument("--damping {}: expected above 0 and at most 1", options.damping);
  QUIRE_ASSIGN_OR_RETURN(const nn::AdaptableLayers products, products_of(*checkpoint, backend));
  QUIRE_ASSIGN_OR_RETURN(const CompressedLayout layout, lay_out_compressed(*checkpoint, products, options.group_size));
  std::error_code error;
  if (fs::exists(options.out, error)) {
    return invalid_argument("{} exists already: remove it, or choose another name", options.out.string());
  }
  const fs::path partial = options.out.string() + ".partial";
  fs::create_directories(partial, error);
  if (error) return invalid_argument("{}: {}", partial.string(), error.message());
  const fs::path weights = partial / "model.safetensors";
  fs::remove(weights, error);  // of a call that was cut between its last two steps
  uint64_t purpose = hash_bytes(layout.header.data(), layout.header.size(), options.source_hash);
  const uint64_t calibration = walk == nullptr ? 0 : walk->hash();
  purpose = hash_bytes(&calibration, sizeof(calibration), purpose);
  purpose = hash_bytes(&options.damping, sizeof(options.damping), purpose);
  QUIRE_ASSIGN_OR_RETURN(PartialFile file, PartialFile::open(weights, purpose, layout.file_bytes));
  WrittenFile written{.bytes = layout.file_bytes, .tensors = std::ssize(layout.modules)};
  for (int64_t done = 1; done < file.pieces_done(); ++done) {
    written.tensors_found_done +=
        std::ranges::count_if(layout.modules, [&](const CodedModule& module) { return module.layer == done - 1; });
  }
  for (const CodedModule& module : layout.modules) {
    written.bytes_by_type["INT4"] +=
        module.rows * module.columns / 2 + module.rows * (module.columns / layout.group_size) * 2;
  }
  if (file.pieces_done() == 0) QUIRE_RETURN_IF_ERROR(write_kept(*checkpoint, layout, file));
  QUIRE_RETURN_IF_ERROR(Rounding(checkpoint, layout, walk, backend, options, progress).run(file));
  QUIRE_RETURN_IF_ERROR(copy_other_files(options.source, partial));
  QUIRE_RETURN_IF_ERROR(write_config(*checkpoint, layout, partial));
  QUIRE_RETURN_IF_ERROR(file.finish());
  fs::rename(partial, options.out, error);
  if (error) return invalid_argument("{}: {}", options.out.string(), error.message());
  return written;
}

}  // namespace quire::quantize
