#include "types/memory_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace quire {

int64_t MemoryPlan::blocks_of(int64_t tokens) const {
  const auto blocks = [this](int64_t n) { return (n + block_size - 1) / block_size; };
  int64_t sum = 0;
  for (const int32_t window : windows) {
    const int64_t all = blocks(tokens);
    sum += window == 0 ? all : std::min(all, blocks(window - 1 + max_num_batched_tokens) + 1);
  }
  return sum;
}

std::string format_bytes(int64_t bytes) {
  const double n = static_cast<double>(bytes);
  if (n >= 1024.0 * 1024 * 1024) return fmt::format("{:.2f} GiB", n / (1024.0 * 1024 * 1024));
  if (n >= 1024.0 * 1024) return fmt::format("{:.1f} MiB", n / (1024.0 * 1024));
  if (n >= 1024.0) return fmt::format("{:.1f} KiB", n / 1024.0);
  return fmt::format("{} B", bytes);
}

std::string MemoryPlan::to_string() const {
  std::string text;
  text += fmt::format("weights      {:>12}{}{}\n", format_bytes(weight_bytes), quantization.empty() ? "" : "  ",
                      quantization);
  text += fmt::format("workspace    {:>12}  activations ({}), logits and scratch of the largest step\n",
                      format_bytes(workspace_bytes), format_bytes(activation_bytes));
  if (num_adapters > 0) {
    text += fmt::format("adapters     {:>12}  {} of up to {} each\n", format_bytes(adapter_bytes), num_adapters,
                        format_bytes(adapter_bytes / num_adapters));
  }
  text +=
      fmt::format("KV pool      {:>12}  {} blocks x {}", format_bytes(kv_bytes), num_blocks, format_bytes(block_bytes));
  if (windows.size() == 1) {
    text += fmt::format(" ({} tokens x {} a token)", block_size, format_bytes(kv_token_bytes));
  } else {
    text += fmt::format(" ({} tokens of {} layers; {} groups of layers)", block_size, layers_per_block, windows.size());
  }
  if (free_bytes > 0) {
    text +=
        fmt::format(", out of {:.0f} % of the {} that were free", memory_utilization * 100, format_bytes(free_bytes));
  }
  if (num_swap_blocks > 0) {
    text += fmt::format("\nswap space   {:>12}  {} blocks", format_bytes(swap_bytes()), num_swap_blocks);
    if (seconds_per_swapped_block > 0) text += fmt::format(", {:.2f} ms to copy one", seconds_per_swapped_block * 1e3);
  }
  if (num_offload_slots > 0) {
    text += fmt::format("\nKV offload   {:>12}  {} blocks of the prefix cache in host memory{}",
                        format_bytes(offload_bytes()), num_offload_slots, offload_to_disk ? ", and on disk" : "");
  }
  text += fmt::format("\nKV tokens    {:>12}  {} sequences of {} tokens at once\n", kv_tokens(),
                      sequences_of(max_model_len), max_model_len);
  return text;
}

}  // namespace quire
