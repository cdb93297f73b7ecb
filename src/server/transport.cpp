#include "server/transport.h"

#include <cstring>

#include <fmt/format.h>
#include <boost/asio/ip/tcp.hpp>

namespace quire::server {

std::string peer_name(const Transport::Socket& socket) {
  using boost::asio::ip::tcp;
  boost::system::error_code error;
  const auto remote = socket.remote_endpoint(error);
  if (error) return "unknown";
  const int family = remote.protocol().family();
  if (family != tcp::v4().family() && family != tcp::v6().family()) return "unix";
  tcp::endpoint endpoint;
  if (remote.size() > endpoint.capacity()) return "unknown";
  std::memcpy(endpoint.data(), remote.data(), remote.size());
  endpoint.resize(remote.size());
  const std::string address = endpoint.address().to_string();
  if (endpoint.address().is_v6()) return fmt::format("[{}]:{}", address, endpoint.port());
  return fmt::format("{}:{}", address, endpoint.port());
}

}  // namespace quire::server
