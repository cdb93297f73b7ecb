// A communicator over messages: for ranks on several hosts. It gives the bits of the one over shared memory
// (shared_communicator.h) of as many ranks: the sum is the same one (ordered_sum.h).
//
// A small sum is gathered: each rank sends its numbers to all others and adds up all. Of a large one of more than two
// ranks each adds up a part of the numbers, which it is sent, and sends that part of the sum to the others. For two
// ranks that would be as many bytes on the wire, and one message more to wait for.
//
// Ranks of one host do not add up theirs first: (x0 + x1) + (x2 + x3) is another sum than ((x0 + x1) + x2) + x3. A sum
// that went on from host to host would be the same one, but its hosts would wait for each other. Messages within a host
// go through memory all the same, which is MPI's to see to.
#pragma once

#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "comm/network_group.h"

namespace quire::comm {

struct NetworkRanks {
  std::vector<int> members;  // ranks of the group, in the order of the sum; this process is one of them
  int number = 0;            // of this communicator: no other of the same group with members in common has it
  std::chrono::microseconds spin{0};
};

// The group must outlive it. Its first failure ends the group, and the group's end is its failure.
std::unique_ptr<Communicator> make_network_communicator(NetworkGroup& group, NetworkRanks ranks);

}  // namespace quire::comm
