#include "nn/expert_linear.h"

#include <cstring>
#include <string_view>

#include <fmt/format.h>

namespace quire::nn {
namespace {

// How checkpoints spell the experts' matrices. "{}" stands for the expert where each has tensors of its own; without it
// the tensor is a stack of all. An empty `up`: the tensor of the gate holds both.
struct Spelling {
  std::string_view gate;
  std::string_view up;
  std::string_view down;
  std::string_view weight;  // suffixes
  std::string_view bias;
  std::string_view scales;  // of MXFP4 in two tensors
};

constexpr Spelling kSpellings[] = {
    {"experts.{}.gate_proj", "experts.{}.up_proj", "experts.{}.down_proj", ".weight", ".bias", ""},
    {"experts.{}.w1", "experts.{}.w3", "experts.{}.w2", ".weight", ".bias", ""},
    {"experts.gate_proj", "experts.up_proj", "experts.down_proj", ".weight", ".bias", ""},
    {"experts.gate_up_proj", "", "experts.down_proj", "", "_bias", ""},
    {"experts.gate_up_proj", "", "experts.down_proj", "_blocks", "_bias", "_scales"},
};

bool is_stack(std::string_view stem) {
  return stem.find("{}") == std::string_view::npos;
}

std::string with_expert(const std::string& prefix, std::string_view stem, int32_t expert) {
  const size_t at = stem.find("{}");
  if (at == std::string_view::npos) return prefix + std::string(stem);
  return fmt::format("{}{}{}{}", prefix, stem.substr(0, at), expert, stem.substr(at + 2));
}

// The first where there is none, so that the error names what is missing.
const Spelling& spelling_of(const Loader& loader, const std::string& prefix) {
  for (const Spelling& spelling : kSpellings) {
    if (loader.has(with_expert(prefix, spelling.gate, 0) + std::string(spelling.weight))) return spelling;
  }
  return kSpellings[0];
}

// What is stored of one matrix of all experts, cut into the experts' own.
class Stored {
 public:
  struct Shape {
    int32_t num_experts;
    int64_t rows;
    int64_t columns;
    bool transposed;   // a stack is [experts, columns, rows]
    bool interleaved;  // of the stored rows the even ones come first
  };

  Stored(Loader& loader, const std::string& prefix, const Spelling& spelling, std::string_view stem, const Shape& shape)
      : shape_(shape) {
    const std::string weight(spelling.weight);
    if (!is_stack(stem)) {
      // The first that is missing is enough for the error: a configuration may name any number of experts.
      for (int32_t e = 0; e < shape.num_experts && (e == 0 || views_.back().data != nullptr); ++e)
        views_.push_back(loader.stored(with_expert(prefix, stem, e) + weight, {shape.rows, shape.columns}));
      return;
    }
    const std::string name = prefix + std::string(stem);
    if (!spelling.scales.empty()) {
      views_.push_back(loader.stored(name + weight, {shape.num_experts, shape.rows, shape.columns / 32, 16}));
      scales_ = loader.stored(name + std::string(spelling.scales), {shape.num_experts, shape.rows, shape.columns / 32});
    } else {
      const auto [outer, inner] = stored_dims();
      views_.push_back(loader.stored(name + weight, {shape.num_experts, outer, inner}));
    }
    is_stack_ = true;
    in_two_ = !spelling.scales.empty();
    const DType dtype = views_[0].dtype;
    if (views_[0].data == nullptr) return;
    if (in_two_ && (dtype != DType::kU8 || scales_.dtype != DType::kU8 || shape.columns % 32 != 0)) {
      loader.fail(unimplemented("{}: blocks of {} with scales of {} for rows of {} values; supported: U8 of whole 32",
                                name + weight, quire::name(dtype), quire::name(scales_.dtype), shape.columns));
    }
    if (!in_two_ && shape.transposed && info(dtype).block_values != 1) {
      loader.fail(unimplemented("{}: a stack of {} that is stored transposed; supported: formats of single numbers",
                                name + weight, quire::name(dtype)));
      views_[0] = {};
    }
  }

