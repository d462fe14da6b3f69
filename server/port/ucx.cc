#include "server/port/ucx.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "device/ucx/find.h"

namespace iris::port {
namespace {

constexpr unsigned kMessageId = 17;
constexpr int kCloseProgresses = 1000;

// UCX reads its settings from the environment, some when the library is loaded.
void Set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }
// The site may choose another value.
void Suggest(const char* name, const std::string& value) { setenv(name, value.c_str(), 0); }

void Configure(const UcxOptions& options) {
  Set("UCX_TLS", options.transports.empty() ? "tcp" : options.transports);
  Set("UCX_NET_DEVICES", options.devices.empty() ? options.device : options.devices);
  Set("UCX_TCP_PORT_RANGE",
      options.port_min == 0 ? "0" : absl::StrCat(options.port_min, "-", options.port_max));
  Set("UCX_TCP_BRIDGE_ENABLE", "y");  // the interface was chosen
  Set("UCX_TCP_AF_PRIO", options.ipv6 ? "inet6,inet" : "inet,inet6");
  Set("UCX_TCP_MAX_NUM_EPS", absl::StrCat(std::max(256u, 2 * options.n_nodes)));
  // A node that does not answer shall not stop this process.
  Set("UCX_TCP_CONN_NB", "y");
  // Puts of a peer would not pass our checks (those that UCX emulates need UCP_FEATURE_RMA).
  Set("UCX_TCP_PUT_ENABLE", "n");
  const std::string segment = absl::StrCat(kFragmentBytes + (4 << 10));
  Set("UCX_TCP_TX_SEG_SIZE", segment);
  Set("UCX_TCP_RX_SEG_SIZE", segment);
  const absl::Duration silence = std::max(2 * options.silence, absl::Seconds(10));
  Suggest("UCX_TCP_USER_TIMEOUT", absl::StrCat(absl::ToInt64Seconds(silence), "s"));
  // Messages are in memory of the host, other memory is registered by us, and registrations are not
  // cached: UCX needs no hooks in functions of this program.
  Set("UCX_MEM_EVENTS", "n");
  Set("UCX_MEM_MMAP_HOOK_MODE", "none");
  Set("UCX_MEM_MALLOC_HOOKS", "n");
  Set("UCX_MEMTYPE_CACHE", "n");
  Set("UCX_VFS_ENABLE", "n");
  Set("UCX_ERROR_SIGNALS", "");
  Set("UCX_WARN_UNUSED_ENV_VARS", "n");
  Suggest("UCX_LOG_LEVEL", "error");
}

}  // namespace

absl::Status UcxWorker::Error(std::string_view what, ucs_status_t status) const {
  return absl::FailedPreconditionError(absl::StrCat("UCX ", version_, ": ",
                                                    absl::string_view(what.data(), what.size()),
                                                    ": ", api_.status_string(status)));
}

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const UcxOptions& options,
                                                             Handlers handlers) {
  Configure(options);
  const absl::StatusOr<ucx::Library> found = ucx::Find(options.path);
  if (!found.ok()) return found.status();
  std::unique_ptr<UcxWorker> worker(new UcxWorker);
  worker->handlers_ = std::move(handlers);
  absl::Status status = worker->Load(found->name);
  if (status.ok()) status = worker->Start(options);
  if (!status.ok()) return status;
  return worker;
}

