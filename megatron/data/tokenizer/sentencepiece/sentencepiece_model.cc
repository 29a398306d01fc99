#include "megatron/data/tokenizer/sentencepiece/sentencepiece_model.h"

#include <cmath>
#include <cstring>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "megatron/base/status_macros.h"
#include "megatron/data/tokenizer/byte_piece.h"

namespace megatron {
namespace {

using Kind = SentencePieceModel::Kind;

constexpr size_t kMaxPieceBytes = 8000;

// One field of a message in protobuf's wire format. Its wire type determines which members hold its
// value.
struct Field {
  uint64_t number = 0;
  uint64_t varint = 0;
  float fixed32 = 0;
  absl::string_view bytes;
};

class WireReader {
 public:
  explicit WireReader(absl::string_view bytes) : rest_(bytes) {}

  bool AtEnd() const { return rest_.empty(); }

  absl::StatusOr<Field> Next() {
    Field field;
    MEGATRON_ASSIGN_OR_RETURN(const uint64_t tag, ReadVarint());
    field.number = tag >> 3;
    if (field.number == 0) return Damaged("a field is numbered 0");
    switch (tag & 7) {
      case 0: {
        MEGATRON_ASSIGN_OR_RETURN(field.varint, ReadVarint());
        return field;
      }
      case 1:
        return Take(8).ok() ? absl::StatusOr<Field>(field) : Damaged("it is cut off");
      case 2: {
        MEGATRON_ASSIGN_OR_RETURN(const uint64_t size, ReadVarint());
        MEGATRON_ASSIGN_OR_RETURN(field.bytes, Take(size));
        return field;
      }
      case 5: {
        MEGATRON_ASSIGN_OR_RETURN(const absl::string_view bytes, Take(4));
        uint32_t bits = 0;
        for (size_t i = 4; i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(bytes[i]);
        std::memcpy(&field.fixed32, &bits, sizeof(bits));
        return field;
      }
      default:
        return Damaged(absl::StrCat("field ", field.number, " has wire type ", tag & 7));
    }
  }

 private:
  static absl::Status Damaged(absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("no SentencePiece model, or damaged: ", what));
  }

  absl::StatusOr<uint64_t> ReadVarint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      MEGATRON_ASSIGN_OR_RETURN(const absl::string_view byte, Take(1));
      value |= static_cast<uint64_t>(byte[0] & 0x7f) << shift;
      if ((byte[0] & 0x80) == 0) return value;
    }
    return Damaged("a number has more than ten bytes");
  }

  absl::StatusOr<absl::string_view> Take(uint64_t size) {
    if (size > rest_.size()) return Damaged("it is cut off");
    const absl::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }

  absl::string_view rest_;
};

// Calls handle(field) for each field of `message`.
template <typename Handle>
absl::Status ForEachField(absl::string_view message, const Handle& handle) {
  WireReader reader(message);
  while (!reader.AtEnd()) {
    MEGATRON_ASSIGN_OR_RETURN(const Field field, reader.Next());
    MEGATRON_RETURN_IF_ERROR(handle(field));
  }
  return absl::OkStatus();
}

absl::Status ParsePiece(absl::string_view message, SentencePieceModel* model) {
  SentencePieceModel::Piece piece;
  MEGATRON_RETURN_IF_ERROR(ForEachField(message, [&](const Field& field) {
    switch (field.number) {
      case 1:
        piece.text = std::string(field.bytes);
        break;
      case 2:
        piece.score = field.fixed32;
        break;
      case 3:
        if (field.varint >= 1 && field.varint <= 6) piece.kind = static_cast<Kind>(field.varint);
        break;
    }
    return absl::OkStatus();
  }));
  model->pieces.push_back(std::move(piece));
  return absl::OkStatus();
}

