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
#include "megatron/optim/outer_codec.h"
#include "megatron/optim/outer_step.h"
#include "megatron/tensor/tensor.h"

namespace megatron {

constexpr uint32_t kIslandProtocolVersion = 1;
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
  std::vector<NamedShape> tensors;  // ascending by name
};

struct TensorBlock {
  std::string name;
  Rectangle place;
};

enum class IslandContent : uint8_t { kCopy = 0, kUpdate = 1 };
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
  uint64_t run = 0;    // kJoin, kBegin, kState
  int64_t round = -1;  // kJoin, kBegin, kPut, kFinish, kPoll, kGet, kFetched, kState
  IslandContent content = IslandContent::kUpdate;  // kBegin, kPut, kFinish
  // Tells what is sent from what was begun before and broken off.
  uint64_t attempt = 0;                                  // kBegin, kPut, kFinish
  TensorBlock block;                                     // kPut, kGet
  OuterGradientType type = OuterGradientType::kFloat32;  // kPut
  std::string values;                                    // kPut, kValues: fp32, or codes in kPut
  uint32_t wait_ms = 0;                                  // kPoll: the longest time to wait
  CopyState copy = CopyState::kHas;                      // kState
  std::vector<int32_t> present;  // kState: the islands whose updates made the copy
  absl::Status status;           // kState, kAnswer, kValues
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
