#include "megatron/serve/api_server.h"

#include <malloc.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "megatron/base/quoted.h"
#include "megatron/base/status_macros.h"
#include "megatron/base/steady_now.h"
#include "megatron/serve/api_answer.h"
#include "megatron/serve/api_error.h"
#include "megatron/serve/api_fields.h"
#include "megatron/serve/choice_text.h"
#include "megatron/serve/serve_page.h"
#include "megatron/serve/text_run.h"

namespace megatron::serve {
namespace {

using Json = nlohmann::ordered_json;

// How often a request looks whether its client is still there.
constexpr absl::Duration kLook = absl::Milliseconds(50);
// The status of an answer that nobody was there to read, in the metrics alone.
constexpr int kClientGone = 499;
constexpr absl::string_view kModels = "/v1/models";
// What the metrics have for all paths that lead nowhere, and for what is no request.
constexpr char kOtherPath[] = "other";
constexpr char kStopping[] = "the server is stopping";
constexpr char kFull[] = "the server has as many requests as it takes; try again later";
// What larger bodies leave is given back to the system at once.
constexpr size_t kLargeBody = 64 << 10;

http::Response JsonResponse(const Json& json) {
  http::Response response;
  response.content_type = "application/json";
  response.body = JsonText(json) + "\n";
  return response;
}

// Returns the path without its escapes: %20 is a space. What is no escape stays.
std::string Unescaped(absl::string_view path) {
  std::string text;
  for (size_t i = 0; i < path.size(); ++i) {
    const absl::string_view digits = path[i] == '%' ? path.substr(i + 1, 2) : "";
    uint32_t byte = 0;
    const bool is_escape = digits.size() == 2 && absl::ascii_isxdigit(digits[0]) &&
                           absl::ascii_isxdigit(digits[1]) && absl::SimpleHexAtoi(digits, &byte);
    text += is_escape ? static_cast<char>(byte) : path[i];
    if (is_escape) i += digits.size();
  }
  return text;
}

// 64 bits that nobody can guess.
uint64_t RandomWord() {
  uint64_t word = 0;
  const std::string bytes = RandomBytes(sizeof(word));
  std::memcpy(&word, bytes.data(), sizeof(word));
  return word;
}

// Returns what `read` returns for the JSON of the body, and frees both. Memory would not last for
// many bodies at once.
template <typename Read>
auto ReadBody(absl::Mutex* mutex, const ReadingLimits& limits, http::Request* request,
              const Read& read) -> decltype(read(nlohmann::json())) {
  const bool is_large = request->body.size() >= kLargeBody;
  const absl::MutexLock lock(mutex);
  auto value = [&]() -> decltype(read(nlohmann::json())) {
    MEGATRON_ASSIGN_OR_RETURN(const nlohmann::json body,
                              ParseBody(request->body, limits.MostValueBytes()));
    return read(body);
  }();
  request->FreeBody();
  if (is_large) malloc_trim(0);
  return value;
}

Json Spelling(const Tokenizer& tokenizer, int32_t token) {
  return token < 0 ? Json(nullptr) : Json(tokenizer.Piece(token));
}

}  // namespace

struct ApiServer::Route {
  const char* method;
  const char* path;
  bool is_open;  // needs no key
  http::Response (ApiServer::*answer)(http::Request&, const http::Client&);
};

const std::vector<ApiServer::Route>& ApiServer::Routes() {
  static const auto* const routes = new std::vector<Route>{
      {"GET", "/", true, &ApiServer::Page},
      {"GET", "/health", true, &ApiServer::Health},
      {"GET", "/metrics", false, &ApiServer::Metrics},
      {"GET", "/v1/models", false, &ApiServer::Models},
      {"GET", "/tokenizer_info", false, &ApiServer::TokenizerInfo},
      {"POST", "/tokenize", false, &ApiServer::Tokenize},
      {"POST", "/detokenize", false, &ApiServer::Detokenize},
      {"POST", "/v1/completions", false, &ApiServer::Complete},
      {"POST", "/v1/chat/completions", false, &ApiServer::Chat},
  };
  return *routes;
}

// A request for texts while it is answered.
struct ApiServer::Work {
  Work(TextCall checked, http::ByteBudget::Share held_bytes, TextEngine* engine,
       const Tokenizer& tokenizer, AnswerHead head, absl::Duration time)
      : held(std::move(held_bytes)),
        call(std::move(checked)),
        answer(tokenizer, call, std::move(head)),
        run(engine, tokenizer, call, start, time) {}

