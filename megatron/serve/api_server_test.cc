#include "megatron/serve/api_server.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status_matchers.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "megatron/base/file_system.h"
#include "megatron/base/steady_now.h"
#include "megatron/data/tokenizer/byte_level_tokenizer.h"
#include "megatron/generate/text_engine.h"
#include "megatron/serve/http_client.h"
#include "megatron/serve/scripted_engine.h"
#include "megatron/serve/serial_text_engine.h"
#include "nlohmann/json.hpp"

namespace megatron::serve {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kCompletions[] = "/v1/completions", kChat[] = "/v1/chat/completions";

size_t ThreadsOfThisProcess() {
  return PosixFileSystem().List("/proc/self/task").value_or(std::vector<std::string>()).size();
}

template <typename Condition>
bool Becomes(Condition condition) {
  const absl::Time deadline = SteadyNow() + absl::Seconds(60);
  while (!condition() && SteadyNow() < deadline) absl::SleepFor(absl::Milliseconds(5));
  return condition();
}

std::string TextOf(const Json& json) { return json["choices"][0]["text"].get<std::string>(); }

class ApiServerTest : public ::testing::Test {
 protected:
  ApiServerTest() {
    options_.model = "alphabet";
    options_.chat_template = "plain";
  }

  void Start() {
    engine_ = MakeScriptedEngine(/*max_context=*/512, queue_, &delay_);
    StartServer();
  }

  // With the engine that there is.
  void StartServer() {
    auto server = ApiServer::Start(options_, engine_.get(), tokenizer_);
    ASSERT_THAT(server, ::absl_testing::IsOk());
    server_ = *std::move(server);
  }

  HttpAnswer Ask(const std::string& path, const std::string& body = "",
                 const std::string& fields = "") const {
    return HttpClient(server_->endpoint()).Ask(path, body, fields);
  }

  bool Idle() const {
    const EngineState state = engine_->state();
    return state.running + state.waiting == 0;
  }

  const ByteLevelTokenizer tokenizer_;
  ApiServerOptions options_;
  std::atomic<int> delay_{0};
  int queue_ = 256;
  std::unique_ptr<TextEngine> engine_;
  std::unique_ptr<ApiServer> server_;
};

TEST_F(ApiServerTest, CompletesATextAsOpenAiDoes) {
  Start();
  const HttpAnswer answer =
      Ask(kCompletions, R"({"model": "alphabet", "prompt": "w", "temperature": 0})");
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = answer.Json();
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_TRUE(absl::StartsWith(json["id"].get<std::string>(), "cmpl-"));
  EXPECT_EQ(json["model"], "alphabet");
  EXPECT_EQ(json["choices"], Json::parse(R"([{"index": 0, "text": "xyz", "logprobs": null,
                                              "finish_reason": "stop"}])"));
  EXPECT_EQ(json["usage"],
            Json::parse(R"({"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5})"));
}

TEST_F(ApiServerTest, LengthsStopsAndSeveralTexts) {
  Start();
  const Json json = Ask(kCompletions, R"({"prompt": ["a", "q", "$"], "n": 2, "temperature": 0,
                                          "max_tokens": 5, "stop": ["v", "nothing"]})")
                        .Json();
  std::vector<std::string> texts;
  for (const Json& choice : json["choices"]) {
    EXPECT_EQ(choice["index"], texts.size());
    texts.push_back(absl::StrCat(choice["text"].get<std::string>(), " ",
                                 choice["finish_reason"].get<std::string>()));
  }
  EXPECT_THAT(texts, ElementsAre("bcdef length", "bcdef length", "rstu stop", "rstu stop",
                                 "\u20acab length", "\u20acab length"));
  EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(json["usage"]["completion_tokens"], 30);
}

TEST_F(ApiServerTest, SamplingIsRepeatedByItsSeed) {
  Start();
  const auto text = [&](int seed) {
    return TextOf(
        Ask(kCompletions, absl::StrCat(R"({"prompt": "a", "max_tokens": 30, "seed": )", seed, "}"))
            .Json());
  };
  EXPECT_EQ(text(1), text(1));
  EXPECT_NE(text(1), text(2));
}

