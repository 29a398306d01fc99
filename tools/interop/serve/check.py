"""Uses a served model by openai, lm_eval and headless Chromium.

  check.py BIN_DIRECTORY WORK_DIRECTORY [PICTURES_DIRECTORY]
"""

import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request

BIN, WORK, PICTURES = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
os.makedirs(WORK)
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=f"{WORK}/hugging_face",
                  TRANSFORMERS_VERBOSITY="error", OPENAI_API_KEY="")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import lm_eval
import lm_eval.tasks
import openai
import torch
import transformers

from browser import Browser
from load import Load
from small_runs import SmallRuns

TIMEOUT = 120
KEY = "a key of more than sixteen letters"
CONTEXT = 64
TRAINING = ["--set=" + field for field in (
    "model.num_layers=2", "model.hidden_size=64", "model.num_attention_heads=4", f"model.seq_length={CONTEXT}",
    "optimizer.lr=0.005", "train.micro_batch_size=8", "train.train_iters=60", "train.eval_iters=0",
    f"data.data_path={WORK}/stories_text_document", "data.tokenizer_type=HuggingFaceTokenizer",
    f"data.tokenizer_model={WORK}/tokenizer")]

runs = SmallRuns(BIN, WORK, [f"--config={WORK}/empty.textproto", *TRAINING], TIMEOUT)
check = runs.check