absl::Status ParseTrainerSpec(absl::string_view message, SentencePieceModel* model) {
  return ForEachField(message, [&](const Field& field) {
    switch (field.number) {
      case 3:
        if (field.varint >= 1 && field.varint <= 4) {
          model->type = static_cast<SentencePieceModel::Type>(field.varint);
        }
        break;
      case 24:
        model->treat_whitespace_as_suffix = field.varint != 0;
        break;
      case 35:
        model->byte_fallback = field.varint != 0;
        break;
      case 44:
        model->unk_surface = std::string(field.bytes);
        break;
      case 45:
        model->unk_piece = std::string(field.bytes);
        break;
      case 46:
        model->bos_piece = std::string(field.bytes);
        break;
      case 47:
        model->eos_piece = std::string(field.bytes);
        break;
      case 48:
        model->pad_piece = std::string(field.bytes);
        break;
    }
    return absl::OkStatus();
  });
}

absl::Status ParseNormalizerSpec(absl::string_view message,
                                 SentencePieceModel::Normalizer* normalizer) {
  return ForEachField(message, [&](const Field& field) {
    switch (field.number) {
      case 2:
        normalizer->charsmap = std::string(field.bytes);
        break;
      case 3:
        normalizer->add_dummy_prefix = field.varint != 0;
        break;
      case 4:
        normalizer->remove_extra_whitespaces = field.varint != 0;
        break;
      case 5:
        normalizer->escape_whitespaces = field.varint != 0;
        break;
    }
    return absl::OkStatus();
  });
}

// Returns the byte that a piece like "<0x0A>" stands for; -1 for others.
int ByteOf(absl::string_view piece) {
  const int byte = ByteOfPiece(piece);
  return byte >= 0 && piece == absl::StrFormat("<0x%02X>", byte) ? byte : -1;
}

absl::Status CheckPieces(SentencePieceModel* model) {
  const auto wrong = [](size_t id, absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("piece ", id, " ", what));
  };
  absl::flat_hash_set<absl::string_view> seen;
  std::vector<int32_t> byte_ids(256, -1);
  for (size_t id = 0; id < model->pieces.size(); ++id) {
    const SentencePieceModel::Piece& piece = model->pieces[id];
    if (piece.text.empty()) return wrong(id, "is empty");
    if (piece.text.size() >= kMaxPieceBytes) return wrong(id, "is too long");
    if (!std::isfinite(piece.score)) return wrong(id, "has a score that is no finite number");
    if (!seen.insert(piece.text).second) return wrong(id, "is spelled like another");
    if (piece.kind == Kind::kUnknown) {
      if (model->unk_id >= 0) return wrong(id, "is a second unknown piece");
      model->unk_id = static_cast<int32_t>(id);
    }
    if (piece.kind == Kind::kByte) {
      const int byte = ByteOf(piece.text);
      if (byte < 0) return wrong(id, "is said to be a byte, but isn't spelled like one");
      byte_ids[static_cast<size_t>(byte)] = static_cast<int32_t>(id);
    }
  }
  if (model->unk_id < 0) return absl::InvalidArgumentError("there is no unknown piece");
  if (!model->byte_fallback) return absl::OkStatus();
  for (size_t byte = 0; byte < 256; ++byte) {
    if (byte_ids[byte] < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("byte fallback lacks the piece <0x%02X>", byte));
    }
  }
  model->byte_ids = std::move(byte_ids);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SentencePieceModel> ParseSentencePieceModel(absl::string_view bytes) {
  SentencePieceModel model;
  SentencePieceModel::Normalizer denormalizer;
  MEGATRON_RETURN_IF_ERROR(ForEachField(bytes, [&](const Field& field) {
    switch (field.number) {
      case 1:
        return ParsePiece(field.bytes, &model);
      case 2:
        return ParseTrainerSpec(field.bytes, &model);
      case 3:
        return ParseNormalizerSpec(field.bytes, &model.normalizer);
      case 5:
        return ParseNormalizerSpec(field.bytes, &denormalizer);
      default:
        return absl::OkStatus();
    }
  }));
  model.denormalizer_charsmap = std::move(denormalizer.charsmap);
  MEGATRON_RETURN_IF_ERROR(CheckPieces(&model));
  return model;
}

}  // namespace megatron
