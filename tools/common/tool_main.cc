#include "tools/common/tool_main.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <set>

#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "glog/logging.h"
#include "megatron/train/failure/exit_status.h"

namespace megatron {
namespace {

bool parsing_flags = false;
bool asked_for_help = false;

// Abseil ends the process with code 1 both for --help and for wrong flags.
void ExitWithOurCode() {
  if (!parsing_flags) return;
  std::cout.flush();
  std::fflush(nullptr);
  _exit(asked_for_help ? 0 : kExitConfig);
}

std::vector<char*> ParseFlags(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const absl::string_view argument = argv[i];
    if (argument == "--") break;
    asked_for_help |= absl::StartsWith(argument, "--help") || absl::StartsWith(argument, "-help");
  }
  parsing_flags = true;
  std::atexit(ExitWithOurCode);
  std::vector<char*> arguments = absl::ParseCommandLine(argc, argv);
  parsing_flags = false;
  return arguments;
}

// A list that is given twice is an error: the second would replace the first in silence.
absl::Status CheckNoListTwice(int argc, char** argv) {
  std::set<std::string> given;
  for (int i = 1; i < argc && absl::string_view(argv[i]) != "--"; ++i) {
    absl::string_view name = argv[i];
    if (!absl::ConsumePrefix(&name, "-")) continue;
    absl::ConsumePrefix(&name, "-");
    name = name.substr(0, name.find('='));
    const absl::CommandLineFlag* const flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr || !flag->IsOfType<std::vector<std::string>>()) continue;
    if (!given.emplace(name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " is given twice; put commas between its values"));
    }
  }
  return absl::OkStatus();
}

absl::Status GoWhereTheUserStands() {
  const char* directory = std::getenv("BUILD_WORKING_DIRECTORY");
  if (directory == nullptr || chdir(directory) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("enter '", directory, "'"));
}

}  // namespace

absl::Status WriteToStdout(absl::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, "write to stdout");
}

absl::Status InputError(const absl::Status& status) {
  if (status.ok() || absl::IsInvalidArgument(status) || absl::IsCancelled(status)) return status;
  return absl::DataLossError(status.message());
}

int RunTool(int argc, char** argv, absl::string_view usage,
            absl::FunctionRef<absl::Status(const std::vector<std::string>& arguments)> body) {
  google::InitGoogleLogging(argv[0]);
  FLAGS_logtostderr = true;
  absl::SetProgramUsageMessage(usage);
  // A file at the size limit is an error, like a full disk, and does not end the process.
  std::signal(SIGXFSZ, SIG_IGN);
  absl::Status status = CheckNoListTwice(argc, argv);
  const std::vector<char*> arguments = ParseFlags(argc, argv);
  if (status.ok()) status = GoWhereTheUserStands();
  if (status.ok()) status = body(std::vector<std::string>(arguments.begin() + 1, arguments.end()));
  // A full disk is noticed only when the output is flushed.
  const bool told = std::cout.flush() && std::fflush(stdout) == 0;
  if (status.ok() && !told) status = absl::ResourceExhaustedError("the output can't be written");
  if (!status.ok()) std::cerr << "error: " << status.message() << std::endl;
  return ExitCodeOf(status);
}

}  // namespace megatron
