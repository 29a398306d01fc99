// The ranks of an island that is a job of its own, together with the server of the outer optimizer
// (outer_server.h).
//
//   link.Join(run, round, stop, stream);       // takes the global copy, or gives the first one
//   ... steps ...
//   link.Exchange(stop, stream);               // one round
//
// Each rank sends the elements of which it is the main replica, and fetches those of its optimizer
// range; so islands may have different layouts, and no rank holds more of the model than before.
// The first rank speaks for the island. What it hears, it tells the others.
//
// With FederatedOptions a round is a secure sum (secure_round.h). The update is clipped by the norm
// over all ranks and becomes integers, which the gradients hold as bits. Each rank adds the masks
// of its elements, by their places in the order of the model (model_order.h). The first rank has
// the keys, new ones for each attempt, so that what is sent again after a lost connection has
// others.
//
// A lost connection is no failure: all ranks try again, with pauses that grow to half a minute,
// until `stop` says so on any rank.
//
// Calls are collective over the island's ranks. They return the same kind of status on all of them.
#ifndef MEGATRON_ISLANDS_ISLAND_LINK_H_
#define MEGATRON_ISLANDS_ISLAND_LINK_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "megatron/comm/process_groups.h"
#include "megatron/federated/federated_options.h"
#include "megatron/federated/secure_sum.h"
#include "megatron/islands/island_client.h"
#include "megatron/islands/island_protocol.h"
#include "megatron/islands/model_order.h"
#include "megatron/optim/outer/outer_optimizer.h"
#include "megatron/optim/parameter_buffers.h"

namespace megatron {

struct IslandLinkOptions {
  std::string server_address;  // HOST:PORT; empty: there is no server
  std::string secret_file;
  int island = 0;
  std::string agreement;  // IslandAgreement::text
  OuterStepOptions outer;
  OuterGradientType gradient_type = OuterGradientType::kFloat32;  // fp32 if federated
  FederatedOptions federated;
  // The least time between two warnings that the island waits.
  absl::Duration tell_interval = absl::Minutes(1);

  bool enabled() const { return !server_address.empty(); }
};

class IslandLink {
 public:
  struct Round {
    // Whether the gradients hold a copy that the island has to go on from.
    bool has_copy = false;
    bool stopped = false;  // `stop` ended it, and there is no copy
    bool took_part = false;
    std::string left_out;      // where the update is in no sum: why, or that it is so
    int64_t round = -1;        // the island's copy is that of so many rounds
    std::vector<int> present;  // the islands whose updates made it
    std::string note;          // why no updates made it
    // What all rounds so far have cost, in a federated run with noise.
    std::optional<double> epsilon;
    double delta = 0;
    bool budget_spent = false;                   // there are no more rounds
    int64_t sent_bytes = 0, received_bytes = 0;  // all ranks' bytes
    absl::Duration time;
  };
  using Stop = std::function<bool()>;

  // `tensors` are those of the whole model. Reads the secret. `outer`, whose buffers are these, has
  // the global copy. All must outlive this.
  static absl::StatusOr<std::unique_ptr<IslandLink>> Create(const IslandLinkOptions& options,
                                                            const std::vector<NamedShape>& tensors,
                                                            const ProcessGroups& groups,
                                                            const OuterOptimizer* outer,
                                                            const ParameterBuffers* buffers);

  // Tells the server that the island leaves.
  ~IslandLink();

  // Joins with a copy of this run and round of the server's (0, -1: of none). The Round has no copy
  // where that is the server's, or where this island gives the server its first.
  absl::StatusOr<Round> Join(uint64_t run, int64_t round, const Stop& stop, const Stream& stream);
  // Sends the gradients, which are this island's update, waits for the end of the round and fetches
  // the copy. Only fetches it where the round has ended without this island, or there are no more.
  absl::StatusOr<Round> Exchange(const Stop& stop, const Stream& stream);

  // The server's run and round that the island's copy is of.
  uint64_t run() const { return run_; }
  int64_t round() const { return round_; }
  // Whether the server has said that there are no more rounds.
  bool budget_spent() const { return budget_spent_; }