  // [rows, columns]; in `memory` where it is not stored like that. Its data is nullptr where a tensor is missing, which
  // the loader knows. REQUIRES: those of the experts before are there.
  TensorView expert(int32_t index, bool planning, std::vector<uint8_t>& memory) const {
    if (!is_stack_) return views_[static_cast<size_t>(index)];
    TensorView view = views_[0];
    if (view.data == nullptr || (in_two_ && scales_.data == nullptr)) return {};
    const int64_t bytes = view.bytes() / shape_.num_experts;
    const auto* from = static_cast<const uint8_t*>(view.data) + index * bytes;
    view.shape = {shape_.rows, shape_.columns};
    view.data = from;
    if (in_two_) view.dtype = DType::kMXFP4;
    if (planning || (!in_two_ && !shape_.transposed && !shape_.interleaved)) return view;
    memory.resize(static_cast<size_t>(view.bytes()));
    if (in_two_) {
      join_blocks(from, static_cast<const uint8_t*>(scales_.data) + index * shape_.rows * (shape_.columns / 32),
                  memory.data());
    } else {
      turn(view.dtype, from, memory.data());
    }
    view.data = memory.data();
    return view;
  }

 private:
  std::pair<int64_t, int64_t> stored_dims() const {
    return shape_.transposed ? std::pair(shape_.columns, shape_.rows) : std::pair(shape_.rows, shape_.columns);
  }
  int64_t stored_row(int64_t row) const {
    if (!shape_.interleaved) return row;
    const int64_t half = shape_.rows / 2;
    return row < half ? 2 * row : 2 * (row - half) + 1;
  }

  void turn(DType dtype, const uint8_t* from, uint8_t* to) const {
    const int64_t bytes = row_bytes(dtype, shape_.columns);
    const int64_t size = info(dtype).block_bytes;  // of a number, where the stack is transposed
    for (int64_t row = 0; row < shape_.rows; ++row, to += bytes) {
      const int64_t source = stored_row(row);
      if (!shape_.transposed) {
        std::memcpy(to, from + source * bytes, static_cast<size_t>(bytes));
        continue;
      }
      for (int64_t column = 0; column < shape_.columns; ++column) {
        std::memcpy(to + column * size, from + (column * shape_.rows + source) * size, static_cast<size_t>(size));
      }
    }
  }

  // Blocks of 16 bytes, values 2i and 2i + 1 in the halves of byte i, with their exponents elsewhere, to DType::kMXFP4.
  void join_blocks(const uint8_t* blocks, const uint8_t* scales, uint8_t* to) const {
    const int64_t row_blocks = shape_.columns / 32;
    for (int64_t row = 0; row < shape_.rows; ++row) {
      for (int64_t block = 0; block < row_blocks; ++block, to += 17) {
        const int64_t source = stored_row(row) * row_blocks + block;
        to[0] = scales[source];
        const uint8_t* codes = blocks + source * 16;
        const auto code = [codes](int i) { return i % 2 == 0 ? codes[i / 2] & 0x0f : codes[i / 2] >> 4; };
        for (int i = 0; i < 16; ++i) to[1 + i] = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
      }
    }
  }

