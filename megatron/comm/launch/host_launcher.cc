#include "megatron/comm/launch/host_launcher.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "megatron/base/shell_command.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/socket/wire.h"

namespace megatron {
namespace {

constexpr uint32_t kMaxJobBytes = 1 << 22;
constexpr uint32_t kMaxStrings = 1 << 16;
constexpr char kHostName[] = "host ";  // begins the name of a child that is a host

bool IsThisMachine(const std::string& host) { return host == "localhost" || host == "127.0.0.1"; }

void PutStrings(const std::vector<std::string>& strings, WireWriter* writer) {
  writer->Put(static_cast<uint32_t>(strings.size()));
  for (const std::string& text : strings) writer->PutString(text);
}

std::vector<std::string> GetStrings(WireReader* reader) {
  std::vector<std::string> strings;
  const auto count = reader->Get<uint32_t>();
  for (uint32_t i = 0; i < count && i < kMaxStrings && reader->ok(); ++i) {
    strings.emplace_back(reader->GetString());
  }
  return strings;
}

absl::StatusOr<std::string> ReadExactly(int fd, size_t bytes) {
  std::string text(bytes, '\0');
  size_t have = 0;
  while (have < bytes) {
    const ssize_t got = read(fd, &text[have], bytes - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, "read the job");
    if (got == 0) return absl::InvalidArgumentError("the job that an agent reads is cut off");
    have += got;
  }
  return text;
}

// The graphics cards that were chosen, where not all were.
void AddDevices(const HostSlots& host, LaunchOptions* launch) {
  const bool first_ones = host.slots.back() + 1 == static_cast<int>(host.slots.size());
  if (!first_ones) {
    launch->environment.emplace_back("CUDA_VISIBLE_DEVICES", absl::StrJoin(host.slots, ","));
  }
}

}  // namespace

std::string AgentJob::Encode() const {
  std::vector<std::string> environment;
  for (const auto& [name, value] : launch.environment) {
    environment.push_back(name);
    environment.push_back(value);
  }
  const JobPlace& job = *launch.job;
  WireWriter writer;
  writer.Put(static_cast<int32_t>(launch.ranks));
  writer.Put(static_cast<int32_t>(job.first_rank));
  writer.Put(static_cast<int32_t>(job.world_size));
  writer.Put(static_cast<int32_t>(job.master_port));
  writer.Put(absl::ToInt64Milliseconds(launch.children.grace));
  writer.Put(absl::ToInt64Milliseconds(launch.children.idle_limit));
  writer.PutString(job.master_addr);
  writer.PutString(job.secret.ToHex());
  writer.PutString(directory);
  PutStrings(launch.command, &writer);
  PutStrings(environment, &writer);
  return writer.Take();
}

absl::StatusOr<AgentJob> AgentJob::Decode(absl::string_view bytes) {
  WireReader reader(bytes);
  const auto ranks = reader.Get<int32_t>(), first_rank = reader.Get<int32_t>(),
             world_size = reader.Get<int32_t>(), port = reader.Get<int32_t>();
  const auto grace = reader.Get<int64_t>(), idle_limit = reader.Get<int64_t>();
  std::string address(reader.GetString());
  const std::string secret(reader.GetString());
  AgentJob agent;
  agent.directory = std::string(reader.GetString());
  agent.launch.command = GetStrings(&reader);
  const std::vector<std::string> environment = GetStrings(&reader);
  if (!reader.at_end() || environment.size() % 2 != 0 || ranks < 1 || ranks > kMaxSlots ||
      first_rank < 0 || first_rank > world_size - ranks) {
    return absl::InvalidArgumentError("an agent reads a job from another version of the launcher");
  }
  MEGATRON_ASSIGN_OR_RETURN(JobSecret job_secret, JobSecret::FromHex(secret));
  agent.launch.ranks = ranks;
  agent.launch.children.grace = absl::Milliseconds(grace);
  agent.launch.children.idle_limit = absl::Milliseconds(idle_limit);
  agent.launch.job =
      JobPlace{first_rank, world_size, std::move(address), port, std::move(job_secret)};
  for (size_t i = 0; i < environment.size(); i += 2) {
    agent.launch.environment.emplace_back(environment[i], environment[i + 1]);
  }
  return agent;
}

absl::StatusOr<LaunchResult> LaunchOnHosts(const HostLaunchOptions& options) {
  if (options.hosts.empty() || options.command.empty()) {
    return absl::InvalidArgumentError("nothing to launch");
  }
  int world_size = 0;
  for (const HostSlots& host : options.hosts) world_size += static_cast<int>(host.slots.size());
  AgentJob agent;
  agent.directory = options.directory;
  agent.launch.command = options.command;
  agent.launch.children.grace = options.children.grace;
  agent.launch.children.idle_limit = options.children.idle_limit;
  agent.launch.job = JobPlace{
      0, world_size, options.master_addr.empty() ? options.hosts[0].host : options.master_addr,
      options.master_port, JobSecret::Random()};
  std::vector<Child> children;
  for (const HostSlots& host : options.hosts) {
    agent.launch.ranks = static_cast<int>(host.slots.size());
    agent.launch.environment = options.environment;
    AddDevices(host, &agent.launch);
    const std::string job = agent.Encode();
    if (job.size() > kMaxJobBytes) {
      return absl::InvalidArgumentError("command and environment are longer than 4 MiB");
    }
    WireWriter input;
    input.PutString(job);
    Child child;
    child.name = absl::StrCat(kHostName, host.host);
    if (IsThisMachine(host.host)) {
      child.command = options.agent;
    } else {
      child.command = options.ssh;
      child.command.push_back(host.host);
      child.command.push_back(ShellCommand(options.agent));
    }
    child.environment = ProcessEnvironment();
    child.input = input.Take();
    child.reason_mark = kAgentReason;
    children.push_back(std::move(child));
    agent.launch.job->first_rank += agent.launch.ranks;
  }
  return RunChildren(std::move(children), options.children);
}

std::vector<std::string> HostsToBlame(const LaunchResult& result) {
  std::vector<std::string> hosts;
  for (const std::string& child : NamesToBlame(result)) {
    absl::string_view name = child;
    if (absl::ConsumePrefix(&name, kHostName)) hosts.emplace_back(name);
  }
  return hosts;
}

absl::StatusOr<LaunchResult> RunAgent(int input) {
  MEGATRON_ASSIGN_OR_RETURN(const std::string length, ReadExactly(input, sizeof(uint32_t)));
  const auto bytes = WireReader(length).Get<uint32_t>();
  if (bytes > kMaxJobBytes) return absl::InvalidArgumentError("an agent reads what is no job");
  MEGATRON_ASSIGN_OR_RETURN(const std::string text, ReadExactly(input, bytes));
  MEGATRON_ASSIGN_OR_RETURN(AgentJob agent, AgentJob::Decode(text));
  if (chdir(agent.directory.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("go to ", agent.directory));
  }
  agent.launch.children.control = input;
  return LaunchRanks(agent.launch);
}

}  // namespace megatron
