#include "megatron/comm/tcp/tcp_frame.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "megatron/comm/socket/wire.h"

namespace megatron {
namespace {

constexpr size_t kMaxReasonBytes = 1 << 16;
constexpr uint8_t kNoTensor = 0xff;  // stands for no dtype
// Bits of a call's flags. Those above are the algorithm.
constexpr uint8_t kHasCounts = 1, kComparesOnly = 2;
constexpr int kAlgorithmShift = 2;

void PutTensor(const Tensor& tensor, WireWriter* writer) {
  if (tensor.empty()) return writer->Put(kNoTensor);
  writer->Put(static_cast<uint8_t>(tensor.dtype()));
  writer->Put(static_cast<uint8_t>(tensor.rank()));
  for (int64_t dim : tensor.shape()) writer->Put(dim);
}

struct TensorSpec {
  bool there = false;
  DType dtype = DType::kFloat32;
  Shape shape;

  Tensor tensor() const {
    return there ? Tensor(nullptr, dtype, shape, {DeviceType::kMeta, 0}) : Tensor();
  }
};

// Returns false for what is no tensor, or too large to exist.
bool GetTensor(WireReader* reader, TensorSpec* spec) {
  const auto dtype = reader->Get<uint8_t>();
  if (dtype == kNoTensor) return reader->ok();
  const auto rank = reader->Get<uint8_t>();
  if (dtype > static_cast<uint8_t>(DType::kUInt16) || rank > Shape::kMaxRank) return false;
  std::array<int64_t, Shape::kMaxRank> dims;
  int64_t bytes = 8;  // the widest element
  for (int d = 0; d < rank; ++d) {
    dims[d] = reader->Get<int64_t>();
    if (dims[d] < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(dims[d], 1), &bytes)) {
      return false;
    }
  }
  *spec = {true, static_cast<DType>(dtype), Shape(dims.data(), rank)};
  return reader->ok();
}

void PutCounts(absl::Span<const int64_t> counts, WireWriter* writer) {
  for (int64_t count : counts) writer->Put(count);
}

absl::Status Unreadable(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("a message that is no ", what));
}

}  // namespace

std::array<char, kFrameHeaderBytes> EncodeFrameHeader(const FrameHeader& header) {
  WireWriter writer;
  writer.Put(static_cast<uint32_t>(header.kind));
  writer.Put(header.tag);
  writer.Put(header.group);
  writer.Put(header.sequence);
  writer.Put(header.bytes);
  const std::string bytes = writer.Take();
  std::array<char, kFrameHeaderBytes> encoded;
  std::copy(bytes.begin(), bytes.end(), encoded.begin());
  return encoded;
}

absl::StatusOr<FrameHeader> DecodeFrameHeader(absl::string_view bytes) {
  WireReader reader(bytes);
  FrameHeader header;
  const auto kind = reader.Get<uint32_t>();
  header.tag = reader.Get<uint32_t>();
  header.group = reader.Get<uint64_t>();
  header.sequence = reader.Get<uint64_t>();
  header.bytes = reader.Get<uint64_t>();
  if (!reader.at_end() || kind < static_cast<uint32_t>(FrameKind::kCall) ||
      kind > static_cast<uint32_t>(FrameKind::kState)) {
    return absl::InvalidArgumentError(absl::StrCat("a frame of kind ", kind));
  }
  header.kind = static_cast<FrameKind>(kind);
  if (header.kind != FrameKind::kData && header.bytes > kMaxMessageBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", header.bytes, " bytes"));
  }
  return header;
}

std::string CallMessage::Encode(const CollectiveCall& call, absl::string_view split,
                                absl::string_view data) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(call.collective));
  writer.Put(static_cast<uint8_t>(call.reduce));
  writer.Put(static_cast<int32_t>(call.root));
  PutTensor(call.in, &writer);
  PutTensor(call.out, &writer);
  writer.Put(static_cast<uint8_t>((call.send_counts.empty() ? 0 : kHasCounts) |
                                  (call.compares_only ? kComparesOnly : 0) |
                                  static_cast<int>(call.algorithm) << kAlgorithmShift));
  PutCounts(call.send_counts, &writer);
  PutCounts(call.receive_counts, &writer);
  writer.PutString(split);
  writer.PutBytes(data);
  return writer.Take();
}

absl::StatusOr<CallMessage> CallMessage::Decode(absl::string_view bytes, int group_size) {
  WireReader reader(bytes);
  CallMessage message;
  const auto collective = reader.Get<uint8_t>();
  const auto reduce = reader.Get<uint8_t>();
  message.call_.root = reader.Get<int32_t>();
  TensorSpec in, out;
  if (!GetTensor(&reader, &in) || !GetTensor(&reader, &out) ||
      collective >= static_cast<uint8_t>(Collective::kExchange) ||
      reduce > static_cast<uint8_t>(ReduceOp::kMin)) {
    return Unreadable("call");
  }
  message.call_.collective = static_cast<Collective>(collective);
  message.call_.reduce = static_cast<ReduceOp>(reduce);
  message.call_.in = in.tensor();
  message.call_.out = out.tensor();
  const auto flags = reader.Get<uint8_t>();
  const bool counts = (flags & kHasCounts) != 0;
  const int algorithm = flags >> kAlgorithmShift;
  if (algorithm > static_cast<int>(CollectiveAlgorithm::kTree) ||
      (algorithm != 0 && !HasAlgorithms(message.call_.collective)) ||
      counts != (message.call_.collective == Collective::kAllToAllV))
    return Unreadable("call");
  message.call_.algorithm = static_cast<CollectiveAlgorithm>(algorithm);
  message.call_.compares_only = (flags & kComparesOnly) != 0;
  for (std::vector<int64_t>* list : {&message.send_counts_, &message.receive_counts_}) {
    for (int i = 0; counts && i < group_size && reader.ok(); ++i) {
      list->push_back(reader.Get<int64_t>());
    }
  }
  message.split_ = std::string(reader.GetString());
  message.data_ = std::string(reader.rest());
  if (!reader.ok()) return Unreadable("call");
  return message;
}

CollectiveCall CallMessage::call() const {
  CollectiveCall call = call_;
  call.send_counts = send_counts_;
  call.receive_counts = receive_counts_;
  return call;
}

std::string OfferMessage::Encode(const Tensor& tensor, absl::string_view data) {
  WireWriter writer;
  PutTensor(tensor, &writer);
  writer.PutBytes(data);
  return writer.Take();
}

absl::StatusOr<OfferMessage> OfferMessage::Decode(absl::string_view bytes) {
  WireReader reader(bytes);
  TensorSpec spec;
  if (!GetTensor(&reader, &spec) || !spec.there) return Unreadable("offer");
  return OfferMessage{spec.dtype, spec.shape, std::string(reader.rest())};
}

std::string AbortMessage::Encode(const absl::Status& reason) {
  WireWriter writer;
  writer.Put(static_cast<uint32_t>(reason.code()));
  writer.PutBytes(reason.message().substr(0, kMaxReasonBytes));
  return writer.Take();
}

absl::Status AbortMessage::Decode(absl::string_view bytes) {
  WireReader reader(bytes);
  const auto code = reader.Get<uint32_t>();
  if (!reader.ok() || code == 0 ||
      code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)) {
    return Unreadable("reason to abort");
  }
  return absl::Status(static_cast<absl::StatusCode>(code), reader.rest());
}

}  // namespace megatron
