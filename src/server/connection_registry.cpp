// What stands before the connections: the exchange that a handler is given of one, and the list of all.
#include "server/http_connection.h"

namespace quire::server {
using Clock = std::chrono::steady_clock;

ConnectionExchange::ConnectionExchange(std::shared_ptr<Connection> connection, HttpRequest request, uint64_t serial)
    : Exchange(std::move(request)), connection_(std::move(connection)), serial_(serial) {}
ConnectionExchange::~ConnectionExchange() {
  connection_->abandoned(serial_);
}
void ConnectionExchange::respond(HttpResponse response) {
  connection_->respond(serial_, std::move(response));
}
void ConnectionExchange::post(std::function<void()> work) {
  connection_->post(std::move(work));
}
void ConnectionExchange::watch(std::function<void()> on_disconnect, std::function<void()> on_abort) {
  connection_->watch(serial_, std::move(on_disconnect), std::move(on_abort));
}
bool ConnectionExchange::connected() const {
  return connection_->serves(serial_);
}
void ConnectionExchange::begin_stream(const HttpResponse& head) {
  connection_->begin_stream(serial_, head);
}
void ConnectionExchange::write(std::string_view data, std::function<void()> done) {
  connection_->write(serial_, data, std::move(done));
}
void ConnectionExchange::end_stream() {
  connection_->end_stream(serial_);
}

ConnectionRegistry::ConnectionRegistry(const HttpOptions& options)
    : bodies(std::make_shared<SharedBytes>(options.max_buffered_bytes, options.tenant_weights, options.pace_window)),
      unsent(std::make_shared<SharedBytes>(options.max_unsent_bytes, options.tenant_weights, options.pace_window)) {}

void ConnectionRegistry::add(uint64_t id, std::weak_ptr<Connection> connection) {
  std::lock_guard lock(mutex_);
  connections_.emplace(id, std::move(connection));
}

void ConnectionRegistry::remove(uint64_t id) {
  std::lock_guard lock(mutex_);
  connections_.erase(id);
  if (connections_.empty()) changed_.notify_all();
}

size_t ConnectionRegistry::size() const {
  std::lock_guard lock(mutex_);
  return connections_.size();
}

void ConnectionRegistry::for_each(const std::function<void(Connection&)>& visit) {
  std::vector<std::weak_ptr<Connection>> all;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, connection] : connections_) all.push_back(connection);
  }
  for (const auto& weak : all) {
    if (const auto connection = weak.lock()) visit(*connection);
  }
}

bool ConnectionRegistry::wait_empty(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  return changed_.wait_until(lock, deadline, [&] { return connections_.empty(); });
}

void ConnectionRegistry::wait_empty() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return connections_.empty(); });
}

}  // namespace quire::server
