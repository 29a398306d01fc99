#include "megatron/base/core_binding.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/thread_pool.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A tree like /sys.
class CoreBindingTest : public testing::Test {
 protected:
  CoreBindingTest() {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    sys_ = absl::StrCat(testing::TempDir(), "/", test->name());
    std::filesystem::remove_all(sys_);
  }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = sys_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  // Two nodes of `cores` cores with two threads each, numbered as Linux does: the second threads of
  // all cores come behind the first ones.
  void WriteTwoNodes(int cores) const {
    Write("/devices/system/node/online", "0-1\n");
    for (int node = 0; node < 2; ++node) {
      const int first = node * cores, second = first + 2 * cores;
      Write(
          absl::StrCat("/devices/system/node/node", node, "/cpulist"),
          absl::StrCat(first, "-", first + cores - 1, ",", second, "-", second + cores - 1, "\n"));
      for (int i = 0; i < cores; ++i) {
        for (const int thread : {first + i, second + i}) {
          Write(absl::StrCat("/devices/system/cpu/cpu", thread, "/topology/thread_siblings_list"),
                absl::StrCat(first + i, ",", second + i, "\n"));
        }
      }
    }
  }

  static std::vector<int> UpTo(int count) {
    std::vector<int> numbers;
    for (int i = 0; i < count; ++i) numbers.push_back(i);
    return numbers;
  }

  std::string sys_;
};

TEST_F(CoreBindingTest, ListsAreThoseOfLinux) {
  EXPECT_THAT(ParseNumberList("0-3,8,10-11\n"), IsOkAndHolds(ElementsAre(0, 1, 2, 3, 8, 10, 11)));
  EXPECT_THAT(ParseNumberList("7"), IsOkAndHolds(ElementsAre(7)));
  EXPECT_THAT(ParseNumberList("8191"), IsOkAndHolds(ElementsAre(8191)));
  EXPECT_THAT(ParseNumberList("\n"), IsOkAndHolds(IsEmpty()));
  const std::vector<int> numbers = {0, 1, 2, 3, 8, 10, 11};
  EXPECT_EQ(NumberList(numbers), "0-3,8,10-11");
  EXPECT_EQ(NumberList({}), "");
}