TEST_F(ApiServerTest, PromptsAreScored) {
  Start();
  // As lm-evaluation-harness asks: tokens of unequal lengths, a token more, and all of them scored.
  const Json json = Ask(kCompletions, R"({"prompt": [[97, 98, 122], [97, 99]], "temperature": 0,
      "max_tokens": 1, "logprobs": 1, "echo": true, "seed": 1234})")
                        .Json();
  const Json& first = json["choices"][0]["logprobs"];
  EXPECT_EQ(json["choices"][0]["text"], "abz");
  EXPECT_EQ(first["tokens"], Json::array({"a", "b", "z", "<|endoftext|>"}));
  EXPECT_EQ(first["text_offset"], Json::array({0, 1, 2, 3}));
  ASSERT_EQ(first["token_logprobs"].size(), 4u);
  EXPECT_TRUE(first["token_logprobs"][0].is_null());
  EXPECT_TRUE(first["top_logprobs"][0].is_null());
  const double sum = std::exp(4.0) + 256;
  EXPECT_NEAR(first["token_logprobs"][1].get<double>(), 4 - std::log(sum), 1e-5);
  EXPECT_NEAR(first["token_logprobs"][2].get<double>(), -std::log(sum), 1e-5);
  // The likeliest token and the one that stands there, with the same digits.
  EXPECT_EQ(first["top_logprobs"][1], Json({{"b", first["token_logprobs"][1]}}));
  EXPECT_EQ(first["top_logprobs"][2].size(), 2u);
  EXPECT_EQ(first["top_logprobs"][2]["z"], first["token_logprobs"][2]);
  EXPECT_EQ(first["top_logprobs"][2]["c"], first["token_logprobs"][1]);
  EXPECT_EQ(json["choices"][1]["text"], "acd");
  EXPECT_EQ(json["choices"][1]["logprobs"]["tokens"], Json::array({"a", "c", "d"}));
}

TEST_F(ApiServerTest, AStreamIsTheTextInPieces) {
  Start();
  const std::string body = R"("prompt": ["s$", "w"], "temperature": 0, "max_tokens": 7,
                              "logprobs": 0, "echo": true, "stop": "bd")";
  const Json whole = Ask(kCompletions, absl::StrCat("{", body, "}")).Json();
  const HttpAnswer answer = Ask(kCompletions, absl::StrCat("{", body, R"(, "stream": true,
                                "stream_options": {"include_usage": true}})"));
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: text/event-stream"));
  std::vector<std::string> texts(2), reasons(2);
  std::vector<Json> tokens(2, Json::array());
  const std::vector<std::string> events = answer.Events();
  ASSERT_GE(events.size(), 4u);
  EXPECT_EQ(events.back(), "[DONE]");
  for (size_t i = 0; i + 2 < events.size(); ++i) {
    const Json json = Json::parse(events[i]);
    EXPECT_EQ(json["object"], "text_completion");
    EXPECT_TRUE(json["usage"].is_null());
    const Json& choice = json["choices"][0];
    const size_t index = choice["index"].get<size_t>();
    texts[index] += choice["text"].get<std::string>();
    for (const Json& token : choice["logprobs"]["tokens"]) tokens[index].push_back(token);
    if (!choice["finish_reason"].is_null())
      reasons[index] += choice["finish_reason"].get<std::string>();
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(texts[i], whole["choices"][i]["text"].get<std::string>());
    EXPECT_EQ(tokens[i], whole["choices"][i]["logprobs"]["tokens"]);
    EXPECT_EQ(reasons[i], whole["choices"][i]["finish_reason"].get<std::string>());
  }
  EXPECT_EQ(texts[0], "s$\u20acabcd");
  const Json usage = Json::parse(events[events.size() - 2]);
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"], whole["usage"]);
}

TEST_F(ApiServerTest, ATokenIsSentWhenItIsWritten) {
  delay_ = 20;
  Start();
  HttpClient client(server_->endpoint());
  client.Send(kCompletions,
              R"({"prompt": "a", "temperature": 0, "max_tokens": 400, "stream": true})");
  client.ReadUntil("\"text\":\"b");
  EXPECT_LT(engine_->state().generated_tokens, 300);
}

