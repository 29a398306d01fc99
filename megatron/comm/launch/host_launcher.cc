#include "megatron/comm/launch/host_launcher.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "megatron/base/host_name.h"
#include "megatron/base/shell_command.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/launch/claim_line.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/socket/wire.h"
#include "megatron/comm/store/tcp_store.h"

namespace megatron {
namespace {

constexpr uint32_t kMaxJobBytes = 1 << 22;
constexpr uint32_t kMaxStrings = 1 << 16;
constexpr char kHostName[] = "host ";  // begins the name of a child that is a host
constexpr int kSignalCode = 128;       // plus the signal: the convention of shells; 255 is ssh's

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

// Serves the job's store where its ranks meet, which is this machine.
absl::StatusOr<std::unique_ptr<TcpStoreServer>> ServeStoreOf(JobPlace* job) {
  const bool is_loopback =
      job->master_addr == "localhost" || absl::StartsWith(job->master_addr, "127.");
  const Endpoint at = {is_loopback ? "127.0.0.1" : "0.0.0.0", job->master_port};
  MEGATRON_ASSIGN_OR_RETURN(Socket listener, ListenTcp(at),
                            _ << "where ranks meet; --master_port names another port");
  MEGATRON_ASSIGN_OR_RETURN(const Endpoint endpoint, LocalEndpoint(listener));
  job->master_port = endpoint.port;
  return ServeStore(std::move(listener), job->secret);
}

// Returns the child that is an agent on this machine.
Child AgentOn(const HostSlots& host, const HostLaunchOptions& options, AgentJob agent) {
  agent.launch.ranks = static_cast<int>(host.slots.size());
  agent.launch.environment = options.environment;
  agent.launch.environment.emplace_back(kHostVariable, host.host);
  AddDevices(host, &agent.launch);
  WireWriter input;
  input.PutString(agent.Encode());
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
  return child;
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
  writer.Put(absl::ToInt64Milliseconds(launch.children.stop_limit));
  writer.Put(static_cast<int32_t>(launch.children.goes_on));
  writer.Put(static_cast<int32_t>(launch.children.replacements));
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
  const auto grace = reader.Get<int64_t>(), idle_limit = reader.Get<int64_t>(),
             stop_limit = reader.Get<int64_t>();
  const auto goes_on = reader.Get<int32_t>(), replacements = reader.Get<int32_t>();
  std::string address(reader.GetString());
  const std::string secret(reader.GetString());
  AgentJob agent;
  agent.directory = std::string(reader.GetString());
  agent.launch.command = GetStrings(&reader);
  const std::vector<std::string> environment = GetStrings(&reader);
  if (!reader.at_end() || environment.size() % 2 != 0 || ranks < 1 || ranks > kMaxSlots ||
      first_rank < 0 || int64_t{first_rank} + ranks > world_size) {
    return absl::InvalidArgumentError("an agent reads a job from another version of the launcher");
  }
  MEGATRON_ASSIGN_OR_RETURN(JobSecret job_secret, JobSecret::FromHex(secret));
  agent.launch.ranks = ranks;
  agent.launch.children.grace = absl::Milliseconds(grace);
  agent.launch.children.idle_limit = absl::Milliseconds(idle_limit);
  agent.launch.children.stop_limit = absl::Milliseconds(stop_limit);
  agent.launch.children.goes_on = agent.launch.serves_store = goes_on != 0;
  agent.launch.children.replacements = replacements;
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
  const bool goes_on = options.children.goes_on;
  AgentJob agent;
  agent.directory = options.directory;
  agent.launch.command = options.command;
  agent.launch.children = options.children;
  agent.launch.job = JobPlace{0, 0, options.master_addr, options.master_port, JobSecret::Random()};
  JobPlace& job = *agent.launch.job;
  if (job.master_addr.empty()) job.master_addr = goes_on ? HostName() : options.hosts[0].host;
  std::vector<int> first_ranks;
  for (const HostSlots& host : options.hosts) {
    first_ranks.push_back(job.world_size);
    job.world_size += static_cast<int>(host.slots.size());
  }
  std::unique_ptr<TcpStoreServer> store;
  if (goes_on) {
    MEGATRON_ASSIGN_OR_RETURN(store, ServeStoreOf(&job));
  }
  const auto child_at = [&](size_t place, const HostSlots& host) {
    job.first_rank = first_ranks[place];
    return AgentOn(host, options, agent);
  };
  std::vector<Child> children;
  for (size_t place = 0; place < options.hosts.size(); ++place) {
    children.push_back(child_at(place, options.hosts[place]));
    if (children.back().input.size() > kMaxJobBytes) {
      return absl::InvalidArgumentError("command and environment are longer than 4 MiB");
    }
  }
  ChildrenOptions of_hosts = options.children;
  of_hosts.stop_limit = absl::ZeroDuration();
  of_hosts.is_lost = [&](int code) {
    return code > kSignalCode || code == options.children.consequence_code;
  };
  of_hosts.replacement = [&](size_t place) {
    return child_at(place, options.next_host ? options.next_host(place) : options.hosts[place]);
  };
  return RunChildren(std::move(children), of_hosts);
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
  agent.launch.children.takes_line = PassClaimLineOn;
  agent.launch.children.tell = [](absl::string_view line) {
    std::fprintf(stderr, "%s%s\n", kAgentReason, std::string(line).c_str());
  };
  return LaunchRanks(agent.launch);
}

}  // namespace megatron
