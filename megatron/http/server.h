// A small server of HTTP/1.1, for the metrics of a run and for texts that a model writes.
//
//   Handler handler = [](const Request& request, const Client& client) -> Response { ... };
//   MEGATRON_ASSIGN_OR_RETURN(auto server, Server::Start(options, handler));
//   ... server->endpoint().port ...
//
// Each connection has a thread. There are at most `connections`. For one more, the one that has
// waited longest between two requests is closed; where none waits, it is told 503 and closed. So is
// one for which the system starts no thread. A connection that sends its request too slowly, sends
// nothing, or does not read its answer is closed at a deadline, so that nobody keeps a place for
// ever. Handlers are called on these threads, several at once, for every request that can be read;
// HEAD is GET whose body is not sent. A handler that waits long asks now and then whether its
// client is gone. One that answers piece by piece returns a Response with `stream`; each piece has
// `send_time`.
//
// It binds to loopback unless told otherwise, and then a request must say so too: its Host is
// "localhost" or a loopback address. So no web page in a browser of this machine can reach it under
// a name of its own (DNS rebinding).
#ifndef MEGATRON_HTTP_SERVER_H_
#define MEGATRON_HTTP_SERVER_H_

#include <functional>
#include <list>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/http/byte_budget.h"
#include "megatron/http/request.h"
#include "megatron/http/response.h"

namespace megatron::http {

struct ServerOptions {
  Endpoint listen = {"127.0.0.1", 0};  // port 0: any free one
  RequestLimits limits;
  int connections = 16;
  // The most bytes of bodies of all connections, each counted twice: it is copied once. A body
  // takes its share as it arrives, at most twice that of what has come, so that a head alone holds
  // nothing. A request for whose bytes fewer are left is told 503, and its connection is closed. A
  // handler gives them back with Request::FreeBody.
  size_t all_body_bytes = size_t{1} << 30;
  // From a request's first byte to its last; also from the beginning of a connection to the first
  // byte of its first request.
  absl::Duration request_time = absl::Seconds(10);
  absl::Duration idle_time = absl::Seconds(60);  // between requests
  absl::Duration send_time = absl::Seconds(10);  // for an answer, or a piece of a streamed one
  // Makes the answer to what no handler sees: requests that cannot be read or name another host,
  // and connections for which there is no place.
  std::function<Response(int status, absl::string_view sentence)> error = ErrorResponse;
};

using Handler = std::function<Response(Request&, const Client&)>;

class Server {
 public:
  // Fails if the port is in use.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       Handler handler);
  // Closes all connections, waits for handlers that run, and leaves no thread.
  ~Server();

  // Takes no more connections, closes those that wait for a request, and ends each of the others
  // after the answer that it is being given. Returns when all have ended, at the latest at the
  // deadline, a time of SteadyNow().
  void Drain(absl::Time deadline);

  const Endpoint& endpoint() const { return endpoint_; }

 private:
  struct Connection {
    explicit Connection(Socket s) : socket(std::move(s)) {}
    const Socket socket;
    std::thread thread;
    // The rest is guarded by mutex_.
    bool waiting = false;                            // for a request's first byte
    absl::Time idle_since = absl::InfiniteFuture();  // finite between two requests
    bool closing = false;  // nothing more is read of it, and its place is free
    bool done = false;     // its thread needs only to be joined
  };

  Server(const ServerOptions& options, Handler handler, Socket listener, Endpoint endpoint);
  void Accept();
  void Open(Socket socket);
  void JoinFinished();
  bool draining();
  // Closes a connection that waits for a request, and leaves its thread to end by itself.
  void CloseWaiting(Connection* connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns whether there is a place for one more connection, or can be made.
  bool HasPlace() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // Returns whether there is a place for one more connection, and makes it if it can.
  bool MakePlace() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Serve(Connection* connection);
  // Waits until something of a request is received. Returns false when the connection ends.
  bool AwaitRequest(Connection* connection, bool is_first, std::string* received);
  // Reads the next request into `received`, of which something is there, and answers it. Returns
  // false when the connection ends.
  bool ServeOne(const Socket& socket, std::string* received);
  // Reads the rest of a request, of which something is there. Returns kIncomplete when the
  // connection has ended.
  ParsedRequest ReadRequest(const Socket& socket, std::string* received);
  Response Answer(Request& request, const Client& client) const;

  const ServerOptions options_;
  ByteBudget body_budget_;
  const Handler handler_;
  const Socket listener_;
  const Endpoint endpoint_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // the last member: it uses the others
};

}  // namespace megatron::http

#endif  // MEGATRON_HTTP_SERVER_H_