  const absl::Time start = SteadyNow();
  const http::ByteBudget::Share held;
  const TextCall call;
  const ApiAnswer answer;
  TextRun run;
  bool has_token = false;

  const char* path() const { return call.is_chat ? "/v1/chat/completions" : "/v1/completions"; }
};

ApiServer::ApiServer(const ApiServerOptions& options, TextEngine* engine,
                     const Tokenizer& tokenizer)
    : options_(options),
      reading_({engine->limits(), options.max_choices, options.body_bytes}),
      engine_(engine),
      tokenizer_(tokenizer),
      start_(absl::Now()),
      held_(reading_.AllHeldBytes()) {}

ApiServer::~ApiServer() = default;

absl::StatusOr<std::unique_ptr<ApiServer>> ApiServer::Start(const ApiServerOptions& options,
                                                            TextEngine* engine,
                                                            const Tokenizer& tokenizer) {
  std::unique_ptr<ApiServer> server(new ApiServer(options, engine, tokenizer));
  for (const std::string& key : options.api_keys) server->keys_.push_back(Sha256(key));
  if (!options.chat_template.empty()) {
    MEGATRON_ASSIGN_OR_RETURN(server->chat_, ChatTemplate::Make(options.chat_template, tokenizer));
  }
  server->context_ = {&tokenizer,          server->chat_ ? &*server->chat_ : nullptr,
                      options.model,       engine->limits(),
                      options.max_choices, server->reading_.MostTextBytes()};
  http::ServerOptions http;
  http.listen = options.listen;
  http.limits.body_bytes = options.body_bytes;
  http.all_body_bytes = options.all_body_bytes;
  http.connections = options.connections;
  http.send_time = options.send_time;
  ApiServer* const self = server.get();
  http.error = [self](int status, absl::string_view sentence) {
    self->metrics_.CountAnswer(kOtherPath, status);
    return ApiErrorResponse(status, sentence);
  };
  MEGATRON_ASSIGN_OR_RETURN(
      server->http_,
      http::Server::Start(http, [self](http::Request& request, const http::Client& client) {
        return self->Answer(request, client);
      }));
  return server;
}

int64_t ApiServer::PlannedBytes(const ApiServerOptions& options, const EngineLimits& engine) {
  const ReadingLimits reading = {engine, options.max_choices, options.body_bytes};
  return static_cast<int64_t>(options.all_body_bytes + reading.MostReadingBytes() +
                              reading.AllHeldBytes());
}

void ApiServer::Stop(absl::Duration grace) {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    const auto no_texts = [this] {
      mutex_.AssertHeld();
      return texts_ == 0;
    };
    mutex_.AwaitWithTimeout(absl::Condition(&no_texts), grace);
  }
  cut_ = true;
  // A client has so long to read a piece, and a second is for what comes before and after.
  http_->Drain(SteadyNow() + options_.send_time + absl::Seconds(1));
}

bool ApiServer::BeginTexts() {
  absl::MutexLock lock(&mutex_);
  if (!stopping_) ++texts_;
  return !stopping_;
}

void ApiServer::EndTexts() {
  absl::MutexLock lock(&mutex_);
  --texts_;
}

// ------------------------------------------------------------------------------ who may ask what

absl::Status ApiServer::CheckCaller(const Route& route, const http::Request& request) const {
  // A page of another site may send requests of its own through a browser of this machine.
  absl::string_view origin = request.Field("origin");
  if (!origin.empty()) {
    const size_t scheme = origin.find("://");
    origin.remove_prefix(scheme == origin.npos ? 0 : scheme + 3);
    if (!absl::EqualsIgnoreCase(origin, request.Field("host")))
      return absl::PermissionDeniedError("pages of other sites may not use this server");
  }
  if (route.is_open || keys_.empty()) return absl::OkStatus();
  absl::string_view given = request.Field("authorization");
  if (!absl::StartsWithIgnoreCase(given, "bearer "))
    return absl::UnauthenticatedError("this server needs a key: Authorization: Bearer KEY");
  given = absl::StripAsciiWhitespace(given.substr(7));
  const Sha256Digest digest = Sha256(given);
  bool known = false;
  for (const Sha256Digest& key : keys_) known |= EqualInConstantTime(AsBytes(key), AsBytes(digest));
  return known ? absl::OkStatus() : absl::UnauthenticatedError("the key is none of this server's");
}

