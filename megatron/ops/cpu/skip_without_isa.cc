// Skips the tests of a program that MEGATRON_CPU_ISA asks to run with instructions that the
// processor lacks.
#include "gtest/gtest.h"
#include "megatron/ops/cpu/isa.h"

namespace megatron::ops {
namespace {

class SkipWithoutIsa : public ::testing::Environment {
 public:
  void SetUp() override {
    const absl::Status status = CheckCpu();
    if (absl::IsFailedPrecondition(status)) GTEST_SKIP() << status;
  }
};

const ::testing::Environment* const registered =
    ::testing::AddGlobalTestEnvironment(new SkipWithoutIsa);

}  // namespace
}  // namespace megatron::ops