TEST_F(CoreBindingTest, OtherTextIsRefused) {
  for (const char* text : {"a",
                           "-",
                           "-1",
                           "1-",
                           "3-1",
                           "1,1",
                           "2,1",
                           "0-3,3",
                           "1,,2",
                           ",1",
                           "1,",
                           "0-8192",
                           "8192",
                           "99999999999999999999",
                           "0-4294967296",
                           "0x10",
                           "1 2",
                           "+1",
                           "1-2-3",
                           "0-3:1/2"}) {
    EXPECT_THAT(ParseNumberList(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
  EXPECT_THAT(ParseNumberList(std::string("1\0002", 3)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_LT(ParseNumberList(std::string(1 << 20, '7')).status().message().size(), 300u);
}

TEST_F(CoreBindingTest, ANodeHasCoresWithTheirThreads) {
  WriteTwoNodes(/*cores=*/2);
  const auto machine = ReadCoreTopology(sys_, UpTo(8));
  ASSERT_THAT(machine, absl_testing::IsOk());
  ASSERT_EQ(machine->nodes.size(), 2u);
  EXPECT_THAT(machine->nodes[0].cores, ElementsAre(ElementsAre(0, 4), ElementsAre(1, 5)));
  EXPECT_THAT(machine->nodes[1].cores, ElementsAre(ElementsAre(2, 6), ElementsAre(3, 7)));
}

TEST_F(CoreBindingTest, ThreadsThatAreNotAllowedAreLeftOut) {
  WriteTwoNodes(/*cores=*/2);
  const std::vector<int> allowed = {1, 4, 5};
  const auto machine = ReadCoreTopology(sys_, allowed);
  ASSERT_THAT(machine, absl_testing::IsOk());
  ASSERT_EQ(machine->nodes.size(), 1u);
  EXPECT_THAT(machine->nodes[0].cores, ElementsAre(ElementsAre(4), ElementsAre(1, 5)));
}

TEST_F(CoreBindingTest, AKernelWithoutNodesHasOne) {
  const auto machine = ReadCoreTopology(sys_, UpTo(3));
  ASSERT_THAT(machine, absl_testing::IsOk());
  ASSERT_EQ(machine->nodes.size(), 1u);
  EXPECT_THAT(machine->nodes[0].cores, ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
}

TEST_F(CoreBindingTest, HostileTreesAreErrors) {
  Write("/devices/system/node/online", "0-99999999\n");
  EXPECT_THAT(ReadCoreTopology(sys_, UpTo(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("node/online")));
  Write("/devices/system/node/online", "0-1\n");
  EXPECT_THAT(ReadCoreTopology(sys_, UpTo(2)), StatusIs(absl::StatusCode::kNotFound));
  Write("/devices/system/node/node1/cpulist", "zero\n");
  EXPECT_THAT(ReadCoreTopology(sys_, UpTo(2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("node1/cpulist")));
  // Two nodes that claim the same threads, and siblings that are no siblings.
  Write("/devices/system/node/node0/cpulist", "0-1\n");
  Write("/devices/system/node/node1/cpulist", "0-1\n");
  Write("/devices/system/cpu/cpu0/topology/thread_siblings_list", "5\n");
  const auto machine = ReadCoreTopology(sys_, UpTo(2));
  ASSERT_THAT(machine, absl_testing::IsOk());
  ASSERT_EQ(machine->nodes.size(), 1u);
  EXPECT_THAT(machine->nodes[0].cores, ElementsAre(ElementsAre(0), ElementsAre(1)));
}

TEST_F(CoreBindingTest, TheNodeOfADeviceIsTheOneThatItsFileNames) {
  Write("/bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
  Write("/bus/pci/devices/0000:5e:00.0/numa_node", "-1\n");
  Write("/secret/numa_node", "1\n");
  EXPECT_EQ(NodeOfPciDevice(sys_, "0000:3B:00.0"), 1);
  EXPECT_EQ(NodeOfPciDevice(sys_, "0000:5E:00.0"), std::nullopt);
  EXPECT_EQ(NodeOfPciDevice(sys_, "0000:00:00.0"), std::nullopt);
  EXPECT_EQ(NodeOfPciDevice(sys_, "../../../secret"), std::nullopt);
  EXPECT_EQ(NodeOfPciDevice(sys_, ""), std::nullopt);
}

TEST_F(CoreBindingTest, RanksShareTheCoresOfTheirNodes) {
  WriteTwoNodes(/*cores=*/4);
  const auto machine = ReadCoreTopology(sys_, UpTo(16));
  ASSERT_THAT(machine, absl_testing::IsOk());
  // Without GPUs: two ranks for each node.
  const std::vector<std::optional<int>> none(4);
  EXPECT_EQ(NumberList(ShareOfRank(*machine, none, 0).threads), "0-1,8-9");
  EXPECT_EQ(NumberList(ShareOfRank(*machine, none, 1).threads), "2-3,10-11");
  EXPECT_EQ(NumberList(ShareOfRank(*machine, none, 2).threads), "4-5,12-13");
  EXPECT_EQ(ShareOfRank(*machine, none, 2).node, 1);
  EXPECT_EQ(NumberList(ShareOfRank(*machine, none, 3).threads), "6-7,14-15");
  // The GPUs of three ranks are at node 1, and the last one's is at a node without cores.
  const std::vector<std::optional<int>> nearest = {1, 1, 1, 7};
  EXPECT_EQ(NumberList(ShareOfRank(*machine, nearest, 0).threads), "4,12");
  EXPECT_EQ(NumberList(ShareOfRank(*machine, nearest, 1).threads), "5,13");
  EXPECT_EQ(NumberList(ShareOfRank(*machine, nearest, 2).threads), "6,14");
  EXPECT_EQ(NumberList(ShareOfRank(*machine, nearest, 3).threads), "7,15");
  // More ranks than cores have all of them.
  const std::vector<std::optional<int>> many(10);
  EXPECT_EQ(NumberList(ShareOfRank(*machine, many, 9).threads), "4-7,12-15");
  const std::vector<std::optional<int>> one(1);
  EXPECT_EQ(NumberList(ShareOfRank(*machine, one, 0).threads), "0-3,8-11");
}

// Each core of a node belongs to one rank, for any numbers of them.
TEST_F(CoreBindingTest, SharesCoverANodeOnce) {
  for (int cores = 1; cores <= 9; ++cores) {
    std::filesystem::remove_all(sys_);
    WriteTwoNodes(cores);
    const auto machine = ReadCoreTopology(sys_, UpTo(4 * cores));
    ASSERT_THAT(machine, absl_testing::IsOk());
    for (int ranks = 2; ranks <= 2 * cores; ranks += 2) {
      const std::vector<std::optional<int>> none(ranks);
      std::vector<int> all;
      for (int rank = 0; rank < ranks; ++rank) {
        const CoreShare share = ShareOfRank(*machine, none, rank);
        EXPECT_FALSE(share.threads.empty());
        all.insert(all.end(), share.threads.begin(), share.threads.end());
      }
      std::sort(all.begin(), all.end());
      EXPECT_EQ(all, UpTo(4 * cores)) << cores << " cores, " << ranks << " ranks";
    }
  }
}

// The machine that runs the test.
TEST_F(CoreBindingTest, ThreadsThatABoundThreadMakesAreBound) {
  const std::vector<int> allowed = AllowedThreads();
  ASSERT_FALSE(allowed.empty());
  const auto machine = ReadCoreTopology("/sys", allowed);
  ASSERT_THAT(machine, absl_testing::IsOk());
  std::thread rank([&] {
    const std::vector<int> last = {allowed.back()};
    ASSERT_THAT(BindThisThread(last), absl_testing::IsOk());
    EXPECT_EQ(AllowedThreads(), last);
    ThreadPool pool(3);
    pool.ParallelFor(3, [&](int64_t, int64_t) { EXPECT_EQ(AllowedThreads(), last); });
  });
  rank.join();
  EXPECT_EQ(AllowedThreads(), allowed);
}

TEST_F(CoreBindingTest, CoresThatAreNotThereAreAnError) {
  std::thread rank([] {
    const std::vector<int> none = {8191};
    EXPECT_THAT(BindThisThread(none),
                StatusIs(testing::_, HasSubstr("cannot bind a thread to cores 8191")));
  });
  rank.join();
}

}  // namespace
}  // namespace megatron
