// The communicator over the real NCCL, with as many ranks as there are GPUs. One GPU shows that
// NCCL connects, splits, enqueues, tells of errors and ends; what ranks send each other takes more.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/base/thread_pool.h"
#include "megatron/comm/communicator.h"
#include "megatron/comm/communicator_conformance.h"
#include "megatron/comm/nccl/nccl_api.h"
#include "megatron/comm/nccl/nccl_communicator.h"
#include "megatron/comm/nccl/nccl_group.h"
#include "megatron/comm/thread/run_ranks.h"
#include "megatron/tensor/cuda_device.h"
#include "megatron/tensor/host_mirror.h"
#include "megatron/tensor/memory.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::testing::HasSubstr;

absl::Status RunConformance(int size, const ConformanceRank& rank) {
  ThreadWorld threads(size);
  return RunRanks(&threads, [&](int number, const ProcessGroup& host) -> absl::Status {
    CudaStream cuda(number);
    NcclWorldOptions options;
    options.device = number;
    options.compare_calls = options.sum_in_rank_order = true;
    MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<NcclWorld> world,
                              NcclWorld::Create(NcclLibrary(), host.communicator(), options));
    return rank(ProcessGroup(world->communicator()), Stream::Cuda(number, &cuda));
  });
}

std::vector<ConformanceCase> CasesThatFit() {
  std::vector<ConformanceCase> cases = ConformanceCases(RunConformance);
  cases.erase(std::remove_if(cases.begin(), cases.end(),
                             [](const auto& one) { return one.size > CudaDeviceCount(); }),
              cases.end());
  return cases;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorConformanceTest);
INSTANTIATE_TEST_SUITE_P(Nccl, CommunicatorConformanceTest, ::testing::ValuesIn(CasesThatFit()),
                         ConformanceCaseName);

class NcclDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (CudaDeviceCount() == 0) {
      if (std::getenv("MEGATRON_REQUIRE_GPU") != nullptr) GTEST_FAIL() << "there is no GPU";
      GTEST_SKIP() << "there is no GPU";
    }
    cuda_ = std::make_unique<CudaStream>(0);
    buffer_ = Buffer({DeviceType::kCuda, 0}, 2 * kCount * sizeof(float), "test", nullptr);
    in_ = buffer_.At(0, DType::kFloat32, {kCount});
    out_ = buffer_.At(kCount * sizeof(float), DType::kFloat32, {kCount});
    FillIn();
  }

  Stream stream() const { return Stream::Cuda(0, cuda_.get()); }

  void FillIn() const {
    const HostMirror mirror(in_, "test");
    for (int64_t i = 0; i < kCount; ++i) mirror.host().data<float>()[i] = static_cast<float>(i);
    mirror.Send(stream());
  }

  void ExpectWhatWasFilledIn(const Tensor& tensor, const std::string& what) const {
    const HostMirror mirror(tensor, "test");
    mirror.Fetch(stream());
    for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(mirror.host().data<float>()[i], i) << what;
  }

  static constexpr int64_t kCount = 1000;
  std::unique_ptr<CudaStream> cuda_;
  Buffer buffer_;
  Tensor in_, out_;
};

TEST_F(NcclDeviceTest, AWorldOfOneRankRunsEveryCollective) {
  ThreadWorld threads(1);
  auto world = NcclWorld::Create(NcclLibrary(), threads.communicator(0), {});
  ASSERT_THAT(world, IsOk());
  Communicator& communicator = *(*world)->communicator();
  const std::vector<int64_t> all = {kCount};
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kBroadcast, Collective::kAllGather,
        Collective::kReduceScatter, Collective::kAllToAll, Collective::kAllToAllV,
        Collective::kBarrier}) {
    CollectiveCall call;
    call.collective = collective;
    const bool in_place =
        collective == Collective::kAllReduce || collective == Collective::kBroadcast;
    if (collective != Collective::kBarrier) call.in = in_;
    if (collective != Collective::kBarrier && !in_place) call.out = out_;
    if (collective == Collective::kAllToAllV) call.send_counts = call.receive_counts = all;
    const HostMirror zeros(out_, "test");
    zeros.Send(stream());
    communicator.Run(call, stream());
    ASSERT_THAT(communicator.status(), IsOk()) << Name(collective);
    ExpectWhatWasFilledIn(in_place || call.out.empty() ? in_ : out_, Name(collective));
  }
}

TEST_F(NcclDeviceTest, AGroupIsSplitOffAndUsedBesideItsParent) {
  ThreadWorld threads(1);
  const NcclGroupOptions options = {0, absl::Minutes(1), absl::Minutes(1)};
  NcclGroup parent(NcclLibrary(), threads.communicator(0), options);
  NcclGroup child(NcclLibrary(), threads.communicator(0), options);
  NcclUniqueId id;
  ASSERT_EQ(NcclLibrary()->GetUniqueId(&id), kNcclSuccess);
  ASSERT_THAT(parent.Initialize(id), IsOk());
  ASSERT_THAT(parent.Split(0, 0, &child), IsOk());
  for (int i = 0; i < 100; ++i) {
    for (NcclGroup* group : {&parent, &child}) {
      ASSERT_THAT(group->Enqueue(
                      "all-reduce",
                      [&](ncclComm* comm) {
                        return NcclLibrary()->AllReduce(in_, ReduceOp::kSum, comm, stream());
                      },
                      stream()),
                  IsOk());
      ASSERT_THAT(group->Watch(SteadyNow()), IsOk());
    }
  }
  ExpectWhatWasFilledIn(in_, "after all");
  child.Finish(absl::Seconds(10));
  parent.Abort();
}

TEST_F(NcclDeviceTest, NcclRefusesTwoRanksOnOneGpu) {
  ThreadWorld threads(2);
  const absl::Status status = RunRanks(&threads, [&](int, const ProcessGroup& host) {
    const CudaStream cuda(0);
    return NcclWorld::Create(NcclLibrary(), host.communicator(), {}).status();
  });
  EXPECT_THAT(std::string(status.message()), HasSubstr("ncclInvalidUsage"));
}

TEST(NcclLibraryTest, TheVersionIsNumbersSeparatedByPoints) {
  EXPECT_THAT(NcclLibrary()->Version(), testing::StartsWith("2."));
}

}  // namespace
}  // namespace megatron
