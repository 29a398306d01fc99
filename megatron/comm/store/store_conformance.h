// The tests of what every Store must do. An implementation registers them:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, StoreConformanceTest, ::testing::Values(NewMemoryStore));
#ifndef MEGATRON_COMM_STORE_STORE_CONFORMANCE_H_
#define MEGATRON_COMM_STORE_STORE_CONFORMANCE_H_

#include <functional>
#include <memory>

#include "gtest/gtest.h"
#include "megatron/comm/store/store.h"

namespace megatron {

// An empty store, with whatever serves it.
using StoreFactory = std::function<std::shared_ptr<Store>()>;

class StoreConformanceTest : public ::testing::TestWithParam<StoreFactory> {};

}  // namespace megatron

#endif  // MEGATRON_COMM_STORE_STORE_CONFORMANCE_H_
