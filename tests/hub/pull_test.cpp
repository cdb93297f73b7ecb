// A model from a fake Hub into a cache, with all that can go wrong on the way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "hub/cache.h"
#include "hub/download.h"
#include "tests/hub/fake_hub.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string content_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class HubPull : public testing::Test {
 protected:
  HubPull() {
    hub.files = {{"README.md", "read me"},
                 {"config.json", R"({"architectures": ["X"]})"},
                 {"model.safetensors", some_bytes(300'000, 1)},
                 {"pytorch_model.bin", "a pickle"},
                 {"tokenizer.json", "{}"}};
    options.endpoint = hub.hub().url();
    options.cache = folder.path;
    options.piece_bytes = 40'000;
    options.connections = 3;
    options.timeouts = {.connect = milliseconds(2000), .head = milliseconds(2000), .read = milliseconds(2000)};
    options.free_bytes = [](const fs::path&) { return int64_t{1} << 40; };
    options.sleep = [this](milliseconds time) {
      const std::lock_guard guard(mutex);
      slept.push_back(time);
    };
  }

  Result<PulledModel> pull(const std::string& name = "org/name", const std::string& revision = "main",
                           Freshness freshness = Freshness::kCached) {
    return hub::pull(*parse_model_name(name), revision, freshness, Need::kAll, options, &told);
  }
  std::string refusal(const std::string& name = "org/name", const std::string& revision = "main") {
    const auto pulled = pull(name, revision);
    EXPECT_FALSE(pulled.ok());
    return pulled.ok() ? "" : pulled.status().message();
  }
  const std::string& weights() { return hub.files["model.safetensors"]; }
  fs::path blobs() const { return folder.path / "models--org--name" / "blobs"; }
  bool has_weights_blob() { return fs::exists(blobs() / sha256_of(weights())); }
  // The bytes that the other host was asked for.
  int64_t asked_bytes() {
    int64_t sum = 0;
    for (const FakeRequest& request : hub.other_host().requests()) {
      const auto range = request.fields.find("range");
      if (range == request.fields.end()) {
        sum += static_cast<int64_t>(weights().size());
        continue;
      }
      const size_t dash = range->second.find('-');
      sum += std::stoll(range->second.substr(dash + 1)) - std::stoll(range->second.substr(6, dash - 6)) + 1;
    }
    return sum;
  }

  FakeHub hub;
  TemporaryFolder folder;
  HubOptions options;
  Told told;
  std::mutex mutex;
  std::vector<milliseconds> slept;
};

TEST_F(HubPull, TheFilesThatAreNeededLieAsTheHubsOwnCacheHasThem) {
  const auto pulled = pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().message();
  const fs::path snapshot = folder.path / "models--org--name" / "snapshots" / kCommit;
  EXPECT_EQ(pulled->path, snapshot);
  EXPECT_EQ(pulled->commit, kCommit);
  EXPECT_EQ(pulled->files, 3);
  EXPECT_EQ(content_of(snapshot / "model.safetensors"), weights());
  EXPECT_EQ(fs::read_symlink(snapshot / "model.safetensors"), "../../blobs/" + sha256_of(weights()));
  EXPECT_EQ(fs::read_symlink(snapshot / "tokenizer.json"), "../../blobs/" + git_hash_of("{}"));
  EXPECT_EQ(content_of(folder.path / "models--org--name" / "refs" / "main"), kCommit);
  EXPECT_FALSE(fs::exists(snapshot / "README.md"));
  EXPECT_THAT(hub.hub().requests_for("pytorch_model.bin"), IsEmpty());
  EXPECT_EQ(told.done, told.bytes);
  for (const auto& entry : fs::directory_iterator(blobs())) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("incomplete")));
  }
}

