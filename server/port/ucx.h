// UCX, opened at run time: the library, one context and one worker, which sends and receives active
// messages and, if it is set so, copies between registered memory of two workers. The headers are
// those of UCX 1.13, whose ABI later versions keep; versions before 1.20 are refused, because they
// are slow over TCP and cannot end a connection to a silent peer.
//
// Not thread-safe. Handlers are called by Progress, and for a send also by Send's caller.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "device/driver/ucx_memory.h"

namespace iris::port {

// A fragment of a message over TCP has room for so many bytes of data, and for its headers. UCX
// hands a message of one fragment to its handler without another copy.
inline constexpr uint64_t kFragmentBytes = 256 << 10;

struct UcxOptions {
  std::string path;        // of libucp.so.0; empty: searched
  std::string transports;  // UCX_TLS; empty: "tcp"
  std::string device;      // network interface
  std::string devices;     // UCX_NET_DEVICES; empty: `device`
  // Memory may be registered, for direct access of this worker and of those that have its key. UCX
  // does not check what they access where it emulates this, over TCP.
  bool direct = false;
  bool ipv6 = false;
  uint32_t port_min = 0;  // of the ports to listen on; 0: any
  uint32_t port_max = 0;
  uint32_t n_nodes = 1;
  // Nodes that were not heard from for so long are lost. UCX lets a connection be silent for twice
  // this, and 10 s at least, so that the port decides, and not UCX.
  absl::Duration silence = absl::Seconds(5);
};

class UcxWorker {
 public:
  // The base of what a sender keeps for a message until it is sent.
  struct SendTag {
    UcxWorker* worker = nullptr;
  };

  struct Handlers {
    // A message has arrived; the bytes are valid during the call.
    std::function<void(std::string_view header, std::string_view data)> message;
    // The send with this tag is over, and its memory is no longer used.
    std::function<void(SendTag* tag, bool ok)> sent;
    // The endpoint with this tag has failed; Close it after Progress has returned.
    std::function<void(void* tag, const char* reason)> failed;
  };

  // Opens the library that ucx::Find finds. Returns its error, or kFailedPrecondition if UCX cannot
  // use the interface.
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const UcxOptions& options,
                                                           Handlers handlers);
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  const std::string& version() const { return version_; }
  const std::string& transports() const { return transports_; }
  const std::string& address() const { return address_; }  // for Connect, at other workers

  // Receives and sends what is possible. Returns true if anything happened.
  bool Progress() { return api_.worker_progress(worker_) != 0; }
  // The descriptor that epoll reports as readable when Progress has work, after Arm returned true.
  int event_fd() const { return event_fd_; }
  // False: there is work already.
  bool Arm();

  // Makes an endpoint to the worker with this address, which need not answer yet.
  absl::StatusOr<ucp_ep_h> Connect(std::string_view address, void* tag);
  // Ends an endpoint at once. Its sends end with ok = false, in Progress.
  void Close(ucp_ep_h endpoint);

  // Returns what UCX uses for messages to this endpoint, such as "tcp/eth0"; empty if it does not
  // say.
  std::string TransportOf(ucp_ep_h endpoint) const;

  // Registered memory of this process, until it is destroyed or the worker is.
  class Region {
   public:
    ~Region();
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    const std::string& key() const { return key_; }  // for UseKey, at other workers

   private:
    friend class UcxWorker;
    Region(UcxWorker* worker, ucp_mem_h handle, ucs_memory_type_t type);
    UcxWorker* worker_;
    const ucp_mem_h handle_;
    const ucs_memory_type_t type_;
    std::string key_;
  };
  // Access to a region of another worker by one endpoint, until it or this worker is destroyed.
  class RemoteRegion {
   public:
    ~RemoteRegion();
    RemoteRegion(const RemoteRegion&) = delete;
    RemoteRegion& operator=(const RemoteRegion&) = delete;

   private:
    friend class UcxWorker;
    RemoteRegion(UcxWorker* worker, ucp_rkey_h key);
    UcxWorker* worker_;
    const ucp_rkey_h key_;
  };

