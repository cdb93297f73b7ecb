// Requests that name an adapter: they wait for it beside the scheduler, and hold it as long as they are computed.
#include <algorithm>
#include <filesystem>
#include <future>
#include <numeric>

#include "engine/engine_impl.h"

namespace quire::engine {
namespace {

// Sets of labels should not come by the hundred a second.
constexpr std::chrono::milliseconds kPublishEvery{100};

Status no_adapters() {
  return unimplemented("this engine has no adapters: start it with --enable-lora");
}

// The log has the reason, which names files.
Status told(const Status& status, const std::string& name) {
  const bool unknown = status.code() == StatusCode::kNotFound && !status.param().empty();
  const bool plain = unknown || status.code() == StatusCode::kUnavailable;
  return plain ? status : unavailable("Adapter `{}` cannot be loaded; the log says why.", name).with_param("model");
}

}  // namespace

// The samples of a prompt wait together, so that they still share it.
void Engine::Impl::await_adapter(Submission submission) {
  const SequenceId first = submission.request.id;
  if (submission.request.fork_of) {
    const auto source = awaiting.find(*submission.request.fork_of);
    if (source != awaiting.end()) {
      source->second.push_back(std::move(submission));
      return;
    }
  }
  const std::string name = submission.adapter;
  awaiting[first].push_back(std::move(submission));
  adapters->acquire(name, [inbox = inbox, grants = grants, first](runner::AdapterStore::LeaseOr lease) {
    const std::lock_guard lock(inbox->mutex);
    grants->list.push_back({first, std::move(lease)});
    inbox->bell.notify_one();
  });
}

void Engine::Impl::take_grants() {
  std::vector<Grant> list;
  {
    const std::lock_guard lock(inbox->mutex);
    list.swap(grants->list);
  }
  for (Grant& grant : list) {
    auto node = awaiting.extract(grant.id);
    if (node.empty()) continue;  // cancelled since: the lease goes with the grant
    for (Submission& one : node.mapped()) {
      const SequenceId first = one.request.id;
      for (SequenceId id = first; id < first + one.streams.size(); ++id) {
        const auto found = active.find(id);
        if (found == active.end()) continue;
        if (!grant.lease.ok()) {
          deliver(id, TokenEvent{.finish = FinishReason::kError, .error = told(grant.lease.status(), one.adapter)});
          continue;
        }
        found->second.adapter_revision = (*grant.lease)->adapter().revision();
        found->second.num_virtual_tokens = (*grant.lease)->adapter().num_virtual_tokens();
        recorder.adapter_loaded(id, found->second.adapter_revision);
      }
      if (!grant.lease.ok()) continue;
      one.request.context.lora_id = (*grant.lease)->number();
      if (config.enable_kv_cache_events) {
        constexpr size_t kMostNames = 1 << 16;
        adapter_names[(*grant.lease)->number()] = one.adapter;
        if (adapter_names.size() > kMostNames) adapter_names.erase(adapter_names.begin());
      }
      one.request.adapter = *grant.lease;
      one.request.num_virtual_tokens = (*grant.lease)->adapter().num_virtual_tokens();
      std::vector<TokenId> whole(static_cast<size_t>(one.request.num_virtual_tokens));
      std::iota(whole.begin(), whole.end(), 0);
      whole.insert(whole.end(), one.request.prompt.begin(), one.request.prompt.end());
      one.request.prompt = std::move(whole);
      // Longrope turns keys by the length of all of it.
      one.request.context.is_long = context_of({}, static_cast<int64_t>(one.request.prompt.size())).is_long;
      schedule(std::move(one));
    }
  }
}

void Engine::Impl::forget_awaiting(SequenceId id) {
  for (auto group = awaiting.begin(); group != awaiting.end(); ++group) {
    const auto erased = std::erase_if(group->second, [id](const Submission& one) { return one.request.id == id; });
    if (erased == 0) continue;
    if (group->second.empty()) awaiting.erase(group);
    return;
  }
}

size_t Engine::Impl::num_awaiting() const {
  size_t count = 0;
  for (const auto& [id, group] : awaiting) count += group.size();
  return count;
}

// Requests that run, or wait, with the entry's adapter.
void Engine::Impl::count_adapter(const Active& entry, int by) {
  if (entry.adapter.empty()) return;
  auto& counts = adapter_requests[entry.adapter];
  counts[entry.record.started ? 0 : 1] += by;
  if (counts[0] == 0 && counts[1] == 0) adapter_requests.erase(entry.adapter);
  adapter_requests_changed = true;
}

void Engine::Impl::publish_adapters() {
  const Clock::time_point now = Clock::now();
  const bool first = adapters_published == Clock::time_point();
  const bool due = adapter_requests.empty() || now - adapters_published >= kPublishEvery;
  if (!first && !(adapter_requests_changed && due)) return;
  std::array<std::string, 2> names;
  for (const auto& [name, counts] : adapter_requests) {
    for (size_t i = 0; i < names.size(); ++i) {
      if (counts[i] > 0) names[i] += (names[i].empty() ? "" : ",") + name;
    }
  }
  engine_metrics.adapters(config.max_loras, names[0], names[1]);
  adapter_requests_changed = false;
  adapters_published = now;
}

// By all engines at once, each on its store's thread. Where one cannot, it is nobody's, unless it was to replace
// another one: then those that have the new one keep it.
Status Engine::load_adapter(const std::string& name, const std::string& path, bool replace) {
  if (impl_->adapters == nullptr) return no_adapters();
  std::vector<Impl*> loading;
  for (const auto& replica : replicas_) loading.push_back(replica.get());
  // Where it is taken, be it in one of them, that one says so.
  const auto has_it = [&](const Impl* one) {
    const std::vector<AdapterInfo> all = one->adapters->list();
    return std::ranges::find(all, name, &AdapterInfo::name) != all.end();
  };
  const auto taken = replace ? loading.end() : std::ranges::find_if(loading, has_it);
  if (taken != loading.end()) loading = {*taken};
  std::vector<std::promise<Status>> promises(loading.size());
  for (size_t i = 0; i < loading.size(); ++i) {
    loading[i]->adapters->load(name, path, replace, [&promise = promises[i]](runner::AdapterStore::LeaseOr lease) {
      Status status = lease.status();
      lease = no_adapters();  // nobody uses it yet
      promise.set_value(std::move(status));
    });
  }
  std::vector<Status> ends;
  for (std::promise<Status>& promise : promises) ends.push_back(promise.get_future().get());
  const auto failed = std::ranges::find_if(ends, [](const Status& status) { return !status.ok(); });
  if (failed == ends.end() || replace) return failed == ends.end() ? Status() : *failed;
  for (size_t i = 0; i < loading.size(); ++i) {
    if (ends[i].ok()) (void)loading[i]->adapters->unload(name);
  }
  return *failed;
}

Status Engine::load_adapter_from_folder(const std::string& name, const std::string& path, bool replace) {
  if (impl_->adapters == nullptr) return no_adapters();
  const std::string& folder = impl_->config.lora_dir;
  if (folder.empty()) {
    return invalid_argument("adapters are loaded at run time from one folder alone: start with --lora-dir FOLDER")
        .with_param("lora_path");
  }
  const Result<std::string> found = runner::path_in_folder(folder, path);
  if (!found.ok()) return Status(found.status()).with_param("lora_path");
  return load_adapter(name, *found, replace);
}

// Of several engines not all need have been asked for one that lies in the folder of adapters.
Status Engine::unload_adapter(const std::string& name) {
  if (impl_->adapters == nullptr) return no_adapters();
  Status status;
  bool unloaded = false;
  for (const auto& replica : replicas_) {
    const Status own = replica->adapters->unload(name);
    if (own.ok()) unloaded = true;
    if (status.ok()) status = own;
  }
  return unloaded ? Status() : status;
}

bool Engine::knows_adapter(const std::string& name) const {
  return impl_->adapters != nullptr && impl_->adapters->knows(name);
}

std::vector<AdapterInfo> Engine::adapters() const {
  if (impl_->adapters == nullptr) return {};
  std::vector<AdapterInfo> all = impl_->adapters->list();
  for (size_t i = 1; i < replicas_.size(); ++i) {
    for (AdapterInfo& one : replicas_[i]->adapters->list()) {
      const auto same = std::ranges::find(all, one.name, &AdapterInfo::name);
      if (same == all.end()) {  // asked for there alone
        all.push_back(std::move(one));
        continue;
      }
      const int32_t users = same->users + one.users;
      if (one.loaded && !same->loaded) *same = std::move(one);
      same->users = users;
    }
  }
  std::ranges::sort(all, {}, &AdapterInfo::name);
  return all;
}

}  // namespace quire::engine
