// The place where the nodes of a job meet: HOST:PORT on the node of rank 0. Thread-safe.
#pragma once

#include <string>

namespace iris::base {

// Returns HOST:PORT, or [ADDRESS]:PORT for an address of IPv6.
std::string HostAndPort(const std::string& host, int port);

// Returns a port on which nobody listens now, below those that systems give to clients; 0: none.
int FreePort();

// Returns the address of this host on its way to `host`, as a number. Empty if `host` has no
// address here, or one of this host itself. Asks the system's resolver, which bounds its own time.
std::string AddressToward(const std::string& host);

}  // namespace iris::base
