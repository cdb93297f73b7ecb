// A collector of spans on loopback, a thread a connection: keeps the bodies that it takes, and answers as a test says.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <boost/json.hpp>

namespace quire::server {

class Collector {
 public:
  using tcp = boost::asio::ip::tcp;
  // The bytes that answer the nth request, from 0; empty: none ever.
  using Answer = std::function<std::string(size_t number)>;

  static std::string ok() { return answer("200 OK", "{\"partialSuccess\":{}}"); }
  static std::string answer(const std::string& status, const std::string& body, const std::string& fields = "") {
    return "HTTP/1.1 " + status + "\r\nContent-Type: application/json\r\n" + fields +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }

  explicit Collector(Answer answers = [](size_t) { return ok(); })
      : answers_(std::move(answers)), acceptor_(context_, {boost::asio::ip::address_v4::loopback(), 0}) {
    thread_ = std::thread([this] { accept(); });
  }
  ~Collector() {
    ended_ = true;
    boost::system::error_code error;
    tcp::socket bell(context_);
    bell.connect(acceptor_.local_endpoint(), error);
    thread_.join();
    const std::lock_guard lock(mutex_);
    for (auto& [socket, thread] : connections_) {
      socket->shutdown(tcp::socket::shutdown_both, error);
      thread.join();
    }
  }

  std::string url() const {
    return "http://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port()) + "/v1/traces";
  }
  std::vector<std::string> heads() const {
    const std::lock_guard lock(kept_);
    return heads_;
  }
  std::vector<std::string> bodies() const {
    const std::lock_guard lock(kept_);
    return bodies_;
  }
  // Of all bodies.
  std::vector<boost::json::object> spans() const {
    std::vector<boost::json::object> out;
    for (const std::string& body : bodies()) {
      const boost::json::value value = boost::json::parse(body);
      for (const auto& span : value.at_pointer("/resourceSpans/0/scopeSpans/0/spans").as_array()) {
        out.push_back(span.as_object());
      }
    }
    return out;
  }

 private:
  void accept() {
    while (true) {
      auto socket = std::make_shared<tcp::socket>(acceptor_.accept());
      if (ended_) return;
      const std::lock_guard lock(mutex_);
      connections_.emplace_back(socket, std::thread([this, socket] { serve(*socket); }));
    }
  }
  void serve(tcp::socket& socket) {
    boost::system::error_code error;
    std::string text;
    while (true) {
      const size_t head = boost::asio::read_until(socket, boost::asio::dynamic_buffer(text), "\r\n\r\n", error);
      if (error) return;
      const size_t field = text.find("Content-Length: ");
      const size_t length = std::stoul(text.substr(field + 16));
      if (text.size() < head + length) {
        boost::asio::read(socket, boost::asio::dynamic_buffer(text),
                          boost::asio::transfer_exactly(head + length - text.size()), error);
      }
      if (error) return;
      size_t number = 0;
      {
        const std::lock_guard lock(kept_);
        number = bodies_.size();
        heads_.push_back(text.substr(0, head));
        bodies_.push_back(text.substr(head, length));
      }
      text.erase(0, head + length);
      boost::asio::write(socket, boost::asio::buffer(answers_(number)), error);
      if (error) return;
    }
  }

  const Answer answers_;
  boost::asio::io_context context_;
  tcp::acceptor acceptor_;
  std::atomic<bool> ended_{false};
  std::mutex mutex_;
  std::list<std::pair<std::shared_ptr<tcp::socket>, std::thread>> connections_;
  mutable std::mutex kept_;
  std::vector<std::string> heads_, bodies_;
  std::thread thread_;
};

}  // namespace quire::server
