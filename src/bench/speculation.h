// What speculation did while something was measured.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <boost/json.hpp>

#include "engine/engine.h"

namespace quire::bench {

struct SpeculationCounts {
  int64_t drafts = 0;  // runs of a sequence that had draft tokens
  int64_t draft_tokens = 0;
  int64_t accepted_tokens = 0;

  SpeculationCounts since(const SpeculationCounts& before) const {
    return {drafts - before.drafts, draft_tokens - before.draft_tokens, accepted_tokens - before.accepted_tokens};
  }
};

SpeculationCounts speculation_of(const engine::EngineStats& stats);
// Out of the text of a server's /metrics: vLLM's names, of all models together. All 0 where it has none.
SpeculationCounts speculation_of(std::string_view metrics);

// vLLM's keys; empty without drafts.
boost::json::object speculation_json(const SpeculationCounts& counts);
// Lines of a table; empty without drafts.
std::string speculation_table(const SpeculationCounts& counts);

}  // namespace quire::bench
