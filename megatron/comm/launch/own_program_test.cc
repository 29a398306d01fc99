#include "megatron/comm/launch/own_program.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace megatron {
namespace {

// A copy of this test's program is replaced while it runs: see main.
TEST(OwnProgramTest, APathStaysWhenAnotherFileTakesItsPlace) {
  const std::string copy = absl::StrCat(::testing::TempDir(), "/own_program_copy");
  std::filesystem::remove(copy);
  ASSERT_TRUE(std::filesystem::copy_file(OwnProgram(), copy));
  EXPECT_EQ(std::system(absl::StrCat("'", copy, "' --replace_me").c_str()), 0);
}

// Returns the exit code of a program whose file another one replaces.
int ReplaceMe() {
  const std::string path = OwnProgram();
  const std::string next = absl::StrCat(path, ".next");
  if (!std::filesystem::copy_file(path, next)) return 1;
  if (std::rename(next.c_str(), path.c_str()) != 0) return 2;
  return OwnProgram() == path && std::filesystem::exists(OwnProgram()) ? 0 : 3;
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--replace_me") return megatron::ReplaceMe();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
