#include "megatron/islands/island_protocol.h"

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/comm/socket/wire.h"
#include "megatron/islands/secure_sum_wire.h"

namespace megatron {
namespace {

constexpr size_t kMaxName = 1024;
constexpr size_t kMaxText = size_t{1} << 16;
constexpr size_t kMaxStatusText = 4096;
constexpr int64_t kMaxDim = int64_t{1} << 40;

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("a message with ", what));
}

void PutDouble(double value, WireWriter* writer) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  writer->Put(bits);
}

double GetDouble(WireReader* reader) {
  const uint64_t bits = reader->Get<uint64_t>();
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

void PutShape(const Shape& shape, WireWriter* writer) {
  writer->Put(static_cast<uint8_t>(shape.rank()));
  for (const int64_t dim : shape) writer->Put(dim);
}

absl::StatusOr<Shape> GetShape(WireReader* reader) {
  const int rank = reader->Get<uint8_t>();
  if (rank > Shape::kMaxRank) return Malformed("a shape of too many dims");
  std::vector<int64_t> dims(rank);
  int64_t elements = 1;
  for (int64_t& dim : dims) {
    dim = reader->Get<int64_t>();
    if (dim < 0 || dim > kMaxDim) return Malformed("a dim out of range");
    if (dim > kMaxDim / elements) return Malformed("a shape of too many elements");
    elements *= std::max<int64_t>(dim, 1);
  }
  return Shape(dims);
}

absl::StatusOr<std::string> GetText(WireReader* reader, size_t most) {
  const absl::string_view text = reader->GetString();
  if (text.size() > most) return Malformed("a text that is too long");
  return std::string(text);
}

void WriteFederated(const FederatedOptions& federated, WireWriter* writer) {
  PutDouble(federated.clip_norm, writer);
  writer->Put(static_cast<int32_t>(federated.secure_sum_threshold));
  PutDouble(federated.noise_multiplier, writer);
  PutDouble(federated.delta, writer);
  PutDouble(federated.max_epsilon, writer);
}

absl::StatusOr<FederatedOptions> ReadFederated(WireReader* reader) {
  FederatedOptions federated;
  federated.clip_norm = GetDouble(reader);
  federated.secure_sum_threshold = reader->Get<int32_t>();
  federated.noise_multiplier = GetDouble(reader);
  federated.delta = GetDouble(reader);
  federated.max_epsilon = GetDouble(reader);
  if (federated.clip_norm == 0) return federated;
  const absl::Status status = CheckFederated(federated);
  if (!status.ok()) return status;
  return federated;
}

void WriteAgreement(const IslandAgreement& agreement, WireWriter* writer) {
  writer->PutString(agreement.text);
  PutDouble(agreement.outer.lr, writer);
  PutDouble(agreement.outer.momentum, writer);
  writer->Put(static_cast<uint8_t>(agreement.outer.nesterov));
  WriteFederated(agreement.federated, writer);
  writer->Put(static_cast<uint32_t>(agreement.tensors.size()));
  for (const NamedShape& tensor : agreement.tensors) {
    writer->PutString(tensor.name);
    PutShape(tensor.shape, writer);
  }
}

absl::StatusOr<IslandAgreement> ReadAgreement(WireReader* reader) {
  IslandAgreement agreement;
  absl::StatusOr<std::string> text = GetText(reader, kMaxText);
  if (!text.ok()) return text.status();
  agreement.text = *std::move(text);
  agreement.outer.lr = GetDouble(reader);
  agreement.outer.momentum = GetDouble(reader);
  const uint8_t nesterov = reader->Get<uint8_t>();
  absl::StatusOr<FederatedOptions> federated = ReadFederated(reader);
  if (!federated.ok()) return federated.status();
  agreement.federated = *federated;
  const uint32_t count = reader->Get<uint32_t>();
  if (!reader->ok() || nesterov > 1) return Malformed("an agreement that is cut off");
  agreement.outer.nesterov = nesterov == 1;
  if (!(agreement.outer.lr > 0 && agreement.outer.lr <= 1000 && agreement.outer.momentum >= 0 &&
        agreement.outer.momentum < 1))
    return Malformed("an outer optimizer whose numbers are out of range");
  // A tensor takes at least the length of its name and its rank.
  if (count > reader->rest().size() / 5) return Malformed("more tensors than bytes");
  for (uint32_t i = 0; i < count; ++i) {
    NamedShape tensor;
    absl::StatusOr<std::string> name = GetText(reader, kMaxName);
    if (!name.ok()) return name.status();
    tensor.name = *std::move(name);
    absl::StatusOr<Shape> shape = GetShape(reader);
    if (!shape.ok()) return shape.status();
    tensor.shape = *shape;
    if (!reader->ok()) return Malformed("tensors that are cut off");
    if (i > 0 && tensor.name <= agreement.tensors.back().name)
      return Malformed("tensors that are not sorted");
    agreement.tensors.push_back(std::move(tensor));
  }
  return agreement;
}

void PutBlock(const TensorBlock& block, WireWriter* writer) {
  writer->PutString(block.name);
  PutShape(block.place.start, writer);
  PutShape(block.place.extent, writer);
}

absl::Status GetBlock(WireReader* reader, TensorBlock* block) {
  absl::StatusOr<std::string> name = GetText(reader, kMaxName);
  if (!name.ok()) return name.status();
  block->name = *std::move(name);
  const absl::StatusOr<Shape> start = GetShape(reader), extent = GetShape(reader);
  if (!start.ok()) return start.status();
  if (!extent.ok()) return extent.status();
  block->place = {*start, *extent};
  if (start->rank() != extent->rank()) return Malformed("a block of two ranks");
  if (extent->numel() < 1 || extent->numel() > kMostBlockElements)
    return Malformed("a block of too many elements or none");
  return absl::OkStatus();
}

void PutStatus(const absl::Status& status, WireWriter* writer) {
  writer->Put(static_cast<int32_t>(status.code()));
  writer->PutString(status.message().substr(0, kMaxStatusText));
}

absl::Status GetStatus(WireReader* reader, absl::Status* status) {
  const int32_t code = reader->Get<int32_t>();
  absl::StatusOr<std::string> text = GetText(reader, kMaxStatusText);
  if (!text.ok()) return text.status();
  if (code < 0 || code > 16 || (code == 0 && !text->empty())) return Malformed("an unknown status");
  *status = absl::Status(static_cast<absl::StatusCode>(code), *text);
  return absl::OkStatus();
}

template <typename Enum>
absl::Status GetEnum(WireReader* reader, Enum last, Enum* value) {
  const uint8_t byte = reader->Get<uint8_t>();
  if (byte > static_cast<uint8_t>(last)) return Malformed("an unknown value");
  *value = static_cast<Enum>(byte);
  return absl::OkStatus();
}

// Reads what stands behind the kind.
absl::Status ReadFields(WireReader* reader, IslandMessage* message) {
  const auto first = [](std::initializer_list<absl::Status> statuses) {
    for (const absl::Status& status : statuses) {
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  };
  const auto content = [&] { return GetEnum(reader, IslandContent::kMasked, &message->content); };
  switch (message->kind) {
    case IslandMessageKind::kJoin: {
      message->island = reader->Get<int32_t>();
      message->session = reader->Get<uint64_t>();
      const uint8_t leads = reader->Get<uint8_t>();
      if (leads > 1) return Malformed("an unknown value");
      message->leads = leads == 1;
      message->run = reader->Get<uint64_t>();
      message->round = reader->Get<int64_t>();
      absl::StatusOr<IslandAgreement> agreement = ReadAgreement(reader);
      if (!agreement.ok()) return agreement.status();
      message->agreement = *std::move(agreement);
      return absl::OkStatus();
    }
    case IslandMessageKind::kBegin:
      message->run = reader->Get<uint64_t>();
      message->round = reader->Get<int64_t>();
      message->attempt = reader->Get<uint64_t>();
      return content();
    case IslandMessageKind::kFinish:
      message->round = reader->Get<int64_t>();
      message->attempt = reader->Get<uint64_t>();
      return content();
    case IslandMessageKind::kPut: {
      message->round = reader->Get<int64_t>();
      message->attempt = reader->Get<uint64_t>();
      const absl::Status status =
          first({content(), GetEnum(reader, OuterGradientType::kE3M0, &message->type),
                 GetBlock(reader, &message->block)});
      if (!status.ok()) return status;
      message->values = std::string(reader->GetString());
      const int64_t elements = message->block.place.extent.numel();
      if (message->content != IslandContent::kUpdate &&
          message->type != OuterGradientType::kFloat32)
        return Malformed("codes of what is no update");
      const int64_t bytes = message->type == OuterGradientType::kFloat32
                                ? elements * SizeOf(DType::kFloat32)
                                : OuterCodeBytes(message->type, elements);
      if (static_cast<int64_t>(message->values.size()) != bytes)
        return Malformed("values that do not fill their block");
      return absl::OkStatus();
    }
    case IslandMessageKind::kPoll:
      message->round = reader->Get<int64_t>();
      message->wait_ms = reader->Get<uint32_t>();
      return GetEnum(reader, SumStep::kUnmasking, &message->step);
    case IslandMessageKind::kGet:
      message->round = reader->Get<int64_t>();
      return GetBlock(reader, &message->block);
    case IslandMessageKind::kFetched:
      message->round = reader->Get<int64_t>();
      return absl::OkStatus();
    case IslandMessageKind::kFlush:
    case IslandMessageKind::kLeave:
      return absl::OkStatus();
    case IslandMessageKind::kState: {
      const absl::Status status = first(
          {GetStatus(reader, &message->status), GetEnum(reader, CopyState::kWait, &message->copy)});
      if (!status.ok()) return status;
      message->run = reader->Get<uint64_t>();
      message->round = reader->Get<int64_t>();
      const uint32_t count = reader->Get<uint32_t>();
      if (count > kMostIslands || count > reader->rest().size() / sizeof(int32_t))
        return Malformed("too many islands");
      for (uint32_t i = 0; i < count; ++i) message->present.push_back(reader->Get<int32_t>());
      absl::StatusOr<std::string> note = GetText(reader, kMaxStatusText);
      if (!note.ok()) return note.status();
      message->note = *std::move(note);
      message->noised_rounds = reader->Get<int64_t>();
      const uint8_t spent = reader->Get<uint8_t>();
      if (spent > 1) return Malformed("an unknown value");
      message->budget_spent = spent == 1;
      return first({GetEnum(reader, SumStep::kUnmasking, &message->step),
                    GetMembers(reader, &message->members), GetSealed(reader, &message->shares),
                    GetIslands(reader, &message->summed)});
    }
    case IslandMessageKind::kAdvertise: {
      message->round = reader->Get<int64_t>();
      const absl::Status status = GetMembers(reader, &message->members);
      if (!status.ok()) return status;
      if (message->members.size() != 1) return Malformed("other than one member");
      return absl::OkStatus();
    }
    case IslandMessageKind::kShare:
      message->round = reader->Get<int64_t>();
      return GetSealed(reader, &message->shares);
    case IslandMessageKind::kReveal:
      message->round = reader->Get<int64_t>();
      message->revealed.from = reader->Get<int32_t>();
      return first({GetKeyShares(reader, &message->revealed.own_masks),
                    GetKeyShares(reader, &message->revealed.mask_keys)});
    case IslandMessageKind::kAbstain: {
      message->round = reader->Get<int64_t>();
      absl::StatusOr<std::string> note = GetText(reader, kMaxStatusText);
      if (!note.ok()) return note.status();
      message->note = *std::move(note);
      return absl::OkStatus();
    }
    case IslandMessageKind::kAnswer:
      return GetStatus(reader, &message->status);
    case IslandMessageKind::kValues: {
      const absl::Status status = GetStatus(reader, &message->status);
      if (!status.ok()) return status;
      message->values = std::string(reader->GetString());
      return absl::OkStatus();
    }
  }
  return Malformed("an unknown kind");
}

}  // namespace

std::string EncodeIslandMessage(const IslandMessage& message) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(message.kind));
  const auto content = [&] { writer.Put(static_cast<uint8_t>(message.content)); };
  switch (message.kind) {
    case IslandMessageKind::kJoin:
      writer.Put(message.island);
      writer.Put(message.session);
      writer.Put(static_cast<uint8_t>(message.leads));
      writer.Put(message.run);
      writer.Put(message.round);
      WriteAgreement(message.agreement, &writer);
      break;
    case IslandMessageKind::kBegin:
      writer.Put(message.run);
      writer.Put(message.round);
      writer.Put(message.attempt);
      content();
      break;
    case IslandMessageKind::kFinish:
      writer.Put(message.round);
      writer.Put(message.attempt);
      content();
      break;
    case IslandMessageKind::kPut:
      writer.Put(message.round);
      writer.Put(message.attempt);
      content();
      writer.Put(static_cast<uint8_t>(message.type));
      PutBlock(message.block, &writer);
      writer.PutString(message.values);
      break;
    case IslandMessageKind::kPoll:
      writer.Put(message.round);
      writer.Put(message.wait_ms);
      writer.Put(static_cast<uint8_t>(message.step));
      break;
    case IslandMessageKind::kGet:
      writer.Put(message.round);
      PutBlock(message.block, &writer);
      break;
    case IslandMessageKind::kFetched:
      writer.Put(message.round);
      break;
    case IslandMessageKind::kFlush:
    case IslandMessageKind::kLeave:
      break;
    case IslandMessageKind::kState:
      PutStatus(message.status, &writer);
      writer.Put(static_cast<uint8_t>(message.copy));
      writer.Put(message.run);
      writer.Put(message.round);
      writer.Put(static_cast<uint32_t>(message.present.size()));
      for (const int32_t island : message.present) writer.Put(island);
      writer.PutString(absl::string_view(message.note).substr(0, kMaxStatusText));
      writer.Put(message.noised_rounds);
      writer.Put(static_cast<uint8_t>(message.budget_spent));
      writer.Put(static_cast<uint8_t>(message.step));
      PutMembers(message.members, &writer);
      PutSealed(message.shares, &writer);
      PutIslands(message.summed, &writer);
      break;
    case IslandMessageKind::kAdvertise:
      writer.Put(message.round);
      PutMembers(message.members, &writer);
      break;
    case IslandMessageKind::kShare:
      writer.Put(message.round);
      PutSealed(message.shares, &writer);
      break;
    case IslandMessageKind::kReveal:
      writer.Put(message.round);
      writer.Put(static_cast<int32_t>(message.revealed.from));
      PutKeyShares(message.revealed.own_masks, &writer);
      PutKeyShares(message.revealed.mask_keys, &writer);
      break;
    case IslandMessageKind::kAbstain:
      writer.Put(message.round);
      writer.PutString(absl::string_view(message.note).substr(0, kMaxStatusText));
      break;
    case IslandMessageKind::kAnswer:
      PutStatus(message.status, &writer);
      break;
    case IslandMessageKind::kValues:
      PutStatus(message.status, &writer);
      writer.PutString(message.values);
      break;
  }
  WireWriter frame;
  frame.PutString(writer.Take());
  return frame.Take();
}

