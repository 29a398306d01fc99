#include "megatron/comm/store/memory_store.h"

#include <memory>

#include "gtest/gtest.h"
#include "megatron/comm/store/store_conformance.h"

namespace megatron {
namespace {

std::shared_ptr<Store> NewMemoryStore() { return std::make_shared<MemoryStore>(); }

INSTANTIATE_TEST_SUITE_P(Memory, StoreConformanceTest, ::testing::Values(NewMemoryStore));

}  // namespace
}  // namespace megatron
