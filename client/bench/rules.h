// From figures of collectives to the rules of a table. Pure functions.
#pragma once

#include <vector>

#include "client/bench/figures.h"

namespace iris::bench {

// Rules for all operations, rank counts and sizes that were measured, in an order that says what
// each figure says: of operations as they come, of ranks and bytes ascending, the last without
// limit.
//
// Of figures within 2 % of the fastest, the one with the fewest threads on the device decides. A
// rule reaches to the geometric middle between the last size that it won and the next one. Behind
// rules of the copy engine, which are passed over without Config::symmetric, come those that won
// without it.
std::vector<CollectiveRule> MakeRules(const std::vector<CollectiveFigure>& figures);

}  // namespace iris::bench
