#include "megatron/train/metrics/progress_bar.h"

#include <cstdio>
#include <string>

#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

const Progress kProgress = {250, 1000, 3.2142, 31456.2, absl::Seconds(516)};

TEST(ProgressTest, DrawsABar) {
  EXPECT_EQ(FormatProgress(kProgress, {100}),
            "step 250/1000 [=======>                      ] 25% | loss 3.214 | 31456 tokens/s | "
            "ETA 8m36s");
}

TEST(ProgressTest, FillsTheBarAtTheEnd) {
  EXPECT_EQ(FormatProgress({7, 7, 1, 2, absl::ZeroDuration()}, {100}),
            "step 7/7 [==============================] 100% | loss 1 | 2 tokens/s | ETA 0s");
}

TEST(ProgressTest, FitsTheTerminal) {
  for (int columns = 0; columns < 120; ++columns) {
    EXPECT_LE(static_cast<int>(FormatProgress(kProgress, {columns}).size()),
              std::max(0, columns - 1))
        << columns;
  }
  EXPECT_EQ(FormatProgress(kProgress, {30}), "step 250/1000 25% | loss 3.21");
}

TEST(ProgressTest, ColorsTheBarAlone) {
  EXPECT_EQ(FormatProgress({1, 2, 1, 2, absl::ZeroDuration()}, {100, true}),
            "step 1/2 [\033[32m===============>              \033[0m] 50% | loss 1 | 2 tokens/s | "
            "ETA 0s");
}

TEST(ProgressBarTest, IsSilentWhereThereIsNoTerminal) {
  std::FILE* const file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  {
    ProgressBar line(file);
    EXPECT_FALSE(line.enabled());
    line.Show(kProgress);
    line.Clear();
  }
  EXPECT_EQ(std::ftell(file), 0);
  std::fclose(file);
}

}  // namespace
}  // namespace megatron
