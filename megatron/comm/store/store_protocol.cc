#include "megatron/comm/store/store_protocol.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/comm/socket/wire.h"

namespace megatron {
namespace {

constexpr absl::Duration kLongestTimeout = absl::Hours(24 * 365);

std::string WithLength(std::string body) {
  WireWriter length;
  length.Put(static_cast<uint32_t>(body.size()));
  return length.Take() + body;
}

int64_t ToMilliseconds(absl::Duration timeout) {
  timeout = std::clamp(timeout, absl::ZeroDuration(), kLongestTimeout);
  return absl::ToInt64Milliseconds(absl::Ceil(timeout, absl::Milliseconds(1)));
}

}  // namespace

std::string EncodeStoreRequest(const StoreRequest& request) {
  WireWriter writer;
  writer.Put(static_cast<uint8_t>(request.operation));
  writer.Put(ToMilliseconds(request.timeout));
  writer.Put(request.delta);
  writer.Put(static_cast<uint32_t>(request.keys.size()));
  for (const std::string& key : request.keys) writer.PutString(key);
  writer.PutBytes(request.value);
  return WithLength(writer.Take());
}

absl::StatusOr<StoreRequest> DecodeStoreRequest(absl::string_view body) {
  WireReader reader(body);
  StoreRequest request;
  const auto operation = reader.Get<uint8_t>();
  const auto milliseconds = reader.Get<int64_t>();
  request.delta = reader.Get<int64_t>();
  const auto keys = reader.Get<uint32_t>();
  for (uint32_t i = 0; i < keys && reader.ok(); ++i) {
    request.keys.emplace_back(reader.GetString());
  }
  if (!reader.ok() || operation > static_cast<uint8_t>(StoreOperation::kHold) || milliseconds < 0 ||
      milliseconds > absl::ToInt64Milliseconds(kLongestTimeout)) {
    return absl::InvalidArgumentError("not a request to a store");
  }
  request.operation = static_cast<StoreOperation>(operation);
  request.timeout = absl::Milliseconds(milliseconds);
  request.value = std::string(reader.rest());
  if (request.operation != StoreOperation::kWait && request.keys.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat("a request with ", keys, " keys"));
  }
  if (request.operation != StoreOperation::kSet && request.operation != StoreOperation::kHold &&
      !request.value.empty()) {
    return absl::InvalidArgumentError("a value that is not to be set");
  }
  return request;
}

std::string EncodeStoreReply(const StoreReply& reply) {
  WireWriter writer;
  writer.Put(static_cast<uint32_t>(reply.status.code()));
  writer.Put(reply.count);
  writer.PutBytes(reply.status.ok() ? absl::string_view(reply.value) : reply.status.message());
  return WithLength(writer.Take());
}

absl::StatusOr<StoreReply> DecodeStoreReply(absl::string_view body) {
  WireReader reader(body);
  StoreReply reply;
  const auto code = reader.Get<uint32_t>();
  reply.count = reader.Get<int64_t>();
  if (!reader.ok() || code > static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)) {
    return absl::InvalidArgumentError("not a store's reply");
  }
  if (code == 0) {
    reply.value = std::string(reader.rest());
  } else {
    reply.status = absl::Status(static_cast<absl::StatusCode>(code), reader.rest());
  }
  return reply;
}

absl::StatusOr<size_t> StoreFrameLength(absl::string_view length_bytes) {
  WireReader reader(length_bytes);
  const auto length = reader.Get<uint32_t>();
  if (!reader.ok() || length > kMaxStoreFrame) {
    return absl::InvalidArgumentError(absl::StrCat("a frame of ", length, " bytes"));
  }
  return length;
}

}  // namespace megatron
