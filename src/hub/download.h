// One file of a repository into the cache: in several ranges at once, gone on with where it stopped, checked before it
// gets its name.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/cache.h"
#include "hub/fetch.h"
#include "hub/listing.h"
#include "hub/partial_file.h"

namespace quire::hub {

class Downloader {
 public:
  // Both must outlive it. session.stop is this object's flag from here on.
  Downloader(Session& session, const ModelCache& cache);
  ~Downloader();

  // Puts the file into blobs/, unless it is there. What another process downloads is waited for.
  // REQUIRES: file.size >= 0 and a hash. Errors: those of fetching; data_loss where what came is not the file;
  // resource_exhausted where the disk is full.
  Status download(const std::string& commit, const std::string& path, const RemoteFile& file);

  // Size and hash as the answer to a HEAD gives them, where the listing does not. Errors: data_loss where they are not
  // said.
  Status ask_about(const std::string& commit, const std::string& path, RemoteFile& file);

  // The thread's that calls.
  Fetcher& fetcher() { return *fetchers_.front(); }

 private:
  struct Wanted;
  Status fetch_into(const Wanted& wanted, PartialFile& partial);
  Status fetch_once(const Wanted& wanted, PartialFile& partial, bool& ranges_ignored);
  Status work(Fetcher& fetcher, const Wanted& wanted, PartialFile& partial, std::atomic<bool>& ranges_ignored);
  // Asks for what is left of a piece, once.
  Outcome fetch_range(Fetcher& fetcher, const Wanted& wanted, PartialFile& partial, PartialFile::Piece& piece,
                      std::atomic<bool>& ranges_ignored);

  Session& session_;
  const ModelCache& cache_;
  std::atomic<bool> stop_{false};
  std::vector<std::unique_ptr<Fetcher>> fetchers_;  // one a connection, kept from file to file
};

// Where an earlier download of it may have left something.
std::filesystem::path partial_path(const ModelCache& cache, const std::string& hash);

}  // namespace quire::hub