http::Response ApiServer::Answer(http::Request& request, const http::Client& client) {
  const bool is_model = Unescaped(request.path) == absl::StrCat(kModels, "/", options_.model);
  const Route* found = nullptr;
  for (const Route& route : Routes()) {
    if ((is_model ? kModels : request.path) == route.path) found = &route;
  }
  http::Response response;
  if (found == nullptr) {
    response =
        ApiErrorResponse(absl::NotFoundError(absl::StrCat("there is no ", Quoted(request.path))));
  } else {
    response = AnswerRoute(*found, request, client);
  }
  // A stream counts itself when it has ended.
  if (!response.stream) metrics_.CountAnswer(found ? found->path : kOtherPath, response.status);
  return response;
}

http::Response ApiServer::AnswerRoute(const Route& route, http::Request& request,
                                      const http::Client& client) {
  const absl::Status status = CheckCaller(route, request);
  if (!status.ok()) return ApiErrorResponse(status);
  const bool is_head = request.method == "HEAD" && absl::string_view(route.method) == "GET";
  if (request.method == route.method || is_head) return (this->*route.answer)(request, client);
  http::Response response = ApiErrorResponse(
      absl::UnimplementedError(absl::StrCat(route.path, " is asked by ", route.method)));
  response.fields = {{"Allow", route.method}};
  return response;
}

// ------------------------------------------------------------------------------ what the server is

http::Response ApiServer::Page(http::Request&, const http::Client&) {
  http::Response response;
  response.content_type = "text/html; charset=utf-8";
  response.fields = {
      {"Content-Security-Policy",
       "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
       "connect-src 'self'; base-uri 'none'; form-action 'none'; "
       "frame-ancestors 'none'"}};
  response.body = kServePage;
  return response;
}

http::Response ApiServer::Health(http::Request&, const http::Client&) {
  std::string status = engine_->state().failed ? "the model has stopped" : "ok";
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) status = kStopping;
  }
  http::Response response = JsonResponse({{"status", status}});
  if (status != "ok") response.status = 503;
  return response;
}

http::Response ApiServer::Metrics(http::Request&, const http::Client&) {
  http::Response response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_.Page(engine_->state(), engine_->limits());
  return response;
}

http::Response ApiServer::Models(http::Request& request, const http::Client&) {
  Json model;
  model["id"] = options_.model;
  model["object"] = "model";
  model["created"] = absl::ToUnixSeconds(start_);
  model["owned_by"] = "megatron";
  model["max_model_len"] = context_.limits.max_context;
  if (request.path != kModels) return JsonResponse(model);
  Json list;
  list["object"] = "list";
  list["data"] = Json::array();
  list["data"].push_back(std::move(model));
  return JsonResponse(list);
}

http::Response ApiServer::TokenizerInfo(http::Request&, const http::Client&) {
  const SpecialTokens& special = tokenizer_.special();
  Json json;
  json["tokenizer_type"] = std::string(tokenizer_.name());
  json["vocab_size"] = tokenizer_.vocab_size();
  json["bos_token"] = Spelling(tokenizer_, special.bos);
  json["eos_token"] = Spelling(tokenizer_, special.eos >= 0 ? special.eos : special.eod);
  json["pad_token"] = Spelling(tokenizer_, special.pad);
  // Clients expect a program of Jinja there.
  json["chat_template"] = nullptr;
  return JsonResponse(json);
}

http::Response ApiServer::Tokenize(http::Request& request, const http::Client&) {
  const auto response = ReadBody(
      &reading_mutex_, reading_, &request, [&](const auto& body) -> absl::StatusOr<http::Response> {
        MEGATRON_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, ReadTokenize(body, context_));
        Json json;
        json["count"] = tokens.size();
        json["max_model_len"] = context_.limits.max_context;
        json["tokens"] = tokens;
        return JsonResponse(json);
      });
  return response.ok() ? *response : ApiErrorResponse(response.status());
}

http::Response ApiServer::Detokenize(http::Request& request, const http::Client&) {
  const auto response = ReadBody(&reading_mutex_, reading_, &request,
                                 [&](const auto& body) -> absl::StatusOr<http::Response> {
                                   MEGATRON_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens,
                                                             ReadDetokenize(body, context_));
                                   Json json;
                                   json["prompt"] = tokenizer_.Decode(tokens);
                                   return JsonResponse(json);
                                 });
  return response.ok() ? *response : ApiErrorResponse(response.status());
}

// ------------------------------------------------------------------------------ texts

