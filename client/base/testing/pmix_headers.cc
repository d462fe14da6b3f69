// Compares pmix_api.h with PMIx's own headers. Compiled, never run, by pmix_headers_test.py.
#include <pmix.h>

#include <cstddef>
#include <string_view>
#include <type_traits>

#include "client/base/pmix_api.h"

namespace iris::base {
namespace {

static_assert(sizeof(PmixProc) == sizeof(pmix_proc_t) &&
              offsetof(PmixProc, rank) == offsetof(pmix_proc_t, rank));
static_assert(sizeof(PmixValue) == sizeof(pmix_value_t) &&
              offsetof(PmixValue, data) == offsetof(pmix_value_t, data));
static_assert(sizeof(PmixInfo) == sizeof(pmix_info_t) &&
              offsetof(PmixInfo, flags) == offsetof(pmix_info_t, flags) &&
              offsetof(PmixInfo, value) == offsetof(pmix_info_t, value));

static_assert(PmixValue::kBool == PMIX_BOOL && PmixValue::kString == PMIX_STRING &&
              PmixValue::kUint32 == PMIX_UINT32);
static_assert(kPmixSuccess == PMIX_SUCCESS && kPmixGlobal == PMIX_GLOBAL);
static_assert(kPmixWildcard == PMIX_RANK_WILDCARD);
static_assert(kPmixCollectData == std::string_view(PMIX_COLLECT_DATA));
static_assert(kPmixJobSize == std::string_view(PMIX_JOB_SIZE));
static_assert(kPmixHostname == std::string_view(PMIX_HOSTNAME));

// A function of ours with the types of theirs, of which each pointer is to a type of one size.
template <typename Ours, typename Theirs>
constexpr bool kSame = false;
template <typename... A, typename... B>
constexpr bool kSame<int (*)(A...), int(B...)> =
    ((sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>)&&...);

static_assert(kSame<decltype(PmixApi::Init), decltype(PMIx_Init)>);
static_assert(kSame<decltype(PmixApi::Finalize), decltype(PMIx_Finalize)>);
static_assert(kSame<decltype(PmixApi::Put), decltype(PMIx_Put)>);
static_assert(kSame<decltype(PmixApi::Commit), decltype(PMIx_Commit)>);
static_assert(kSame<decltype(PmixApi::Fence), decltype(PMIx_Fence)>);
static_assert(kSame<decltype(PmixApi::Get), decltype(PMIx_Get)>);
static_assert(std::is_same_v<decltype(PmixApi::Error_string), decltype(&PMIx_Error_string)>);

}  // namespace
}  // namespace iris::base