// F9: what the branch was when the download began, or the commit that was named.
TEST_F(HubPull, EveryFileIsOfTheOneCommitThatWasAskedFor) {
  hub.page_size = 2;  // the listing takes several requests too
  const auto expect_all_of = [&](const std::string& commit) {
    int of_commit = 0;
    for (const FakeRequest& request : hub.hub().requests()) {
      if (request.target.find("/revision/") != std::string::npos) continue;  // what a name stands for
      EXPECT_THAT(request.target, HasSubstr(commit));
      ++of_commit;
    }
    EXPECT_GE(of_commit, 4) << "a listing and every file";
    for (const char* file : {"config.json", "model.safetensors", "tokenizer.json"})
      EXPECT_TRUE(fs::exists(folder.path / "models--org--name" / "snapshots" / commit / file)) << file;
  };
  ASSERT_TRUE(pull().ok());
  expect_all_of(kCommit);

  hub.hub().forget_requests();
  fs::remove_all(folder.path / "models--org--name");
  hub.commit = kOtherCommit;
  const auto pinned = pull("org/name", kOtherCommit, Freshness::kNewest);
  ASSERT_TRUE(pinned.ok()) << pinned.status().message();
  EXPECT_EQ(pinned->commit, kOtherCommit);
  expect_all_of(kOtherCommit);
}

// F9
TEST_F(HubPull, ARevisionThatTurnsOutToBeAnotherCommitThanThePinnedOneIsRefused) {
  hub.fault = [&](const FakeRequest& request, bool) -> std::optional<FakeAnswer> {
    if (request.target.find("/revision/") == std::string::npos) return std::nullopt;
    return FakeAnswer{.status = 200, .fields = {}, .body = R"({"sha":")" + kOtherCommit + R"(","siblings":[]})"};
  };
  EXPECT_THAT(refusal("org/name", kCommit), HasSubstr(kOtherCommit));
}

TEST_F(HubPull, WhatIsThereIsUsedWithoutARequest) {
  ASSERT_TRUE(pull().ok());
  hub.hub().forget_requests();
  const auto again = pull();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->fetched_bytes, 0);
  EXPECT_THAT(hub.hub().requests(), IsEmpty());
  options.offline = true;
  EXPECT_TRUE(pull().ok());
  EXPECT_TRUE(pull("org/name", kCommit).ok());
}

TEST_F(HubPull, WhatHuggingFaceDownloadedIsUsedWithoutARequest) {
  ASSERT_TRUE(pull().ok());
  fs::remove_all(folder.path / "models--org--name" / ".quire");  // as it never was
  hub.hub().forget_requests();
  EXPECT_TRUE(pull().ok());
  EXPECT_THAT(hub.hub().requests(), IsEmpty());
  fs::remove(folder.path / "models--org--name" / "snapshots" / kCommit / "tokenizer.json");
  EXPECT_TRUE(pull().ok());
  EXPECT_EQ(hub.hub().requests_for("resolve").size(), 0u) << "its content was there all the same";
}

TEST_F(HubPull, OfflineAndNotThereIsASentence) {
  options.offline = true;
  EXPECT_THAT(refusal(), HasSubstr("HF_HUB_OFFLINE"));
  EXPECT_THAT(hub.hub().requests(), IsEmpty());
}

TEST_F(HubPull, TheNewestStateIsAskedForAndOnlyWhatChangedIsFetched) {
  ASSERT_TRUE(pull().ok());
  hub.commit = kOtherCommit;
  hub.files["config.json"] = R"({"architectures": ["Y"]})";
  hub.other_host().forget_requests();
  EXPECT_EQ(pull()->commit, kCommit) << "without being told to, the cache is not left";
  const auto newest = pull("org/name", "main", Freshness::kNewest);
  ASSERT_TRUE(newest.ok()) << newest.status().message();
  EXPECT_EQ(newest->commit, kOtherCommit);
  EXPECT_EQ(content_of(newest->path / "config.json"), hub.files["config.json"]);
  EXPECT_EQ(content_of(newest->path / "model.safetensors"), weights());
  EXPECT_THAT(hub.other_host().requests(), IsEmpty());
  EXPECT_EQ(pull()->commit, kOtherCommit);
}