absl::Status UcxWorker::Load(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return absl::FailedPreconditionError(absl::StrCat("UCX: ", dlerror()));
  const char* missing = nullptr;
  const auto find = [&](const char* name, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr) missing = name;
  };
  find("ucp_config_read", &api_.config_read);
  find("ucp_config_release", &api_.config_release);
  find("ucp_init_version", &api_.init_version);
  find("ucp_cleanup", &api_.cleanup);
  find("ucp_worker_create", &api_.worker_create);
  find("ucp_worker_destroy", &api_.worker_destroy);
  find("ucp_worker_get_address", &api_.worker_get_address);
  find("ucp_worker_release_address", &api_.worker_release_address);
  find("ucp_worker_get_efd", &api_.worker_get_efd);
  find("ucp_worker_arm", &api_.worker_arm);
  find("ucp_worker_progress", &api_.worker_progress);
  find("ucp_worker_set_am_recv_handler", &api_.worker_set_am_recv_handler);
  find("ucp_ep_create", &api_.ep_create);
  find("ucp_ep_close_nbx", &api_.ep_close_nbx);
  find("ucp_ep_query", &api_.ep_query);
  find("ucp_am_send_nbx", &api_.am_send_nbx);
  find("ucp_context_query", &api_.context_query);
  find("ucp_mem_map", &api_.mem_map);
  find("ucp_mem_unmap", &api_.mem_unmap);
  find("ucp_rkey_pack", &api_.rkey_pack);
  find("ucp_rkey_buffer_release", &api_.rkey_buffer_release);
  find("ucp_ep_rkey_unpack", &api_.ep_rkey_unpack);
  find("ucp_rkey_destroy", &api_.rkey_destroy);
  find("ucp_put_nbx", &api_.put_nbx);
  find("ucp_get_nbx", &api_.get_nbx);
  find("ucp_ep_flush_nbx", &api_.ep_flush_nbx);
  find("ucp_request_free", &api_.request_free);
  find("ucp_request_check_status", &api_.request_check_status);
  find("ucp_get_version_string", &api_.get_version_string);
  find("ucs_status_string", &api_.status_string);
  if (missing != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("UCX at ", path, " lacks ", missing, ": name another one in IRIS_UCX"));
  }
  version_ = api_.get_version_string();
  return absl::OkStatus();
}

absl::Status UcxWorker::Start(const UcxOptions& options) {
  transports_ = options.transports.empty() ? "tcp" : options.transports;
  direct_ = options.direct;
  ucp_config_t* config = nullptr;
  ucs_status_t status = api_.config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return Error("read the settings", status);
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  if (direct_) params.features |= UCP_FEATURE_RMA;
  status = api_.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &context_);
  api_.config_release(config);
  if (status != UCS_OK) {
    return Error(
        absl::StrCat("use the transports ", transports_,
                     options.devices.empty()
                         ? absl::StrCat(" on interface ", options.device, " (is it up?)")
                         : absl::StrCat(" on the devices ", options.devices, " (network.devices)")),
        status);
  }
  ucp_worker_params_t worker_params = {};
  worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE | UCP_WORKER_PARAM_FIELD_EVENTS;
  worker_params.thread_mode = UCS_THREAD_MODE_SINGLE;
  worker_params.events = UCP_WAKEUP_RX | UCP_WAKEUP_TX;
  status = api_.worker_create(context_, &worker_params, &worker_);
  if (status != UCS_OK) {
    return Error(absl::StrCat("listen on interface ", options.device,
                              options.port_min == 0
                                  ? ""
                                  : absl::StrCat(" at one of the ports ", options.port_min, "-",
                                                 options.port_max,
                                                 " (network.ports; a job takes two on each node)")),
                 status);
  }
  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.arg = this;
  handler.cb = [](void* arg, const void* header, size_t header_bytes, void* data, size_t bytes,
                  const ucp_am_recv_param_t* param) {
    // A peer of ours sends nothing by the protocol for which data must be fetched.
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
      static_cast<UcxWorker*>(arg)->handlers_.message(
          {static_cast<const char*>(header), header_bytes},
          {static_cast<const char*>(data), bytes});
    }
    return UCS_OK;
  };
  status = api_.worker_set_am_recv_handler(worker_, &handler);
  if (status != UCS_OK) return Error("receive active messages", status);
  status = api_.worker_get_efd(worker_, &event_fd_);
  if (status != UCS_OK) return Error("wait for events", status);
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  status = api_.worker_get_address(worker_, &address, &bytes);
  if (status != UCS_OK) return Error("ask for the worker's address", status);
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  api_.worker_release_address(worker_, address);
  return absl::OkStatus();
}

