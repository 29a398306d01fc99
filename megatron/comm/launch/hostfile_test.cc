#include "megatron/comm/launch/hostfile.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

std::string Text(const std::vector<HostSlots>& hosts) {
  return absl::StrJoin(hosts, " ", [](std::string* out, const HostSlots& host) {
    absl::StrAppend(out, host.host, ":", absl::StrJoin(host.slots, ","));
  });
}

TEST(HostfileTest, HostsComeInTheOrderOfTheFile) {
  const auto hosts = ParseHostfile(
      "# two machines\n\n  b-2.cluster \t slots=2  # the big one\r\na_1 slots=1\n", "hosts");
  ASSERT_THAT(hosts, IsOk());
  EXPECT_EQ(Text(*hosts), "b-2.cluster:0,1 a_1:0");
}

TEST(HostfileTest, ErrorsNameTheLine) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "hosts names no host"},
      {"# nothing\n", "hosts names no host"},
      {"a slots=1\nb\n", "hosts:2: 'b' is not of the form 'worker-1 slots=4'"},
      {"a slots=1 b", "not of the form"},
      {"a slots = 1", "not of the form"},
      {"a slots=0", "slots='0' is none of 1 to 1024"},
      {"a slots=-1", "slots='-1' is none"},
      {"a slots=1025", "slots='1025' is none"},
      {"a slots=99999999999999999999", "is none of"},
      {"a slots=", "slots='' is none"},
      {"a slots=+1", "is none"},
      {"a slots=1x", "is none"},
      {"-oProxyCommand=x slots=1", "hosts:1: '-oProxyCommand=x' is no name of a host"},
      {"a;rm slots=1", "'a;rm' is no name of a host"},
      {"$(x) slots=1", "is no name of a host"},
      {std::string("a\0z slots=1", 11), "'a\\x00z' is no name of a host"},
      {absl::StrCat(std::string(256, 'a'), " slots=1"), "is no name of a host"},
      {"a slots=1\n\na slots=2\n", "hosts:3: host a is there twice"},
  };
  for (const auto& [text, error] : cases) {
    EXPECT_THAT(ParseHostfile(text, "hosts"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(error)))
        << text;
  }
}

absl::StatusOr<std::string> Filtered(const HostFilter& filter) {
  absl::StatusOr<std::vector<HostSlots>> hosts =
      ParseHostfile("a slots=4\nb slots=4\nc slots=2", "hosts");
  hosts = FilterHosts(*hosts, filter);
  if (!hosts.ok()) return hosts.status();
  return Text(*hosts);
}

HostFilter Include(const std::string& text) { return {text, "", -1, -1}; }
HostFilter Exclude(const std::string& text) { return {"", text, -1, -1}; }
HostFilter First(int nodes, int gpus) { return {"", "", nodes, gpus}; }

TEST(HostfileTest, OptionsChooseAsInDeepSpeed) {
  EXPECT_THAT(Filtered({}), IsOkAndHolds("a:0,1,2,3 b:0,1,2,3 c:0,1"));
  EXPECT_THAT(Filtered(Include("b@a:0,2")), IsOkAndHolds("a:0,2 b:0,1,2,3"));
  EXPECT_THAT(Filtered(Include("a:3,1")), IsOkAndHolds("a:1,3"));
  EXPECT_THAT(Filtered(Exclude("b")), IsOkAndHolds("a:0,1,2,3 c:0,1"));
  EXPECT_THAT(Filtered(Exclude("a:1@c:0,1")), IsOkAndHolds("a:0,2,3 b:0,1,2,3"));
  EXPECT_THAT(Filtered(First(2, -1)), IsOkAndHolds("a:0,1,2,3 b:0,1,2,3"));
  EXPECT_THAT(Filtered(First(-1, 2)), IsOkAndHolds("a:0,1 b:0,1 c:0,1"));
  EXPECT_THAT(Filtered(First(1, 1)), IsOkAndHolds("a:0"));
}

TEST(HostfileTest, OptionsThatNameWhatIsNotThereAreRefused) {
  const std::vector<std::pair<HostFilter, std::string>> cases = {
      {{"a", "b", -1, -1}, "exclude each other"},
      {{"a", "", 1, -1}, "not with --include"},
      {Include("d"), "--include: host 'd' is not in the hostfile"},
      {Include("a:4"), "--include: host a has no slot '4'"},
      {Include("a:"), "no slot ''"},
      {Include("a:0-2"), "no slot '0-2'"},
      {Include("a@"), "host '' is not in the hostfile"},
      {Exclude("a:x"), "--exclude: host a has no slot 'x'"},
      {Exclude("a@b@c"), "--exclude leaves nothing"},
      {First(4, -1), "--num_nodes=4: there are 3"},
      {First(0, -1), "--num_nodes=0"},
      {First(-1, 3), "--num_gpus=3: host c has 2"},
  };
  for (const auto& [filter, error] : cases) {
    EXPECT_THAT(Filtered(filter), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(error)))
        << error;
  }
}

}  // namespace
}  // namespace megatron
