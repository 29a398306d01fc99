#include "megatron/tensorboard/event_writer.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/fault_file_system.h"
#include "megatron/base/memory_file_system.h"
#include "megatron/tensorboard/event_records.h"

namespace megatron::tensorboard {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr char kDirectory[] = "run/tensorboard";

Event Step(int64_t step, double time = 1) {
  Event event;
  event.set_step(step);
  event.set_wall_time(time);
  return event;
}

class EventWriterTest : public ::testing::Test {
 protected:
  EventWriter Writer(int64_t seconds = 1700000000, const std::string& writer = "us") {
    EventWriterOptions options;
    options.directory = kDirectory;
    options.writer = writer;
    options.now = [seconds] { return absl::FromUnixSeconds(seconds); };
    return EventWriter(fs_, options);
  }

  static absl::Status Write(EventWriter* writer, int64_t step) {
    Event event = Step(step);
    return writer->Write(absl::MakeSpan(&event, 1));
  }

  // Cuts what is after `last`, and writes `steps`.
  void Run(EventWriter writer, int64_t last, const std::vector<int64_t>& steps) {
    EXPECT_THAT(writer.CutEarlierFiles([last](const Event& event) { return event.step() <= last; }),
                IsOk());
    for (const int64_t step : steps) EXPECT_THAT(Write(&writer, step), IsOk());
    EXPECT_THAT(writer.Sync(), IsOk());
  }

  std::vector<std::string> Names() { return *disk_.List(kDirectory); }
  std::string Path(size_t file) { return JoinPath(kDirectory, Names()[file]); }
  void Append(const std::string& path, absl::string_view bytes) {
    disk_.MutableContents(path)->append(bytes.data(), bytes.size());
  }
  void Put(const std::string& name, absl::string_view text) {
    ASSERT_THAT(disk_.CreateDirs(kDirectory), IsOk());
    ASSERT_THAT(WriteFileAtomically(disk_, JoinPath(kDirectory, name), text), IsOk());
  }

  // The steps of all files, as a reader that goes beyond damage finds them. -1: a new file.
  std::vector<int64_t> Steps(MemoryFileSystem* disk) {
    std::vector<int64_t> steps;
    const std::vector<std::string> names = *disk->List(kDirectory);
    for (const std::string& name : names) {
      if (!absl::StrContains(name, "tfevents")) continue;
      const std::string text = *ReadFileToString(*disk, JoinPath(kDirectory, name));
      absl::string_view rest = text;
      while (const std::optional<absl::string_view> record = TakeRecord(&rest)) {
        Event event;
        EXPECT_TRUE(event.ParseFromString(std::string(*record)));
        steps.push_back(event.has_file_version() ? -1 : event.step());
      }
    }
    return steps;
  }
  std::vector<int64_t> Steps() { return Steps(&disk_); }