UcxWorker::~UcxWorker() {
  for (RemoteRegion* const each : remote_regions_) {
    api_.rkey_destroy(each->key_);
    each->worker_ = nullptr;
  }
  for (Region* const each : regions_) {
    (void)api_.mem_unmap(context_, each->handle_);
    each->worker_ = nullptr;
  }
  if (worker_ != nullptr) api_.worker_destroy(worker_);
  if (context_ != nullptr) api_.cleanup(context_);
  // The library stays: it may have threads.
}

bool UcxWorker::Arm() { return api_.worker_arm(worker_) == UCS_OK; }

absl::StatusOr<ucp_ep_h> UcxWorker::Connect(std::string_view address, void* tag) {
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  failures_.push_back(std::make_unique<Failure>(Failure{this, tag}));
  params.err_handler.arg = failures_.back().get();
  params.err_handler.cb = [](void* arg, ucp_ep_h, ucs_status_t status) {
    const Failure* failure = static_cast<const Failure*>(arg);
    failure->worker->handlers_.failed(failure->tag, failure->worker->api_.status_string(status));
  };
  ucp_ep_h endpoint = nullptr;
  const ucs_status_t status = api_.ep_create(worker_, &params, &endpoint);
  if (status != UCS_OK) return Error("make an endpoint", status);
  return endpoint;
}

void UcxWorker::Close(ucp_ep_h endpoint) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = api_.ep_close_nbx(endpoint, &param);
  if (!UCS_PTR_IS_PTR(request)) return;
  for (int i = 0; i < kCloseProgresses && api_.request_check_status(request) == UCS_INPROGRESS;
       ++i) {
    api_.worker_progress(worker_);
  }
  api_.request_free(request);
}

std::string UcxWorker::TransportOf(ucp_ep_h endpoint) const {
  // Later versions of UCX than the headers' have these fields after those of ucp_ep_attr_t.
  struct Entry {
    const char* transport;
    const char* device;
  };
  constexpr size_t kMost = 8;
  constexpr uint64_t kTransports = 1 << 3;
  Entry entries[kMost] = {};
  struct {
    ucp_ep_attr_t known;
    Entry* entries;
    unsigned n_entries;
    size_t entry_bytes;
    void* user_data;
  } attributes = {{}, entries, kMost, sizeof(Entry), nullptr};
  attributes.known.field_mask = kTransports;
  if (api_.ep_query(endpoint, &attributes.known) != UCS_OK) return "";
  std::set<std::string> names;
  for (unsigned i = 0; i < std::min<unsigned>(attributes.n_entries, kMost); ++i) {
    if (entries[i].transport == nullptr || entries[i].device == nullptr) continue;
    names.insert(absl::StrCat(entries[i].transport, "/", entries[i].device));
  }
  return absl::StrJoin(names, ",");
}

UcxWorker::Region::Region(UcxWorker* worker, ucp_mem_h handle, ucs_memory_type_t type)
    : worker_(worker), handle_(handle), type_(type) {
  worker_->regions_.insert(this);
}

UcxWorker::Region::~Region() {
  if (worker_ == nullptr) return;
  worker_->regions_.erase(this);
  (void)worker_->api_.mem_unmap(worker_->context_, handle_);
}

UcxWorker::RemoteRegion::RemoteRegion(UcxWorker* worker, ucp_rkey_h key)
    : worker_(worker), key_(key) {
  worker_->remote_regions_.insert(this);
}

UcxWorker::RemoteRegion::~RemoteRegion() {
  if (worker_ == nullptr) return;
  worker_->remote_regions_.erase(this);
  worker_->api_.rkey_destroy(key_);
}