TEST_F(ApiServerTest, AConversation) {
  Start();
  const std::string talk = R"("messages": [{"role": "user", "content": "Hi"}], "temperature": 0,
                              "max_tokens": 3, "logprobs": true, "top_logprobs": 2)";
  const HttpAnswer answer = Ask(kChat, absl::StrCat("{", talk, "}"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json json = answer.Json();
  EXPECT_EQ(json["object"], "chat.completion");
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["message"],
            Json::parse(R"({"role": "assistant", "content": "abc", "refusal": null})"));
  EXPECT_EQ(choice["finish_reason"], "length");
  const Json& second = choice["logprobs"]["content"][1];
  EXPECT_EQ(second["token"], "b");
  EXPECT_EQ(second["bytes"], Json::array({98}));
  EXPECT_EQ(second["top_logprobs"].size(), 2u);
  EXPECT_EQ(second["top_logprobs"][0]["logprob"], second["logprob"]);

  const std::vector<std::string> events =
      Ask(kChat, absl::StrCat("{", talk, R"(, "stream": true})")).Events();
  EXPECT_EQ(Json::parse(events[0])["choices"][0]["delta"],
            Json::parse(R"({"role": "assistant", "content": ""})"));
  std::string text;
  for (size_t i = 1; i + 1 < events.size(); ++i) {
    const Json json = Json::parse(events[i]);
    EXPECT_EQ(json["object"], "chat.completion.chunk");
    text += json["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, "abc");
}

TEST_F(ApiServerTest, TellsWhatItIs) {
  Start();
  EXPECT_EQ(Ask("/health").Json(), Json::parse(R"({"status": "ok"})"));
  const Json models = Ask("/v1/models").Json();
  EXPECT_EQ(models["data"][0]["id"], "alphabet");
  EXPECT_EQ(models["data"][0]["max_model_len"], 512);
  EXPECT_EQ(Ask("/v1/models/alphabet").Json(), models["data"][0]);
  EXPECT_EQ(Ask("/v1/models/other").status, 404);
  const Json info = Ask("/tokenizer_info").Json();
  EXPECT_EQ(info["eos_token"], "<|endoftext|>");
  EXPECT_TRUE(info["pad_token"].is_null());
  EXPECT_EQ(Ask("/tokenize", R"({"prompt": "ab", "add_special_tokens": false})").Json()["tokens"],
            Json::array({97, 98}));
  EXPECT_EQ(Ask("/detokenize", R"({"tokens": [97, 98]})").Json()["prompt"], "ab");
  const HttpAnswer page = Ask("/");
  EXPECT_THAT(page.head, HasSubstr("Content-Security-Policy: default-src 'none'"));
  EXPECT_THAT(page.body, HasSubstr("<!DOCTYPE html>"));
  Ask(kCompletions, R"({"prompt": "w", "temperature": 0})");
  const std::string metrics = Ask("/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("megatron_serve_generated_tokens_total 4\n"));
  EXPECT_THAT(
      metrics,
      HasSubstr("megatron_serve_answers_total{path=\"/v1/completions\",status=\"200\"} 1\n"));
  EXPECT_THAT(metrics, HasSubstr("megatron_serve_request_seconds_count 1\n"));
  // The default of --request_timeout is in the histogram.
  EXPECT_THAT(metrics, HasSubstr("megatron_serve_request_seconds_bucket{le=\"600\"} 1\n"));
}

TEST_F(ApiServerTest, TheNameOfTheModelIsEscapedInAddresses) {
  options_.model = "my org/tales";
  Start();
  for (const char* path : {"/v1/models/my%20org/tales", "/v1/models/my%20org%2Ftales"})
    EXPECT_EQ(Ask(path).Json()["id"], "my org/tales") << path;
  for (const char* path : {"/v1/models/my%2", "/v1/models/my%zzorg/tales", "/v1/models/%"})
    EXPECT_EQ(Ask(path).status, 404) << path;
}

TEST_F(ApiServerTest, MistakesAreTold) {
  Start();
  HttpAnswer answer = Ask(kCompletions, R"({"prompt": "a", "max_tokens": 1000})");
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.Json()["error"]["code"], "context_length_exceeded");
  EXPECT_EQ(answer.Json()["error"]["param"], "max_tokens");
  EXPECT_EQ(Ask(kCompletions, "nonsense").status, 400);
  EXPECT_EQ(Ask(kCompletions, R"({"prompt": "a", "model": "gpt-4"})").status, 404);
  EXPECT_EQ(Ask("/v1/embeddings", "{}").status, 404);
  answer = Ask(kCompletions);
  EXPECT_EQ(answer.status, 405);
  EXPECT_THAT(answer.head, HasSubstr("Allow: POST\r\n"));
  EXPECT_EQ(Ask("/health", "{}").status, 405);
  answer = Ask(kCompletions, std::string(options_.body_bytes + 1, ' '));
  EXPECT_EQ(answer.status, 413);
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_EQ(answer.Json()["error"]["type"], "invalid_request_error");
  EXPECT_THAT(answer.Json()["error"]["message"].get<std::string>(), HasSubstr("2097152 bytes"));
  // A page of another site, in a browser of this machine.
  answer = Ask(kCompletions, R"({"prompt": "a"})", "Origin: https://evil.example\r\n");
  EXPECT_EQ(answer.status, 403);
  EXPECT_EQ(Ask(kCompletions, R"({"prompt": "a"})", "Origin: null\r\n").status, 403);
  EXPECT_EQ(Ask(kCompletions, R"({"prompt": "a"})", "Origin: http://localhost\r\n").status, 200);
}

TEST_F(ApiServerTest, ABodyThatTakesMoreMemoryThanIsPlannedIsRefused) {
  Start();
  std::string numbers = "{\"truncate_prompt_tokens\": 100, \"prompt\": [7";
  for (int i = 0; i < 1000000; ++i) numbers += ",7";
  HttpAnswer answer = Ask(kCompletions, numbers + "]}");
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.Json()["error"]["message"].get<std::string>(), HasSubstr("of memory"));
  answer = Ask("/tokenize", absl::StrCat("{\"prompt\": \"", std::string(1 << 20, 'a'), "\"}"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.Json()["error"]["message"].get<std::string>(),
              HasSubstr("1048576 bytes, and at most 262144"));
  EXPECT_EQ(Ask(kCompletions, R"({"prompt": "a"})").status, 200);
}

TEST_F(ApiServerTest, BodiesThatAreReadAtOnceHaveABudget) {
  options_.all_body_bytes = 200;
  Start();
  const std::string longer = absl::StrCat("{\"prompt\": \"", std::string(100, 'a'), "\"}");
  const HttpAnswer answer = Ask(kCompletions, longer);
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.head, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_EQ(answer.Json()["error"]["type"], "server_error");
  EXPECT_EQ(Ask(kCompletions, R"({"prompt": "a"})").status, 200);
}

TEST_F(ApiServerTest, TheTokensOfAllRequestsHaveABudget) {
  queue_ = 1000;
  options_.max_choices = 100;
  delay_ = 20;
  Start();
  // The engine works on one text and has 1000 waiting: no more may be asked for at once.
  const std::string slow =
      R"({"prompt": "a", "n": 100, "max_tokens": 511, "ignore_eos": true, "stream": true})";
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server_->endpoint()));
    clients.back()->Send(kCompletions, slow);
    EXPECT_THAT(clients.back()->ReadUntil("\r\n\r\n"), HasSubstr(" 200 "));
  }
  EXPECT_EQ(Ask(kCompletions, slow).status, 429);
  clients.clear();
  EXPECT_TRUE(Becomes([&] { return Idle(); }));
}

