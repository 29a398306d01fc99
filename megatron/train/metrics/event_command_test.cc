#include "megatron/train/metrics/event_command.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "nlohmann/json.hpp"

namespace megatron {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunEvent EventOf(RunEventKind kind, int64_t iteration) {
  RunEvent event;
  event.kind = kind;
  event.time = absl::FromUnixSeconds(1600000000);
  event.iteration = iteration;
  event.message = "a \"line\"";
  return event;
}

std::string Contents(const std::string& path) {
  const auto text = ReadFileToString(PosixFileSystem(), path);
  return text.ok() ? *text : "";
}

class EventCommandTest : public ::testing::Test {
 protected:
  EventCommandTest() {
    (void)PosixFileSystem().Remove(path_).ok();
    options_.command = absl::StrCat("cat >> ", path_);
    options_.run_id = "f00d";
    options_.last_wait = absl::Seconds(60);
  }

  const std::string path_ = JoinPath(::testing::TempDir(), "events");
  EventCommandOptions options_;
};

TEST_F(EventCommandTest, AnEventIsALineOfJson) {
  RunEvent event = EventOf(RunEventKind::kEnd, 7);
  event.exit_code = 30;
  event.message = "bytes \xff";
  const std::string text = EventJson(event, "f00d", "/runs/a");
  EXPECT_EQ(text.find('\n'), text.size() - 1);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["event"], "end");
  EXPECT_EQ(json["iteration"], 7);
  EXPECT_EQ(json["exit_code"], 30);
  EXPECT_EQ(json["run"], "f00d");
  EXPECT_EQ(json["save"], "/runs/a");
  EXPECT_EQ(json["time"], "2020-09-13T12:26:40+00:00");
  EXPECT_FALSE(nlohmann::json::parse(EventJson(EventOf(RunEventKind::kNan, 1), "", ""))
                   .contains("exit_code"));
}

TEST_F(EventCommandTest, TheCommandRunsForEachEventInTheirOrder) {
  {
    EventCommand command(options_);
    command.Raise(EventOf(RunEventKind::kStart, 0));
    command.Raise(EventOf(RunEventKind::kNan, 5));
    command.Raise(EventOf(RunEventKind::kEnd, 9));
  }
  EXPECT_THAT(Contents(path_),
              ::testing::MatchesRegex(".*\"start\".*\n.*\"nan\",\"iteration\":5.*\n.*\"end\".*\n"));
}

TEST_F(EventCommandTest, AFailureIsSaidOnce) {
  options_.command = "echo no network >&2; exit 7";
  ::testing::internal::CaptureStderr();
  {
    EventCommand command(options_);
    for (int i = 0; i < 3; ++i) command.Raise(EventOf(RunEventKind::kNan, i));
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "WARNING: logging.on_event: the command failed: it ended with code 7: no network; "
            "training continues, and further failures are not printed\n");
}

TEST_F(EventCommandTest, NobodyWaitsForACommandThatHangs) {
  options_.command = "sleep 1000";
  options_.limit = absl::Seconds(3);
  options_.last_wait = absl::Milliseconds(100);
  ::testing::internal::CaptureStderr();
  const absl::Time start = absl::Now();
  {
    EventCommand command(options_);
    for (int i = 0; i < 5; ++i) command.Raise(EventOf(RunEventKind::kNan, i));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("too slow for the last 4 events"));
}

TEST_F(EventCommandTest, EventsThatComeTooFastAreDropped) {
  options_.command = absl::StrCat("sleep 0.2; cat >> ", path_);
  options_.last_wait = absl::ZeroDuration();
  ::testing::internal::CaptureStderr();
  {
    EventCommand command(options_);
    for (int i = 0; i < 1000; ++i) command.Raise(EventOf(RunEventKind::kNan, i));
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("some are dropped"));
  EXPECT_THAT(Contents(path_), Not(HasSubstr("\"iteration\":999")));
}

}  // namespace
}  // namespace megatron