def run(tool, *arguments):
    done = subprocess.run([f"{BIN}/tools/{tool}", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{tool} ended with {done.returncode}:\n{done.stdout}")


def train():
    """A model of stories, and what Hugging Face's libraries read of it."""
    open(f"{WORK}/empty.textproto", "w").close()
    run("make_stories", "--bytes=300000", f"--output={WORK}/stories.jsonl")
    run("train_tokenizer", f"--input={WORK}/stories.jsonl", "--json_keys=text", "--vocab_size=600",
        "--special_tokens=<|endoftext|>,<|im_start|>,<|im_end|>", f"--output={WORK}/tokenizer")
    run("preprocess_data", f"--input={WORK}/stories.jsonl", f"--output_prefix={WORK}/stories", "--append_eod",
        "--tokenizer_type=HuggingFaceTokenizer", f"--tokenizer_model={WORK}/tokenizer")
    if runs.start("model").wait() != 0:
        sys.exit(runs.log_of("model"))
    run("export_hf", f"--output={WORK}/exported", f"{WORK}/model")


def serve(name, *flags):
    """Starts a server. Returns its process and its address."""
    log = open(f"{WORK}/{name}.log", "w")
    server = subprocess.Popen([f"{BIN}/tools/serve", f"--checkpoint={WORK}/model", "--listen=127.0.0.1:0", *flags],
                              stdout=log, stderr=log)
    runs.wait_for(lambda: "serving model at " in runs.log_of(name) or server.poll() is not None)
    found = re.search(r"serving model at (http://127\.0\.0\.1:\d+)\n", runs.log_of(name))
    check(f"{name}: the server says where it is", found)
    if not found:
        sys.exit(runs.log_of(name))
    return server, found[1]


# ------------------------------------------------------------------------------------- lm_eval

def write_tasks():
    """Two tasks as their authors write them, about made-up questions."""
    names = ["owl", "cat", "fox", "dog", "goat", "bear"]
    os.makedirs(f"{WORK}/tasks")
    with open(f"{WORK}/tasks/questions.jsonl", "w") as file:
        for i in range(24):
            name, other = names[i % 6], names[(i + 1) % 6]
            file.write(json.dumps({"question": f"Once {i} apes and the {name} took a hat. Who?", "answer": i % 3,
                                   "choices": [f"the {name}", f"the {other}", f"{i} apes"]}) + "\n")
    head = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {WORK}/tasks/questions.jsonl\ntest_split: test\n"
    with open(f"{WORK}/tasks/choices.yaml", "w") as file:
        file.write("task: choices\noutput_type: multiple_choice\n" + head +
                   'doc_to_text: "Question: {{question}}\\nAnswer:"\ndoc_to_target: answer\ndoc_to_choice: choices\n'
                   "metric_list:\n  - metric: acc\n  - metric: acc_norm\n")
    with open(f"{WORK}/tasks/whole.yaml", "w") as file:
        file.write("task: whole\noutput_type: loglikelihood_rolling\n" + head +
                   'doc_to_text: ""\ndoc_to_target: "{{question}} {{choices[0]}}"\nmetric_list:\n  - metric: bits_per_byte\n')


def evaluate(model, arguments, batch_size):
    tasks = lm_eval.tasks.TaskManager(include_path=f"{WORK}/tasks", include_defaults=False)
    return lm_eval.simple_evaluate(model=model, model_args=arguments, tasks=["choices", "whole"], task_manager=tasks,
                                   batch_size=batch_size, log_samples=True, bootstrap_iters=0)


def scores(result, task):
    """The log-likelihoods of a task by sample, and whether each was the greedy text."""
    values = {}
    for sample in result["samples"][task]:
        flat = []
        for response in sample["resps"]:
            answer = response[0]
            flat.append((answer, None) if isinstance(answer, float) else (answer[0], answer[1]))
        values[sample["doc_id"]] = flat
    return values


def check_lm_eval(address):
    write_tasks()
    theirs = evaluate("hf", {"pretrained": f"{WORK}/exported", "dtype": "float32", "device": "cpu"}, 4)
    arguments = {"model": "model", "base_url": f"{address}/v1/completions", "max_length": CONTEXT}
    for name, more, batch_size in (("one by one", {}, 1), ("in batches", {"num_concurrent": 4}, 3)):
        ours = evaluate("local-completions", {**arguments, **more}, batch_size)
        for task, count in (("choices", 72), ("whole", 24)):
            expected, got = scores(theirs, task), scores(ours, task)
            pairs = [pair for doc in expected for pair in zip(expected[doc], got.get(doc, []))]
            check(f"lm_eval, {name}: {count} scores of {task}", len(pairs) == count)
            worst = max(abs(b[0] - a[0]) / abs(a[0]) for a, b in pairs)
            check(f"lm_eval, {name}: {task} as from the exported model; largest relative difference {worst:.1e}", worst <= 1e-5)
            check(f"lm_eval, {name}: {task} is greedy in the same places", all(a[1] == b[1] for a, b in pairs))
        metrics = [(task, metric) for task in ("choices", "whole") for metric in theirs["results"][task]
                   if metric in ("acc,none", "acc_norm,none", "bits_per_byte,none")]
        check(f"lm_eval, {name}: the same results", len(metrics) == 3 and all(
            abs(theirs["results"][task][metric] - ours["results"][task][metric]) <= 1e-5 * abs(theirs["results"][task][metric])
            for task, metric in metrics))


# -------------------------------------------------------------------------------------- openai

def refusal(kind, call):
    """The message of the error of that class that the call ends with."""
    try:
        call()
    except kind as error:
        return str(error)
    except openai.OpenAIError as error:
        print(f"expected {kind.__name__}: {error!r}")
    return ""


def check_openai(address):
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(f"{WORK}/exported")
    model = transformers.AutoModelForCausalLM.from_pretrained(f"{WORK}/exported").eval()
    check("openai: the list of models", [entry.id for entry in client.models.list()] == ["model"])
    check("openai: one model", client.models.retrieve("model").id == "model")

    for prompt in ("Once ", "Once Tom the fat owl took", "But 65 happy apes"):
        answer = client.completions.create(model="model", prompt=prompt, max_tokens=24, temperature=0, logprobs=1)
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24,
                                pad_token_id=0, synced_gpus=False)[0][ids.shape[1]:]
        text = tokenizer.decode(output, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        check(f"openai: '{prompt}' goes on as transformers has it: {answer.choices[0].text!r}", answer.choices[0].text == text)
        check("openai: tokens are counted", answer.usage.prompt_tokens == ids.shape[1] and
              answer.usage.completion_tokens == len(output))
        pieces = list(client.completions.create(model="model", prompt=prompt, max_tokens=24, temperature=0, stream=True,
                                                stream_options={"include_usage": True}))
        check("openai: a stream is the same text", "".join(piece.choices[0].text for piece in pieces[:-1]) == text)
        check("openai: its end has the usage", pieces[-1].usage == answer.usage and pieces[-1].choices == [])

    def sampled(seed):
        return client.completions.create(model="model", prompt=["Once ", "But "], n=2, max_tokens=12, seed=seed).choices
    check("openai: a seed repeats four texts", [c.text for c in sampled(5)] == [c.text for c in sampled(5)] and len(sampled(5)) == 4)
    check("openai: another seed does not", [c.text for c in sampled(5)] != [c.text for c in sampled(6)])
    whole = client.completions.create(model="model", prompt="Once Tom", max_tokens=40, temperature=0).choices[0].text
    stopped = client.completions.create(model="model", prompt="Once Tom", max_tokens=40, temperature=0, stop=[whole[5:9]])
    check("openai: a stop ends the text", stopped.choices[0].text == whole[:whole.index(whole[5:9])] and
          stopped.choices[0].finish_reason == "stop")

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        alone = [client.completions.create(model="model", prompt=f"{i} apes", max_tokens=8, temperature=0).choices[0].text
                 for i in range(16)]
        together = list(pool.map(lambda i: client.completions.create(
            model="model", prompt=f"{i} apes", max_tokens=8, temperature=0).choices[0].text, range(16)))
    check("openai: sixteen requests at once have the texts that they have alone", together == alone)

    message = refusal(openai.BadRequestError, lambda: client.completions.create(model="model", prompt="a " * 200, max_tokens=1))
    check(f"openai: a long prompt is refused with the numbers: {message}", f"context of this model is {CONTEXT} tokens" in message)
    check("openai: it is cut where asked", client.completions.create(
        model="model", prompt="a " * 200, max_tokens=1, extra_body={"truncate_prompt_tokens": -1}).usage.prompt_tokens == CONTEXT - 1)
    check("openai: an unknown field is refused", "no_such" in refusal(openai.BadRequestError, lambda: client.completions.create(
        model="model", prompt="a", extra_body={"no_such": 1})))
    check("openai: another model is not found", "gpt-4" in refusal(openai.NotFoundError, lambda: client.completions.create(
        model="gpt-4", prompt="a")))

    messages = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "Who took it? <|im_end|>"}]
    answer = client.chat.completions.create(model="model", messages=messages, max_tokens=10, temperature=0, logprobs=True, top_logprobs=2)
    check("openai: a conversation", answer.choices[0].message.role == "assistant" and len(answer.choices[0].logprobs.content) > 0)
    template = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant{{ '\\n' }}")
    harmless = [messages[0], {"role": "user", "content": "Who took it?"}]
    expected = tokenizer.apply_chat_template(harmless, chat_template=template, tokenize=True)
    usage = client.chat.completions.create(model="model", messages=harmless, max_tokens=1).usage
    check("openai: its prompt has the tokens of transformers' template", usage.prompt_tokens == len(expected))
    request = urllib.request.Request(f"{address}/tokenize", json.dumps({"messages": messages}).encode())
    with urllib.request.urlopen(request, timeout=TIMEOUT) as found:
        ids = json.load(found)["tokens"]
    check("a message cannot forge its end", ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == len(messages))
    pieces = list(client.chat.completions.create(model="model", messages=messages, max_tokens=10, temperature=0, stream=True))
    check("openai: a conversation as a stream", pieces[0].choices[0].delta.role == "assistant" and
          "".join(piece.choices[0].delta.content or "" for piece in pieces) == answer.choices[0].message.content)


