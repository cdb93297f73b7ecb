#include "base/numa.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/number_ranges.h"

namespace quire {
namespace {

#ifndef MPOL_PREFERRED_MANY
constexpr int MPOL_PREFERRED_MANY = 5;  // Linux 5.15
#endif

constexpr int kMostNumbers = 1 << 16;  // of cores, of nodes

// What is no list has no numbers.
std::vector<int> listed_in(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text);
  std::vector<int> numbers;
  for (const auto& [first, last] : parse_number_ranges(text, kMostNumbers).value_or(std::vector<NumberRange>())) {
    for (int number = first; number <= last; ++number) numbers.push_back(number);
  }
  return numbers;
}

const NumaNode* node_of(int core, const std::vector<NumaNode>& nodes) {
  const auto has_it = [core](const NumaNode& node) { return std::ranges::find(node.cores, core) != node.cores.end(); };
  const auto found = std::ranges::find_if(nodes, has_it);
  return found == nodes.end() ? nullptr : &*found;
}

}  // namespace

std::vector<NumaNode> numa_nodes(const std::string& folder) {
  std::vector<NumaNode> nodes;
  // A node may have cores and no memory, which nothing can be bound to.
  for (const int id : listed_in(folder + "/has_memory")) {
    nodes.push_back({.id = id, .cores = listed_in(folder + "/node" + std::to_string(id) + "/cpulist")});
  }
  return nodes;
}

std::vector<int> cores_by_node(const std::vector<int>& cores, const std::vector<NumaNode>& nodes) {
  std::vector<int> sorted = cores;
  std::ranges::stable_sort(sorted, {}, [&](int core) {
    const NumaNode* node = node_of(core, nodes);
    return node == nullptr ? std::numeric_limits<int>::max() : node->id;
  });
  return sorted;
}

std::string part_of_cores(const std::vector<int>& cores, int part, int parts) {
  const auto count = static_cast<int>(cores.size());
  if (count < parts) return {};
  const auto begin_of = [&](int index) { return count / parts * index + std::min(index, count % parts); };
  std::string list;
  for (int i = begin_of(part); i < begin_of(part + 1); ++i) {
    if (!list.empty()) list += ',';
    list += std::to_string(cores[static_cast<size_t>(i)]);
  }
  return list;
}

std::vector<int> nodes_of_cores(const std::vector<int>& cores, const std::vector<NumaNode>& nodes) {
  std::vector<int> ids;
  for (const int core : cores) {
    const NumaNode* node = node_of(core, nodes);
    if (node != nullptr && std::ranges::find(ids, node->id) == ids.end()) ids.push_back(node->id);
  }
  std::ranges::sort(ids);
  return ids;
}

Status bind_memory(const std::vector<int>& nodes, NumaBinding binding) {
  if (nodes.empty()) return invalid_argument("memory is bound to no NUMA node: expected at least one");
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask(static_cast<size_t>(std::ranges::max(nodes)) / kBits + 1);
  for (const int node : nodes) mask[static_cast<size_t>(node) / kBits] |= 1UL << (static_cast<size_t>(node) % kBits);
  // The system counts one bit less than it is told.
  const auto set = [&](int mode) {
    return syscall(SYS_set_mempolicy, mode, mask.data(), mask.size() * kBits + 1) == 0;
  };
  if (binding == NumaBinding::kStrict ? set(MPOL_BIND) : set(MPOL_PREFERRED_MANY)) return {};
  // Older systems prefer one node alone.
  if (binding == NumaBinding::kPreferred && errno == EINVAL && nodes.size() == 1 && set(MPOL_PREFERRED)) return {};
  return unavailable("memory cannot be bound to NUMA node {}: {}", nodes.front(), std::strerror(errno));
}

}  // namespace quire