http::Response ApiServer::Complete(http::Request& request, const http::Client& client) {
  return Write(
      ReadBody(&reading_mutex_, reading_, &request,
               [&](const auto& body) { return ReadCompletion(body, context_, RandomWord()); }),
      client);
}

http::Response ApiServer::Chat(http::Request& request, const http::Client& client) {
  return Write(ReadBody(&reading_mutex_, reading_, &request,
                        [&](const auto& body) { return ReadChat(body, context_, RandomWord()); }),
               client);
}

http::Response ApiServer::Write(absl::StatusOr<TextCall> call, const http::Client& client) {
  if (!call.ok()) return ApiErrorResponse(call.status());
  AnswerHead head;
  head.id = absl::BytesToHexString(RandomBytes(12));
  head.created = absl::ToUnixSeconds(absl::Now());
  head.model = options_.model;
  // A request that alone is larger than all may be is answered alone.
  http::ByteBudget::Share held =
      held_.Take(std::min(call->HeldBytes(context_.limits), held_.bytes()));
  if (held == nullptr) return ApiErrorResponse(absl::ResourceExhaustedError(kFull));
  if (!BeginTexts()) return ApiErrorResponse(absl::UnavailableError(kStopping));
  const std::shared_ptr<Work> work(new Work(*std::move(call), std::move(held), engine_, tokenizer_,
                                            std::move(head), options_.request_time),
                                   [this](Work* ended) {
                                     delete ended;
                                     EndTexts();
                                   });
  const absl::Status status = work->run.Start();
  if (!status.ok()) {
    if (!absl::IsResourceExhausted(status)) return ApiErrorResponse(status);
    return ApiErrorResponse(absl::ResourceExhaustedError(kFull));
  }
  if (!work->call.stream) return WriteWhole(work.get(), client);
  http::Response response;
  response.content_type = "text/event-stream; charset=utf-8";
  response.stream = [this, work](http::Client* reader) { WriteStream(work.get(), reader); };
  return response;
}

absl::StatusOr<bool> ApiServer::GoesOn(Work* work) {
  const absl::StatusOr<bool> ended = work->run.Wait(kLook);
  if (!work->has_token && work->run.completion_tokens() > 0) {
    work->has_token = true;
    metrics_.CountFirstToken(SteadyNow() - work->start);
  }
  if (!ended.ok()) return ended.status();
  if (*ended) {
    metrics_.CountText(SteadyNow() - work->start);
  } else if (cut_) {
    return absl::UnavailableError(kStopping);
  }
  return !*ended;
}

http::Response ApiServer::WriteWhole(Work* work, const http::Client& client) {
  for (;;) {
    const absl::StatusOr<bool> goes_on = GoesOn(work);
    if (!goes_on.ok()) return ApiErrorResponse(goes_on.status());
    if (!*goes_on) break;
    if (client.Gone()) return http::ErrorResponse(kClientGone, "");
  }
  std::vector<ChoicePiece> pieces;
  for (ChoiceText& choice : work->run.choices()) pieces.push_back(choice.Take());
  return JsonResponse(work->answer.Whole(pieces, work->run.completion_tokens()));
}

void ApiServer::WriteStream(Work* work, http::Client* client) {
  std::vector<ChoiceText>& choices = work->run.choices();
  std::string events;
  for (size_t i = 0; work->call.is_chat && i < choices.size(); ++i) {
    absl::StrAppend(&events, ServerSentEvent(work->answer.FirstChunk(static_cast<int64_t>(i))));
  }
  int status = 200;
  for (bool goes_on = true; goes_on && status == 200;) {
    const absl::StatusOr<bool> news = GoesOn(work);
    for (size_t i = 0; i < choices.size(); ++i) {
      const ChoicePiece piece = choices[i].Take();
      if (piece.empty()) continue;
      absl::StrAppend(&events,
                      ServerSentEvent(work->answer.PieceChunk(static_cast<int64_t>(i), piece)));
    }
    goes_on = news.ok() && *news;
    if (!news.ok()) {
      status = HttpStatus(news.status());
      absl::StrAppend(&events, ServerSentEvent(ErrorJson(news.status())));
    } else if (!goes_on && work->call.include_usage) {
      absl::StrAppend(&events,
                      ServerSentEvent(work->answer.UsageChunk(work->run.completion_tokens())));
    }
    if (!goes_on) absl::StrAppend(&events, kLastEvent);
    if (!client->Send(events) || (goes_on && client->Gone())) status = kClientGone;
    events.clear();
  }
  metrics_.CountAnswer(work->path(), status);
}

}  // namespace megatron::serve
