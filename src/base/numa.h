// Which cores of a machine are near which of its memory, and memory that is taken near the cores that use it
// (set_mempolicy(2)). Read from /sys/devices/system/node, which containers show too.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace quire {

struct NumaNode {
  int id = 0;
  std::vector<int> cores;
};

// Those that have memory, by their ids; empty where the system tells none.
std::vector<NumaNode> numa_nodes(const std::string& folder = "/sys/devices/system/node");

// The same cores, those of one node side by side and otherwise in their order, so that equal parts of the list lie in
// as few nodes as can be. Cores that no node names come last.
std::vector<int> cores_by_node(const std::vector<int>& cores, const std::vector<NumaNode>& nodes);

// One of so many parts of the list, the first ones the larger, as a list for EngineConfig::cpu_affinity. Empty where
// there are fewer cores than parts: then all share them.
std::string part_of_cores(const std::vector<int>& cores, int part, int parts);

// The ids of the nodes that the cores are of.
std::vector<int> nodes_of_cores(const std::vector<int>& cores, const std::vector<NumaNode>& nodes);

enum class NumaBinding {
  kPreferred,  // elsewhere where these nodes are full
  kStrict,     // nowhere else
};

// What the calling thread, and those that it starts from now on, touch first lies on these nodes. Memory that is there
// already does not move. Errors: unavailable where the system refuses; then nothing has changed.
Status bind_memory(const std::vector<int>& nodes, NumaBinding binding);

}  // namespace quire
