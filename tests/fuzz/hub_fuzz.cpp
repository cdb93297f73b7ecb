// What a hub may answer: revisions, pages of listings, indexes, links and redirects. Whatever comes, no name that is
// taken leads out of its folder, and no address would end a request's line. One byte says what the rest is.
#include <algorithm>
#include <vector>

#include "hub/listing.h"
#include "hub/model_name.h"
#include "hub/selection.h"
#include "net/url.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace quire;

void check_listing(const hub::Listing& listing) {
  std::vector<std::string> paths;
  for (const auto& [path, file] : listing) {
    QUIRE_CHECK_MSG(hub::is_safe_path(path), path);
    QUIRE_CHECK(file.hash.empty() || file.hash.size() == 40 || file.hash.size() == 64);
    paths.push_back(path);
  }
  for (const char* gguf : {"", "Q4_K_M", "model.gguf"}) {
    for (const hub::Need need : {hub::Need::kAll, hub::Need::kText}) {
      const auto selection = hub::select_files({.repository = "org/name", .gguf = gguf}, paths, need);
      if (!selection.ok()) continue;
      for (const std::string& file : selection->files) QUIRE_CHECK_MSG(listing.contains(file), file);
      QUIRE_CHECK(selection->main.empty() || listing.contains(selection->main));
    }
  }
  const auto again = hub::parse_listing_json(hub::listing_json(listing));
  QUIRE_CHECK(again.ok() && again->size() == listing.size());
}

void check_url(const net::Url& url) {
  for (const char c : url.text()) QUIRE_CHECK_MSG(c > ' ' && c < '\x7f', url.text());
  QUIRE_CHECK(url.target.starts_with('/') && !url.host.empty() && url.port != 0);
  const auto again = net::parse_url(url.text());
  QUIRE_CHECK_MSG(again.ok() && again->text() == url.text(), url.text());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::CpuLimit limit;
  fuzz::Input input(data, size);
  const uint8_t kind = input.byte();
  const std::string_view text = input.rest();
  switch (kind % 6) {
    case 0: {
      const auto info = hub::parse_revision_info(text);
      if (!info.ok()) return fuzz::check_error(info.status()), 0;
      QUIRE_CHECK(hub::is_commit(info->commit));
      check_listing(info->files);
      return 0;
    }
    case 1: {
      hub::Listing listing;
      const Status status = hub::add_tree_page(text, listing);
      if (!status.ok()) fuzz::check_error(status);
      check_listing(listing);
      return 0;
    }
    case 2: {
      const auto listing = hub::parse_listing_json(text);
      if (listing.ok()) check_listing(*listing);
      return 0;
    }
    case 3: {
      const auto shards = hub::shards_of_index(text);
      if (!shards.ok()) return fuzz::check_error(shards.status()), 0;
      for (const std::string& shard : *shards) QUIRE_CHECK_MSG(hub::is_safe_path(shard), shard);
      return 0;
    }
    case 4: {
      const std::string hash = hub::hash_of_etag(text);
      QUIRE_CHECK(hash.empty() || hash.size() == 40 || hash.size() == 64);
      (void)hub::next_link(text);
      return 0;
    }
    default: {
      const auto url = net::resolve_reference(*net::parse_url("https://host/a/b?c"), text);
      if (!url.ok()) return fuzz::check_error(url.status()), 0;
      check_url(*url);
      return 0;
    }
  }
}
