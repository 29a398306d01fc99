// Serves a model over HTTP, as OpenAI's API has it: completions, conversations, and what clients
// want to know of the tokenizer (docs/serving.md).
//
//   MEGATRON_ASSIGN_OR_RETURN(auto server, ApiServer::Start(options, &engine, tokenizer));
#ifndef MEGATRON_SERVE_API_SERVER_H_
#define MEGATRON_SERVE_API_SERVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "megatron/comm/socket/hmac_sha256.h"
#include "megatron/comm/socket/socket.h"
#include "megatron/data/chat/chat_template.h"
#include "megatron/data/tokenizer/tokenizer.h"
#include "megatron/generate/text_engine.h"
#include "megatron/http/byte_budget.h"
#include "megatron/http/request.h"
#include "megatron/http/response.h"
#include "megatron/http/server.h"
#include "megatron/serve/api_request.h"
#include "megatron/serve/serve_metrics.h"

namespace megatron::serve {

struct ApiServerOptions {
  Endpoint listen = {"127.0.0.1", 0};
  std::string model = "model";  // its name in requests and answers
  std::string chat_template;    // empty: there are no conversations
  // Requests need one of these, as bearers; empty: anybody may ask.
  std::vector<std::string> api_keys;
  absl::Duration request_time = absl::Minutes(10);  // from a request to the end of its answer
  absl::Duration send_time = absl::Seconds(10);     // for a client to read a piece of an answer
  size_t body_bytes = 2 << 20;
  size_t all_body_bytes = 8 << 20;  // http::ServerOptions has what that is
  int connections = 256;
  int max_choices = 128;  // texts that a request may ask for
};

class ApiServer {
 public:
  // The engine and the tokenizer must outlive the server. kInvalidArgument for options that are
  // wrong; fails if the port is in use.
  static absl::StatusOr<std::unique_ptr<ApiServer>> Start(const ApiServerOptions& options,
                                                          TextEngine* engine,
                                                          const Tokenizer& tokenizer);
  // Returns the memory that a server with an engine of such limits takes at most for requests:
  // their bodies, the one that is being read, and the tokens of those that are answered. Threads
  // and the answers, with their log-probabilities, are not counted.
  static int64_t PlannedBytes(const ApiServerOptions& options, const EngineLimits& engine);

  // Closes all connections, and ends what the engine does for them.
  ~ApiServer();

  // Refuses further requests for texts with 503, and lets those that are being answered go on for
  // so long. What is not written then is cut off with an error: a stream ends with an event that
  // has it, and any other answer is 503. Returns when all clients have what is theirs.
  void Stop(absl::Duration grace);

  const Endpoint& endpoint() const { return http_->endpoint(); }

 private:
  struct Work;
  struct Route;

  ApiServer(const ApiServerOptions& options, TextEngine* engine, const Tokenizer& tokenizer);
  static const std::vector<Route>& Routes();

  http::Response Answer(http::Request& request, const http::Client& client);
  http::Response AnswerRoute(const Route& route, http::Request& request,
                             const http::Client& client);
  absl::Status CheckCaller(const Route& route, const http::Request& request) const;

  http::Response Page(http::Request&, const http::Client&);
  http::Response Health(http::Request&, const http::Client&);
  http::Response Metrics(http::Request&, const http::Client&);
  http::Response Models(http::Request&, const http::Client&);
  http::Response TokenizerInfo(http::Request&, const http::Client&);
  http::Response Tokenize(http::Request&, const http::Client&);
  http::Response Detokenize(http::Request&, const http::Client&);
  http::Response Complete(http::Request&, const http::Client&);
  http::Response Chat(http::Request&, const http::Client&);

  // Counts a request for texts, unless the server stops.
  bool BeginTexts();
  void EndTexts();
  http::Response Write(absl::StatusOr<TextCall> call, const http::Client& client);
  http::Response WriteWhole(Work* work, const http::Client& client);
  void WriteStream(Work* work, http::Client* client);
  // Waits for news of the work. Returns false where it has ended.
  absl::StatusOr<bool> GoesOn(Work* work);

  const ApiServerOptions options_;
  const ReadingLimits reading_;
  TextEngine* const engine_;
  const Tokenizer& tokenizer_;
  const absl::Time start_;
  std::vector<Sha256Digest> keys_;
  std::optional<ChatTemplate> chat_;
  ApiContext context_;
  ServeMetrics metrics_;
  std::atomic<bool> cut_{false};  // no text goes on
  absl::Mutex reading_mutex_;     // one body is read at a time
  http::ByteBudget held_;         // what the tokens of all requests take
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int texts_ ABSL_GUARDED_BY(mutex_) = 0;  // the requests for texts that are being answered
  std::unique_ptr<http::Server> http_;     // the last member: its threads use the others
};

}  // namespace megatron::serve

#endif  // MEGATRON_SERVE_API_SERVER_H_
