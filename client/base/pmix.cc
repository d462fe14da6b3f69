#include "client/base/pmix.h"

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/base/annotate.h"
#include "client/base/meeting_place.h"
#include "client/base/thread.h"

namespace iris::base {
namespace {

// The text of a value of PMIx, which must fit: "HOST:PORT SECRET".
constexpr size_t kMaxTextBytes = 512;

struct ValueDeleter {
  void operator()(PmixValue* value) const {
    if (value->type == PmixValue::kString) std::free(value->data.string);
    std::free(value);
  }
};
using Value = std::unique_ptr<PmixValue, ValueDeleter>;

// Ends the client that the first exchange of this process has begun.
struct Client {
  pid_t pid = 0;
  int (*finalize)(const PmixInfo*, size_t) = nullptr;
};
void FinalizeAtExit(const Client* set = nullptr) {
  static Client client;
  if (set != nullptr) {
    client = *set;
  } else if (client.pid == getpid()) {  // the thread of PMIx does not live in a forked child
    (void)client.finalize(nullptr, 0);
  }
}

// One exchange. `number` counts those of this process: the library keeps old values of a key.
class Exchange {
 public:
  Exchange(const PmixApi& api, const NodeOfRank& node, int number)
      : api_(api), node_(node), number_(number) {}

  absl::StatusOr<Meeting> Run() {
    if (absl::Status s = Check("PMIx_Init", api_.Init(&self_, nullptr, 0)); !s.ok()) return s;
    if (number_ == 1) {
      const Client client = {getpid(), api_.Finalize};
      FinalizeAtExit(&client);
      std::atexit([] { FinalizeAtExit(); });
    }
    absl::StatusOr<Meeting> meeting = Meet();
    if (number_ != 1) (void)api_.Finalize(nullptr, 0);
    return meeting;
  }

 private:
  absl::Status Check(const char* call, int status) const {
    if (status == kPmixSuccess) return absl::OkStatus();
    const char* const text = api_.Error_string(status);
    return absl::FailedPreconditionError(
        absl::StrCat(call, ": ", text == nullptr ? "" : text, " (", status, ")"));
  }

  absl::StatusOr<Value> Get(uint32_t rank, const std::string& key, PmixValue::Type type) const {
    PmixProc of = self_;
    of.rank = rank;
    PmixValue* found = nullptr;
    const int status = api_.Get(&of, key.c_str(), nullptr, 0, &found);
    Value value(found);
    if (absl::Status s = Check("PMIx_Get", status); !s.ok()) return s;
    if (value == nullptr || value->type != type ||
        (type == PmixValue::kString && value->data.string == nullptr)) {
      return absl::InvalidArgumentError(absl::StrCat("PMIx_Get: ", key, " has another type"));
    }
    return value;
  }

  absl::StatusOr<Meeting> Meet() const {
    const auto size = Get(kPmixWildcard, kPmixJobSize, PmixValue::kUint32);
    if (!size.ok()) return size.status();
    if (self_.rank != static_cast<uint32_t>(node_.rank) ||
        (*size)->data.uint32 != static_cast<uint32_t>(node_.n_ranks)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the server says that this is rank ", self_.rank, " of ",
                       (*size)->data.uint32, ", and not ", node_.rank, " of ", node_.n_ranks));
    }
    const std::string key = absl::StrCat("iris.", number_);
    if (node_.rank == 0) {
      if (absl::Status s = Offer(key); !s.ok()) return s;
    }
    PmixInfo collect;
    std::strncpy(collect.key, kPmixCollectData, sizeof(collect.key) - 1);
    collect.value.type = PmixValue::kBool;
    collect.value.data.flag = true;
    if (absl::Status s = Check("PMIx_Fence", api_.Fence(nullptr, 0, &collect, 1)); !s.ok()) {
      return s;
    }
    const auto told = Get(0, key, PmixValue::kString);
    if (!told.ok()) return told.status();
    return Parse((*told)->data.string);
  }

