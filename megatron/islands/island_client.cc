#include "megatron/islands/island_client.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/comm/socket/handshake.h"

namespace megatron {
namespace {

// A poll of the server is shorter, and so is the sum of a large model's updates.
constexpr absl::Duration kAnswerTime = absl::Minutes(2);

}  // namespace

IslandClient::IslandClient(Endpoint server, JobSecret secret)
    : server_(std::move(server)), secret_(std::move(secret)) {}

absl::Status IslandClient::Lost(const absl::Status& error) {
  Close();
  return absl::UnavailableError(
      absl::StrCat("the outer server at ", server_.ToString(), ": ", error.message()));
}

absl::Status IslandClient::Connect(absl::Duration time) {
  Close();
  const absl::Time deadline = SteadyNow() + time;
  absl::StatusOr<Socket> socket = ConnectTcp(server_, deadline);
  if (!socket.ok()) return Lost(socket.status());
  ChannelId id;
  id.purpose = ChannelPurpose::kIslands;
  id.version = kIslandProtocolVersion;
  const absl::Status proved = ProveAsConnector(*socket, secret_, id, deadline);
  if (absl::IsUnauthenticated(proved)) {
    return absl::UnauthenticatedError(
        absl::StrCat("the outer server at ", server_.ToString(), ": ", proved.message()));
  }
  if (!proved.ok()) return Lost(proved);
  socket_ = *std::move(socket);
  return absl::OkStatus();
}

absl::Status IslandClient::Send(const IslandMessage& message) {
  if (!connected()) return Lost(absl::UnavailableError("there is no connection"));
  const std::string bytes = EncodeIslandMessage(message);
  const absl::Status status = SendAll(socket_, bytes, SteadyNow() + kAnswerTime);
  if (!status.ok()) return Lost(status);
  sent_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::StatusOr<IslandMessage> IslandClient::Receive() {
  if (!connected()) return Lost(absl::UnavailableError("there is no connection"));
  const absl::Time deadline = SteadyNow() + kAnswerTime;
  std::string length(kIslandLengthBytes, '\0');
  absl::Status status = ReceiveAll(socket_, &length[0], length.size(), deadline);
  if (!status.ok()) return Lost(status);
  const absl::StatusOr<size_t> bytes = IslandMessageLength(length);
  if (!bytes.ok()) return Lost(bytes.status());
  std::string body(*bytes, '\0');
  status = ReceiveAll(socket_, &body[0], body.size(), deadline);
  if (!status.ok()) return Lost(status);
  received_ += static_cast<int64_t>(length.size() + body.size());
  absl::StatusOr<IslandMessage> message = DecodeIslandMessage(body);
  if (!message.ok()) return Lost(message.status());
  return message;
}

absl::StatusOr<IslandMessage> IslandClient::Ask(const IslandMessage& message) {
  MEGATRON_RETURN_IF_ERROR(Send(message));
  MEGATRON_ASSIGN_OR_RETURN(IslandMessage answer, Receive());
  MEGATRON_RETURN_IF_ERROR(answer.status, _.SetPrepend() << "the outer server: ");
  return answer;
}

}  // namespace megatron
