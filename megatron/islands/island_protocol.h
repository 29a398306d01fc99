// The messages between islands that are jobs of their own and the server of their outer optimizer
// (outer_server.h).
//
// A message is a frame: four bytes with the length of the rest, then the kind, then the fields of
// that kind, little-endian. The connection has proved before that it knows the islands' secret
// (comm/socket/handshake.h).
//
//   island -> server              server -> island
//   kJoin   who I am              kState    the round, and whether there is a global copy
//   kBegin  a copy or an update   kAnswer
//   kPut    a block of it         nothing; an error is told at kFlush
//   kFlush  all has been put      kAnswer
//   kFinish it is whole           kAnswer
//   kPoll   I wait for the round  kState
//   kGet    a block of the copy   kValues
//   kFetched I have the copy      kAnswer
//   kLeave                        kAnswer
//
// In a federated run (federated/federated_options.h) an update travels as a vector of integers
// with masks, and the steps of a secure sum (federated/secure_sum.h) come before and after it:
//
//   kAdvertise  I take part       kAnswer
//   kPoll       after a step      kState      the next step, and what the island needs for it
//   kShare      shares of keys    kAnswer
//   kBegin ... kFinish            as above, with the content kMasked
//   kReveal     shares of others  kAnswer
//   kAbstain    I am in no sum    kAnswer
//
// An *update* is what an island adds to a round: global - w, for each element of the model. A
// *block* is a rectangle of a tensor; so islands may cut tensors over their ranks in different
// ways.
#ifndef MEGATRON_ISLANDS_ISLAND_PROTOCOL_H_
#define MEGATRON_ISLANDS_ISLAND_PROTOCOL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "megatron/checkpoint/rectangle.h"
#include "megatron/federated/federated_options.h"
#include "megatron/federated/secure_sum.h"
#include "megatron/optim/outer/outer_codec.h"
#include "megatron/optim/outer/outer_step.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

constexpr uint32_t kIslandProtocolVersion = 2;
constexpr size_t kIslandLengthBytes = 4;
// The most bytes of a message behind its length.
constexpr size_t kMaxIslandMessage = size_t{8} << 20;
// The most elements of a block.
constexpr int64_t kMostBlockElements = int64_t{1} << 20;
constexpr int kMostIslands = 4096;  // islands have the numbers 0 ... kMostIslands - 1

enum class IslandMessageKind : uint8_t {
  kJoin = 1,
  kBegin,
  kPut,
  kFlush,
  kFinish,
  kPoll,
  kGet,
  kFetched,
  kLeave,
  kState,
  kAnswer,
  kValues,
  kAdvertise,
  kShare,
  kReveal,
  kAbstain,
};

// A tensor of the whole model.
struct NamedShape {
  std::string name;
  Shape shape;

  friend bool operator==(const NamedShape& a, const NamedShape& b) {
    return a.name == b.name && a.shape == b.shape;
  }
};

// What all islands and the server have in common.
struct IslandAgreement {
  // Lines that must be the same in all islands: the model, its precision, the seed.
  std::string text;
  OuterStepOptions outer;
  FederatedOptions federated;
  std::vector<NamedShape> tensors;  // ascending by name
};

struct TensorBlock {
  std::string name;
  Rectangle place;
};

// kMasked: an update as integers with masks, for a secure sum.
enum class IslandContent : uint8_t { kCopy = 0, kUpdate = 1, kMasked = 2 };
// The steps of a round's secure sum. An island goes from each to the next; kNone: it is in no sum.
enum class SumStep : uint8_t {
  kNone = 0,
  kAdvertising = 1,
  kSharing = 2,
  kMasking = 3,
  kRevealing = 4,
  kUnmasking = 5,
};
// kGive: the island is asked to give the first global copy; kWait: another one is.
enum class CopyState : uint8_t { kHas = 0, kGive = 1, kWait = 2 };

// One struct has the fields of all kinds. Those that a kind has not are left as they are.
struct IslandMessage {
  IslandMessageKind kind = IslandMessageKind::kAnswer;
  int32_t island = 0;         // kJoin
  uint64_t session = 0;       // kJoin: a number of the island's job, the same on all its ranks
  bool leads = false;         // kJoin: this connection speaks for the island, and has the tensors
  IslandAgreement agreement;  // kJoin
  // The server's run, a random number that it has from its first global copy on, and the round, the
  // number of outer steps that have made the copy. kJoin: those of the island's copy; run 0: none.
  uint64_t run = 0;  // kJoin, kBegin, kState
  // kJoin, kBegin, kPut, kFinish, kPoll, kGet, kFetched, kState, kAdvertise, kShare, kReveal,
  // kAbstain
  int64_t round = -1;
  IslandContent content = IslandContent::kUpdate;  // kBegin, kPut, kFinish
  // Tells what is sent from what was begun before and broken off.
  uint64_t attempt = 0;                                  // kBegin, kPut, kFinish
  TensorBlock block;                                     // kPut, kGet
  OuterGradientType type = OuterGradientType::kFloat32;  // kPut
  std::string values;    // kPut, kValues: fp32; in kPut also codes, or integers of 32 bits
  uint32_t wait_ms = 0;  // kPoll: the longest time to wait
  CopyState copy = CopyState::kHas;  // kState
  std::vector<int32_t> present;      // kState: the islands whose updates made the copy
  // kState, why the last round had no outer step, empty if it had one; kAbstain, why.
  std::string note;
  int64_t noised_rounds = 0;  // kState: the rounds whose privacy was spent
  bool budget_spent = false;  // kState: there are no more rounds
  absl::Status status;        // kState, kAnswer, kValues
  // kState: the step of the round's sum; kPoll: the last step that the island knows of.
  SumStep step = SumStep::kNone;
  std::vector<Advertisement> members;  // kState at kSharing: all; kAdvertise: the island's
  std::vector<SealedShares> shares;    // kState at kMasking: for the island; kShare: from it
  std::vector<int32_t> summed;         // kState at kRevealing: the islands in the sum
  RevealedShares revealed;             // kReveal
};

// Returns the frame with its length.
std::string EncodeIslandMessage(const IslandMessage& message);
// Returns the number of bytes behind these kIslandLengthBytes, or kInvalidArgument for more than
// there may be.
absl::StatusOr<size_t> IslandMessageLength(absl::string_view length);
// Reads the bytes behind the length. Returns kInvalidArgument for bytes that EncodeIslandMessage
// never makes.
absl::StatusOr<IslandMessage> DecodeIslandMessage(absl::string_view bytes);

// The parts of messages that the server's file has too.
void PutAgreement(const IslandAgreement& agreement, std::string* out);
// Takes them off the front of `bytes`.
absl::StatusOr<IslandAgreement> TakeAgreement(absl::string_view* bytes);

}  // namespace megatron

#endif  // MEGATRON_ISLANDS_ISLAND_PROTOCOL_H_