 private:
  IslandLink(const IslandLinkOptions& options, Endpoint server, const JobSecret& secret,
             const std::vector<NamedShape>& tensors, const ProcessGroups& groups,
             const OuterOptimizer* outer, const ParameterBuffers* buffers);
  // Elements of a bucket that are a block.
  struct Piece {
    TensorBlock block;
    const Bucket* bucket = nullptr;
    FlatRange range;
  };

  bool leads() const { return world_.rank() == 0; }
  void AppendPieces(const FlatParameter& flat, const FlatRange& range,
                    std::vector<Piece>* pieces) const;
  absl::StatusOr<Round> Try(bool with_update, const Stop& stop, const Stream& stream);
  absl::Status Attempt(bool with_update, const Stop& stop, const Stream& stream, Round* round);
  // Returns OK if all ranks have it, else this rank's error or that another rank has one; of the
  // gravest kind. Sets stopped_.
  absl::Status Together(const absl::Status& mine, const Stop& stop);
  // Returns the server's state, which the first rank has got from it.
  absl::StatusOr<IslandMessage> ShareState(const absl::StatusOr<IslandMessage>& state,
                                           const Stop& stop);
  IslandMessage JoinMessage() const;
  absl::StatusOr<IslandMessage> JoinServer();
  absl::Status SendAllPieces(IslandContent content, const Stop& stop, const Stream& stream);
  absl::Status PutPieces(IslandContent content, const Stream& stream);
  // A piece of what is sent, on the host, where `copy` keeps it if need be.
  Tensor HostValues(const Piece& piece, IslandContent content, const Stream& stream,
                    Buffer* copy) const;
  absl::Status FetchPieces(int64_t round, const Stream& stream);

  // Waits a moment for what comes after the server's state in `poll`, and returns the state then.
  // Warns of a wait that began at `since` and is long.
  absl::StatusOr<IslandMessage> Await(IslandMessage poll, absl::Time since, const Stop& stop);
  // Sends the update, waits for the end of the round, and returns the server's state then; that of
  // this round where `stop` ended it.
  absl::StatusOr<IslandMessage> SendUpdate(IslandMessage state, const Stop& stop,
                                           const Stream& stream);
  IslandMessage SumMessage(IslandMessageKind kind) const;
  // Clips the update, once for each. kDataLoss for one that cannot be clipped, on all ranks.
  absl::Status ClipUpdate(const Stop& stop, const Stream& stream);
  // Goes through the steps of the round's secure sum, as SendUpdate.
  absl::StatusOr<IslandMessage> SumSecurely(IslandMessage state, const Stop& stop,
                                            const Stream& stream);
  // Does what this step of the sum asks for. `member` is null but on the first rank.
  absl::Status TakeSumStep(const IslandMessage& state, SecureSumMember* member, const Stop& stop,
                           const Stream& stream);
  // Tells the server that the island sends nothing, on the first rank.
  absl::Status Abstain(const absl::Status& why);
  absl::Status ShareMasks();
  // Adds the masks to the integers of a message.
  absl::Status MaskValues(IslandMessage* put) const;

  const IslandLinkOptions options_;
  IslandAgreement agreement_;
  const ModelOrder order_;
  const ProcessGroups groups_;
  const ProcessGroup world_;
  const OuterOptimizer* const outer_;
  const ParameterBuffers* const buffers_;
  IslandClient client_;
  std::vector<Piece> sent_, fetched_;
  uint64_t session_ = 0;
  uint64_t attempt_ = 0;
  uint64_t run_ = 0;
  int64_t round_ = -1;
  bool stopped_ = false;
  bool must_fetch_ = false;  // nothing may be sent before the copy has been fetched
  bool clipped_ = false;     // the gradients are integers
  std::vector<Mask> masks_;  // the masks that are added to the update
  int64_t noised_rounds_ = 0;
  bool budget_spent_ = false;
  absl::Time told_ = absl::InfinitePast();
  absl::Time conflict_since_ = absl::InfiniteFuture();
};

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_ISLAND_LINK_H_