absl::StatusOr<std::unique_ptr<UcxWorker::Region>> UcxWorker::Register(uint64_t address,
                                                                       uint64_t bytes,
                                                                       driver::UcxMemory memory) {
  // Without support for a GPU, UCX takes its memory for the host's, and crashes.
  ucp_context_attr_t known = {};
  known.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES;
  ucs_status_t status = api_.context_query(context_, &known);
  if (status != UCS_OK) return Error("ask which memory it supports", status);
  if ((known.memory_types & UCS_BIT(memory.type)) == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("UCX ", version_, " with the transports ", transports_,
                     " has no support for memory of the ", "GPU: add ", memory.transport,
                     " to network.transports, and install UCX's module for it"));
  }
  ucp_mem_map_params_t params = {};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = reinterpret_cast<void*>(address);
  params.length = bytes;
  params.memory_type = memory.type;
  ucp_mem_h handle = nullptr;
  status = api_.mem_map(context_, &params, &handle);
  if (status != UCS_OK) {
    return Error(absl::StrCat("register ", bytes, " bytes of a heap for direct access (the limit ",
                              "of locked memory, LimitMEMLOCK=, and the driver's peer memory ",
                              "module may be in the way)"),
                 status);
  }
  std::unique_ptr<Region> region(new Region(this, handle, memory.type));
  void* key = nullptr;
  size_t key_bytes = 0;
  status = api_.rkey_pack(context_, handle, &key, &key_bytes);
  if (status != UCS_OK) return Error("make the key of registered memory", status);
  region->key_.assign(static_cast<const char*>(key), key_bytes);
  api_.rkey_buffer_release(key);
  if (key_bytes <= kMaxKeyBytes) return region;
  return absl::FailedPreconditionError(absl::StrCat("UCX's key of registered memory has ",
                                                    key_bytes, " bytes: name fewer devices in ",
                                                    "network.devices"));
}

absl::StatusOr<std::unique_ptr<UcxWorker::RemoteRegion>> UcxWorker::UseKey(ucp_ep_h endpoint,
                                                                           std::string_view key) {
  // UCX does not know where the key ends. What it may take for more of it is 0.
  std::string padded(key);
  padded.resize(4 * kMaxKeyBytes);
  ucp_rkey_h remote = nullptr;
  const ucs_status_t status = api_.ep_rkey_unpack(endpoint, padded.data(), &remote);
  if (status != UCS_OK) return Error("use the key of a node's memory", status);
  return std::unique_ptr<RemoteRegion>(new RemoteRegion(this, remote));
}

ucp_request_param_t UcxWorker::Ends(SendTag* tag) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = tag;
  tag->worker = this;
  param.cb.send = [](void* request, ucs_status_t status, void* user_data) {
    SendTag* const sent = static_cast<SendTag*>(user_data);
    sent->worker->api_.request_free(request);
    sent->worker->handlers_.sent(sent, status == UCS_OK);
  };
  return param;
}

UcxWorker::Sent UcxWorker::SentOf(ucs_status_ptr_t request) {
  if (request == nullptr) return Sent::kNow;
  return UCS_PTR_IS_ERR(request) ? Sent::kFailed : Sent::kLater;
}

UcxWorker::Sent UcxWorker::Send(ucp_ep_h endpoint, std::string_view header, const void* data,
                                size_t bytes, SendTag* tag) {
  ucp_request_param_t param = Ends(tag);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;  // nothing to fetch, so that messages arrive in order
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  return SentOf(
      api_.am_send_nbx(endpoint, kMessageId, header.data(), header.size(), data, bytes, &param));
}

UcxWorker::Sent UcxWorker::Put(ucp_ep_h endpoint, const Region& from, uint64_t address,
                               uint64_t bytes, const RemoteRegion& key, uint64_t to, SendTag* tag) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memh = from.handle_;
  param.memory_type = from.type_;
  const ucs_status_ptr_t put =
      api_.put_nbx(endpoint, reinterpret_cast<const void*>(address), bytes, to, key.key_, &param);
  if (UCS_PTR_IS_ERR(put)) return Sent::kFailed;
  // UCX keeps the request until it is over. The flush says when that is.
  if (put != nullptr) api_.request_free(put);
  const ucp_request_param_t flush = Ends(tag);
  return SentOf(api_.ep_flush_nbx(endpoint, &flush));
}

UcxWorker::Sent UcxWorker::Get(ucp_ep_h endpoint, const Region& into, uint64_t address,
                               uint64_t bytes, const RemoteRegion& key, uint64_t from,
                               SendTag* tag) {
  ucp_request_param_t param = Ends(tag);
  param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memh = into.handle_;
  param.memory_type = into.type_;
  return SentOf(
      api_.get_nbx(endpoint, reinterpret_cast<void*>(address), bytes, from, key.key_, &param));
}

}  // namespace iris::port
