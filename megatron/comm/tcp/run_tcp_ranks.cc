#include "megatron/comm/tcp/run_tcp_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "glog/logging.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/store/tcp_store.h"
#include "megatron/comm/tcp/tcp_frame.h"

namespace megatron {
namespace {

absl::Status RunRank(Store* store, const JobSecret& secret, const TcpWorldOptions& options,
                     const RankFunction& fn) {
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<TcpWorld> world,
                            TcpWorld::Create(store, secret, options));
  const absl::Status result = fn(options.rank, ProcessGroup(world->communicator()));
  if (!result.ok()) {
    world->Abort(
        absl::Status(result.code(), absl::StrCat("rank ", options.rank, ": ", result.message())));
  }
  return world->status();
}

absl::Status ConnectAndRunRank(const Endpoint& server, const JobSecret& secret,
                               const TcpWorldOptions& options, const RankFunction& fn) {
  MEGATRON_ASSIGN_OR_RETURN(const std::unique_ptr<TcpStoreClient> store,
                            TcpStoreClient::Connect(server, secret, options.connect_deadline));
  return RunRank(store.get(), secret, options, fn);
}

absl::Status FirstError(const std::vector<absl::Status>& results) {
  for (const absl::Status& result : results) {
    if (!result.ok()) return result;
  }
  return absl::OkStatus();
}

// A child's status comes through a pipe; an empty one means that it could not tell any more.
absl::Status ReadStatus(int fd, pid_t child, int rank) {
  std::string text;
  char bytes[4096];
  ssize_t got;
  while ((got = read(fd, bytes, sizeof(bytes))) > 0 || (got < 0 && errno == EINTR)) {
    if (got > 0) text.append(bytes, got);
  }
  close(fd);
  int ended = 0;
  while (waitpid(child, &ended, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(ended)) {
    return absl::UnavailableError(absl::StrCat("rank ", rank, " was ended by signal ",
                                               WTERMSIG(ended), " (", strsignal(WTERMSIG(ended)),
                                               ")"));
  }
  if (!WIFEXITED(ended) || WEXITSTATUS(ended) != 0) {
    return absl::InternalError(absl::StrCat("rank ", rank, " ended with status ", ended));
  }
  return text.empty() ? absl::OkStatus() : AbortMessage::Decode(text);
}

}  // namespace

absl::Status RunTcpRanksOnThreads(int size, const RankFunction& fn, const TcpWorldOptions& options,
                                  const RankOptions& on_rank) {
  const JobSecret secret = JobSecret::Random();
  MEGATRON_ASSIGN_OR_RETURN(const auto server, TcpStoreServer::Create({"127.0.0.1", 0}, secret));
  std::vector<absl::Status> results(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      TcpWorldOptions mine = options;
      mine.rank = rank;
      mine.size = size;
      if (on_rank) on_rank(&mine);
      results[rank] = ConnectAndRunRank(server->endpoint(), secret, mine, fn);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return FirstError(results);
}

absl::Status RunTcpRanksInProcesses(int size, const RankFunction& fn,
                                    const TcpWorldOptions& options, const RankOptions& on_rank) {
  const JobSecret secret = JobSecret::Random();
  // The port is bound here, so that all know it; rank 0 serves.
  MEGATRON_ASSIGN_OR_RETURN(Socket listener, ListenTcp({"127.0.0.1", 0}));
  MEGATRON_ASSIGN_OR_RETURN(const Endpoint endpoint, LocalEndpoint(listener));
  // The children, with the reading ends of their pipes.
  std::vector<std::pair<pid_t, int>> children;
  for (int rank = 0; rank < size; ++rank) {
    int ends[2];
    PCHECK(pipe2(ends, O_CLOEXEC) == 0);
    const pid_t child = fork();
    PCHECK(child >= 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::unique_ptr<TcpStoreServer> server;
      absl::Status status;
      if (rank == 0) {
        auto created = TcpStoreServer::Create(std::move(listener), secret);
        status = created.status();
        if (created.ok()) server = *std::move(created);
      } else {
        listener.Close();
      }
      TcpWorldOptions mine = options;
      mine.rank = rank;
      mine.size = size;
      if (on_rank) on_rank(&mine);
      if (status.ok()) status = ConnectAndRunRank(endpoint, secret, mine, fn);
      const std::string text = status.ok() ? "" : AbortMessage::Encode(status);
      const bool told = write(ends[1], text.data(), text.size()) == ssize_t(text.size());
      _exit(told ? 0 : 1);
    }
    close(ends[1]);
    children.emplace_back(child, ends[0]);
  }
  listener.Close();
  std::vector<absl::Status> results;
  for (int rank = 0; rank < size; ++rank) {
    results.push_back(ReadStatus(children[rank].second, children[rank].first, rank));
  }
  return FirstError(results);
}

}  // namespace megatron