TEST_F(ApiServerTest, AKeyIsNeeded) {
  options_.api_keys = {"first key", "second key"};
  Start();
  EXPECT_EQ(Ask("/health").status, 200);
  EXPECT_EQ(Ask("/").status, 200);
  for (const char* path : {"/v1/models", "/metrics", "/tokenizer_info"})
    EXPECT_EQ(Ask(path).status, 401) << path;
  const HttpAnswer answer = Ask(kCompletions, R"({"prompt": "a"})");
  EXPECT_EQ(answer.status, 401);
  EXPECT_THAT(answer.head, HasSubstr("WWW-Authenticate: Bearer\r\n"));
  EXPECT_EQ(answer.Json()["error"]["type"], "authentication_error");
  for (const char* wrong :
       {"Bearer", "Bearer ", "Bearer first", "Bearer first keys", "Basic first key", "first key"}) {
    EXPECT_EQ(Ask("/v1/models", "", absl::StrCat("Authorization: ", wrong, "\r\n")).status, 401)
        << wrong;
  }
  EXPECT_EQ(Ask("/v1/models", "", "Authorization: bearer second key\r\n").status, 200);
}

TEST_F(ApiServerTest, AnUnknownTemplateAndAPortInUseAreErrors) {
  Start();
  ApiServerOptions wrong = options_;
  wrong.chat_template = "chatml";
  EXPECT_THAT(ApiServer::Start(wrong, engine_.get(), tokenizer_).status().message(),
              HasSubstr("<|im_start|>"));
  wrong = options_;
  wrong.listen = server_->endpoint();
  EXPECT_THAT(ApiServer::Start(wrong, engine_.get(), tokenizer_).status().message(),
              HasSubstr("in use"));
}