TEST_F(HubPull, TheTokenGoesToTheHubAndToNobodyElse) {
  options.token = "hf_secret";
  ASSERT_TRUE(pull().ok());
  for (const FakeRequest& request : hub.hub().requests()) {
    EXPECT_EQ(request.fields.at("authorization"), "Bearer hf_secret") << request.target;
  }
  ASSERT_FALSE(hub.other_host().requests().empty());
  for (const FakeRequest& request : hub.other_host().requests()) {
    EXPECT_FALSE(request.fields.contains("authorization"));
    for (const auto& [name, value] : request.fields) EXPECT_THAT(value, Not(HasSubstr("hf_secret")));
  }
}

TEST_F(HubPull, ATokenThatWouldEndAHeaderIsRefused) {
  options.token = "hf_a\r\nX-Evil: 1";
  EXPECT_THAT(refusal(), HasSubstr("token"));
  EXPECT_THAT(hub.hub().requests(), IsEmpty());
}

TEST_F(HubPull, ALargeFileComesInSeveralRanges) {
  ASSERT_TRUE(pull().ok());
  EXPECT_EQ(hub.other_host().requests().size(), 8u);
  EXPECT_EQ(asked_bytes(), static_cast<int64_t>(weights().size()));
}

TEST_F(HubPull, ACutConnectionGoesOnWhereItStopped) {
  options.timeouts.read = std::chrono::hours(1);  // what the cut ones still owe is not waited for
  std::atomic<int> cuts{0};
  hub.fault = [&](const FakeRequest& request, bool other_host) -> std::optional<FakeAnswer> {
    if (!other_host) return std::nullopt;
    const size_t dash = request.fields.at("range").find('-');
    const size_t first = std::stoul(request.fields.at("range").substr(6, dash - 6));
    const size_t last = std::stoul(request.fields.at("range").substr(dash + 1));
    // Whole pieces: the rest of one may be asked for before the third piece is.
    if (last - first + 1 < 40'000 || ++cuts > 3) return std::nullopt;
    return FakeAnswer{.status = 206,
                      .fields = {{"Content-Range", fmt::format("bytes {}-{}/{}", first, last, weights().size())}},
                      .body = weights().substr(first, last - first + 1),
                      .cut_after = 15'000};
  };
  const auto pulled = pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().message();
  EXPECT_EQ(content_of(pulled->path / "model.safetensors"), weights());
  // Three answers of 15,000 bytes each were kept.
  EXPECT_EQ(asked_bytes() - static_cast<int64_t>(weights().size()), 3 * (40'000 - 15'000));
  EXPECT_THAT(told.notes, Contains(HasSubstr("trying again")));
}

TEST_F(HubPull, AnotherProcessGoesOnWhereThisOneEnded) {
  std::atomic<int> answers{0};
  hub.fault = [&](const FakeRequest&, bool other_host) -> std::optional<FakeAnswer> {
    return other_host && ++answers > 4 ? std::optional(FakeAnswer{.status = 500}) : std::nullopt;
  };
  options.most_tries = 2;
  options.connections = 1;  // others would end in the middle of a piece
  EXPECT_THAT(refusal(), HasSubstr("500"));
  EXPECT_FALSE(has_weights_blob());
  const int64_t there = PartialFile::bytes_there(
      partial_path(ModelCache(folder.path, *parse_model_name("org/name")), sha256_of(weights())),
      static_cast<int64_t>(weights().size()));
  EXPECT_EQ(there, 4 * 40'000);
  hub.fault = nullptr;
  hub.other_host().forget_requests();
  const auto pulled = pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().message();
  EXPECT_EQ(asked_bytes(), static_cast<int64_t>(weights().size()) - there);
  EXPECT_EQ(content_of(pulled->path / "model.safetensors"), weights());
}

TEST_F(HubPull, APartThatWasSpoiltOnTheDiskIsFetchedAnew) {
  std::atomic<int> answers{0};
  hub.fault = [&](const FakeRequest&, bool other_host) -> std::optional<FakeAnswer> {
    return other_host && ++answers > 4 ? std::optional(FakeAnswer{.status = 500}) : std::nullopt;
  };
  options.most_tries = 1;
  (void)refusal();
  const fs::path partial = partial_path(ModelCache(folder.path, *parse_model_name("org/name")), sha256_of(weights()));
  {
    std::fstream file(partial, std::ios::in | std::ios::out | std::ios::binary);
    file << "spoilt";
  }
  hub.fault = nullptr;
  const auto pulled = pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().message();
  EXPECT_EQ(content_of(pulled->path / "model.safetensors"), weights());
  EXPECT_THAT(told.notes, Contains(HasSubstr("fetching it anew")));
}

TEST_F(HubPull, ContentOfAnotherHashNeverGetsTheFilesName) {
  hub.fault = [&](const FakeRequest& request, bool other_host) -> std::optional<FakeAnswer> {
    if (!other_host) return std::nullopt;
    const size_t dash = request.fields.at("range").find('-');
    const size_t first = std::stoul(request.fields.at("range").substr(6, dash - 6));
    const size_t last = std::stoul(request.fields.at("range").substr(dash + 1));
    return FakeAnswer{.status = 206,
                      .fields = {{"Content-Range", fmt::format("bytes {}-{}/{}", first, last, weights().size())}},
                      .body = std::string(last - first + 1, 'x')};
  };
  EXPECT_THAT(refusal(), HasSubstr("what came has the hash"));
  EXPECT_FALSE(has_weights_blob());
  EXPECT_FALSE(fs::exists(folder.path / "models--org--name" / "snapshots" / kCommit / "model.safetensors"));
  EXPECT_FALSE(fs::exists(folder.path / "models--org--name" / "refs" / "main"));
}

TEST_F(HubPull, ASmallFilesHashIsCheckedToo) {
  hub.fault = [&](const FakeRequest& request, bool) -> std::optional<FakeAnswer> {
    if (request.target.find("resolve") == std::string::npos || request.target.find("config.json") == std::string::npos)
      return std::nullopt;
    return FakeAnswer{.body = std::string(hub.files["config.json"].size(), '{')};
  };
  EXPECT_THAT(refusal(), HasSubstr("config.json: what came has the hash"));
}

TEST_F(HubPull, AnotherSizeThanTheListingsIsRefused) {
  hub.fault = [&](const FakeRequest& request, bool) -> std::optional<FakeAnswer> {
    if (request.target.find("resolve") == std::string::npos || request.target.find("config.json") == std::string::npos)
      return std::nullopt;
    return FakeAnswer{.body = hub.files["config.json"] + "more"};
  };
  EXPECT_THAT(refusal(), HasSubstr("expected 24"));
}

TEST_F(HubPull, AnEntityTagThatChangesBetweenRangesIsNoticed) {
  hub.large_bytes = 1'000'000;  // from the Hub itself
  std::atomic<int> answers{0};
  hub.fault = [&](const FakeRequest& request, bool) -> std::optional<FakeAnswer> {
    if (request.target.find("model.safetensors") == std::string::npos || ++answers < 3) return std::nullopt;
    return FakeAnswer{.status = 206, .fields = {{"ETag", "\"" + std::string(40, 'e') + "\""}}};
  };
  EXPECT_THAT(refusal(), HasSubstr("it changed on the way"));
}

TEST_F(HubPull, AServerWithoutRangesSendsTheWholeFile) {
  hub.fault = [&](const FakeRequest&, bool other_host) -> std::optional<FakeAnswer> {
    return other_host ? std::optional(FakeAnswer{.body = weights()}) : std::nullopt;
  };
  const auto pulled = pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().message();
  EXPECT_EQ(content_of(pulled->path / "model.safetensors"), weights());
  EXPECT_EQ(told.done, told.bytes);
}

TEST_F(HubPull, AServerWithoutRangesThatIsAlwaysCutIsGivenUp) {
  hub.fault = [&](const FakeRequest&, bool other_host) -> std::optional<FakeAnswer> {
    return other_host ? std::optional(FakeAnswer{.body = weights(), .cut_after = 200'000}) : std::nullopt;
  };
  EXPECT_THAT(refusal(), HasSubstr("cut again and again"));
}

TEST_F(HubPull, TheWrongRangeIsRefused) {
  hub.fault = [&](const FakeRequest&, bool other_host) -> std::optional<FakeAnswer> {
    if (!other_host) return std::nullopt;
    return FakeAnswer{
        .status = 206, .fields = {{"Content-Range", "bytes 5-40004/300000"}}, .body = std::string(40'000, 'x')};
  };
  EXPECT_THAT(refusal(), HasSubstr("bytes 5-40004/300000"));
}

struct Refusal {
  const char* name;
  int status;
  std::vector<std::pair<std::string, std::string>> fields;
  const char* token;
  const char* says;
};

class HubRefusal : public HubPull, public testing::WithParamInterface<Refusal> {};

TEST_P(HubRefusal, IsASentenceThatSaysWhatToDo) {
  hub.fault = [&](const FakeRequest&, bool) -> std::optional<FakeAnswer> {
    return FakeAnswer{.status = GetParam().status, .fields = GetParam().fields};
  };
  options.token = GetParam().token;
  EXPECT_THAT(refusal(), HasSubstr(GetParam().says));
  EXPECT_EQ(hub.hub().requests().size(), 1u) << "it was tried again";
}

INSTANTIATE_TEST_SUITE_P(
    Hub, HubRefusal,
    testing::Values(
        Refusal{"missing", 401, {{"X-Error-Message", "Repository not found"}}, "", "--hf-token, HF_TOKEN"},
        Refusal{"missing_with_a_token", 404, {{"X-Error-Code", "RepoNotFound"}}, "hf_a", "may not read it"},
        Refusal{"gated", 403, {{"X-Error-Code", "GatedRepo"}}, "", "Ask for access at http://127.0.0.1:"},
        Refusal{"gated_with_a_token", 403, {{"X-Error-Code", "GatedRepo"}}, "hf_a", "has no access yet"},
        Refusal{"revision", 404, {{"X-Error-Code", "RevisionNotFound"}}, "", "org/name has no revision \"main\""},
        Refusal{"bad_token",
                401,
                {{"X-Error-Message", "Invalid credentials in Authorization header"}},
                "hf_a",
                "settings/tokens"},
        Refusal{"forbidden", 403, {{"X-Error-Message", "blocked by the owner"}}, "", "(blocked by the owner)"},
        Refusal{"strange", 418, {}, "", "418"}),
    [](const auto& parameter) { return parameter.param.name; });

TEST_F(HubPull, ARevisionThatIsNotThereIsNamed) {
  EXPECT_THAT(refusal("org/name", "v2"), HasSubstr("no revision \"v2\""));
  EXPECT_THAT(refusal("org/name", "../../x"), HasSubstr("is no revision"));
}

TEST_F(HubPull, TooManyRequestsWaitAsLongAsTheHubSays) {
  std::atomic<int> asked{0};
  hub.fault = [&](const FakeRequest&, bool) -> std::optional<FakeAnswer> {
    return ++asked <= 2 ? std::optional(FakeAnswer{.status = 429, .fields = {{"Retry-After", "7"}}}) : std::nullopt;
  };
  ASSERT_TRUE(pull().ok());
  EXPECT_THAT(slept, ElementsAre(milliseconds(7000), milliseconds(7000)));
}

TEST_F(HubPull, APauseBeyondReasonIsAnError) {
  hub.fault = [&](const FakeRequest&, bool) -> std::optional<FakeAnswer> {
    return FakeAnswer{.status = 429, .fields = {{"Retry-After", "86400"}}};
  };
  EXPECT_THAT(refusal(), HasSubstr("pause of 86400 s"));
  EXPECT_THAT(slept, IsEmpty());
}

TEST_F(HubPull, AServersFaultIsTriedAgainEverLaterAndThenGivenUp) {
  hub.fault = [&](const FakeRequest&, bool) -> std::optional<FakeAnswer> { return FakeAnswer{.status = 503}; };
  EXPECT_THAT(refusal(), HasSubstr("503"));
  EXPECT_THAT(slept, ElementsAre(milliseconds(1000), milliseconds(2000), milliseconds(4000), milliseconds(8000)));
}

TEST_F(HubPull, AServerThatSaysNothingIsGivenUpInTime) {
  options.timeouts.head = milliseconds(50);
  options.most_tries = 2;
  hub.fault = [&](const FakeRequest&, bool) -> std::optional<FakeAnswer> { return FakeAnswer{.silent = true}; };
  EXPECT_THAT(refusal(), HasSubstr("did not answer in time"));
}

TEST_F(HubPull, ABodyThatStopsIsGivenUpInTime) {
  options.timeouts.read = milliseconds(50);
  options.most_tries = 2;
  hub.fault = [&](const FakeRequest&, bool other_host) -> std::optional<FakeAnswer> {
    if (!other_host) return std::nullopt;
    FakeAnswer answer{.raw = "HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n"};
    return answer;
  };
  EXPECT_FALSE(pull().ok());
}

TEST_F(HubPull, AHostThatDoesNotExistIsSaidAtOnce) {
  options.endpoint = "http://no-such-host.invalid";
  options.most_tries = 1;  // where the resolver itself is not sure
  EXPECT_THAT(refusal(), HasSubstr("no-such-host.invalid"));
  EXPECT_THAT(slept, IsEmpty());
}

TEST_F(HubPull, WhatIsNoHttpIsAnError) {
  hub.fault = [&](const FakeRequest&, bool) -> std::optional<FakeAnswer> {
    return FakeAnswer{.raw = "SSH-2.0-OpenSSH_9.2\r\n\r\n"};
  };
  EXPECT_THAT(refusal(), HasSubstr("no HTTP that can be read"));
}

TEST_F(HubPull, AHeadWithoutEndIsRefused) {
  hub.fault = [&](const FakeRequest&, bool) -> std::optional<FakeAnswer> {
    return FakeAnswer{.raw = "HTTP/1.1 200 OK\r\nX: " + std::string(200'000, 'x') + "\r\n\r\n"};
  };
  EXPECT_THAT(refusal(), HasSubstr("no HTTP that can be read"));
}

TEST_F(HubPull, ARedirectThatGoesInACircleEnds) {
  hub.fault = [&](const FakeRequest& request, bool) -> std::optional<FakeAnswer> {
    return FakeAnswer{.status = 302, .fields = {{"Location", request.target}}};
  };
  EXPECT_THAT(refusal(), HasSubstr("redirects"));
  EXPECT_LE(hub.hub().requests().size(), 10u);
}

TEST_F(HubPull, AListingInPagesIsReadToItsEnd) {
  hub.page_size = 2;
  const auto pulled = pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().message();
  EXPECT_EQ(hub.hub().requests_for("/tree/").size(), 3u);
  EXPECT_EQ(content_of(pulled->path / "tokenizer.json"), "{}");
}

TEST_F(HubPull, AListingThatGoesOnElsewhereOrInACircleIsRefused) {
  std::string next;
  hub.fault = [&](const FakeRequest& request, bool) -> std::optional<FakeAnswer> {
    if (request.target.find("/tree/") == std::string::npos) return std::nullopt;
    return FakeAnswer{.fields = {{"Link", "<" + next + ">; rel=\"next\""}}, .body = "[]"};
  };
  next = hub.other_host().url() + "/next";
  EXPECT_THAT(refusal(), HasSubstr("at another server"));
  EXPECT_THAT(hub.other_host().requests(), IsEmpty());
  next = "?recursive=true&cursor=1";
  EXPECT_THAT(refusal(), HasSubstr("in a circle"));
}

TEST_F(HubPull, AListingThatIsCutShortIsAnError) {
  hub.fault = [&](const FakeRequest& request, bool) -> std::optional<FakeAnswer> {
    if (request.target.find("/tree/") == std::string::npos) return std::nullopt;
    return FakeAnswer{.body = R"([{"type": "file", "path": "config)"};
  };
  EXPECT_THAT(refusal(), HasSubstr("is no JSON"));
}

TEST_F(HubPull, AFileThatOnlyTheRevisionNamesIsAskedAboutByItself) {
  hub.fault = [&](const FakeRequest& request, bool) -> std::optional<FakeAnswer> {
    return request.target.find("/tree/") == std::string::npos ? std::nullopt : std::optional(FakeAnswer{.body = "[]"});
  };
  const auto pulled = pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().message();
  EXPECT_EQ(content_of(pulled->path / "model.safetensors"), weights());
}

TEST_F(HubPull, AMirrorWithoutListsOfSizesIsAskedForEachFile) {
  hub.has_tree = false;
  const auto pulled = pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().message();
  EXPECT_EQ(content_of(pulled->path / "model.safetensors"), weights());
  EXPECT_EQ(fs::read_symlink(pulled->path / "model.safetensors"), "../../blobs/" + sha256_of(weights()));
}

TEST_F(HubPull, AFileOfWhichNoHashIsSaidIsNotTaken) {
  hub.has_tree = false;
  hub.fault = [&](const FakeRequest& request, bool) -> std::optional<FakeAnswer> {
    if (request.target.find("config.json") == std::string::npos) return std::nullopt;
    return FakeAnswer{.fields = {{"ETag", "\"../../../evil\""}}, .body = "{}"};
  };
  EXPECT_THAT(refusal(), HasSubstr("cannot check"));
}

TEST_F(HubPull, ANameThatLeadsOutOfTheCacheIsRefused) {
  hub.files["../../../evil"] = "x";
  EXPECT_THAT(refusal(), HasSubstr("leads out of its folder"));
  EXPECT_THAT(hub.hub().requests_for("resolve"), IsEmpty());
}

TEST_F(HubPull, ADiskThatIsTooSmallIsNoticedBefore) {
  options.free_bytes = [](const fs::path&) { return int64_t{100'000}; };
  EXPECT_THAT(refusal(), HasSubstr("--download-dir"));
  EXPECT_THAT(hub.hub().requests_for("resolve"), IsEmpty());
}

TEST_F(HubPull, PicklesAreRefused) {
  hub.files.erase("model.safetensors");
  EXPECT_THAT(refusal(), HasSubstr("pickles (pytorch_model.bin)"));
}

TEST_F(HubPull, ShardsAreThoseThatTheIndexNames) {
  hub.files.erase("model.safetensors");
  hub.files["a.safetensors"] = some_bytes(50'000, 2);
  hub.files["b.safetensors"] = some_bytes(2'000, 3);
  hub.files["unused.safetensors"] = some_bytes(2'000, 4);
  hub.files["model.safetensors.index.json"] = R"({"weight_map": {"x": "b.safetensors", "y": "a.safetensors"}})";
  const auto pulled = pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().message();
  EXPECT_EQ(content_of(pulled->path / "a.safetensors"), hub.files["a.safetensors"]);
  EXPECT_TRUE(fs::exists(pulled->path / "b.safetensors"));
  EXPECT_FALSE(fs::exists(pulled->path / "unused.safetensors"));
  hub.hub().forget_requests();
  EXPECT_TRUE(pull().ok());
  EXPECT_THAT(hub.hub().requests(), IsEmpty());
}

TEST_F(HubPull, ASplitGgufComesWhole) {
  hub.files = {{"sub/m-Q8_0-00001-of-00002.gguf", some_bytes(5'000, 5)},
               {"sub/m-Q8_0-00002-of-00002.gguf", some_bytes(6'000, 6)},
               {"m-Q4_0.gguf", some_bytes(4'000, 7)}};
  const auto pulled = pull("org/name:q8_0");
  ASSERT_TRUE(pulled.ok()) << pulled.status().message();
  EXPECT_EQ(pulled->path.filename(), "m-Q8_0-00001-of-00002.gguf");
  EXPECT_EQ(content_of(pulled->path.parent_path() / "m-Q8_0-00002-of-00002.gguf"),
            hub.files["sub/m-Q8_0-00002-of-00002.gguf"]);
  EXPECT_EQ(fs::read_symlink(pulled->path), "../../../blobs/" + sha256_of(hub.files["sub/m-Q8_0-00001-of-00002.gguf"]));
  EXPECT_FALSE(fs::exists(pulled->path.parent_path().parent_path() / "m-Q4_0.gguf"));
  EXPECT_THAT(refusal("org/name:Q5_0"), HasSubstr("there are: Q4_0, Q8_0"));
}

TEST_F(HubPull, TwoAtOnceFetchAFileOnce) {
  Told other_told;
  Result<PulledModel> other = not_found("not run");
  std::thread thread([&] {
    other = hub::pull(*parse_model_name("org/name"), "main", Freshness::kCached, Need::kAll, options, &other_told);
  });
  const auto pulled = pull();
  thread.join();
  ASSERT_TRUE(pulled.ok()) << pulled.status().message();
  ASSERT_TRUE(other.ok()) << other.status().message();
  EXPECT_EQ(content_of(pulled->path / "model.safetensors"), weights());
  EXPECT_EQ(asked_bytes(), static_cast<int64_t>(weights().size()));
}

TEST_F(HubPull, AnEmptyFileIsAFile) {
  hub.files["merges.txt"] = "";
  const auto pulled = pull();
  ASSERT_TRUE(pulled.ok()) << pulled.status().message();
  EXPECT_TRUE(fs::is_regular_file(pulled->path / "merges.txt"));
}

TEST(HubTls, AnAuthorityThatIsTrustedAndTheRightHostAreNeeded) {
  const FakeCertificate certificate("127.0.0.1");
  const FakeCertificate other("127.0.0.1");
  const auto answer = [](const FakeRequest&) { return FakeAnswer{.body = "hello"}; };
  FakeServer server("127.0.0.1", answer, &certificate);
  FakeServer elsewhere("127.0.0.2", answer, &certificate);
  const TemporaryFolder folder;
  std::ofstream(folder.path / "ca.pem") << certificate.pem;
  std::ofstream(folder.path / "other.pem") << other.pem;
  const auto get = [&](const std::string& url, const char* authorities) -> Result<std::string> {
    const auto trust = net::TlsTrust::make((folder.path / authorities).string(), "");
    EXPECT_TRUE(trust.ok()) << trust.status().message();
    net::HttpClient client(*trust, {});
    const auto head = client.send("GET", *net::parse_url(url), {});
    if (!head.ok()) return head.status();
    return client.read_all(1000);
  };
  EXPECT_EQ(*get(server.url() + "/", "ca.pem"), "hello");
  EXPECT_THAT(get(server.url() + "/", "other.pem").status().message(), HasSubstr("is not to be trusted"));
  EXPECT_THAT(get(elsewhere.url() + "/", "ca.pem").status().message(), HasSubstr("is not to be trusted"));
  EXPECT_FALSE(net::TlsTrust::make((folder.path / "none.pem").string(), "").ok());
}

TEST(HubTls, ARedirectFromHttpsToHttpIsRefused) {
  const FakeCertificate certificate("127.0.0.1");
  FakeServer plain("127.0.0.1", [](const FakeRequest&) { return FakeAnswer{.body = "{}"}; });
  FakeServer secure(
      "127.0.0.1",
      [&](const FakeRequest&) {
        return FakeAnswer{.status = 302, .fields = {{"Location", plain.url() + "/x"}}};
      },
      &certificate);
  const TemporaryFolder folder;
  std::ofstream(folder.path / "ca.pem") << certificate.pem;
  HubOptions options;
  options.endpoint = secure.url();
  options.cache = folder.path;
  options.ca_file = (folder.path / "ca.pem").string();
  options.token = "hf_secret";
  const auto pulled = pull(*parse_model_name("org/name"), "main", Freshness::kCached, Need::kAll, options, nullptr);
  EXPECT_THAT(pulled.status().message(), HasSubstr("from https to http"));
  EXPECT_THAT(plain.requests(), IsEmpty());
}

}  // namespace
}  // namespace quire::hub