  Shape shape_;
  std::vector<TensorView> views_;  // one, or one of each expert
  TensorView scales_;
  bool is_stack_ = false;
  bool in_two_ = false;
};

// [num_experts, rows] of one tensor, or of one of each expert.
std::vector<float> stored_bias(Loader& loader, const std::string& prefix, const Spelling& spelling,
                               std::string_view stem, int32_t num_experts, int64_t rows) {
  const std::string suffix(spelling.bias);
  if (is_stack(stem)) return loader.floats(prefix + std::string(stem) + suffix, num_experts, rows);
  std::vector<float> all;
  for (int32_t e = 0; e < num_experts && (e == 0 || loader.has(with_expert(prefix, stem, e - 1) + suffix)); ++e) {
    const std::vector<float> one = loader.vector(with_expert(prefix, stem, e) + suffix, rows);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

// [num_experts, gate | up].
std::vector<float> gate_and_up_bias(Loader& loader, const std::string& prefix, const Spelling& spelling,
                                    const ExpertShape& shape) {
  const int64_t size = shape.intermediate_size;
  std::vector<float> bias;
  if (spelling.up.empty()) {
    bias = stored_bias(loader, prefix, spelling, spelling.gate, shape.num_experts, 2 * size);
    if (!shape.stacks_interleaved) return bias;
    const std::vector<float> stored = bias;
    for (size_t i = 0; i < stored.size(); ++i) {
      const size_t row = i % static_cast<size_t>(2 * size);
      bias[i - row + row / 2 + (row % 2 == 0 ? 0 : static_cast<size_t>(size))] = stored[i];
    }
    return bias;
  }
  const std::vector<float> gate = stored_bias(loader, prefix, spelling, spelling.gate, shape.num_experts, size);
  const std::vector<float> up = stored_bias(loader, prefix, spelling, spelling.up, shape.num_experts, size);
  for (size_t e = 0; e < gate.size() / static_cast<size_t>(size) && gate.size() == up.size(); ++e) {
    for (const std::vector<float>* half : {&gate, &up}) {
      const float* from = half->data() + e * static_cast<size_t>(size);
      bias.insert(bias.end(), from, from + size);
    }
  }
  return bias;
}

}  // namespace

bool ExpertLinear::pack(Loader& loader, int32_t expert, const std::vector<TensorView>& parts) {
  for (const TensorView& part : parts) {
    if (part.data == nullptr) return false;  // missing, which the loader tells with all else
  }
  std::vector<std::unique_ptr<ops::PackedMatrix>> packed = loader.pack(parts);
  if (expert == 0) segments_.resize(packed.size());
  for (size_t i = 0; i < packed.size(); ++i) {
    if (i >= segments_.size() || (expert > 0 && packed[i]->dtype() != segments_[i][0]->dtype())) {
      loader.fail(unimplemented("the matrix of expert {} is {}, unlike that of expert 0; supported: one type", expert,
                                name(packed[i]->dtype())));
      return false;
    }
    segments_[i].push_back(packed[i].get());
    matrices_.push_back(std::move(packed[i]));
  }
  return true;
}

void ExpertLinear::finish(Loader& loader, std::span<const float> bias) {
  for (const auto& matrices : segments_) {
    if (matrices.size() != static_cast<size_t>(num_experts_)) return;  // some failed, which the loader tells
    groups_.push_back(loader.backend().group(matrices));
  }
  bias_ = {loader, bias};
}

ExpertLinear ExpertLinear::gate_and_up(Loader& loader, const std::string& prefix, const ExpertShape& shape) {
  const Spelling& spelling = spelling_of(loader, prefix);
  const int32_t experts = shape.num_experts;
  const int64_t size = shape.intermediate_size;
  ExpertLinear out;
  out.num_experts_ = experts;
  out.in_features_ = shape.hidden_size;
  out.out_features_ = 2 * size;
  std::vector<Stored> parts;
  if (spelling.up.empty()) {
    parts.push_back({loader,
                     prefix,
                     spelling,
                     spelling.gate,
                     {experts, 2 * size, shape.hidden_size, shape.stacks_transposed && spelling.scales.empty(),
                      shape.stacks_interleaved}});
  } else {
    for (const std::string_view stem : {spelling.gate, spelling.up})
      parts.push_back({loader, prefix, spelling, stem, {experts, size, shape.hidden_size, false, false}});
  }
  std::vector<std::vector<uint8_t>> memory(parts.size());
  for (int32_t e = 0; e < experts; ++e) {
    std::vector<TensorView> views;
    for (size_t i = 0; i < parts.size(); ++i) views.push_back(parts[i].expert(e, loader.planning(), memory[i]));
    if (!out.pack(loader, e, views)) break;
  }
  out.finish(loader, shape.bias ? gate_and_up_bias(loader, prefix, spelling, shape) : std::vector<float>());
  return out;
}

ExpertLinear ExpertLinear::down(Loader& loader, const std::string& prefix, const ExpertShape& shape) {
  const Spelling& spelling = spelling_of(loader, prefix);
  ExpertLinear out;
  out.num_experts_ = shape.num_experts;
  out.in_features_ = shape.intermediate_size;
  out.out_features_ = shape.hidden_size;
  const bool transposed = shape.stacks_transposed && spelling.up.empty() && spelling.scales.empty();
  const Stored stored(loader, prefix, spelling, spelling.down,
                      {shape.num_experts, shape.hidden_size, shape.intermediate_size, transposed, false});
  std::vector<uint8_t> memory;
  for (int32_t e = 0; e < shape.num_experts; ++e) {
    if (!out.pack(loader, e, {stored.expert(e, loader.planning(), memory)})) break;
  }
  out.finish(loader, shape.bias
                         ? stored_bias(loader, prefix, spelling, spelling.down, shape.num_experts, shape.hidden_size)
                         : std::vector<float>());
  return out;
}

void ExpertLinear::operator()(ops::Backend& backend, const float* x, int64_t num_rows, const int32_t* offsets,
                              float* out) const {
  int64_t column = 0;
  for (const auto& weights : groups_) {
    backend(ops::GroupedLinearArgs{.x = x,
                                   .x_stride = in_features_,
                                   .offsets = offsets,
                                   .num_rows = num_rows,
                                   .weights = weights.get(),
                                   .bias = bias_.empty() ? nullptr : bias_.data() + column,
                                   .bias_stride = out_features_,
                                   .out = out + column,
                                   .out_stride = out_features_});
    column += (*weights)[0].rows();
  }
}

}  // namespace quire::nn
