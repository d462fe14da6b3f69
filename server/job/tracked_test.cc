#include "server/job/tracked.h"

#include <deque>
#include <map>
#include <string>
#include <type_traits>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace iris::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Map = Tracked<std::map<int, std::string>>;

TEST(TrackedTest, WhoeverCanWriteHasMarked) {
  Map map;
  map.emplace(3, "c");
  map[1] = "a";
  EXPECT_THAT(map.marks().All(), ElementsAre(1, 3));
  map.ClearMarks();
  EXPECT_THAT(map.marks().All(), IsEmpty());
  map.at(3) = "C";
  *map.Find(1) = "A";
  EXPECT_EQ(map.Find(2), nullptr);
  EXPECT_THAT(map.marks().All(), ElementsAre(1, 3));
  map.ClearMarks();
  map.erase(1);
  map.erase(7);
  EXPECT_THAT(map.marks().All(), ElementsAre(1, 7));
}

TEST(TrackedTest, ReadingMarksNothingAndGivesNothingToWrite) {
  Map map;
  map.emplace(1, "a");
  map.ClearMarks();
  for (const auto& [key, value] : map) EXPECT_EQ(std::as_const(map).at(key), value);
  EXPECT_NE(map.find(1), map.end());
  EXPECT_THAT(map.marks().All(), IsEmpty());
  static_assert(std::is_const_v<std::remove_reference_t<decltype((map.find(1)->second))>>);
  static_assert(std::is_const_v<std::remove_reference_t<decltype(*map.begin())>>);
}

TEST(TrackedTest, AKeyOfTheEntryItselfCanBeErased) {
  Map map;
  map.emplace(1, "a");
  map.erase(map.begin()->first);
  EXPECT_TRUE(map.empty());
  EXPECT_THAT(map.marks().All(), ElementsAre(1));
}

TEST(TrackedTest, AVectorMarksPlaces) {
  TrackedVector<int> vector;
  vector.resize(3);
  EXPECT_THAT(vector.marks().All(), ElementsAre(0u, 1u, 2u));
  vector.ClearMarks();
  vector[1] = 5;
  EXPECT_EQ(std::as_const(vector)[2], 0);
  EXPECT_THAT(vector.marks().All(), ElementsAre(1u));
}

TEST(TrackedTest, AQueueKnowsWhatIsNewAtItsEnd) {
  TrackedQueue<int> queue;
  queue.push_back(1);
  queue.push_back(2);
  queue.ClearMarks();
  queue.push_back(3);
  queue.pop_front();
  EXPECT_EQ(queue.n_new(), 1u);
  queue.pop_front();
  queue.pop_front();
  EXPECT_EQ(queue.n_new(), 0u);
}

TEST(TrackedTest, AWatchedValueIsNewUntilItIsCleared) {
  Watched<std::string> value(std::string("a"));
  EXPECT_TRUE(value.changed());
  value.ClearMarks();
  EXPECT_EQ(value->size(), 1u);
  EXPECT_FALSE(value.changed());
  value.Change() += "b";
  EXPECT_TRUE(value.changed());
}

TEST(TrackedTest, ABoxKeepsConst) {
  Box<int> box;
  *box = 3;
  static_assert(std::is_const_v<std::remove_reference_t<decltype(*std::as_const(box))>>);
  EXPECT_EQ(*std::as_const(box), 3);
}

}  // namespace
}  // namespace iris::server