TEST_F(ApiServerTest, OneConnectionTooManyIsToldInJson) {
  options_.connections = 1;
  delay_ = 20;
  Start();
  HttpClient first(server_->endpoint());
  first.Send(kCompletions, R"({"prompt": "a", "max_tokens": 400, "ignore_eos": true})");
  ASSERT_TRUE(Becomes([&] { return engine_->state().running == 1; }));
  const HttpAnswer answer = HttpClient(server_->endpoint()).Read();
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.head, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_EQ(answer.Json()["error"]["type"], "server_error");
  EXPECT_TRUE(answer.Json()["error"]["code"].is_null());
}

TEST_F(ApiServerTest, OneRequestTooManyIsToldToComeAgain) {
  queue_ = 1;
  delay_ = 20;
  Start();
  const std::string slow =
      R"({"prompt": "a", "max_tokens": 400, "ignore_eos": true, "stream": true})";
  HttpClient first(server_->endpoint()), second(server_->endpoint());
  first.Send(kCompletions, slow);
  ASSERT_TRUE(Becomes([&] { return engine_->state().running == 1; }));
  second.Send(kCompletions, slow);
  ASSERT_TRUE(Becomes([&] { return engine_->state().waiting == 1; }));
  const HttpAnswer answer = Ask(kCompletions, R"({"prompt": "a"})");
  EXPECT_EQ(answer.status, 429);
  EXPECT_THAT(answer.head, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_EQ(answer.Json()["error"]["type"], "rate_limit_error");
}

TEST_F(ApiServerTest, ARequestOfManyTextsPassesThroughASmallQueue) {
  queue_ = 2;
  Start();
  const Json json = Ask(kCompletions, R"({"prompt": "x", "n": 40, "temperature": 0})").Json();
  ASSERT_EQ(json["choices"].size(), 40u);
  for (const Json& choice : json["choices"]) EXPECT_EQ(choice["text"], "yz");
}

TEST_F(ApiServerTest, ARequestEndsAtItsDeadline) {
  options_.request_time = absl::Milliseconds(300);
  delay_ = 20;
  Start();
  const std::string slow = R"("prompt": "a", "max_tokens": 400, "ignore_eos": true)";
  const HttpAnswer answer = Ask(kCompletions, absl::StrCat("{", slow, "}"));
  EXPECT_EQ(answer.status, 504);
  EXPECT_THAT(answer.body, HasSubstr("longer than the 0.3 seconds that this server allows"));
  const auto events = Ask(kCompletions, absl::StrCat("{", slow, R"(, "stream": true})")).Events();
  ASSERT_GE(events.size(), 2u);
  EXPECT_THAT(events[events.size() - 2],
              HasSubstr("longer than the 0.3 seconds that this server allows"));
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(Ask("/health").status, 200);
}

TEST_F(ApiServerTest, OneSecondIsTold) {
  options_.request_time = absl::Seconds(1);
  delay_ = 20;
  Start();
  const HttpAnswer answer =
      Ask(kCompletions, R"({"prompt": "a", "max_tokens": 400, "ignore_eos": true})");
  EXPECT_EQ(answer.status, 504);
  EXPECT_THAT(answer.body, HasSubstr("longer than the 1 second that this server allows"));
}

// The engine's own deadline is between two of its steps.
TEST_F(ApiServerTest, ARequestEndsAtItsDeadlineWhileAStepGoesOn) {
  std::atomic<bool> held{true};
  std::vector<float> logits(257);
  engine_ = std::make_unique<SerialTextEngine>(EngineLimits{257, 512, 1, queue_, 5},
                                               [&](absl::Span<const int32_t>, int64_t) {
                                                 while (held) absl::SleepFor(absl::Milliseconds(1));
                                                 return absl::MakeConstSpan(logits);
                                               });
  options_.request_time = absl::Milliseconds(300);
  StartServer();
  EXPECT_EQ(Ask(kCompletions, R"({"prompt": "a"})").status, 504);
  EXPECT_THAT(Ask(kCompletions, R"({"prompt": "a", "stream": true})").Events(),
              ElementsAre(HasSubstr("0.3 seconds"), "[DONE]"));
  EXPECT_EQ(Ask("/health").status, 200);
  held = false;
  server_.reset();
  engine_.reset();
}

TEST_F(ApiServerTest, HealthTellsThatTheModelHasStopped) {
  std::atomic<bool> fails{false};
  const std::vector<float> logits(257);
  engine_ = std::make_unique<SerialTextEngine>(
      EngineLimits{257, 512, 1, queue_, 5}, [&](absl::Span<const int32_t>, int64_t) {
        return fails ? absl::Span<const float>() : absl::MakeConstSpan(logits);
      });
  StartServer();
  EXPECT_EQ(Ask(kCompletions, R"({"prompt": "a"})").status, 200);
  EXPECT_EQ(Ask("/health").status, 200);
  fails = true;
  // Nobody of the server asks for this text.
  struct Silent : TextObserver {
    bool OnToken(const ScoredToken&) override { return true; }
    void OnEnd(FinishReason, const absl::Status&) override {}
  };
  TextRequest request;
  request.prompt = {'a'};
  ASSERT_THAT(engine_->Submit(request, std::make_shared<Silent>()), ::absl_testing::IsOk());
  ASSERT_TRUE(Becomes([&] { return engine_->state().failed; }));
  const HttpAnswer health = Ask("/health");
  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(health.Json()["status"], "the model has stopped");
  EXPECT_EQ(Ask(kCompletions, R"({"prompt": "a"})").status, 503);
  server_.reset();
  engine_.reset();
}

TEST_F(ApiServerTest, WhatIsNoRequestIsCountedToo) {
  Start();
  EXPECT_EQ(Ask(kCompletions, std::string(options_.body_bytes + 1, ' ')).status, 413);
  EXPECT_EQ(Ask("/v1/embeddings", "{}").status, 404);
  const std::string metrics = Ask("/metrics").body;
  EXPECT_THAT(metrics,
              HasSubstr("megatron_serve_answers_total{path=\"other\",status=\"413\"} 1\n"));
  EXPECT_THAT(metrics,
              HasSubstr("megatron_serve_answers_total{path=\"other\",status=\"404\"} 1\n"));
}

TEST_F(ApiServerTest, WhoGoesAwayCostsNothing) {
  options_.send_time = absl::Milliseconds(300);
  delay_ = 5;
  Start();
  for (const char* stream : {"true", "false"}) {
    {
      std::vector<std::unique_ptr<HttpClient>> clients;
      for (int i = 0; i < 8; ++i) {
        clients.push_back(std::make_unique<HttpClient>(server_->endpoint()));
        clients.back()->Send(kCompletions,
                             absl::StrCat(R"({"prompt": "a", "max_tokens": 500, "n": 3,
                                 "ignore_eos": true, "stream": )",
                                          stream, "}"));
      }
      ASSERT_TRUE(Becomes([&] { return engine_->state().waiting > 8; }));
    }
    // 24 texts of 500 tokens would take a minute.
    const absl::Time start = SteadyNow();
    EXPECT_TRUE(Becomes([&] { return Idle(); }));
    EXPECT_LT(SteadyNow() - start, absl::Seconds(30));
  }
  delay_ = 0;
  EXPECT_EQ(Ask(kCompletions, R"({"prompt": "a"})").status, 200);
  EXPECT_THAT(Ask("/metrics").body, HasSubstr("status=\"499\"} 16\n"));
}

