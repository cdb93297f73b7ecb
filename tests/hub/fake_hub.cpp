#include "tests/hub/fake_hub.h"

#include <unistd.h>

#include <random>

#include <openssl/evp.h>
#include <boost/json.hpp>

#include "base/check.h"

namespace quire::hub {
namespace {

namespace json = boost::json;

std::string hex_digest(const std::string& content, const EVP_MD* kind) {
  unsigned char bytes[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  QUIRE_CHECK(EVP_Digest(content.data(), content.size(), bytes, &size, kind, nullptr) == 1);
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", bytes[i]);
  return hex;
}

}  // namespace

std::string sha256_of(const std::string& content) {
  return hex_digest(content, EVP_sha256());
}

std::string git_hash_of(const std::string& content) {
  return hex_digest("blob " + std::to_string(content.size()) + '\0' + content, EVP_sha1());
}

std::string some_bytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

FakeHub::FakeHub() {
  other_ = std::make_unique<FakeServer>("127.0.0.2", [this](const FakeRequest& request) {
    if (fault) {
      if (auto wrong = fault(request, true)) return *wrong;
    }
    for (const auto& [path, body] : files) {
      if (request.target == "/blobs/" + sha256_of(body)) return content(request, body, {});
    }
    return FakeAnswer{.status = 403};
  });
  hub_ = std::make_unique<FakeServer>("127.0.0.1", [this](const FakeRequest& request) {
    if (fault) {
      if (auto wrong = fault(request, false)) return *wrong;
    }
    return answer(request);
  });
}

FakeAnswer FakeHub::answer(const FakeRequest& request) {
  const std::string& target = request.target;
  if (target.starts_with("/api/models/org/name/revision/")) {
    const std::string revision = target.substr(30);
    if (revision != "main" && revision != commit) {
      return {.status = 404, .fields = {{"X-Error-Code", "RevisionNotFound"}}};
    }
    json::array siblings;
    for (const auto& [path, body] : files) siblings.push_back(json::object{{"rfilename", path}});
    return {.body = json::serialize(json::object{{"sha", commit}, {"siblings", siblings}})};
  }
  const std::string tree_of = "/api/models/org/name/tree/" + commit;
  if (has_tree && target.starts_with(tree_of)) return tree(target);
  const std::string resolve_of = "/org/name/resolve/" + commit + "/";
  if (target.starts_with(resolve_of)) return resolve(request, target.substr(resolve_of.size()));
  return {.status = 404,
          .fields = {{"X-Error-Code", target.starts_with("/api/models/org/name") ? "EntryNotFound" : "RepoNotFound"}}};
}

FakeAnswer FakeHub::tree(const std::string& target) const {
  const size_t cursor = target.find("&cursor=");
  const size_t from = cursor == std::string::npos ? 0 : std::stoul(target.substr(cursor + 8));
  json::array page;
  size_t index = 0;
  for (const auto& [path, body] : files) {
    if (index >= from && index < from + page_size) {
      json::object entry{{"type", "file"}, {"path", path}, {"size", body.size()}, {"oid", git_hash_of(body)}};
      if (body.size() >= large_bytes) entry["lfs"] = json::object{{"oid", sha256_of(body)}, {"size", body.size()}};
      page.push_back(std::move(entry));
    }
    ++index;
  }
  FakeAnswer answer{.body = json::serialize(page)};
  if (from + page_size < files.size()) {
    const std::string next = hub_->url() + target.substr(0, cursor) + "&cursor=" + std::to_string(from + page_size);
    answer.fields.emplace_back("Link", "<" + next + ">; rel=\"next\"");
  }
  return answer;
}

FakeAnswer FakeHub::resolve(const FakeRequest& request, const std::string& path) const {
  const auto found = files.find(path);
  if (found == files.end()) return {.status = 404, .fields = {{"X-Error-Code", "EntryNotFound"}}};
  const std::string& body = found->second;
  FakeAnswer answer{.fields = {{"X-Repo-Commit", commit}}};
  if (body.size() < large_bytes) {
    answer.fields.emplace_back("ETag", "\"" + git_hash_of(body) + "\"");
    return content(request, body, std::move(answer));
  }
  answer.status = 302;
  answer.fields.emplace_back("X-Linked-Etag", "\"" + sha256_of(body) + "\"");
  answer.fields.emplace_back("X-Linked-Size", std::to_string(body.size()));
  answer.fields.emplace_back("Location", other_->url() + "/blobs/" + sha256_of(body));
  return answer;
}

FakeAnswer FakeHub::content(const FakeRequest& request, const std::string& body, FakeAnswer answer) {
  const auto range = request.fields.find("range");
  answer.body = body;
  if (range == request.fields.end()) return answer;
  const size_t dash = range->second.find('-');
  const size_t first = std::stoul(range->second.substr(6, dash - 6));
  const size_t last = std::stoul(range->second.substr(dash + 1));
  answer.status = 206;
  answer.body = body.substr(first, last - first + 1);
  answer.fields.emplace_back("Content-Range", fmt::format("bytes {}-{}/{}", first, last, body.size()));
  return answer;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "quire-hub-XXXXXX").string();
  QUIRE_CHECK(::mkdtemp(name.data()) != nullptr);
  path = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

}  // namespace quire::hub
