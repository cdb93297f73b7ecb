// Blocks of the prefix cache to other instances and from them: what consumers' threads ask for, and the engine thread's
// part.
#include <algorithm>
#include <utility>

#include "engine/engine_impl.h"

namespace quire::engine {

kv::CacheContext Engine::Impl::context_of(std::string salt, int64_t num_prompt_tokens) const {
  const RopeConfig& rope = executor->model().rope;
  return {.salt = std::move(salt),
          .lora_id = 0,
          .is_long = rope.scaling == RopeScaling::kLongRope && num_prompt_tokens > rope.original_max_position};
}

// Whether what came from elsewhere may stand for the beginning of this prompt.
Status Engine::Impl::check_import(std::span<const TokenId> prompt, const KvPrefix& prefix) const {
  const MemoryPlan& memory = executor->memory();
  const size_t num_tokens = prefix.tokens.size();
  if (num_tokens > prompt.size() || num_tokens % static_cast<size_t>(memory.block_size) != 0 ||
      !std::equal(prefix.tokens.begin(), prefix.tokens.end(), prompt.begin())) {
    return invalid_argument("the blocks are of another text");
  }
  if (prefix.is_long != context_of("", static_cast<int64_t>(prompt.size())).is_long) {
    return invalid_argument("the keys are rotated for a prompt of another length");
  }
  const auto num_blocks = static_cast<int32_t>(num_tokens / static_cast<size_t>(memory.block_size));
  const auto num_groups = static_cast<int32_t>(memory.windows.size());
  const auto is_place = [&](const KvBlockPlace& place) {
    return place.index >= 0 && place.index < num_blocks && place.group >= 0 && place.group < num_groups;
  };
  const auto rises = [](const KvBlockPlace& a, const KvBlockPlace& b) {
    return std::pair(a.index, a.group) < std::pair(b.index, b.group);
  };
  const auto ends_order = [&](const KvBlockPlace& a, const KvBlockPlace& b) { return !rises(a, b); };
  if (prefix.places.size() != prefix.blocks.size() || !std::ranges::all_of(prefix.places, is_place) ||
      std::ranges::adjacent_find(prefix.places, ends_order) != prefix.places.end()) {
    return invalid_argument("the blocks have places that this text does not have");
  }
  const auto has_size = [&](const std::string& block) { return std::ssize(block) == memory.block_bytes; };
  if (!std::ranges::all_of(prefix.blocks, has_size)) return invalid_argument("the blocks are of another size");
  return {};
}

void Engine::Impl::add_transfer(Transfer transfer) {
  Status status;
  {
    const std::lock_guard lock(inbox->mutex);
    if (stopping || !failure.ok() || drive != Drive::kOwnThread) {
      status = unavailable("the engine makes no steps by itself");
    } else {
      fresh_transfers.push_back(std::move(transfer));
      inbox->bell.notify_one();
    }
  }
  if (!status.ok()) end_transfer(transfer, status);
}

// On the engine's thread: the orders go out at once.
void Engine::Impl::begin_transfers(std::deque<Transfer> fresh) {
  for (Transfer& transfer : fresh) {
    std::vector<uint64_t> ids;
    if (transfer.exported) {
      ids = scheduler.send_prefix(transfer.context, transfer.prompt, transfer.prefix);
      transfer.prefix.blocks.resize(ids.size());
    } else {
      ids = scheduler.receive_prefix(transfer.context, std::exchange(transfer.prefix, {}));
    }
    for (size_t i = 0; i < ids.size(); ++i) transfer.blocks.emplace(ids[i], i);
    transfer.num_blocks = std::ssize(ids);
    if (ids.empty()) {
      end_transfer(transfer, {});
    } else {
      transfers.push_back(std::move(transfer));
    }
  }
  send_orders();
}

void Engine::Impl::report_transfers(OffloadReports& reports) {
  const auto done = [this](uint64_t id, std::string* bytes) {
    const auto has = [id](const Transfer& transfer) { return transfer.blocks.contains(id); };
    const auto found = std::ranges::find_if(transfers, has);
    if (found == transfers.end()) return;
    const size_t place = found->blocks.at(id);
    found->blocks.erase(id);
    if (bytes != nullptr) found->prefix.blocks[place] = std::move(*bytes);
    if (!found->blocks.empty()) return;
    end_transfer(*found, {});
    transfers.erase(found);
  };
  for (OffloadReports::Exported& exported : reports.exported) done(exported.id, &exported.bytes);
  for (const uint64_t id : reports.imported) done(id, nullptr);
}

void Engine::Impl::end_transfer(Transfer& transfer, const Status& status) {
  if (transfer.exported) {
    transfer.exported(status.ok() ? Result<KvPrefix>(std::move(transfer.prefix)) : Result<KvPrefix>(status));
  } else {
    transfer.imported(status.ok() ? Result<int64_t>(transfer.num_blocks) : Result<int64_t>(status));
  }
}

// The engine's end: those that wait are told.
void Engine::Impl::end_transfers(const Status& status) {
  std::deque<Transfer> fresh;
  {
    const std::lock_guard lock(inbox->mutex);
    fresh.swap(fresh_transfers);
  }
  for (Transfer& transfer : fresh) end_transfer(transfer, status);
  for (Transfer& transfer : transfers) end_transfer(transfer, status);
  transfers.clear();
}

void Engine::export_prefix(std::vector<TokenId> prompt, std::string cache_salt,
                           std::function<void(Result<KvPrefix>)> done) {
  kv::CacheContext context = impl_->context_of(std::move(cache_salt), std::ssize(prompt));
  impl_->add_transfer({.prompt = std::move(prompt),
                       .context = std::move(context),
                       .prefix = {},
                       .exported = std::move(done),
                       .imported = nullptr});
}

void Engine::import_prefix(std::span<const TokenId> prompt, std::string cache_salt, KvPrefix prefix,
                           std::function<void(Result<int64_t>)> done) {
  if (const Status status = impl_->check_import(prompt, prefix); !status.ok()) return done(status);
  impl_->add_transfer({.prompt = {},
                       .context = impl_->context_of(std::move(cache_salt), std::ssize(prompt)),
                       .prefix = std::move(prefix),
                       .exported = nullptr,
                       .imported = std::move(done)});
}

}  // namespace quire::engine
