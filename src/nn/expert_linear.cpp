#include "nn/expert_linear.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "nn/coded_weights.h"

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
};

constexpr Spelling kSpellings[] = {
    {"experts.{}.gate_proj", "experts.{}.up_proj", "experts.{}.down_proj", ".weight", ".bias"},
    {"experts.{}.w1", "experts.{}.w3", "experts.{}.w2", ".weight", ".bias"},
    {"experts.gate_proj", "experts.up_proj", "experts.down_proj", ".weight", ".bias"},
    {"experts.gate_up_proj", "", "experts.down_proj", "", "_bias"},
    {"experts.gate_up_proj", "", "experts.down_proj", ".weight", ".bias"},
    {"input_linear", "", "output_linear", ".weight", ".bias"},
};

// Of experts without a gate.
constexpr Spelling kPlainSpellings[] = {
    {"experts.{}.up_proj", "", "experts.{}.down_proj", ".weight", ".bias"},
    {"experts.up_proj", "", "experts.down_proj", "", "_bias"},
    {"experts.up_proj", "", "experts.down_proj", ".weight", ".bias"},
};

bool is_stack(std::string_view stem) {
  return stem.find("{}") == std::string_view::npos;
}

std::string with_expert(const std::string& prefix, std::string_view stem, int64_t expert) {
  const size_t at = stem.find("{}");
  if (at == std::string_view::npos) return prefix + std::string(stem);
  return fmt::format("{}{}{}{}", prefix, stem.substr(0, at), expert, stem.substr(at + 2));
}

// The module of a mixture as Hugging Face's classes call it: Mixtral's is not what its checkpoints say, Granite's is.
std::string class_name_of(std::string_view prefix, std::string_view stem) {
  constexpr std::string_view kOfMixtral = "block_sparse_moe.";
  const bool is_mixtrals = prefix.ends_with(kOfMixtral) && stem.starts_with("experts.");
  if (is_mixtrals) return fmt::format("{}mlp", prefix.substr(0, prefix.size() - kOfMixtral.size()));
  return std::string(prefix.substr(0, prefix.size() - 1));
}

// The first where there is none, so that the error names what is missing.
const Spelling& spelling_of(const Loader& loader, const std::string& prefix, bool gated) {
  const std::span<const Spelling> all = gated ? std::span<const Spelling>(kSpellings) : kPlainSpellings;
  for (const Spelling& spelling : all) {
    if (loader.has_weight(with_expert(prefix, spelling.gate, 0) + std::string(spelling.weight))) return spelling;
  }
  return all[0];
}

// One matrix of all experts: a stack, or one of each.
class StoredExperts {
 public:
  struct Layout {
    int32_t num_experts;
    int64_t rows;
    int64_t columns;
    bool transposed;                   // a stack is [experts, columns, rows]
    bool interleaved;                  // a stack's rows are those of two matrices in turns
    std::vector<Range> own_rows = {};  // of this rank, of each matrix; none: all
    std::optional<Range> own_columns = {};
  };

  StoredExperts(Loader& loader, const std::string& prefix, const Spelling& spelling, std::string_view stem,
                const Layout& layout)
      : layout_(layout), is_stack_(is_stack(stem)) {
    const std::string weight(spelling.weight);
    if (is_stack_) {
      weights_.push_back(loader.weight(
          {prefix + std::string(stem) + weight, {layout.num_experts, layout.rows, layout.columns}, layout.transposed}));
      return;
    }
    // Those of other ranks too, for the checkpoint's tensors are all known. The first that is missing is enough for the
    // error: a configuration may name any number of experts.
    for (int32_t e = 0; e < layout.num_experts && (e == 0 || weights_.back().present()); ++e)
      weights_.push_back(loader.weight({with_expert(prefix, stem, e) + weight, {layout.rows, layout.columns}}));
  }

  // Adds the matrix, [rows, columns], or what this rank has of it; one that is not present where it, or one of an
  // expert before, is missing.
  void add(Loader& loader, int64_t expert, std::vector<StoredWeight>& out) const {
    const size_t at = is_stack_ ? 0 : static_cast<size_t>(expert);
    if (at >= weights_.size() || !weights_[at].present()) return out.push_back({});
    StoredWeight own = weights_[at];
    if (is_stack_) own = own.part(expert, layout_.num_experts);
    const auto take = [&](Result<StoredWeight> cut) {
      if (!cut.ok()) loader.fail(cut.status());
      out.push_back(cut.ok() ? *std::move(cut) : StoredWeight());
    };
    if (layout_.own_columns) {
      const bool reordered = own.input.order != nullptr;
      take((reordered ? own.scaled() : own).cut_columns(layout_.own_columns->first, layout_.own_columns->count));
    } else if (layout_.own_rows.empty()) {
      out.push_back(layout_.interleaved ? own.taken_apart(2) : own);
    } else if (layout_.interleaved) {
      const Range& rows = layout_.own_rows[0];  // of both matrices, so twice as many in turns
      auto cut = own.cut_rows(2 * rows.first, 2 * rows.count);
      take(cut.ok() ? Result<StoredWeight>(cut->taken_apart(2)) : cut);
    } else {
      for (const Range& rows : layout_.own_rows) take(own.cut_rows(rows.first, rows.count));
    }
  }

