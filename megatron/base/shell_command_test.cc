#include "megatron/base/shell_command.h"

#include <cstdio>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace megatron {
namespace {

TEST(ShellCommandTest, LeavesPlainWordsAlone) {
  EXPECT_EQ(ShellCommand({"../bin/pretrain_gpt", "--set=optimizer.lr=3e-4", "-x", "a:b"}),
            "../bin/pretrain_gpt --set=optimizer.lr=3e-4 -x a:b");
}

TEST(ShellCommandTest, QuotesWhatAShellWouldChange) {
  EXPECT_EQ(ShellCommand({"run", "my run", "it's", "", "A=b", "$HOME", "a\nb"}),
            "run 'my run' 'it'\\''s' '' 'A=b' '$HOME' 'a\nb'");
}

// Returns what a shell prints for the words, each on its own and ended by a '|'.
std::string AsTheShellReads(const std::vector<std::string>& words) {
  const std::string command = "printf '%s|' " + ShellCommand(words);
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "no shell";
  std::string output;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) output += static_cast<char>(c);
  pclose(pipe);
  return output;
}

TEST(ShellCommandTest, AShellReadsTheWordsThatWereGiven) {
  std::string all;
  for (int c = 1; c < 256; ++c) all += static_cast<char>(c);
  EXPECT_EQ(AsTheShellReads({all, "", "it's", "~", "a{b,c}", "--set=x={a: \"b\"}"}),
            all + "||it's|~|a{b,c}|--set=x={a: \"b\"}|");
}

}  // namespace
}  // namespace megatron
