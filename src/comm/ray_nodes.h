// What a Ray cluster says of its nodes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire::comm {

struct RayNode {
  std::string address;  // its IP address
  std::string name;     // its host's
  bool is_alive = false;
  double cpus = 0;  // those it has given to Ray, whoever uses them
};

// A node's record in Ray's own form, the message GcsNodeInfo of its gcs.proto. Error: data_loss.
Result<RayNode> parse_ray_node(std::string_view record);

// ok where what a cluster says of itself (JSON, Ray's key CLUSTER_METADATA) has this version. Errors: invalid_argument.
Status check_ray_version(std::string_view metadata, std::string_view version);

// ok where so many bundles of so many cores can lie on the nodes that are alive when nobody else uses them. Errors:
// invalid_argument, saying how many there are and how many were asked for.
Status check_room(const std::vector<RayNode>& nodes, int bundles, int cpus);

// ok where one of the nodes that are alive has one of these addresses. Errors: not_found, saying what to start here.
Status check_is_node(const std::vector<RayNode>& nodes, const std::vector<std::string>& own_addresses,
                     std::string_view cluster);

}  // namespace quire::comm
