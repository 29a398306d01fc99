// Types into a bash on a terminal, as a user does.

#include "megatron/train/command_line/completion.h"

#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/status_matchers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/train/command_line/command_line.h"
#include "megatron/train/config/config.pb.h"
#include "megatron/train/config/config_paths.h"

namespace megatron {
namespace {

using ::absl_testing::IsOk;
using ::absl_testing::StatusIs;
using ::testing::HasSubstr;

std::string Script(const std::string& shell) {
  const absl::StatusOr<std::string> script =
      CompletionScript(shell, "pretrain_gpt", {"gpt_demo", "gpt_1664", "moe_tiny"});
  EXPECT_THAT(script, IsOk());
  return script.value_or("");
}

std::string Path(const std::string& name) { return absl::StrCat(::testing::TempDir(), "/", name); }

class Bash {
 public:
  Bash() {
    // Control-T prints the line as it is.
    std::ofstream(Path("bashrc")) << "PS1='READY>'\ncd '" << ::testing::TempDir() << "'\n"
                                  << "bind 'set bell-style none'\n"
                                  << "bind 'set enable-bracketed-paste off'\n"
                                  << "bind 'set completion-query-items 0'\n"
                                  << "bind 'set page-completions off'\n"
                                  << "bind -x '\"\\C-t\": printf \"LINE=<%s>\\n\" "
                                     "\"$READLINE_LINE\"'\n"
                                  << Script("bash");
    pid_ = forkpty(&terminal_, nullptr, nullptr, nullptr);
    if (pid_ == 0) {
      setenv("TERM", "dumb", 1);
      execlp("bash", "bash", "--noprofile", "--rcfile", Path("bashrc").c_str(), "-i", nullptr);
      _exit(127);
    }
    EXPECT_GT(pid_, 0);
    ReadUntil("READY>");
  }
  ~Bash() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(terminal_);
  }

  void Run(const std::string& command) {
    const std::string keys = absl::StrCat(command, "\r");
    EXPECT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
    ReadUntil("READY>");
  }

