// Serves a trained GPT over HTTP as OpenAI's API has it (docs/serving.md):
//   serve --checkpoint=run

#include <malloc.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "glog/logging.h"
#include "megatron/base/file_system.h"
#include "megatron/base/private_file.h"
#include "megatron/base/status_macros.h"
#include "megatron/generate/text_engine.h"
#include "megatron/ops/cpu/isa.h"
#include "megatron/serve/api_server.h"
#include "megatron/train/failure/exit_code.h"
#include "megatron/train/inference/open_text_engine.h"
#include "tools/common/at_least_one.h"
#include "tools/common/stop_signal.h"
#include "tools/common/tool_main.h"

ABSL_FLAG(std::string, checkpoint, "",
          "The directory of all checkpoints of a run (the latest is taken), or of one iteration.");
ABSL_FLAG(std::string, listen, "127.0.0.1:8000",
          "Where clients connect; the host 0.0.0.0 is all addresses of this machine, port 0 any "
          "free one.");
ABSL_FLAG(std::string, model_name, "",
          "The model's name in requests and answers. Empty: that of the directory.");
ABSL_FLAG(
    std::string, chat_template, "",
    "The form of conversations that the model has learned: chatml, llama3, nemotron_h_aligned, "
    "nemotron_nano_v2 or plain. Empty: "
    "/v1/chat/completions is refused.");
ABSL_FLAG(std::string, api_key_file, "",
          "A file with a key in each line, that only its owner may read: requests need one of them "
          "(Authorization: Bearer KEY). Empty: they need none.");
ABSL_FLAG(int, tensor_model_parallel_size, 1,
          "Cuts the model's matrices over so many ranks, which are threads of this process.");
ABSL_FLAG(int, pipeline_model_parallel_size, 1,
          "Cuts the model's layers over so many ranks, which are threads of this process.");
ABSL_FLAG(int64_t, max_context, 0,
          "The most tokens of a prompt and what follows it; 0: as many as in training.");
ABSL_FLAG(
    int, max_batch, 16,
    "The most texts that the model works on at once; each has memory for --max_context tokens.");
ABSL_FLAG(int, max_queue, 256, "The most texts that wait for the model; one more is told 429.");
ABSL_FLAG(absl::Duration, request_timeout, absl::Minutes(10),
          "The longest time from a request to the end of its answer.");
ABSL_FLAG(absl::Duration, stop_timeout, absl::Seconds(10),
          "How long answers may go on after SIGTERM or Ctrl-C; those that have not ended then are "
          "cut off, and their clients told so.");

namespace megatron {
namespace {

constexpr size_t kMaxKeyFileBytes = 1 << 20, kMinKeyBytes = 16;

absl::StatusOr<std::vector<std::string>> ReadKeys(const std::string& path) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadPrivateFile(path, kMaxKeyFileBytes),
                            _ << "in --api_key_file " << path);
  std::vector<std::string> keys;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    if (line.size() < kMinKeyBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("a key in --api_key_file ", path, " has less than ", kMinKeyBytes,
                       " characters; `openssl rand -hex 16` makes one"));
    }
    keys.emplace_back(line);
  }
  if (keys.empty())
    return absl::InvalidArgumentError(absl::StrCat("there is no key in --api_key_file ", path));
  return keys;
}

std::string NameOf(absl::string_view directory) {
  while (directory.size() > 1 && directory.back() == '/') directory.remove_suffix(1);
  return std::string(directory.substr(directory.rfind('/') + 1));
}

