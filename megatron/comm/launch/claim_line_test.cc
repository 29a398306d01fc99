#include "megatron/comm/launch/claim_line.h"

#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Optional;
using ::testing::StartsWith;

TEST(ClaimLineTest, ALineHasTheDirectory) {
  for (const std::string directory :
       {"/data/run", "a run with \"quotes\"\tand\nlines", "\xc3\xb6lig"}) {
    testing::internal::CaptureStderr();
    AskForClaim(directory);
    std::string line = testing::internal::GetCapturedStderr();
    ASSERT_THAT(line, EndsWith("\n"));
    line.pop_back();
    EXPECT_THAT(line, testing::Not(HasSubstr("\n")));
    EXPECT_THAT(ReadClaimLine(line), Optional(directory));

    testing::internal::CaptureStderr();
    EXPECT_TRUE(PassClaimLineOn(line));
    EXPECT_EQ(testing::internal::GetCapturedStderr(), line + "\n");
  }
}

TEST(ClaimLineTest, OtherLinesAskForNothing) {
  testing::internal::CaptureStderr();
  for (const char* line : {"", "error: /data/run", "launch: starting again in 1s",
                           "[rank 0] megatron claims the directory /data/run"}) {
    EXPECT_EQ(ReadClaimLine(line), std::nullopt) << line;
    EXPECT_FALSE(PassClaimLineOn(line)) << line;
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(ClaimLineTest, AClaimantIsAProcessOfAMachine) {
  for (const char* program : {"launch", "/usr/bin/launch", "bin/launch"}) {
    EXPECT_THAT(DescribeClaimant(program),
                AllOf(StartsWith(absl::StrCat("launch (process ", getpid(), " on ")),
                      HasSubstr(", since 20"), EndsWith(")")));
  }
}

// As when the directory that a process has claimed was renamed, and its ranks make another one.
TEST(ClaimLineTest, AClaimantWithNobodyAboveItTakesTheLine) {
  testing::internal::CaptureStderr();
  AskForClaim("/data/run");
  std::string line = testing::internal::GetCapturedStderr();
  line.pop_back();
  const std::string own = DescribeClaimant("pretrain_gpt");
  const std::string other =
      absl::StrReplaceAll(own, {{absl::StrCat("process ", getpid()), "process 0"}});
  for (const auto& [claimant, passed_on] :
       {std::pair(own, std::string()), std::pair(other, line + "\n")}) {
    setenv(kClaimantVariable, claimant.c_str(), /*overwrite=*/1);
    testing::internal::CaptureStderr();
    EXPECT_TRUE(PassClaimLineOn(line));
    EXPECT_EQ(testing::internal::GetCapturedStderr(), passed_on) << claimant;
  }
  unsetenv(kClaimantVariable);
}

}  // namespace
}  // namespace megatron
