// Takes connections from a listening socket and gives out those that have proved to be of this job.
//
// Strangers cost little and disturb nobody: at most `max_pending` connections are in the handshake
// at once, each has `handshake_time`, and nothing here ever waits. When all places are taken the
// oldest goes as soon as it has had `least_time`, so that those who are quick always get in. Each
// kind of refusal is logged at most once a minute.
//
//   while (...) {
//     std::vector<pollfd> entries;
//     acceptor.AppendTo(&entries);
//     poll(entries.data(), entries.size(), ...);       // at most longest_wait()
//     for (AcceptedChannel& channel : acceptor.Accept()) ...
//   }
//
// Threads: one.
#ifndef MEGATRON_COMM_SOCKET_ACCEPTOR_H_
#define MEGATRON_COMM_SOCKET_ACCEPTOR_H_

#include <poll.h>

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "megatron/comm/socket/handshake.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"

namespace megatron {

struct AcceptorOptions {
  size_t max_pending = 64;
  absl::Duration handshake_time = absl::Seconds(5);
  absl::Duration least_time = absl::Milliseconds(100);
};

struct AcceptedChannel {
  Socket socket;
  ChannelId id;
};

class Acceptor {
 public:
  Acceptor(Socket listener, JobSecret secret, const AcceptorOptions& options = {});

  const Socket& listener() const { return listener_; }

  // The descriptors that Accept waits for.
  void AppendTo(std::vector<pollfd>* entries) const;
  absl::Duration longest_wait() const;
  std::vector<AcceptedChannel> Accept();

  // Not OK while a connection can't be taken, for want of descriptors or memory, and there is no
  // handshake to give up for it. Accept tries again a little later.
  const absl::Status& status() const { return status_; }

 private:
  bool MayTakeNew() const;
  void AdvancePending(std::vector<AcceptedChannel>* accepted);
  void TakeNew();
  void Refuse(const Socket& socket, const char* why);

  const Socket listener_;
  const JobSecret secret_;
  const AcceptorOptions options_;
  std::deque<AcceptorHandshake> pending_;  // oldest first
  absl::Status status_;
  absl::Time next_accept_ = absl::InfinitePast();  // later when there are no descriptors left
  struct Refusals {
    int64_t since_logged = 0;
    absl::Time next_log = absl::InfinitePast();
  };
  std::map<std::string, Refusals> refusals_;
};

}  // namespace megatron

#endif  // MEGATRON_COMM_SOCKET_ACCEPTOR_H_