  // Returns what stands on the command line after `typed` and the Tab key.
  std::string Completed(const std::string& typed) {
    // Control-U clears the line of the call before.
    const std::string keys = absl::StrCat("\x15", typed, "\t\x14");
    EXPECT_EQ(write(terminal_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
    const std::string output = ReadUntil(">\r\n", "LINE=<");
    const size_t begin = output.rfind("LINE=<");
    if (begin == output.npos) return output;
    const size_t end = output.find(">\r\n", begin);
    return output.substr(begin + 6, end - begin - 6);
  }

 private:
  // Reads until `text` appears, behind `after`; a minute passing is a failure.
  std::string ReadUntil(const std::string& text, const std::string& after = "") {
    std::string output;
    const absl::Time until = absl::Now() + absl::Minutes(1);
    while (true) {
      const size_t begin = output.find(after);
      if (begin != output.npos && output.find(text, begin) != output.npos) return output;
      char buffer[4096];
      const ssize_t got = read(terminal_, buffer, sizeof(buffer));
      if (got <= 0 || absl::Now() > until) {
        ADD_FAILURE() << "bash did not print " << text << " but " << output;
        return output;
      }
      output.append(buffer, static_cast<size_t>(got));
    }
  }

  int terminal_ = -1;
  pid_t pid_ = -1;
};

TEST(CompletionTest, BashCompletesFlagsConfigurationsFieldsAndValues) {
  std::ofstream(Path("my_own.textproto")) << "\n";
  std::ofstream(Path("my_own.text")) << "\n";
  Bash bash;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"pretrain_gpt --conf", "pretrain_gpt --config="},
      {"pretrain_gpt --list", "pretrain_gpt --list_configs "},
      {"/opt/bin/pretrain_gpt --prof", "/opt/bin/pretrain_gpt --profile "},
      {"pretrain_gpt --config=moe", "pretrain_gpt --config=moe_tiny "},
      {"pretrain_gpt --config moe", "pretrain_gpt --config moe_tiny "},
      {"pretrain_gpt --config=gpt", "pretrain_gpt --config=gpt_"},
      {"pretrain_gpt --config my", "pretrain_gpt --config my_own.textproto "},
      {"pretrain_gpt --config=my", "pretrain_gpt --config=my_own.textproto "},
      {"pretrain_gpt --set opti", "pretrain_gpt --set optimizer."},
      {"pretrain_gpt --set optimizer.opti", "pretrain_gpt --set optimizer.optimizer"},
      {"pretrain_gpt --set optimizer.clip", "pretrain_gpt --set optimizer.clip_grad="},
      {"pretrain_gpt --set=optimizer.clip", "pretrain_gpt --set=optimizer.clip_grad="},
      {"pretrain_gpt --set optimizer.optimizer=li", "pretrain_gpt --set optimizer.optimizer=lion "},
      {"pretrain_gpt --set=optimizer.optimizer=li", "pretrain_gpt --set=optimizer.optimizer=lion "},
      {"pretrain_gpt --set precision.bf16=t", "pretrain_gpt --set precision.bf16=true "},
      {"pretrain_gpt --set recompute.recompute_modules=core_attn,lay",
       "pretrain_gpt --set recompute.recompute_modules=core_attn,layernorm "},
      {"pretrain_gpt --config=x --set train.see", "pretrain_gpt --config=x --set train.seed="},
      {"pretrain_gpt --explain model.num_lay", "pretrain_gpt --explain model.num_layers "},
      {"pretrain_gpt --explain data model.num_lay",
       "pretrain_gpt --explain data model.num_layers "},
      {"pretrain_gpt --explain opti", "pretrain_gpt --explain optimizer"},
      {"pretrain_gpt --completion z", "pretrain_gpt --completion zsh "},
      {"pretrain_gpt --dry_run=", "pretrain_gpt --dry_run=full "},
      {"pretrain_gpt --dry_run --js", "pretrain_gpt --dry_run --json "},
      {"pretrain_gpt --set nothing.like", "pretrain_gpt --set nothing.like"}};
  for (const auto& [typed, completed] : cases) EXPECT_EQ(bash.Completed(typed), completed) << typed;
}

TEST(CompletionTest, BashCompletesTheSameWhereEqualSignsDoNotBreakWords) {
  Bash bash;
  bash.Run("COMP_WORDBREAKS=${COMP_WORDBREAKS//=}");
  EXPECT_EQ(bash.Completed("pretrain_gpt --set=optimizer.optimizer=li"),
            "pretrain_gpt --set=optimizer.optimizer=lion ");
  EXPECT_EQ(bash.Completed("pretrain_gpt --config=moe"), "pretrain_gpt --config=moe_tiny ");
}

TEST(CompletionTest, BothScriptsHaveEveryFlagAndField) {
  for (const char* shell : {"bash", "zsh"}) {
    const std::string script = Script(shell);
    for (const CommandLineFlag& flag : CommandLineFlags())
      EXPECT_THAT(script, HasSubstr(std::string(flag.name)));
    for (const std::string& path : LeafPaths(*config::PretrainConfig::descriptor()))
      EXPECT_THAT(script, HasSubstr(absl::StrCat(path, "="))) << shell;
  }
}

TEST(CompletionTest, ZshAcceptsItsScript) {
  if (std::system("command -v zsh > /dev/null") != 0) GTEST_SKIP() << "zsh is not here";
  std::ofstream(Path("script.zsh")) << Script("zsh");
  EXPECT_EQ(std::system(absl::StrCat("zsh -n '", Path("script.zsh"), "'").c_str()), 0);
}

TEST(CompletionTest, OtherShellsAreRefused) {
  EXPECT_THAT(CompletionScript("fish", "pretrain_gpt", {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--completion=fish")));
}

}  // namespace
}  // namespace megatron