  bool direct() const { return direct_; }
  // Registers memory, which is of the host or of a GPU. kFailedPrecondition if UCX or its devices
  // cannot.
  absl::StatusOr<std::unique_ptr<Region>> Register(uint64_t address, uint64_t bytes,
                                                   driver::UcxMemory memory);
  // `key` is of at most kMaxKeyBytes. An error if UCX does not know it.
  static constexpr size_t kMaxKeyBytes = 1024;
  absl::StatusOr<std::unique_ptr<RemoteRegion>> UseKey(ucp_ep_h endpoint, std::string_view key);

  enum class Sent { kNow, kLater, kFailed };
  // Copies from memory in `from` to the address `to` of the other worker. It is over, as of Send,
  // when the bytes are in the target, and visible to what this worker sends after that.
  Sent Put(ucp_ep_h endpoint, const Region& from, uint64_t address, uint64_t bytes,
           const RemoteRegion& key, uint64_t to, SendTag* tag);
  // Copies to memory in `into` from the address `from` of the other worker.
  Sent Get(ucp_ep_h endpoint, const Region& into, uint64_t address, uint64_t bytes,
           const RemoteRegion& key, uint64_t from, SendTag* tag);

  // Sends a message, at most kFragmentBytes + 64 KiB. Only if the result is kLater, the memory must
  // stay valid until handlers.sent(tag).
  Sent Send(ucp_ep_h endpoint, std::string_view header, const void* data, size_t bytes,
            SendTag* tag);

 private:
  struct Api {
    decltype(&ucp_config_read) config_read;
    decltype(&ucp_config_release) config_release;
    decltype(&ucp_init_version) init_version;
    decltype(&ucp_cleanup) cleanup;
    decltype(&ucp_worker_create) worker_create;
    decltype(&ucp_worker_destroy) worker_destroy;
    decltype(&ucp_worker_get_address) worker_get_address;
    decltype(&ucp_worker_release_address) worker_release_address;
    decltype(&ucp_worker_get_efd) worker_get_efd;
    decltype(&ucp_worker_arm) worker_arm;
    decltype(&ucp_worker_progress) worker_progress;
    decltype(&ucp_worker_set_am_recv_handler) worker_set_am_recv_handler;
    decltype(&ucp_ep_create) ep_create;
    decltype(&ucp_ep_close_nbx) ep_close_nbx;
    decltype(&ucp_ep_query) ep_query;
    decltype(&ucp_am_send_nbx) am_send_nbx;
    decltype(&ucp_context_query) context_query;
    decltype(&ucp_mem_map) mem_map;
    decltype(&ucp_mem_unmap) mem_unmap;
    decltype(&ucp_rkey_pack) rkey_pack;
    decltype(&ucp_rkey_buffer_release) rkey_buffer_release;
    decltype(&ucp_ep_rkey_unpack) ep_rkey_unpack;
    decltype(&ucp_rkey_destroy) rkey_destroy;
    decltype(&ucp_put_nbx) put_nbx;
    decltype(&ucp_get_nbx) get_nbx;
    decltype(&ucp_ep_flush_nbx) ep_flush_nbx;
    decltype(&ucp_request_free) request_free;
    decltype(&ucp_request_check_status) request_check_status;
    decltype(&ucp_get_version_string) get_version_string;
    decltype(&ucs_status_string) status_string;
  };

  // An endpoint's argument of UCX's callback for failures.
  struct Failure {
    UcxWorker* worker;
    void* tag;
  };

  UcxWorker() = default;
  absl::Status Load(const std::string& path);
  absl::Status Start(const UcxOptions& options);
  absl::Status Error(std::string_view what, ucs_status_t status) const;
  // What a call of UCX gets that ends with handlers.sent(tag).
  ucp_request_param_t Ends(SendTag* tag);
  static Sent SentOf(ucs_status_ptr_t request);

  Api api_ = {};
  Handlers handlers_;
  std::string version_;
  std::string transports_;
  std::string address_;
  bool direct_ = false;
  std::set<Region*> regions_;
  std::set<RemoteRegion*> remote_regions_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int event_fd_ = -1;
  std::vector<std::unique_ptr<Failure>> failures_;  // of all endpoints that ever were
};

}  // namespace iris::port