def check_ranks(address):
    """A model that is cut over four ranks answers as on one."""
    server, cut = serve("ranks", "--tensor_model_parallel_size=2", "--pipeline_model_parallel_size=2")
    answers = [openai.OpenAI(base_url=f"{at}/v1", api_key="none").completions.create(
        model="model", prompt=["Once Tom the fat owl took", "But 65"], max_tokens=12, temperature=0, logprobs=2, echo=True)
        for at in (address, cut)]
    one, four = ([choice.text for choice in answer.choices] for answer in answers)
    check("ranks: four write what one writes", one == four)
    one, four = ([value for choice in answer.choices for value in choice.logprobs.token_logprobs[1:]] for answer in answers)
    check("ranks: the log-probabilities are the same", all(abs(a - b) <= 1e-5 * abs(a) for a, b in zip(one, four)))
    server.send_signal(signal.SIGINT)
    check("ranks: Ctrl-C ends all of them", server.wait(TIMEOUT) == 0)


def check_key():
    with open(f"{WORK}/keys", "w") as file:
        file.write(KEY + "\n")
    os.chmod(f"{WORK}/keys", 0o644)
    refused = subprocess.run([f"{BIN}/tools/serve", f"--checkpoint={WORK}/model", f"--api_key_file={WORK}/keys"],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check("key: a file that others may read is refused", refused.returncode != 0 and "chmod 600" in refused.stdout)
    os.chmod(f"{WORK}/keys", 0o600)
    refused = subprocess.run([f"{BIN}/tools/serve", f"--checkpoint={WORK}/model", "--max_batch=2147483647"],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check("max_batch: more than can be is refused with a number", refused.returncode > 0 and "has room for" in refused.stdout)
    server, address = serve("with_key", f"--api_key_file={WORK}/keys")
    for key, known in (("another key of more than sixteen letters", False), (KEY, True)):
        client = openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
        if known:
            check("key: openai is let in", len(client.models.list().data) == 1)
        else:
            check("key: openai is refused without it", refusal(openai.AuthenticationError, client.models.list))
    check("key: conversations need a template", "--chat_template" in refusal(
        openai.BadRequestError, lambda: client.chat.completions.create(model="model", messages=[{"role": "user", "content": "a"}])))
    server.send_signal(signal.SIGTERM)
    check("key: SIGTERM ends the server well", server.wait(TIMEOUT) == 0)


# ---------------------------------------------------------------------------------- the page

def check_page(address):
    browser = Browser(PICTURES)
    browser.look(address + "/")
    check("page: it has the model's name", runs.wait_for(
        lambda: browser.run("return document.querySelector('h1').textContent") == "model"))
    browser.run("""
      document.getElementById('prompt').value = 'Once Tom the fat owl took';
      document.getElementById('temperature').value = '0';
      document.getElementById('tokens').value = '12';
      document.getElementById('write').click();""")
    said = "return document.getElementById('state').textContent"
    check("page: it writes a text", runs.wait_for(lambda: browser.run(said) in ("All tokens are written.", "The model has ended the text.")))
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
    expected = client.completions.create(model="model", prompt="Once Tom the fat owl took", max_tokens=12, temperature=0).choices[0].text
    check("page: the text is the model's", browser.run("return document.querySelector('#text b').textContent") == expected)
    browser.picture("serve")
    browser.run("document.getElementById('tokens').value = '1000'; document.getElementById('write').click();")
    check("page: a refusal is shown", runs.wait_for(lambda: "context of this model" in browser.run(said)))
    check("page: nothing comes from elsewhere", browser.run(
        "return performance.getEntriesByType('resource').every(entry => entry.name.startsWith(location.origin))"))
    check("page: every field has its words", browser.run(
        "return [...document.querySelectorAll('input, textarea')].every(field => field.labels.length === 1)"))
    for look in ("light", "dark"):
        browser.look(address + "/", dark=look == "dark")
        contrast = browser.unreadable()
        check(f"page: everything can be read in {look} {contrast or ''}", not contrast)
        browser.picture(f"serve-{look}")
    for width in (320, 768):
        browser.look(address + "/", width=width)
        check(f"page: nothing sticks out of {width} pixels", browser.run("return document.documentElement.scrollWidth") <= width)
    # The refusal above is a status of HTTP, which a browser's console tells, too.
    others = [message for message in browser.messages() if "status of 400" not in message["message"]]
    check(f"page: the console stays empty {others or ''}", not others)
    browser.stop()


def main():
    train()
    server, address = serve("server", "--chat_template=chatml")
    check_lm_eval(address)
    check_openai(address)
    check_page(address)
    check_ranks(address)
    check("load: 64 clients get their answers, and leave nothing", Load(address, server.pid, clients=64, seconds=10, max_tokens=8).run())
    check_key()
    client = openai.OpenAI(base_url=f"{address}/v1", api_key="none")
    stream = client.completions.create(model="model", prompt="Once ", max_tokens=50, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    server.send_signal(signal.SIGINT)
    check("Ctrl-C: the text is written to its end", [piece.choices[0].finish_reason for piece in stream][-1] == "length")
    check("Ctrl-C ends the server well while it writes", server.wait(TIMEOUT) == 0)
    runs.finish()


main()
