#include "megatron/train/pretrain_harness.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/checkpoint/find_checkpoint.h"

extern char** environ;

namespace megatron {
namespace {

constexpr char kConfig[] = R"(
model { num_layers: 2 hidden_size: 32 num_attention_heads: 2 seq_length: 64 }
optimizer { lr: 3e-3 lr_warmup_iters: 2 }
train { micro_batch_size: 2 global_batch_size: 4 train_iters: 12 eval_interval: 6 eval_iters: 1 log_interval: 4 }
data { stories { num_bytes: 100000 } split: "8,2" }
)";

std::vector<char*> Pointers(std::vector<std::string>* strings) {
  std::vector<char*> pointers;
  for (std::string& text : *strings) pointers.push_back(&text[0]);
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace

std::string ReadTextFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();  // empty where it is of a process that is gone
  return text.str();
}

Arguments Joined(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

int CountOf(const std::string& text, const std::string& piece) {
  int count = 0;
  for (size_t at = text.find(piece); at != std::string::npos; at = text.find(piece, at + 1))
    ++count;
  return count;
}

double NumberAfter(const std::string& text, const std::string& piece) {
  const size_t at = text.rfind(piece);
  EXPECT_NE(at, std::string::npos) << piece << "\n" << text;
  return at == std::string::npos ? 0 : std::stod(text.substr(at + piece.size()));
}

std::string ProgramPath(const std::string& label) {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/", std::getenv("TEST_WORKSPACE"), "/", label);
}

pid_t StartProgram(const Arguments& command, const std::string& log, const Variables& environment) {
  std::vector<std::string> arguments = command, variables;
  for (char** entry = environ; *entry != nullptr; ++entry) variables.emplace_back(*entry);
  for (const auto& [name, value] : environment) variables.push_back(absl::StrCat(name, "=", value));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  pid_t pid = -1;
  EXPECT_EQ(posix_spawn(&pid, arguments[0].c_str(), &actions, nullptr, Pointers(&arguments).data(),
                        Pointers(&variables).data()),
            0)
      << arguments[0];
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

Outcome FinishProgram(pid_t pid, const std::string& log) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), ReadTextFile(log)};
}

std::vector<pid_t> ChildrenOf(pid_t pid) {
  std::istringstream text(ReadTextFile(absl::StrCat("/proc/", pid, "/task/", pid, "/children")));
  return std::vector<pid_t>(std::istream_iterator<pid_t>(text), {});
}

bool HasEnded(pid_t pid) {
  const std::string stat = ReadTextFile(absl::StrCat("/proc/", pid, "/stat"));
  return stat.empty() || absl::StrContains(stat, ") Z");
}

PretrainProgramTest::PretrainProgramTest() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  directory_ = absl::StrCat(::testing::TempDir(), "/", info->name());
  EXPECT_TRUE(PosixFileSystem().CreateDirs(directory_).ok());
  std::ofstream(Path("run.textproto")) << kConfig;
}

Arguments PretrainProgramTest::Command(const Arguments& more) const {
  return Joined({ProgramPath("megatron/train/pretrain_gpt"),
                 absl::StrCat("--config=", Path("run.textproto"))},
                more);
}

Outcome PretrainProgramTest::Run(const Arguments& more) const {
  const std::string log = Path("log.txt");
  return FinishProgram(Start(more, log), log);
}

void PretrainProgramTest::WaitFor(const std::string& text, const std::string& log) {
  const absl::Time until = absl::Now() + absl::Seconds(60);
  while (!absl::StrContains(ReadTextFile(log), text)) {
    ASSERT_LT(absl::Now(), until) << text << "\n" << ReadTextFile(log);
    absl::SleepFor(absl::Milliseconds(20));
  }
}

std::map<std::string, std::string> PretrainProgramTest::Checkpoint(const std::string& name) const {
  const auto found = FindLatestCheckpoint(PosixFileSystem(), Path(name), Check::kContents);
  EXPECT_TRUE(found.ok()) << found.status();
  std::map<std::string, std::string> files;
  if (!found.ok()) return files;
  const auto names = PosixFileSystem().List(found->directory);
  EXPECT_TRUE(names.ok());
  for (const std::string& file : *names)
    files[file] = ReadTextFile(absl::StrCat(found->directory, "/", file));
  return files;
}

void PretrainProgramTest::ExpectEqualCheckpoints(const std::string& a, const std::string& b) const {
  const auto files_a = Checkpoint(a), files_b = Checkpoint(b);
  EXPECT_EQ(files_a.size(), files_b.size());
  for (const auto& [file, bytes] : files_a) {
    if (!absl::EndsWith(file, ".bin")) continue;
    const auto other = files_b.find(file);
    EXPECT_TRUE(other != files_b.end() && other->second == bytes)
        << file << " of " << a << " and " << b;
  }
}

}  // namespace megatron