 private:
  Layout layout_;
  bool is_stack_;
  std::vector<StoredWeight> weights_;
};

// Of each of these experts, up to the first that is missing: a configuration may name any number of them.
std::vector<std::vector<StoredWeight>> matrices_of(Loader& loader, std::span<const StoredExperts> parts,
                                                   const Range& experts) {
  std::vector<std::vector<StoredWeight>> all;
  for (int64_t e = experts.first; e < experts.end(); ++e) {
    std::vector<StoredWeight>& matrices = all.emplace_back();
    for (const StoredExperts& part : parts) part.add(loader, e, matrices);
    if (!std::ranges::all_of(matrices, &StoredWeight::present)) break;
  }
  return all;
}

// Holds the same part of all experts alike where its codes can be without loss: scales of one may have no room where
// others' have. What others have as numbers, or in codes of other bits, keeps its own width.
void hold_alike(std::vector<std::vector<StoredWeight>>& experts) {
  for (size_t i = 0; !experts.empty() && i < experts[0].size(); ++i) {
    std::vector<DType> kinds;
    const auto kind_of = [&kinds](DType form) {
      return std::ranges::find_if(
          kinds, [form](DType kind) { return kind == form || common_form(kind, form) != DType::kF32; });
    };
    for (const auto& parts : experts) {
      const auto kind = kind_of(parts[i].form());
      if (kind == kinds.end()) {
        kinds.push_back(parts[i].form());
      } else {
        *kind = common_form(*kind, parts[i].form());
      }
    }
    for (auto& parts : experts) hold_as(*kind_of(parts[i].form()), parts[i]);
  }
}

// Whether two experts' matrices can be of one op: part by part of one type, whatever is made of it.
bool are_held_alike(const std::vector<StoredWeight>& a, const std::vector<StoredWeight>& b) {
  return std::ranges::equal(a, b, [](const StoredWeight& one, const StoredWeight& other) {
    return one.form() == other.form() && one.dtype() == other.dtype();
  });
}