absl::StatusOr<serve::ApiServerOptions> ServerOptions() {
  serve::ApiServerOptions options;
  const std::string listen = absl::GetFlag(FLAGS_listen);
  MEGATRON_ASSIGN_OR_RETURN(options.listen, Endpoint::Parse(listen), _ << "in --listen");
  options.model = absl::GetFlag(FLAGS_model_name);
  if (options.model.empty()) options.model = NameOf(absl::GetFlag(FLAGS_checkpoint));
  options.chat_template = absl::GetFlag(FLAGS_chat_template);
  options.request_time = absl::GetFlag(FLAGS_request_timeout);
  if (options.request_time <= absl::ZeroDuration())
    return absl::InvalidArgumentError("--request_timeout is greater than 0");
  if (absl::GetFlag(FLAGS_stop_timeout) < absl::ZeroDuration())
    return absl::InvalidArgumentError("--stop_timeout is at least 0");
  const std::string keys = absl::GetFlag(FLAGS_api_key_file);
  if (!keys.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(options.api_keys, ReadKeys(keys));
  } else if (options.listen.host != "localhost" && options.listen.host != "::1" &&
             !absl::StartsWith(options.listen.host, "127.")) {
    LOG(WARNING) << "whoever reaches " << listen
                 << " may use the model: there is no --api_key_file";
  }
  return options;
}

absl::StatusOr<TextEngineOptions> EngineOptions(const std::string& directory) {
  TextEngineOptions options;
  options.checkpoint = directory;
  options.tensor_parallel = absl::GetFlag(FLAGS_tensor_model_parallel_size);
  options.pipeline_parallel = absl::GetFlag(FLAGS_pipeline_model_parallel_size);
  options.max_batch = absl::GetFlag(FLAGS_max_batch);
  options.max_queue = absl::GetFlag(FLAGS_max_queue);
  options.max_context = absl::GetFlag(FLAGS_max_context);
  MEGATRON_RETURN_IF_ERROR(
      CheckAtLeastOne({{"tensor_model_parallel_size", options.tensor_parallel},
                       {"pipeline_model_parallel_size", options.pipeline_parallel},
                       {"max_batch", options.max_batch},
                       {"max_queue", options.max_queue}}));
  if (options.max_context < 0) return absl::InvalidArgumentError("--max_context is at least 0");
  return options;
}

// Has the allocator give back what large bodies of requests take, where each thread's arena would
// keep it.
void KeepLittleMemory() {
  mallopt(M_ARENA_MAX, 2);
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
}

absl::Status Serve(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) return absl::InvalidArgumentError("there are flags only");
  const std::string directory = absl::GetFlag(FLAGS_checkpoint);
  if (directory.empty())
    return absl::InvalidArgumentError("--checkpoint must name the directory of a model");
  MEGATRON_ASSIGN_OR_RETURN(const serve::ApiServerOptions options, ServerOptions());
  MEGATRON_RETURN_IF_ERROR(ops::CheckCpu());
  MEGATRON_ASSIGN_OR_RETURN(TextEngineOptions engine, EngineOptions(directory));
  engine.bytes_of_requests = [&options](const EngineLimits& limits) {
    return serve::ApiServer::PlannedBytes(options, limits);
  };
  KeepLittleMemory();
  StopSignal stop("the model was being loaded");
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<ServedModel> model,
                            AsArgument(OpenTextEngine(PosixFileSystem(), engine)));
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<serve::ApiServer> server,
                            serve::ApiServer::Start(options, &model->engine(), model->tokenizer()));
  stop.Started();
  std::cout << "serving " << options.model << " at http://" << server->endpoint().ToString()
            << std::endl;
  stop.Await();
  const absl::Duration grace = absl::GetFlag(FLAGS_stop_timeout);
  if (grace > absl::ZeroDuration()) {
    LOG(INFO) << "stops; answers on their way have " << absl::FormatDuration(grace)
              << ", and a second signal ends them at once";
  } else {
    LOG(INFO) << "stops, and cuts off the answers that are on their way";
  }
  server->Stop(grace);
  return absl::OkStatus();
}

}  // namespace
}  // namespace megatron

int main(int argc, char** argv) {
  const int code = megatron::RunTool(argc, argv,
                                     "Serves a trained GPT over HTTP as OpenAI's API has it.\n\n"
                                     "  serve --checkpoint=DIRECTORY [flags]",
                                     megatron::Serve);
  // The data here is a checkpoint.
  return code == megatron::kExitData ? megatron::kExitCorruptCheckpoint : code;
}
