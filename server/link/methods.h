// Methods: every rpc of proto/iris/v1 with a number that identifies it between core and workers.
// Sessions call the first nine by the same numbers. Pure; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "proto/wire/frame.h"

namespace iris::server {

constexpr uint16_t NumberOf(wire::CallMethod method) { return static_cast<uint16_t>(method); }

enum class Method : uint16_t {
  kJoin = NumberOf(wire::CallMethod::kJoin),
  kMapped = NumberOf(wire::CallMethod::kMapped),
  kOperate = NumberOf(wire::CallMethod::kOperate),
  kGrowMapped = NumberOf(wire::CallMethod::kGrowMapped),
  kLeave = NumberOf(wire::CallMethod::kLeave),
  kResume = NumberOf(wire::CallMethod::kResume),
  kWatch = NumberOf(wire::CallMethod::kWatch),
  kBorrow = NumberOf(wire::CallMethod::kBorrow),
  kAwaitBarrier = NumberOf(wire::CallMethod::kAwaitBarrier),
  kGetStatus = 10,
  kListDevices = 11,
  kListJobs = 12,
  kListHeaps = 13,
  kListAllocations = 14,
  kListSessions = 15,
  kEvents = 16,
  kPeek = 17,
  kListWaits = 18,
  kDescribeJobs = 19,
  kListTenants = 20,
  kListNodes = 21,
};

struct MethodInfo {
  Method method;
  std::string_view name;  // as in the path of a gRPC call
  bool streams = false;   // the answer is a stream; otherwise it is one message, or a failure
};

inline constexpr std::array<MethodInfo, 21> kMethods = {{
    {Method::kJoin, "/iris.v1.HeapService/Join"},
    {Method::kMapped, "/iris.v1.HeapService/Mapped"},
    {Method::kOperate, "/iris.v1.HeapService/Operate"},
    {Method::kGrowMapped, "/iris.v1.HeapService/GrowMapped"},
    {Method::kLeave, "/iris.v1.HeapService/Leave"},
    {Method::kResume, "/iris.v1.HeapService/Resume"},
    {Method::kWatch, "/iris.v1.HeapService/Watch", /*streams=*/true},
    {Method::kBorrow, "/iris.v1.HeapService/Borrow"},
    {Method::kAwaitBarrier, "/iris.v1.HeapService/AwaitBarrier"},
    {Method::kGetStatus, "/iris.v1.AdminService/GetStatus"},
    {Method::kListDevices, "/iris.v1.AdminService/ListDevices"},
    {Method::kListJobs, "/iris.v1.AdminService/ListJobs"},
    {Method::kListHeaps, "/iris.v1.AdminService/ListHeaps"},
    {Method::kListAllocations, "/iris.v1.AdminService/ListAllocations"},
    {Method::kListSessions, "/iris.v1.AdminService/ListSessions"},
    {Method::kEvents, "/iris.v1.AdminService/Events", /*streams=*/true},
    {Method::kPeek, "/iris.v1.AdminService/Peek"},
    {Method::kListWaits, "/iris.v1.AdminService/ListWaits"},
    {Method::kDescribeJobs, "/iris.v1.AdminService/DescribeJobs"},
    {Method::kListTenants, "/iris.v1.AdminService/ListTenants"},
    {Method::kListNodes, "/iris.v1.AdminService/ListNodes"},
}};

constexpr bool IsAdmin(Method method) { return method >= Method::kGetStatus; }

// Returns null if no method has this number.
constexpr const MethodInfo* FindMethod(uint32_t number) {
  for (const MethodInfo& info : kMethods) {
    if (static_cast<uint16_t>(info.method) == number) return &info;
  }
  return nullptr;
}

}  // namespace iris::server
