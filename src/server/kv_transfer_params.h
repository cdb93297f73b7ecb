// A request's kv_transfer_params, as vLLM's connectors have them: what a router asks of the instance that computes a
// prompt, and what its answer has for the instance that goes on.
#pragma once

#include <cstdint>
#include <string>

#include <boost/json.hpp>

#include "net/kv_protocol.h"
#include "server/json_fields.h"

namespace quire::server {

struct KvTransferParams {
  bool do_remote_decode = false;   // keep the prompt's blocks for another instance; the answer says how to ask for them
  bool do_remote_prefill = false;  // fetch them from the instance below
  std::string engine_id;
  std::string host;  // an address, as the other side told it: connected to only where the configuration lists it
  uint16_t port = 0;
  int64_t num_blocks = 0;  // of the prompt's beginning
  net::KvBytes16 lease{};
  uint64_t generation = 0;
  net::KvBytes16 text{};

  bool asks() const { return do_remote_decode || do_remote_prefill; }
  // The object for an answer, whose prompt somebody else goes on from.
  boost::json::object for_decode() const;
};

// What this server does of it.
struct KvTransferRole {
  bool sends = false;
  bool receives = false;
};

// Absent, null, false and {}: nothing is asked for. What fails stays in `fields`. most_blocks: of a text.
KvTransferParams read_kv_transfer_params(JsonFields& fields, const KvTransferRole& role, int64_t most_blocks);

}  // namespace quire::server
