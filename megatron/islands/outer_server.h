// The server of the outer optimizer, for islands (optim/outer_optimizer.h) that are jobs of their
// own: they join it over TCP, come late, leave and come back.
//
//   MEGATRON_ASSIGN_OR_RETURN(auto server, OuterServer::Start(options, secret, PosixFileSystem()));
//   ... server->endpoint().port ...
//
// It holds the global copy of the weights (global_copy.h), which the first island gives, and makes
// the outer steps, which it calls rounds. In a round
//
// - each island that is joined trains, and sends its update;
// - the round ends when all of them have sent, or, with at least `min_islands` updates,
//   `round_timeout` after the first update. With fewer it goes on until there are enough;
// - the mean of the updates (update_sum.h) makes the new copy, which the islands fetch before the
//   next round may end.
//
// An island that joins when others have sent their updates is not waited for in that round. One
// whose connection ends is out, and what it has sent whole stays in the round. One that misses the
// end of a round is out until it joins again, which it does when it comes with its update: it gets
// the copy. An update that may not be in the sum is left out, and its island gets the copy.
//
// With FederatedOptions the updates of a round are a secure sum (secure_round.h). What ends a round
// above begins its sum, whose steps each have `round_timeout`. The mean has noise, and is shown
// only when the file counts the round in the privacy budget. A sum that fails ends the round
// without an outer step. At the end of the budget islands are told so, and get the copy alone.
//
// Connections prove that they know the secret. One that sends what is no message, or what does not
// fit the model, is closed and named in the log, and the others go on. An island whose agreement is
// another than that of the copy is refused. Sums need each update whole: the memory is 4 bytes per
// parameter for the copy, the momentum, a gradient, and each island that has sent. In a secure sum
// it is 4 for the sum, and for each island that is sending.
//
// Threads: one that takes connections and looks at deadlines, and one for each connection.
#ifndef MEGATRON_ISLANDS_OUTER_SERVER_H_
#define MEGATRON_ISLANDS_OUTER_SERVER_H_

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "megatron/base/file_system.h"
#include "megatron/comm/socket/acceptor.h"
#include "megatron/comm/socket/job_secret.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/comm/socket/wake_event.h"
#include "megatron/federated/federated_options.h"
#include "megatron/islands/global_copy.h"
#include "megatron/islands/island_protocol.h"
#include "megatron/islands/secure_round.h"

namespace megatron {

struct OuterServerOptions {
  Endpoint listen = {"127.0.0.1", 0};  // port 0: any free one
  // Where the copy is kept after each round, and read from at the start; empty: nowhere.
  std::string state_file;
  int min_islands = 1;
  absl::Duration round_timeout = absl::Minutes(10);
  // The longest time for the rest of a message whose length has come, and for an answer.
  absl::Duration message_time = absl::Seconds(60);
  // A connection ends when its host has acknowledged nothing for so long, be it a probe or an
  // answer, or has had no room for more of an answer. At least 6 s.
  absl::Duration silence_limit = absl::Seconds(30);
  int64_t max_parameters = int64_t{20} * 1000 * 1000 * 1000;
  int max_connections = 4096;
  // If enabled, the updates are summed securely, and the islands must have the same. Noise needs a
  // `state_file`, which keeps the budget.
  FederatedOptions federated;
  int noise_threads = 1;
};

class OuterServer {
 public:
  // Fails if the port is in use, if the file of the state is damaged, cannot be written, or counts
  // rounds with another noise, and for FederatedOptions that allow no round.
  static absl::StatusOr<std::unique_ptr<OuterServer>> Start(const OuterServerOptions& options,
                                                            const JobSecret& secret,
                                                            FileSystem& fs);
  // Closes all connections and leaves no thread.
  ~OuterServer();

  const Endpoint& endpoint() const { return endpoint_; }
  // The number of rounds that have made the copy; -1: there is none.
  int64_t round() const;
  // The copy, for who looks at it.
  std::vector<float> global() const;

