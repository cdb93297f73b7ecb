#include "ops/cpu/grouped_linear.h"

#include <algorithm>
#include <vector>

namespace quire::ops::cpu {
namespace {

// Rows of one group that go through its panels together.
struct Run {
  int32_t group;
  int64_t row;
  int64_t num_rows;
};

// The rows [begin, end) in runs.
std::vector<Run> cut(const GroupedLinearArgs& args, int64_t begin, int64_t end, int64_t row_bytes) {
  const int64_t most_rows = most_rows_together(row_bytes);
  std::vector<Run> runs;
  for (int32_t g = 0; g < args.weights->size(); ++g) {
    const int64_t last = std::min(first_row(args, g + 1), end);
    for (int64_t row = std::max(first_row(args, g), begin); row < last; row += most_rows)
      runs.push_back({g, row, std::min(most_rows, last - row)});
  }
  return runs;
}

// A window of rows.
struct Window {
  int64_t first;
  int64_t end;
  const uint8_t* coded_rows;  // nullptr: the kernel reads the floats themselves
  int64_t row_bytes;
};

void multiply_window(const GroupedLinearArgs& args, const Window& window, Activations activations,
                     const Kernels& kernels, ThreadPool& pool, float* scratch) {
  const auto& shape = static_cast<const PackedPanels&>((*args.weights)[0]);
  const auto kernel = kernels.linear[activations][static_cast<size_t>(shape.dtype())];
  const int64_t panels = shape.num_panels();
  const std::vector<Run> runs = cut(args, window.first, window.end, window.row_bytes);
  // Pieces are a panel and a run, in the order of memory.
  const auto multiply_pieces = [&](int64_t begin, int64_t end, int thread) {
    while (begin < end) {
      const Run& run = runs[static_cast<size_t>(begin / panels)];
      const auto& weight = static_cast<const PackedPanels&>((*args.weights)[run.group]);
      const int64_t panel = begin % panels;
      const int64_t column = panel * kPanelColumns;
      LinearTile tile = tile_of(weight, panel, std::min(panels - panel, end - begin));
      tile.rows = window.coded_rows != nullptr ? window.coded_rows + (run.row - window.first) * window.row_bytes
                                               : reinterpret_cast<const uint8_t*>(x_row(args, run.group, run.row));
      tile.row_bytes = window.row_bytes;
      tile.num_rows = run.num_rows;
      tile.bias = args.bias == nullptr ? nullptr : args.bias + run.group * args.bias_stride + column;
      tile.out = out_row(args, run.group, run.row) + column;
      tile.out_stride = args.out_stride;
      tile.scratch = scratch + thread * kLinearScratchFloats;
      kernel(tile);
      begin += tile.num_panels;
    }
  };
  for_pieces(pool, panels * static_cast<int64_t>(runs.size()),
             (window.end - window.first) * shape.rows() * shape.columns(), multiply_pieces);
}

}  // namespace

void multiply_groups(const GroupedLinearArgs& args, const RowCoder& coder, const Kernels& kernels, ThreadPool& pool,
                     const GroupedLinearScratch& scratch) {
  const Activations activations = coder.activations;
  check_offsets(args);
  const int64_t begin_row = first_row(args, 0);
  const int64_t end_row = first_row(args, args.weights->size());
  const int64_t num_rows = end_row - begin_row;
  if (num_rows == 0) return;
  const auto& weight = (*args.weights)[0];
  const int64_t k = weight.columns();
  const int64_t row_bytes = spread_row_bytes(coded_row_bytes(activations, k));
  const int64_t x_bytes = args.x_stride * static_cast<int64_t>(sizeof(float));
  bool are_plain = true;
  for (int32_t g = 0; g < args.weights->size(); ++g) are_plain = are_plain && (*args.weights)[g].input().is_plain();
  if (are_plain && activations == kFloatRows && (!rows_collide(x_bytes, num_rows) || row_bytes > scratch.coded_bytes)) {
    return multiply_window(args, {begin_row, end_row, nullptr, x_bytes}, activations, kernels, pool, scratch.tiles);
  }
  // Rows are first rounded to whole numbers, as many of them as there is room for.
  QUIRE_CHECK(row_bytes <= scratch.coded_bytes);
  const int64_t window_rows = scratch.coded_bytes / row_bytes;
  constexpr int64_t kTaskValues = 8192;
  const int64_t task_rows = std::max<int64_t>(kTaskValues / k, 1);
  for (int64_t first = begin_row; first < end_row; first += window_rows) {
    const int64_t end = std::min(first + window_rows, end_row);
    pool.parallel_for(ceil_div(end - first, task_rows), [&](int64_t task, int) {
      const int64_t last = std::min(first + (task + 1) * task_rows, end);
      int32_t group = 0;
      for (int64_t row = first + task * task_rows; row < last; ++row) {
        while (first_row(args, group + 1) <= row) ++group;
        coder.code((*args.weights)[group].input(), x_row(args, group, row), k,
                   scratch.coded_rows + (row - first) * row_bytes);
      }
    });
    multiply_window(args, {first, end, scratch.coded_rows, row_bytes}, activations, kernels, pool, scratch.tiles);
  }
}

}  // namespace quire::ops::cpu
