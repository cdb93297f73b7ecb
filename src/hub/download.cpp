#include "hub/download.h"

#include <algorithm>
#include <charconv>
#include <mutex>
#include <thread>

#include "hub/digest.h"
#include "hub/partial_file.h"

namespace quire::hub {
namespace {

constexpr size_t kPartBytes = 256 << 10;
constexpr int64_t kProgressBytes = 64 << 10;         // so many, and the count of tries begins anew
constexpr int64_t kNotedBytes = int64_t{256} << 20;  // a file whose check takes a moment
constexpr std::chrono::milliseconds kLockPoll{100};

// "bytes 0-99/1000"
struct ContentRange {
  int64_t first = -1, last = -1, total = -1;
};

ContentRange parse_content_range(std::string_view text) {
  ContentRange range;
  if (!text.starts_with("bytes ")) return {};
  const char* at = text.data() + 6;
  const char* end = text.data() + text.size();
  const auto number = [&](int64_t& value, char after) {
    const auto [next, error] = std::from_chars(at, end, value);
    if (error != std::errc() || (after != '\0' && (next == end || *next != after))) return false;
    at = after != '\0' ? next + 1 : next;
    return true;
  };
  if (!number(range.first, '-') || !number(range.last, '/') || !number(range.total, '\0') || at != end) return {};
  return range;
}

net::Url file_url(const Session& session, const std::string& commit, const std::string& path) {
  return at_endpoint(session, "/" + session.repository + "/resolve/" + commit + "/" + net::percent_encoded(path, true));
}

// The answer is about the bytes that were asked for.
Status check_head(const net::HttpHead& head, const PartialFile::Piece& piece, bool whole, int64_t size) {
  const std::string_view encoding = head.field("Content-Encoding");
  if (!encoding.empty() && encoding != "identity") {
    return data_loss("the server sends it as {}, though it was asked not to", encoding.substr(0, 20));
  }
  if (head.status == 206) {
    const ContentRange range = parse_content_range(head.field("Content-Range"));
    if (range.first == piece.begin && range.last >= range.first && range.last < piece.end && range.total == size)
      return {};
    return data_loss("the server sends \"{}\", expected bytes {}-{}/{}", head.field("Content-Range").substr(0, 80),
                     piece.begin, piece.end - 1, size);
  }
  if (!whole) return data_loss("the server takes no ranges");
  if (head.content_length >= 0 && head.content_length != size) {
    return data_loss("the server sends {} bytes, expected {}", head.content_length, size);
  }
  return {};
}

}  // namespace

struct Downloader::Wanted {
  const std::string& commit;
  const std::string& path;
  const RemoteFile& file;
  net::Url url;

