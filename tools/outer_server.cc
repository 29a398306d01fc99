// The server of the outer optimizer of islands that are runs of their own (docs/islands.md).
//
//   outer_server --listen=0.0.0.0:29600 --secret_file=secret --state=outer.state --min_islands=2
//
// With --clip_norm it is the server of a federated run (docs/federated.md).
//
// It ends at SIGTERM or SIGINT, with the state of the last round in the file.

#include "megatron/islands/outer_server.h"

#include <pthread.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/base/status_macros.h"
#include "megatron/federated/federated_options.h"
#include "megatron/federated/shamir.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, listen, "127.0.0.1:29600",
          "Where islands connect; the host 0.0.0.0 is all addresses of this machine.");
ABSL_FLAG(
    std::string, secret_file, "",
    "The file with the islands' secret, 64 hexadecimal digits, that only its owner may read.");
ABSL_FLAG(
    std::string, state, "",
    "The file that keeps the global copy, the outer momentum and the round, and that a server "
    "that is started again goes on from. Empty: nothing is kept.");
ABSL_FLAG(int, min_islands, 1, "The least updates that end a round.");
ABSL_FLAG(absl::Duration, round_timeout, absl::Minutes(10),
          "The time after the first update of a round at which it ends without the islands that "
          "have not sent theirs; also the longest time that an island may take to fetch the copy.");
ABSL_FLAG(
    double, clip_norm, 0,
    "Makes the server that of a federated run (docs/federated.md): islands send their updates "
    "masked and clipped to this L2 norm, and the server learns their sum alone. The islands "
    "must have this and the four flags below in their section `federated`. 0: updates are "
    "sent as they are.");
ABSL_FLAG(int, secure_sum_threshold, 2,
          "The fewest islands in a sum; more than half of those that are there are needed in any "
          "case.");
ABSL_FLAG(double, noise_multiplier, 0,
          "The standard deviation of the noise of each element of a sum, divided by the clip norm. "
          "It needs --state, which keeps the privacy budget. 0: there is no noise.");
ABSL_FLAG(double, delta, 1e-5, "The probability with which epsilon need not hold.");
ABSL_FLAG(double, max_epsilon, 0,
          "The privacy budget: rounds end before the one that would make epsilon greater. 0: there "
          "is no end.");
ABSL_FLAG(int64_t, max_parameters, int64_t{20} * 1000 * 1000 * 1000,
          "The most parameters of a model.");

namespace megatron {
namespace {

bool IsSet(const char* flag) {
  const absl::CommandLineFlag* const found = absl::FindCommandLineFlag(flag);
  return found != nullptr && found->CurrentValue() != found->DefaultValue();
}

absl::Status Main(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) return absl::InvalidArgumentError("there are flags only");
  OuterServerOptions options;
  MEGATRON_ASSIGN_OR_RETURN(options.listen, Endpoint::Parse(absl::GetFlag(FLAGS_listen)),
                            _ << "in --listen");
  options.state_file = absl::GetFlag(FLAGS_state);
  options.min_islands = absl::GetFlag(FLAGS_min_islands);
  options.round_timeout = absl::GetFlag(FLAGS_round_timeout);
  options.max_parameters = absl::GetFlag(FLAGS_max_parameters);
  if (options.round_timeout <= absl::ZeroDuration() || options.max_parameters < 1)
    return absl::InvalidArgumentError("--round_timeout and --max_parameters are greater than 0");
  options.federated.clip_norm = absl::GetFlag(FLAGS_clip_norm);
  // A secure sum deals out shares of keys, of which there are not as many.
  const int most_islands = options.federated.enabled() ? kMostShares : kMostIslands;
  if (options.min_islands < 1 || options.min_islands > most_islands) {
    return absl::InvalidArgumentError(
        absl::StrCat("--min_islands is ", options.min_islands, "; it is 1 to ", most_islands,
                     options.federated.enabled() ? " with --clip_norm" : ""));
  }
  options.federated.secure_sum_threshold = absl::GetFlag(FLAGS_secure_sum_threshold);
  options.federated.noise_multiplier = absl::GetFlag(FLAGS_noise_multiplier);
  options.federated.delta = absl::GetFlag(FLAGS_delta);
  options.federated.max_epsilon = absl::GetFlag(FLAGS_max_epsilon);
  options.noise_threads = static_cast<int>(std::max(std::thread::hardware_concurrency(), 1u));
  if (options.federated.clip_norm == 0) {
    for (const char* flag : {"secure_sum_threshold", "noise_multiplier", "delta", "max_epsilon"}) {
      if (IsSet(flag)) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", flag, " has no effect without --clip_norm"));
      }
    }
  } else {
    MEGATRON_RETURN_IF_ERROR(CheckFederated(options.federated), _.SetPrepend() << "--");
  }
  if (options.federated.clip_norm != 0 && !options.federated.has_noise()) {
    for (const char* flag : {"delta", "max_epsilon"}) {
      if (IsSet(flag)) {
        return absl::InvalidArgumentError(
            absl::StrCat("--", flag, " has no effect without --noise_multiplier"));
      }
    }
  }
  if (options.federated.has_noise() && options.state_file.empty()) {
    return absl::InvalidArgumentError(
        "--noise_multiplier needs --state, the file that keeps the privacy budget");
  }
  if (absl::GetFlag(FLAGS_secret_file).empty())
    return absl::InvalidArgumentError("--secret_file must name the file with the secret");
  MEGATRON_ASSIGN_OR_RETURN(const JobSecret secret,
                            JobSecret::FromFile(absl::GetFlag(FLAGS_secret_file)));
  // All threads leave these signals to the wait below.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<OuterServer> server,
                            OuterServer::Start(options, secret, PosixFileSystem()));
  std::cout << "listening at " << server->endpoint().ToString() << std::endl;
  int signal = 0;
  sigwait(&signals, &signal);
  LOG(INFO) << "ends at round " << server->round();
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  return megatron::RunTool(argc, argv,
                           "Makes the outer steps of islands that are runs of their own: "
                           "outer_server --listen=0.0.0.0:29600 --secret_file=secret",
                           megatron::Main);
}