// [num_experts, rows] of one tensor, or of one of each expert.
std::vector<float> stored_bias(Loader& loader, const std::string& prefix, const Spelling& spelling,
                               std::string_view stem, int32_t num_experts, int64_t rows) {
  const std::string suffix(spelling.bias);
  if (is_stack(stem)) return loader.floats(loader.weight({prefix + std::string(stem) + suffix, {num_experts, rows}}));
  std::vector<float> all;
  for (int32_t e = 0; e < num_experts && (e == 0 || loader.has(with_expert(prefix, stem, e - 1) + suffix)); ++e) {
    const std::vector<float> one = loader.vector(with_expert(prefix, stem, e) + suffix, rows);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

// Of rows of `width` numbers these; none where there are not as many.
std::vector<float> own_rows(const std::vector<float>& rows, int64_t width, const Range& range) {
  if (std::ssize(rows) < range.end() * width) return {};
  return {rows.begin() + range.first * width, rows.begin() + range.end() * width};
}

// Of rows of `width` numbers these columns, one range after another.
std::vector<float> own_columns(std::vector<float> rows, int64_t width, const std::vector<Range>& ranges) {
  int64_t count = 0;
  for (const Range& range : ranges) count += range.count;
  if (count == width) return rows;
  std::vector<float> own;
  for (auto row = rows.begin(); row != rows.end(); row += width) {
    for (const Range& range : ranges) own.insert(own.end(), row + range.first, row + range.end());
  }
  return own;
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

void ExpertLinear::pack_all(Loader& loader, std::vector<Parts> experts) {
  for (const Parts& parts : experts) {
    if (!std::ranges::all_of(parts, &StoredWeight::present)) return;  // missing, which the loader tells with all else
  }
  hold_alike(experts);
  for (size_t begin = 0; begin < experts.size();) {
    size_t end = begin + 1;
    while (end < experts.size() && are_held_alike(experts[begin], experts[end])) ++end;
    pack_run(loader, experts_.first + static_cast<int64_t>(begin), std::span(experts).subspan(begin, end - begin));
    begin = end;
  }
}

void ExpertLinear::pack_run(Loader& loader, int64_t first, std::span<const Parts> experts) {
  const auto are_one = [](const StoredWeight& a, const StoredWeight& b) {
    return a.form() == b.form() && a.input == b.input;
  };
  bool apart = false;  // two of an expert may have their inputs in common where another's have not
  for (const Parts& parts : experts) {
    for (size_t i = 1; i < parts.size(); ++i)
      apart = apart || are_one(parts[i - 1], parts[i]) != are_one(experts[0][i - 1], experts[0][i]);
  }
  Run& run = runs_.emplace_back(Run{.experts = {first, std::ssize(experts)}});
  for (const Parts& parts : experts) {
    size_t segment = 0;
    const size_t together = apart ? 1 : parts.size();
    for (size_t begin = 0; begin < parts.size(); begin += together) {
      for (auto& matrix :
           loader.place(std::span(parts).subspan(begin, together), WeightRole::kProjection, /*in_group=*/true)) {
        if (run.segments.size() == segment) run.segments.emplace_back();
        run.segments[segment++].push_back(matrix.get());
        matrices_.push_back(std::move(matrix));
      }
    }
  }
}

void ExpertLinear::name_modules(Loader& loader, const std::string& prefix, const Modules& modules) {
  const std::vector<std::string_view>& stems = modules.stems;
  AdaptableLayer layer{.kind = AdaptableLayer::Kind::kExperts,
                       .in_features = in_features_,
                       .out_features = out_features_,
                       .num_experts = num_experts_,
                       .experts = experts_,
                       .stack = fmt::format("{}.experts.{}", class_name_of(prefix, stems[0]), modules.parameter),
                       .interleaved = modules.interleaved,
                       .inputs = modules.inputs,
                       .adds_bias = !modules.inputs.is_cut() || loader.shard().rank == 0};
  // Each module's, one behind the other.
  for (size_t i = 0; i < stems.size() && modules.rows.is_cut(); ++i) {
    for (const Range& range : modules.rows.taken)
      layer.stack_rows.taken.push_back({layer.stack_rows.whole + range.first, range.count});
    layer.stack_rows.whole += modules.rows.whole;
  }
  const int64_t size = out_features_ / static_cast<int64_t>(stems.size());
  // Of an expert that the checkpoint does not have there is an error already.
  const int32_t num_named = is_stack(stems[0]) ? 0 : num_experts_;
  for (int32_t e = 0; e < num_named && loader.has_weight(with_expert(prefix, stems[0], e) + ".weight"); ++e) {
    int64_t first = 0;
    for (const std::string_view stem : stems) {
      layer.parts.push_back(
          {.module = with_expert(prefix, stem, e), .first = first, .size = size, .expert = e, .rows = modules.rows});
      first += size;
    }
  }
  layer_ = loader.adaptable(std::move(layer));
}

void ExpertLinear::finish(Loader& loader, std::span<const float> bias) {
  for (Run& run : runs_) {
    for (const auto& matrices : run.segments) {
      if (std::ssize(matrices) != run.experts.count) return;  // some failed, which the loader tells
      run.groups.push_back(loader.backend().group(matrices));
    }
  }
  bias_ = {loader, bias};
}

void ExpertLinear::share(Loader& loader, const std::string& prefix, ExpertShape& shape) {
  const Shard& shard = loader.shard();
  shape.own = {0, shape.intermediate_size};
  shape.experts = {0, shape.num_experts};
  if (shard.is_whole()) return;
  if (shard.whole_experts) {
    shape.experts = even_share(shape.num_experts, 1, shard.rank, shard.size);
    if (shape.experts.count > 0) return;
    return loader.fail(invalid_argument(
        "enable_expert_parallel: {} experts are too few for tensor_parallel_size {}: choose fewer processes, or leave "
        "it out, and each has a part of every expert",
        shape.num_experts, shard.size));
  }
  const Spelling& spelling = spelling_of(loader, prefix, shape.gated);
  const int64_t size = shape.intermediate_size;
  WeightSpec down{with_expert(prefix, spelling.down, 0) + std::string(spelling.weight), {shape.hidden_size, size}};
  if (is_stack(spelling.down)) {
    down.shape = {shape.num_experts, shape.hidden_size, size};
    down.transposed = shape.stacks_transposed && spelling.up.empty();
  }
  // Some may be in codes and others not: all are cut where the one can be that has the fewest places for it.
  int64_t coarsest = loader.column_grain(down);
  for (int32_t e = 1; e < shape.num_experts && !is_stack(spelling.down); ++e) {
    WeightSpec other = down;
    other.name = with_expert(prefix, spelling.down, e) + std::string(spelling.weight);
    if (!loader.has_weight(other.name)) break;  // an error already, and there may be any number of them
    const int64_t grain = loader.column_grain(other);
    if (grain > coarsest) down = other;
    coarsest = std::max(coarsest, grain);
  }
  shape.own = loader.share_of_columns(down, size);
}

ExpertLinear ExpertLinear::gate_and_up(Loader& loader, const std::string& prefix, const ExpertShape& shape) {
  const Spelling& spelling = spelling_of(loader, prefix, shape.gated);
  const int32_t experts = shape.num_experts;
  const int64_t size = shape.intermediate_size;
  const Range share = shape.own_size();
  const bool is_cut = share.count < size;
  ExpertLinear out;
  out.num_experts_ = experts;
  out.experts_ = shape.own_experts();
  out.in_features_ = shape.hidden_size;
  const int64_t num_matrices = shape.gated ? 2 : 1;
  out.out_features_ = num_matrices * share.count;
  std::vector<StoredExperts> parts;
  if (spelling.up.empty()) {
    std::vector<Range> own;
    if (is_cut) own.push_back(share);
    if (is_cut && shape.gated) own.push_back({size + share.first, share.count});
    parts.push_back(
        {loader,
         prefix,
         spelling,
         spelling.gate,
         {experts, num_matrices * size, shape.hidden_size, shape.stacks_transposed, shape.stacks_interleaved, own}});
  } else {
    const std::vector<Range> own = is_cut ? std::vector<Range>{share} : std::vector<Range>();
    for (const std::string_view stem : {spelling.gate, spelling.up})
      parts.push_back({loader, prefix, spelling, stem, {experts, size, shape.hidden_size, false, false, own}});
  }
  out.pack_all(loader, matrices_of(loader, parts, out.experts_));
  std::vector<float> bias;
  if (shape.bias) {
    bias = own_columns(own_rows(gate_and_up_bias(loader, prefix, spelling, shape), 2 * size, out.experts_), 2 * size,
                       {share, {size + share.first, share.count}});
  }
  out.finish(loader, bias);
  Modules modules{
      .stems = {spelling.gate, spelling.up}, .parameter = "gate_up_proj", .interleaved = shape.stacks_interleaved};
  if (!shape.gated) modules = {.stems = {spelling.gate}, .parameter = "up_proj"};
  if (is_cut) modules.rows = {size, {share}};
  out.name_modules(loader, prefix, modules);
  return out;
}

ExpertLinear ExpertLinear::down(Loader& loader, const std::string& prefix, const ExpertShape& shape) {
  const Spelling& spelling = spelling_of(loader, prefix, shape.gated);
  ExpertLinear out;
  out.num_experts_ = shape.num_experts;
  out.experts_ = shape.own_experts();
  const Range share = shape.own_size();
  out.in_features_ = share.count;
  out.out_features_ = shape.hidden_size;
  const bool transposed = shape.stacks_transposed && spelling.up.empty();
  StoredExperts::Layout layout{shape.num_experts, shape.hidden_size, shape.intermediate_size, transposed, false};
  if (share.count < shape.intermediate_size) layout.own_columns = share;
  const StoredExperts stored(loader, prefix, spelling, spelling.down, layout);
  out.pack_all(loader, matrices_of(loader, {&stored, 1}, out.experts_));
  std::vector<float> bias;
  if (shape.bias) {
    bias = own_rows(stored_bias(loader, prefix, spelling, spelling.down, shape.num_experts, shape.hidden_size),
                    shape.hidden_size, out.experts_);
  }
  // Of a sum that all ranks have a part of the first one adds it.
  if (layout.own_columns && loader.shard().rank > 0) std::ranges::fill(bias, 0.0f);
  out.finish(loader, bias);
  Modules modules{.stems = {spelling.down}, .parameter = "down_proj"};
  if (layout.own_columns) modules.inputs = {shape.intermediate_size, {share}};
  out.name_modules(loader, prefix, modules);
  return out;
}

void ExpertLinear::operator()(const StepContext& step, const ops::ConstView& x, const int32_t* offsets,
                              const ops::View& out) const {
  QUIRE_CHECK(x.num_columns == in_features_ && out.num_columns == out_features_ && x.num_rows == out.num_rows);
  for (const Run& run : runs_) {
    int64_t column = 0;
    const int64_t first_bias = (run.experts.first - experts_.first) * out_features_;
    for (const auto& weights : run.groups) {
      const int64_t size = (*weights)[0].rows();
      step(ops::GroupedLinearArgs{.x = x.strided_floats(),
                                  .x_stride = x.row_stride,
                                  .offsets = offsets + run.experts.first,
                                  .num_rows = x.num_rows,
                                  .weights = weights.get(),
                                  .bias = bias_.empty() ? nullptr : bias_.data() + first_bias + column,
                                  .bias_stride = out_features_,
                                  .out = out.columns(column, size).strided_floats(),
                                  .out_stride = out.row_stride});
      column += size;
    }
  }
  if (step.adapts(layer_.get())) step.adapters->add_experts(step, *layer_, x, offsets, out);
}

}  // namespace quire::nn
