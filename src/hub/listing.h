// What the Hub says is in a repository, as JSON from outside: bounded, and every name in it checked before it is
// believed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace quire::hub {

struct RemoteFile {
  int64_t size = -1;  // -1: not said
  // What its content is checked by, and its name in the cache: SHA-256 (64 digits) of a large file, or git's SHA-1 of
  // a blob (40 digits) of a small one. Lower case; empty: not said.
  std::string hash;
};

// By path in the repository.
using Listing = std::map<std::string, RemoteFile, std::less<>>;

inline constexpr size_t kMostListedFiles = 200'000;

// Answer of /api/models/ORG/NAME/revision/REV.
struct RevisionInfo {
  std::string commit;
  Listing files;  // names; sizes and hashes only where they are said
};

// Errors: data_loss (no JSON, another shape, a name that leads out of the repository).
Result<RevisionInfo> parse_revision_info(std::string_view text);

// Adds a page of /api/models/ORG/NAME/tree/COMMIT?recursive=true. Errors: data_loss, and resource_exhausted beyond
// kMostListedFiles.
Status add_tree_page(std::string_view text, Listing& listing);

// The address of the next page in a Link field, if there is one: <https://...>; rel="next".
std::optional<std::string> next_link(std::string_view field);

// A listing as a file: {"format_version": 1, "files": {"config.json": {"size": ..., "blob_id": ..., "lfs_sha256":
// ..., "lfs_size": ...}}}, as huggingface_hub writes its own.
std::string listing_json(const Listing& listing);
Result<Listing> parse_listing_json(std::string_view text);

// A hash as RemoteFile::hash has it, out of an entity tag (W/"..."); empty where the tag is none.
std::string hash_of_etag(std::string_view etag);

}  // namespace quire::hub
