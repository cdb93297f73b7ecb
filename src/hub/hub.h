// A model by its name: out of the Hub's cache where it is there, from the Hub where it is not (docs/hub.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"
#include "hub/model_name.h"
#include "hub/options.h"
#include "hub/selection.h"

namespace quire::hub {

struct PulledModel {
  std::filesystem::path path;  // a GGUF file (the first part of several), or the folder of a snapshot
  std::string commit;
  std::string gguf;           // "Q4_K_M"; empty: safetensors
  int files = 0;              // that the model is read from
  int64_t bytes = 0;          // all of them
  int64_t fetched_bytes = 0;  // of them, from the network now
};

// kCached: what is in the cache is taken without a request, even where the branch has moved since.
// kNewest: the Hub is asked which commit the revision stands at.
enum class Freshness { kCached, kNewest };

// Errors: sentences for people; docs/hub.md lists them. Nothing of a file that is not whole and checked has its name.
// `progress` may be null.
Result<PulledModel> pull(const ModelName& name, const std::string& revision, Freshness freshness, Need need,
                         const HubOptions& options, Progress* progress);

}  // namespace quire::hub