  // What the Hub itself says of the file on the way to it.
  Status look(const net::HttpHead& head) const {
    const std::string_view repo_commit = head.field("X-Repo-Commit");
    if (!repo_commit.empty() && repo_commit != commit) {
      return data_loss("{}: the Hub answers with commit {}, expected {}", path, repo_commit.substr(0, 40), commit);
    }
    const bool linked = !head.field("X-Linked-Etag").empty();
    const std::string_view etag = linked              ? head.field("X-Linked-Etag")
                                  : head.status < 300 ? head.field("ETag")
                                                      : std::string_view();
    const std::string hash = hash_of_etag(etag);
    if (!hash.empty() && hash != file.hash) {
      return data_loss("{}: the Hub's hash of it (ETag) is {}, expected {}: it changed on the way", path, hash,
                       file.hash);
    }
    const std::string_view size = head.field("X-Linked-Size");
    if (!size.empty() && size != std::to_string(file.size)) {
      return data_loss("{}: the Hub gives its size as {}, expected {}", path, size.substr(0, 20), file.size);
    }
    return {};
  }
};

std::filesystem::path partial_path(const ModelCache& cache, const std::string& hash) {
  // Not HASH.incomplete: huggingface_hub would take what is there for the file's beginning.
  return cache.blob(hash + ".quire.incomplete");
}

Downloader::Downloader(Session& session, const ModelCache& cache) : session_(session), cache_(cache) {
  session.stop = &stop_;
  fetchers_.push_back(std::make_unique<Fetcher>(session));
}

Downloader::~Downloader() {
  session_.stop = nullptr;
}

Status Downloader::ask_about(const std::string& commit, const std::string& path, RemoteFile& file) {
  Retries retries(session_);
  while (true) {
    net::HttpHead first;  // of the Hub's own answers the one that says most
    const auto look = [&](const net::HttpHead& head) {
      if (first.status == 0 || !head.field("X-Linked-Etag").empty()) first = head;
      if (head.status < 300 && first.field("X-Linked-Etag").empty()) first = head;
      return Status();
    };
    net::HttpHead last;
    const Outcome outcome =
        fetcher().attempt("HEAD", file_url(session_, commit, path), {{"Accept", "*/*"}}, path, look, last);
    if (!outcome.status.ok()) {
      QUIRE_RETURN_IF_ERROR(retries.next(outcome));
      continue;
    }
    const bool linked = !first.field("X-Linked-Etag").empty();
    if (file.hash.empty()) file.hash = hash_of_etag(first.field(linked ? "X-Linked-Etag" : "ETag"));
    if (file.size < 0) {
      const std::string_view size = first.field("X-Linked-Size");
      const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), file.size);
      if (size.empty() || error != std::errc() || end != size.data() + size.size()) {
        file.size = last.status == 200 ? last.content_length : -1;
      }
    }
    if (file.hash.empty() || file.size < 0) {
      return data_loss("{} says neither size nor hash of {}: quire takes nothing that it cannot check",
                       session_.endpoint.origin(), path);
    }
    return {};
  }
}

Status Downloader::download(const std::string& commit, const std::string& path, const RemoteFile& file) {
  QUIRE_CHECK(file.size >= 0 && !file.hash.empty());
  const std::filesystem::path blob = cache_.blob(file.hash);
  const auto is_there = [&] {
    std::error_code error;
    const auto size = std::filesystem::file_size(blob, error);
    return !error && static_cast<int64_t>(size) == file.size;
  };
  if (is_there()) return {};
  std::optional<FileLock> lock;
  for (bool told = false;; told = true) {
    QUIRE_ASSIGN_OR_RETURN(auto taken, FileLock::try_take(cache_.lock(file.hash)));
    if (taken) {
      lock.emplace(std::move(*taken));
      break;
    }
    if (!told) session_.note(fmt::format("{}: another process downloads it; waiting", path));
    std::this_thread::sleep_for(kLockPoll);
  }
  if (is_there()) return {};
  const Wanted wanted{.commit = commit, .path = path, .file = file, .url = file_url(session_, commit, path)};
  // Twice: bytes of an earlier process, or of a server that is out of step, may be wrong and spoil the whole.
  for (int attempt = 0;; ++attempt) {
    QUIRE_ASSIGN_OR_RETURN(const auto partial,
                           PartialFile::open(partial_path(cache_, file.hash), file.size, session_.options.piece_bytes));
    Status status = fetch_into(wanted, *partial);
    if (status.ok()) {
      if (file.size >= kNotedBytes) session_.note(fmt::format("{}: checking its hash", path));
      QUIRE_ASSIGN_OR_RETURN(const std::string hash, file_hash(partial->fd(), file.size, file.hash, {}));
      if (hash == file.hash) return partial->finish(blob);
      status = data_loss("{}: what came has the hash {}, expected {}", path, hash, file.hash);
    }
    if (status.code() != StatusCode::kDataLoss) {
      partial->save();
      return status;
    }
    if (session_.progress != nullptr) session_.progress->advanced(-partial->done_bytes());
    partial->discard();
    if (attempt > 0) return status;
    session_.note(fmt::format("{}; fetching it anew", status.message()));
  }
}