 private:
  struct Connection {
    Connection(Socket s, std::string p) : socket(std::move(s)), peer(std::move(p)) {}
    const Socket socket;
    const std::string peer;
    std::thread thread;
    // Used by the connection's thread alone.
    int island = -1;  // -1: it has not joined
    uint64_t session = 0;
    bool leads = false;
    absl::Status put_error;
    bool done = false;  // guarded by mutex_: its thread needs only to be joined
  };
  enum class IslandState { kTrains, kFetches };
  struct Island {
    uint64_t session = 0;
    Connection* leader = nullptr;  // null: it is out
    bool joined = false;           // it takes part in rounds
    bool awaited = false;          // this round does not end early without it
    IslandState state = IslandState::kTrains;
    absl::Time fetches_since;
    // What has come of its update or of the first copy.
    uint64_t attempt = 0;
    IslandContent content = IslandContent::kUpdate;
    std::vector<float> values;
    std::vector<uint32_t> masked;  // the values of IslandContent::kMasked
    int64_t elements = 0;
    // Its update is whole, or, for a secure sum, it waits for the end of the round.
    bool sent = false;
  };

  OuterServer(const OuterServerOptions& options, const JobSecret& secret, FileSystem& fs,
              Socket listener, Endpoint endpoint, WakeEvent wake);
  static absl::Status RoundIsOver(int64_t round);
  static bool IsSending(const Island& island);
  void Accept();
  void Open(AcceptedChannel channel);
  void JoinFinished();
  void Serve(Connection* connection);
  absl::StatusOr<IslandMessage> Receive(const Connection& connection);
  // Returns the answer; none: there is none. An error ends the connection.
  absl::StatusOr<std::optional<IslandMessage>> Handle(Connection* connection,
                                                      const IslandMessage& message);
  absl::StatusOr<IslandMessage> Join(Connection* connection, const IslandMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckAgreement(const IslandMessage& message) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  absl::Status Begin(int number, Island* island, const IslandMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Put(Island* island, const IslandMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Finish(int number, Island* island, const IslandMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The steps of an island in a secure sum: kAdvertise, kShare, kReveal, kAbstain.
  absl::Status TakePart(int number, Island* island, const IslandMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `known` is the last step of the round's sum that the island knows of.
  IslandMessage State(int island, SumStep known) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(Connection* connection, const char* how) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The number of the open round, which the copy that it makes will have.
  int64_t open_round() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return copy_->round + 1; }
  // Ends the round if it may end.
  void EndRound() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeStep(const std::vector<int>& islands) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CloseSecureStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LoseMember(int island) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the outer step of a secure sum, with noise. Other threads serve islands meanwhile.
  void Unmask(SecureRound::Sum sum);
  // Begins the next round. `note`: why this one had no outer step, by no island.
  void BeginRound(const std::vector<int>& islands, const std::string& note)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookAtBudget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Save() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const OuterServerOptions options_;
  FileSystem& fs_;
  const Endpoint endpoint_;
  Acceptor acceptor_;
  const WakeEvent wake_;
  mutable absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Island> islands_ ABSL_GUARDED_BY(mutex_);
  std::optional<GlobalCopy> copy_ ABSL_GUARDED_BY(mutex_);  // its run is 0 until it has been given
  int giver_ ABSL_GUARDED_BY(mutex_) = -1;                  // the island that gives the copy
  std::vector<int32_t> present_ ABSL_GUARDED_BY(mutex_);    // in the last round
  std::string note_ ABSL_GUARDED_BY(mutex_);                // why the last round had no outer step
  std::optional<SecureRound> secure_ ABSL_GUARDED_BY(mutex_);  // from the first kAdvertise on
  bool unmasks_ ABSL_GUARDED_BY(mutex_) = false;               // its sum has been taken
  bool budget_spent_ ABSL_GUARDED_BY(mutex_) = false;
  // The copy is of a round whose privacy the file does not count yet: nobody may see it.
  bool hidden_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time save_again_ ABSL_GUARDED_BY(mutex_);
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool told_too_few_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t received_ ABSL_GUARDED_BY(mutex_) = 0, sent_ ABSL_GUARDED_BY(mutex_) = 0;  // bytes
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_OUTER_SERVER_H_
