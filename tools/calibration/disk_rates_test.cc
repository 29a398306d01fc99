#include "tools/calibration/disk_rates.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/optim/state_file.h"
#include "megatron/plan/plan_facts.h"

namespace megatron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int64_t kMostBytes = 1 << 20;

std::string Entry(const std::string& name) {
  return absl::StrCat("hardware { name: '", name,
                      "' bf16_tflops: 100 memory_gib: 80 memory_gb_per_s: 2000 link_gb_per_s: 300 "
                      "domain: 8 network_gb_per_s: 25 }  # by hand\n");
}

class DiskRatesTest : public ::testing::Test {
 protected:
  DiskRatesTest() {
    request_.directory = ::testing::TempDir();
    request_.hardware = JoinPath(request_.directory, "disk_rates_test.textproto");
    request_.elements = 3 * StateFile::kExtentElements + 5;
  }

  void Write(const std::string& text) {
    const absl::Status written = WriteFileAtomically(PosixFileSystem(), request_.hardware, text);
    ASSERT_TRUE(written.ok()) << written;
  }
  std::string Read() const {
    return ReadFileToString(PosixFileSystem(), request_.hardware, kMostBytes).value_or("");
  }

  DiskRequest request_;
};

TEST_F(DiskRatesTest, WritesTheRatesAndTheRoomBesideWhatIsThere) {
  Write(Entry("mine"));
  const auto line = CalibrateDisk(PosixFileSystem(), request_);
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_THAT(*line, HasSubstr("mine: "));
  EXPECT_THAT(Read(), StartsWith(absl::StrCat("# The disk's figures are measured in ",
                                              request_.directory)));
  EXPECT_THAT(Read(), HasSubstr("# by hand"));
  const auto facts = ParsePlanFacts(Read());
  ASSERT_TRUE(facts.ok()) << facts.status();
  const Hardware& hardware = facts->hardware(0);
  EXPECT_GT(hardware.disk_read_gb_per_s(), 0);
  EXPECT_EQ(hardware.disk_write_gb_per_s(), hardware.disk_read_gb_per_s());
  EXPECT_GT(hardware.disk_gb(), 0);
  EXPECT_THAT(hardware.disk_directory(), StartsWith("/"));
  // The next one replaces them. The room is shared by more ranks.
  const double room = hardware.disk_gb();
  request_.ranks = 1000;
  ASSERT_TRUE(CalibrateDisk(PosixFileSystem(), request_).ok());
  EXPECT_EQ(Read().find("# The disk's"), Read().rfind("# The disk's"));
  EXPECT_LT(ParsePlanFacts(Read())->hardware(0).disk_gb(), room / 10);
}

TEST_F(DiskRatesTest, TheEntryIsNamedWhereThereAreSeveral) {
  const std::string both = Entry("mine") + Entry("other");
  Write(both);
  const auto refused = CalibrateDisk(PosixFileSystem(), request_);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("2 entries of hardware: --name says which"));
  request_.name = "nobody";
  EXPECT_THAT(CalibrateDisk(PosixFileSystem(), request_).status().message(),
              HasSubstr("there is no hardware 'nobody'"));
  EXPECT_EQ(Read(), both);
  request_.name = "other";
  ASSERT_TRUE(CalibrateDisk(PosixFileSystem(), request_).ok());
  const auto facts = ParsePlanFacts(Read());
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->hardware(0).disk_gb(), 0);
  EXPECT_GT(facts->hardware(1).disk_gb(), 0);
}

TEST_F(DiskRatesTest, ADiskWithoutRoomIsToldWithItsFreeBytes) {
  MemoryFileSystem disk;
  ASSERT_TRUE(disk.CreateDirs(request_.directory).ok());
  ASSERT_TRUE(WriteFileAtomically(disk, request_.hardware, Entry("mine")).ok());
  disk.set_free_bytes(1536);
  const absl::Status status = CalibrateDisk(disk, request_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(),
              HasSubstr(absl::StrCat("in '", request_.directory, "' and 1.50 KiB are free")));
  EXPECT_EQ(ReadFileToString(disk, request_.hardware, kMostBytes).value_or(""), Entry("mine"));
}

TEST_F(DiskRatesTest, AFolderThatIsNotThereIsTold) {
  Write(Entry("mine"));
  request_.directory = JoinPath(request_.directory, "nowhere");
  EXPECT_THAT(CalibrateDisk(PosixFileSystem(), request_).status().message(), HasSubstr("nowhere"));
  EXPECT_THAT(Read(), Not(HasSubstr("disk")));
}

}  // namespace
}  // namespace megatron
