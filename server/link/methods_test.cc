#include "server/link/methods.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace iris::server {
namespace {

TEST(MethodsTest, NumbersAndNamesAreDifferent) {
  std::set<uint16_t> numbers;
  std::set<std::string_view> names;
  for (const MethodInfo& info : kMethods) {
    EXPECT_TRUE(numbers.insert(static_cast<uint16_t>(info.method)).second) << info.name;
    EXPECT_TRUE(names.insert(info.name).second) << info.name;
    EXPECT_NE(static_cast<uint16_t>(info.method), 0) << "zero is no method";
  }
}

TEST(MethodsTest, AreFoundByNumber) {
  for (const MethodInfo& info : kMethods) {
    EXPECT_EQ(FindMethod(static_cast<uint16_t>(info.method)), &info);
  }
  EXPECT_EQ(FindMethod(0), nullptr);
  EXPECT_EQ(FindMethod(22), nullptr);
  EXPECT_EQ(FindMethod(65535), nullptr);
}

TEST(MethodsTest, TheAdminServicesAreKnown) {
  for (const MethodInfo& info : kMethods) {
    EXPECT_EQ(IsAdmin(info.method), info.name.find("AdminService") != std::string_view::npos)
        << info.name;
  }
}

TEST(MethodsTest, WatchAndEventsStream) {
  std::set<std::string_view> streams;
  for (const MethodInfo& info : kMethods) {
    if (info.streams) streams.insert(info.name);
  }
  EXPECT_EQ(streams, (std::set<std::string_view>{"/iris.v1.HeapService/Watch",
                                                 "/iris.v1.AdminService/Events"}));
}

}  // namespace
}  // namespace iris::server