absl::StatusOr<size_t> IslandMessageLength(absl::string_view length) {
  WireReader reader(length);
  const uint32_t bytes = reader.Get<uint32_t>();
  if (!reader.at_end() || bytes == 0 || bytes > kMaxIslandMessage) {
    return absl::InvalidArgumentError(
        absl::StrCat("a message of ", bytes, " bytes; it may have 1 to ", kMaxIslandMessage));
  }
  return bytes;
}

absl::StatusOr<IslandMessage> DecodeIslandMessage(absl::string_view bytes) {
  WireReader reader(bytes);
  IslandMessage message;
  message.kind = static_cast<IslandMessageKind>(reader.Get<uint8_t>());
  const absl::Status status = ReadFields(&reader, &message);
  if (!status.ok()) return status;
  if (!reader.at_end()) return Malformed("too few bytes or too many");
  return message;
}

void PutAgreement(const IslandAgreement& agreement, std::string* out) {
  WireWriter writer;
  WriteAgreement(agreement, &writer);
  *out += writer.Take();
}

absl::StatusOr<IslandAgreement> TakeAgreement(absl::string_view* bytes) {
  WireReader reader(*bytes);
  absl::StatusOr<IslandAgreement> agreement = ReadAgreement(&reader);
  *bytes = reader.rest();
  return agreement;
}

}  // namespace megatron