  MemoryFileSystem disk_;
  FaultFileSystem fs_{&disk_};
};

TEST_F(EventWriterTest, TheFirstEventHasTheVersionAndTheWriter) {
  Run(Writer(), 0, {1});
  EXPECT_THAT(Names(), ElementsAre(StartsWith("events.out.tfevents.1700000000.")));
  const std::string text = *ReadFileToString(disk_, Path(0));
  absl::string_view rest = text;
  Event event;
  ASSERT_TRUE(event.ParseFromString(std::string(*TakeRecord(&rest))));
  EXPECT_EQ(event.file_version(), "brain.Event:2");
  EXPECT_EQ(event.source_metadata().writer(), "us");
  EXPECT_EQ(event.wall_time(), 1);
}

TEST_F(EventWriterTest, ALaterFileHasALaterNameThoughClocksGoBack) {
  Run(Writer(1700000000), 0, {1});
  Run(Writer(1700000000), 1, {2});
  Run(Writer(1600000000), 2, {3});
  Run(Writer(-5), 3, {4});
  EXPECT_THAT(Steps(), ElementsAre(-1, 1, -1, 2, -1, 3, -1, 4));
}

TEST_F(EventWriterTest, AFileOfTheEndOfTimeIsNotOverwritten) {
  Put("events.out.tfevents.9999999999.x", "");
  Run(Writer(), 0, {1});
  Run(Writer(), 1, {2});
  EXPECT_THAT(Names(), SizeIs(3));
  EXPECT_THAT(Steps(), ElementsAre(-1, 1, -1, 2));
}

TEST_F(EventWriterTest, EarlierEventsThatAreNotKeptGo) {
  Run(Writer(), 0, {1, 2, 3, 4, 5});
  Run(Writer(), 3, {4});
  EXPECT_THAT(Steps(), ElementsAre(-1, 1, 2, 3, -1, 4));
  Run(Writer(), 2, {3});
  EXPECT_THAT(Steps(), ElementsAre(-1, 1, 2, -1, 3));
  Run(Writer(), 0, {1});
  EXPECT_THAT(Steps(), ElementsAre(-1, 1));
}

TEST_F(EventWriterTest, ATornEndIsCut) {
  Run(Writer(), 0, {1, 2});
  const std::string whole = *ReadFileToString(disk_, Path(0));
  std::string record;
  AppendRecord(Step(3).SerializeAsString(), &record);
  for (size_t length = 0; length < record.size(); ++length) {
    Append(Path(0), record.substr(0, length));
    EXPECT_THAT(Writer().CutEarlierFiles([](const Event&) { return true; }), IsOk());
    EXPECT_EQ(*ReadFileToString(disk_, Path(0)), whole) << length;
  }
  std::string no_event;
  AppendRecord("\xff\xff", &no_event);
  Append(Path(0), no_event + record);
  EXPECT_THAT(Writer().CutEarlierFiles([](const Event&) { return true; }), IsOk());
  EXPECT_EQ(*ReadFileToString(disk_, Path(0)), whole);
}

TEST_F(EventWriterTest, FilesOfOthersAreLeftAsTheyAre) {
  Run(Writer(1700000000, "others"), 0, {1, 2, 3});
  const std::string theirs = *ReadFileToString(disk_, Path(0));
  Put("events.out.tfevents.diary", "my diary");
  Put("notes.txt", theirs);
  ASSERT_THAT(disk_.CreateDirs(JoinPath(kDirectory, "events.out.tfevents.1")), IsOk());
  const std::vector<std::string> before = Names();
  Run(Writer(), 0, {1});
  EXPECT_THAT(Names(), SizeIs(before.size() + 1));
  EXPECT_EQ(*ReadFileToString(disk_, JoinPath(kDirectory, "notes.txt")), theirs);
  EXPECT_EQ(*ReadFileToString(disk_, JoinPath(kDirectory, "events.out.tfevents.diary")),
            "my diary");
  EXPECT_EQ(*ReadFileToString(disk_, Path(1)), theirs);
}

TEST_F(EventWriterTest, TimesAreFiniteAndDoNotGoBack) {
  EventWriter writer = Writer();
  std::vector<Event> events;
  for (const double time : {5.0, 3.0, std::nan(""), 7.0, std::numeric_limits<double>::infinity()})
    events.push_back(Step(1, time));
  EXPECT_THAT(writer.Write(absl::MakeSpan(events)), IsOk());
  std::vector<double> times;
  for (const Event& event : events) times.push_back(event.wall_time());
  EXPECT_THAT(times, ElementsAre(5, 5, 5, 7, 7));
}

TEST_F(EventWriterTest, AFullDiskLosesNoEvent) {
  // What fails is the operation with this number, and all writes after it.
  for (int failing = 0; failing < 12; ++failing) {
    ASSERT_THAT(disk_.RemoveTree(kDirectory), IsOk());
    fs_.FailAt(failing, ENOSPC, /*lasting=*/true);
    EventWriter writer = Writer();
    bool failed = false;
    for (int64_t step = 1; step <= 50; ++step) failed |= !Write(&writer, step).ok();
    EXPECT_TRUE(failed) << failing;
    EXPECT_FALSE(writer.Sync().ok()) << failing;
    fs_.ClearFault();
    for (int64_t step = 51; step <= 60; ++step) Write(&writer, step).IgnoreError();
    EXPECT_THAT(writer.Sync(), IsOk()) << failing;
    std::vector<int64_t> steps = Steps();
    steps.erase(std::remove(steps.begin(), steps.end(), -1), steps.end());
    ASSERT_THAT(steps, SizeIs(60)) << failing;
    for (int64_t step = 1; step <= 60; ++step) EXPECT_EQ(steps[step - 1], step);
    // Nothing is damaged, and nothing else is left.
    for (size_t file = 0; file < Names().size(); ++file) {
      const std::string text = *ReadFileToString(disk_, Path(file));
      absl::string_view rest = text;
      while (TakeRecord(&rest)) continue;
      EXPECT_THAT(rest, IsEmpty()) << failing << " " << Names()[file];
      EXPECT_THAT(Names()[file], HasSubstr("tfevents"));
    }
  }
}

TEST_F(EventWriterTest, AFolderThatCannotBeMadeIsAnErrorOfEachWrite) {
  ASSERT_THAT(disk_.CreateDirs("run"), IsOk());
  ASSERT_THAT(WriteFileAtomically(disk_, kDirectory, "a file"), IsOk());
  EventWriter writer = Writer();
  EXPECT_FALSE(writer.CutEarlierFiles([](const Event&) { return true; }).ok());
  for (int64_t step = 1; step <= 5; ++step) EXPECT_FALSE(Write(&writer, step).ok());
  EXPECT_FALSE(writer.Sync().ok());
  EXPECT_EQ(*ReadFileToString(disk_, kDirectory), "a file");
}

TEST_F(EventWriterTest, WhatWaitsForADiskIsBounded) {
  fs_.FailAt(0, ENOSPC, /*lasting=*/true);
  EventWriter writer = Writer();
  Event large = Step(1);
  large.mutable_summary()->add_value()->set_tag(
      std::string(EventWriter::kMaxPendingBytes / 4, 'x'));
  for (int i = 0; i < 10; ++i)
    EXPECT_THAT(writer.Write(absl::MakeSpan(&large, 1)),
                StatusIs(absl::StatusCode::kResourceExhausted));
  fs_.ClearFault();
  EXPECT_THAT(writer.Sync(), IsOk());
  EXPECT_THAT(Steps(), ElementsAre(-1, 1, 1, 1));
}

TEST_F(EventWriterTest, APowerCutLosesNothingThatWasSynced) {
  ASSERT_THAT(disk_.CreateDirs("run"), IsOk());
  ASSERT_THAT(disk_.SyncDir("."), IsOk());
  Run(Writer(), 0, {1, 2, 3});
  Run(Writer(), 2, {3, 4});
  const int synced = disk_.operation_count();
  EventWriter writer = Writer();
  EXPECT_THAT(Write(&writer, 5), IsOk());
  EXPECT_THAT(Write(&writer, 6), IsOk());
  for (int operations = synced; operations <= disk_.operation_count(); ++operations) {
    for (const CrashModel model : {CrashModel::kKillProcess, CrashModel::kLoseUnsynced,
                                   CrashModel::kTearUnsynced, CrashModel::kShuffleNames}) {
      const auto image = disk_.CrashImage(operations, model, operations);
      std::vector<int64_t> steps = Steps(image.get());
      steps.resize(6);
      EXPECT_THAT(steps, ElementsAre(-1, 1, 2, -1, 3, 4)) << operations;
    }
  }
}

}  // namespace
}  // namespace megatron::tensorboard