  // Gives the others what this rank chooses.
  absl::Status Offer(const std::string& key) const {
    const int port = FreePort();
    if (port == 0) return absl::ResourceExhaustedError("no port from 20000 to 29999 is free");
    const absl::StatusOr<std::string> secret = FreshSecret();
    if (!secret.ok()) return secret.status();
    std::string text = absl::StrCat(HostAndPort(OwnHost(), port), " ", *secret);
    PmixValue value;
    value.type = PmixValue::kString;
    value.data.string = text.data();
    if (absl::Status s = Check("PMIx_Put", api_.Put(kPmixGlobal, key.c_str(), &value)); !s.ok()) {
      return s;
    }
    return Check("PMIx_Commit", api_.Commit());
  }

  // Returns this host's address on the way to the next node, which the launcher has a name for;
  // this host's own name if that is not known here.
  std::string OwnHost() const {
    const auto next = Get(static_cast<uint32_t>(node_.n_local), kPmixHostname, PmixValue::kString);
    std::string own = next.ok() ? AddressToward((*next)->data.string) : "";
    if (!own.empty()) return own;
    char name[HOST_NAME_MAX + 1] = {};
    (void)gethostname(name, sizeof(name) - 1);
    return name;
  }

  static absl::StatusOr<Meeting> Parse(const char* text) {
    const std::vector<std::string> words =
        absl::StrSplit(absl::string_view(text, strnlen(text, kMaxTextBytes)), ' ');
    if (words.size() != 2) {
      return absl::InvalidArgumentError("rank 0 has said something else, perhaps by another Iris");
    }
    if (absl::Status s = CheckRendezvous("rank 0's word", words[0]); !s.ok()) return s;
    absl::StatusOr<std::string> secret = ReadSecret("rank 0's word", words[1]);
    if (!secret.ok()) return secret.status();
    return Meeting{words[0], *std::move(secret)};
  }

  const PmixApi api_;
  const NodeOfRank node_;
  const int number_;
  PmixProc self_;
};

}  // namespace

absl::StatusOr<PmixApi> OpenPmix() {
  constexpr char kLibrary[] = "libpmix.so.2";
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::NotFoundError(absl::StrCat("cannot open ", kLibrary, ": ", dlerror()));
  }
  PmixApi api = {};
  std::string missing;
  const auto load = [&](auto* function, const char* name) {
    void* const found = dlsym(library, name);
    if (found == nullptr) absl::StrAppend(&missing, " ", name);
    *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(found);
  };
  load(&api.Init, "PMIx_Init");
  load(&api.Finalize, "PMIx_Finalize");
  load(&api.Put, "PMIx_Put");
  load(&api.Commit, "PMIx_Commit");
  load(&api.Fence, "PMIx_Fence");
  load(&api.Get, "PMIx_Get");
  load(&api.Error_string, "PMIx_Error_string");
  if (missing.empty()) return api;
  return absl::FailedPreconditionError(absl::StrCat(kLibrary, " lacks", missing));
}

absl::StatusOr<Meeting> MeetByPmix(const absl::StatusOr<PmixApi>& api, const NodeOfRank& node,
                                   absl::Duration timeout) {
  static std::atomic<int> n_exchanges = 0;
  const auto fail = [](const absl::Status& why) {
    return internal::Annotate(why, "the ranks could not meet by the launcher's PMIx server");
  };
  if (!api.ok()) return fail(api.status());
  std::promise<absl::StatusOr<Meeting>> promise;
  std::future<absl::StatusOr<Meeting>> future = promise.get_future();
  // Servers do not heed all timeouts of PMIx.
  std::thread thread = internal::StartThread(
      [promise = std::move(promise), exchange = Exchange(*api, node, ++n_exchanges)]() mutable {
        promise.set_value(exchange.Run());
      });
  if (future.wait_for(absl::ToChronoNanoseconds(timeout)) != std::future_status::ready) {
    thread.detach();
    return fail(absl::DeadlineExceededError(
        absl::StrCat("it, or a rank, has not come within ", absl::FormatDuration(timeout))));
  }
  thread.join();
  absl::StatusOr<Meeting> meeting = future.get();
  return meeting.ok() ? std::move(meeting) : fail(meeting.status());
}

}  // namespace iris::base