Status Downloader::fetch_into(const Wanted& wanted, PartialFile& partial) {
  for (int restarts = 0; !partial.is_complete(); ++restarts) {
    bool ranges_ignored = false;
    QUIRE_RETURN_IF_ERROR(fetch_once(wanted, partial, ranges_ignored));
    if (!ranges_ignored) continue;
    if (restarts >= session_.options.most_tries) {
      return unavailable("{}: the connection is cut again and again, and the server cannot go on in the middle of it",
                         wanted.path);
    }
    // All of it in one answer, then.
    if (session_.progress != nullptr) session_.progress->advanced(-partial.done_bytes());
    partial.begin_anew();
  }
  return {};
}

Status Downloader::fetch_once(const Wanted& wanted, PartialFile& partial, bool& ranges_ignored) {
  const size_t count =
      std::clamp<size_t>(partial.num_pieces_left(), 1, static_cast<size_t>(session_.options.connections));
  while (fetchers_.size() < count) fetchers_.push_back(std::make_unique<Fetcher>(session_));
  std::atomic<bool> ignored{false};
  std::mutex mutex;
  Status failed;
  stop_ = false;
  const auto one = [&](Fetcher& fetcher) {
    const Status status = work(fetcher, wanted, partial, ignored);
    if (status.ok()) return;
    const std::lock_guard guard(mutex);
    if (failed.ok() && !ignored) failed = status;
    stop_ = true;
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < count; ++i) threads.emplace_back([&, i] { one(*fetchers_[i]); });
  one(*fetchers_.front());
  for (std::thread& thread : threads) thread.join();
  stop_ = false;
  ranges_ignored = ignored;
  return ranges_ignored ? Status() : failed;
}

Status Downloader::work(Fetcher& fetcher, const Wanted& wanted, PartialFile& partial,
                        std::atomic<bool>& ranges_ignored) {
  while (auto piece = partial.take()) {
    Retries retries(session_);
    while (piece->begin < piece->end) {
      const int64_t begin = piece->begin;
      const Outcome outcome = session_.stopped() ? Outcome::failed(cancelled("another part failed"), false)
                                                 : fetch_range(fetcher, wanted, partial, *piece, ranges_ignored);
      if (piece->begin - begin >= kProgressBytes) retries.progressed();
      if (outcome.status.ok()) continue;
      if (Status status = retries.next(outcome); !status.ok()) {
        partial.give_back(*piece);
        return status;
      }
    }
  }
  return {};
}

Outcome Downloader::fetch_range(Fetcher& fetcher, const Wanted& wanted, PartialFile& partial, PartialFile::Piece& piece,
                                std::atomic<bool>& ranges_ignored) {
  const bool whole = piece.begin == 0 && piece.end == partial.size();
  net::HttpFields fields;
  if (!whole) fields.emplace_back("Range", fmt::format("bytes={}-{}", piece.begin, piece.end - 1));
  net::HttpHead head;
  Outcome outcome = fetcher.attempt(
      "GET", wanted.url, fields, wanted.path, [&](const net::HttpHead& seen) { return wanted.look(seen); }, head);
  if (!outcome.status.ok()) return outcome;
  if (head.status == 200 && !whole) ranges_ignored = true;
  if (Status status = check_head(head, piece, whole, partial.size()); !status.ok()) {
    return Outcome::failed(std::move(status).with_prefix(wanted.path + ": "), false);
  }
  std::vector<char> part(kPartBytes);
  while (!session_.stopped()) {
    auto got = fetcher.client().read(part.data(), part.size());
    if (!got.ok()) {
      const StatusCode code = got.status().code();
      return Outcome::failed(got.status().with_prefix(wanted.path + ": "),
                             code == StatusCode::kUnavailable || code == StatusCode::kDeadlineExceeded);
    }
    const auto size = static_cast<int64_t>(*got);
    if (size > piece.end - piece.begin) {
      return Outcome::failed(data_loss("{}: more than its {} bytes came", wanted.path, partial.size()), false);
    }
    if (size == 0) break;
    if (Status status = partial.append(piece, part.data(), *got); !status.ok()) {
      return Outcome::failed(std::move(status), false);
    }
    if (session_.progress != nullptr) session_.progress->advanced(size);
  }
  if (piece.begin == piece.end) return {};
  return Outcome::failed(unavailable("{}: the answer of the server ended too early", wanted.path), true);
}

}  // namespace quire::hub
