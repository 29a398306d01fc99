#include "megatron/data/io/line_batches.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/data/io/byte_source.h"

namespace megatron {
namespace {

using ::absl_testing::IsOkAndHolds;
using ::absl_testing::StatusIs;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Le;

using Files = std::vector<std::pair<std::string, std::string>>;  // path and contents

struct ReadLines {
  std::vector<std::string> lines;  // "path:number:text", "path:number:too long"
  std::vector<size_t> buffer_sizes;
};

absl::StatusOr<ReadLines> ReadAll(const Files& files, const LineBatchReader::Options& options,
                                  size_t piece = SIZE_MAX) {
  std::vector<std::string> paths;
  std::map<std::string, std::string> contents;
  for (const auto& [path, text] : files) {
    paths.push_back(path);
    contents[path] = text;
  }
  LineBatchReader reader(
      paths,
      [&](const std::string& path, const std::atomic<bool>*) {
        return MakeMemorySource(contents.at(path), piece);
      },
      options);
  ReadLines result;
  LineBatch batch;
  int64_t stored = 0;
  while (true) {
    const absl::StatusOr<bool> more = reader.Next(&batch);
    if (!more.ok()) return more.status();
    if (!*more) break;
    EXPECT_FALSE(batch.lines.empty());
    EXPECT_GE(batch.stored_bytes_read, stored);
    stored = batch.stored_bytes_read;
    result.buffer_sizes.push_back(batch.buffer.size());
    for (size_t i = 0; i < batch.lines.size(); ++i) {
      const LineBatch::Line& line = batch.lines[i];
      result.lines.push_back(absl::StrCat(batch.path, ":", batch.first_line + i, ":",
                                          line.too_long ? "too long" : line.text));
    }
  }
  return result;
}

std::vector<std::string> Lines(const Files& files, size_t max_line_bytes = 100,
                               size_t batch_bytes = 10) {
  const absl::StatusOr<ReadLines> read = ReadAll(files, {max_line_bytes, batch_bytes});
  return read.ok() ? read->lines : std::vector<std::string>{read.status().ToString()};
}

TEST(LineBatchesTest, LinesAreNumberedInEachInput) {
  EXPECT_THAT(Lines({{"a", "one\n\ntwo\n"}, {"b", "three"}}),
              ElementsAre("a:1:one", "a:2:", "a:3:two", "b:1:three"));
}

TEST(LineBatchesTest, EmptyInputsHaveNoLines) {
  EXPECT_THAT(Lines({{"a", ""}, {"b", "x\n"}, {"c", ""}}), ElementsAre("b:1:x"));
  EXPECT_THAT(Lines({{"a", ""}}), IsEmpty());
  EXPECT_THAT(Lines({}), IsEmpty());
}

TEST(LineBatchesTest, AByteOrderMarkIsDroppedFromTheFirstLineOnly) {
  EXPECT_THAT(Lines({{"a", "\xef\xbb\xbfone\n\xef\xbb\xbftwo\n"}}),
              ElementsAre("a:1:one", "a:2:\xef\xbb\xbftwo"));
}

TEST(LineBatchesTest, AByteOrderMarkDoesNotCountForTheLengthOfALine) {
  const std::string fits(20, 'x'), longer(21, 'y');
  for (size_t batch_bytes : {1, 7, 64}) {
    EXPECT_THAT(Lines({{"a", absl::StrCat("\xef\xbb\xbf", fits, "\nb\n")}}, 20, batch_bytes),
                ElementsAre("a:1:" + fits, "a:2:b"));
    EXPECT_THAT(Lines({{"a", absl::StrCat("\xef\xbb\xbf", longer, "\nb\n")}}, 20, batch_bytes),
                ElementsAre("a:1:too long", "a:2:b"));
  }
}

TEST(LineBatchesTest, BatchesAndPiecesOfAnySizeGiveTheSameLines) {
  std::string text;
  for (int i = 0; i < 40; ++i) absl::StrAppend(&text, std::string(i * 7 % 23, 'a' + i % 26), "\n");
  text += "end";
  const std::vector<std::string> expected = Lines({{"a", text}}, 1000, 100000);
  EXPECT_EQ(expected.size(), 41u);
  for (size_t batch_bytes = 1; batch_bytes < 60; ++batch_bytes) {
    for (const size_t piece : {1, 5, 1000}) {
      const auto read = ReadAll({{"a", text}}, {1000, batch_bytes}, piece);
      ASSERT_TRUE(read.ok());
      EXPECT_EQ(read->lines, expected);
    }
  }
}

TEST(LineBatchesTest, LinesThatAreTooLongAreMarkedAtAnyPosition) {
  const std::string fits(20, 'x'), longer(21, 'y'), very_long(1000, 'z');
  for (size_t batch_bytes : {1, 7, 20, 64, 5000}) {
    SCOPED_TRACE(batch_bytes);
    EXPECT_THAT(Lines({{"a", absl::StrCat(fits, "\n", longer, "\n", very_long, "\nb\n", very_long)},
                       {"c", absl::StrCat(very_long, "\n", fits)}},
                      20, batch_bytes),
                ElementsAre("a:1:" + fits, "a:2:too long", "a:3:too long", "a:4:b", "a:5:too long",
                            "c:1:too long", "c:2:" + fits));
  }
}

TEST(LineBatchesTest, NoLineTakesMoreMemoryThanTheLimit) {
  const auto read = ReadAll({{"a", std::string(1 << 20, 'x') + "\ny\n"}}, {1000, 100});
  ASSERT_TRUE(read.ok());
  EXPECT_THAT(read->lines, ElementsAre("a:1:too long", "a:2:y"));
  EXPECT_THAT(read->buffer_sizes, Each(Le(1100u)));
}

// A source without a line break that never ends, and that calls `stop` after so many reads.
class EndlessLine : public ByteSource {
 public:
  EndlessLine(int reads, std::function<void()> stop) : reads_(reads), stop_(std::move(stop)) {}
  absl::StatusOr<size_t> Read(absl::Span<char> buffer) override {
    if (reads_-- == 0) stop_();
    std::fill(buffer.begin(), buffer.end(), 'x');
    return buffer.size();
  }
  int64_t stored_bytes_read() const override { return 0; }