TEST_F(ApiServerTest, ManyClientsAtOnce) {
  constexpr int kClients = 64, kRequests = 6;
  Start();
  const size_t before = ThreadsOfThisProcess();
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) {
    threads.emplace_back([&, i] {
      HttpClient client(server_->endpoint());
      for (int j = 0; j < kRequests; ++j) {
        // Each client waits for texts of its own; some are streams.
        const char letter = static_cast<char>('a' + (i + j) % 20);
        const HttpAnswer answer = client.Ask(
            kCompletions, absl::StrCat(R"({"temperature": 0, "max_tokens": 3, "prompt": ")",
                                       std::string(1, letter),
                                       "\", \"stream\": ", j % 2 == 0 ? "true" : "false", "}"));
        std::string text;
        if (j % 2 == 0) {
          for (const std::string& event : answer.Events()) {
            if (event != "[DONE]") text += TextOf(Json::parse(event));
          }
        } else if (answer.status == 200) {
          text = TextOf(answer.Json());
        }
        const std::string expected = {static_cast<char>(letter + 1), static_cast<char>(letter + 2),
                                      static_cast<char>(letter + 3)};
        right += text == expected;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, kClients * kRequests);
  EXPECT_TRUE(Becomes([&] { return Idle() && ThreadsOfThisProcess() <= before; }));
}

TEST_F(ApiServerTest, AServerThatStopsEndsItsAnswersFirst) {
  delay_ = 100;
  Start();
  const std::string body = R"("prompt": "a", "max_tokens": 400, "ignore_eos": true)";
  HttpClient stream(server_->endpoint()), whole(server_->endpoint());
  stream.Send(kCompletions, absl::StrCat("{", body, R"(, "stream": true})"));
  whole.Send(kCompletions, absl::StrCat("{", body, "}"));
  ASSERT_TRUE(Becomes([&] {
    const EngineState state = engine_->state();
    return state.running == 1 && state.waiting == 1;
  }));
  std::thread stop([&] { server_->Stop(absl::Seconds(600)); });
  EXPECT_TRUE(Becomes([&] { return Ask("/health").status == 503; }));
  const HttpAnswer refused = Ask(kCompletions, R"({"prompt": "a"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.head, HasSubstr("Retry-After: 1\r\n"));
  EXPECT_EQ(refused.Json()["error"]["message"], "the server is stopping");
  // It tells others as long as it writes.
  EXPECT_EQ(Ask("/metrics").status, 200);
  delay_ = 0;
  const std::vector<std::string> events = stream.Read().Events();
  const HttpAnswer answer = whole.Read();
  stop.join();
  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(Json::parse(events[events.size() - 2])["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.Json()["usage"]["completion_tokens"], 400);
}

TEST_F(ApiServerTest, AnswersThatOutlastTheGraceAreCutOffWithAnError) {
  delay_ = 100;
  Start();
  const std::string body = R"("prompt": "a", "max_tokens": 400, "ignore_eos": true)";
  HttpClient stream(server_->endpoint()), whole(server_->endpoint()), idle(server_->endpoint());
  stream.Send(kCompletions, absl::StrCat("{", body, R"(, "stream": true})"));
  whole.Send(kCompletions, absl::StrCat("{", body, "}"));
  ASSERT_TRUE(Becomes([&] {
    const EngineState state = engine_->state();
    return state.running == 1 && state.waiting == 1;
  }));
  server_->Stop(absl::ZeroDuration());
  const std::vector<std::string> events = stream.Read().Events();
  ASSERT_GE(events.size(), 2u);
  const Json error = Json::parse(events[events.size() - 2])["error"];
  EXPECT_EQ(error["type"], "server_error");
  EXPECT_EQ(error["message"], "the server is stopping");
  EXPECT_EQ(events.back(), "[DONE]");
  const HttpAnswer answer = whole.Read();
  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.Json()["error"], error);
  EXPECT_EQ(idle.Read().status, 0);
  EXPECT_TRUE(Becomes([&] { return Idle(); }));
}

TEST_F(ApiServerTest, AServerThatEndsLeavesNothing) {
  const size_t before = ThreadsOfThisProcess();
  delay_ = 20;
  Start();
  HttpClient stream(server_->endpoint()), whole(server_->endpoint()), idle(server_->endpoint());
  const std::string slow = R"("prompt": "a", "max_tokens": 400, "ignore_eos": true)";
  stream.Send(kCompletions, absl::StrCat("{", slow, R"(, "stream": true})"));
  whole.Send(kCompletions, absl::StrCat("{", slow, "}"));
  ASSERT_TRUE(Becomes([&] { return engine_->state().waiting == 1; }));
  const absl::Time start = SteadyNow();
  server_.reset();
  EXPECT_LT(SteadyNow() - start, absl::Seconds(10));
  EXPECT_TRUE(Becomes([&] { return Idle(); }));
  EXPECT_EQ(whole.Read().status, 0);
  engine_.reset();
  EXPECT_EQ(ThreadsOfThisProcess(), before);
}

}  // namespace
}  // namespace megatron::serve