 private:
  int reads_;
  const std::function<void()> stop_;
};

TEST(LineBatchesTest, AnEndlessLineIsTooLongAndCanBeStopped) {
  std::atomic<bool> stop{false};
  LineBatchReader::Options options = {1000, 100};
  for (const bool by_flag : {false, true}) {
    options.stop = by_flag ? &stop : nullptr;
    LineBatchReader* self = nullptr;
    LineBatchReader reader(
        {"a"},
        [&](const std::string&, const std::atomic<bool>*) {
          return std::make_unique<EndlessLine>(100, [&] {
            if (by_flag) {
              stop = true;
            } else {
              self->Stop();
            }
          });
        },
        options);
    self = &reader;
    LineBatch batch;
    ASSERT_THAT(reader.Next(&batch), IsOkAndHolds(true));
    ASSERT_EQ(batch.lines.size(), 1u);
    EXPECT_TRUE(batch.lines[0].too_long);
    EXPECT_THAT(reader.Next(&batch), StatusIs(absl::StatusCode::kCancelled));
  }
}

TEST(LineBatchesTest, ErrorsOfTheInputAreReturned) {
  LineBatchReader reader(
      {"a"},
      [](const std::string&, const std::atomic<bool>*) { return absl::DataLossError("bad"); }, {});
  LineBatch batch;
  EXPECT_THAT(reader.Next(&batch), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(LineBatchesTest, StopSetsTheFlagOfTheInput) {
  const std::atomic<bool>* flag = nullptr;
  LineBatchReader reader({"a"},
                         [&flag](const std::string&, const std::atomic<bool>* stop) {
                           flag = stop;
                           return MakeMemorySource("x\n");
                         },
                         {});
  LineBatch batch;
  ASSERT_THAT(reader.Next(&batch), IsOkAndHolds(true));
  EXPECT_FALSE(*flag);
  reader.Stop();
  EXPECT_TRUE(*flag);
}

}  // namespace
}  // namespace megatron
