"""Compares tools:evaluate with lm_eval, and with Megatron's and llm.c's rules in PyTorch.

  check.py BIN_DIRECTORY WORK_DIRECTORY
"""

import json
import math
import os
import random
import subprocess
import sys

BIN, WORK = sys.argv[1], sys.argv[2]
os.makedirs(WORK)
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=f"{WORK}/hugging_face", TRANSFORMERS_VERBOSITY="error")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import lm_eval
import lm_eval.tasks
import torch
import transformers

from small_runs import SmallRuns

TIMEOUT = 120
CONTEXT = 64
STRIDE = 24
TRAINING = ["--set=" + field for field in (
    "model.num_layers=2", "model.hidden_size=64", "model.num_attention_heads=4", f"model.seq_length={CONTEXT}",
    "optimizer.lr=0.005", "train.micro_batch_size=8", "train.train_iters=60", "train.eval_iters=0",
    f"data.data_path={WORK}/stories_text_document", "data.tokenizer_type=HuggingFaceTokenizer",
    f"data.tokenizer_model={WORK}/tokenizer")]
LM_EVAL_TASKS = os.path.join(os.path.dirname(lm_eval.__file__), "tasks")

runs = SmallRuns(BIN, WORK, [f"--config={WORK}/empty.textproto", *TRAINING], TIMEOUT)
check = runs.check


def run(tool, *arguments):
    done = subprocess.run([f"{BIN}/tools/{tool}", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{tool} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def train():
    """A model of stories, and what Hugging Face's libraries read of it."""
    open(f"{WORK}/empty.textproto", "w").close()
    run("make_stories", "--bytes=300000", f"--output={WORK}/stories.jsonl")
    run("train_tokenizer", f"--input={WORK}/stories.jsonl", "--json_keys=text", "--vocab_size=600",
        "--special_tokens=<|endoftext|>", f"--output={WORK}/tokenizer")
    run("preprocess_data", f"--input={WORK}/stories.jsonl", f"--output_prefix={WORK}/stories", "--append_eod",
        "--tokenizer_type=HuggingFaceTokenizer", f"--tokenizer_model={WORK}/tokenizer")
    if runs.start("model").wait() != 0:
        sys.exit(runs.log_of("model"))
    run("export_hf", f"--output={WORK}/exported", f"{WORK}/model")


# ---------------------------------------------------------------------------------------- files

def write(name, records):
    with open(f"{WORK}/{name}", "w") as file:
        for record in records:
            file.write(json.dumps(record) + "\n")
    return f"{WORK}/{name}"


def stories():
    with open(f"{WORK}/stories.jsonl") as file:
        return [json.loads(line)["text"] for line in file][:60]


def make_files():
    """The same examples in the published forms, and in those of Hugging Face's data sets, which lm_eval reads."""
    chance = random.Random(7)
    texts = stories()
    sentences = [s.strip() + "." for text in texts for s in text.split(".") if len(s) > 20]

    def some(count):
        return [chance.choice(sentences) for _ in range(count)]

    published, hugging_face = {}, {}
    swag = [{"ind": i, "activity_label": chance.choice(["Telling tales", "How to [step] sing"]), "ctx_a": some(1)[0] + " [header] Ways",
             "ctx_b": chance.choice(["the CAT", "", "éric Once"]), "label": i % 4, "source_id": f"made~{i}", "split": "val",
             "endings": [f"{a} [title] Then  {'ü' * k}" for k, a in enumerate(some(4))]} for i in range(40)]
    for record in swag:
        record["ctx"] = record["ctx_a"] + " " + record["ctx_b"]
    published["hellaswag"] = write("hellaswag_val.jsonl", swag)
    hugging_face["hellaswag"] = write("hellaswag_hf.jsonl", [{**record, "label": str(record["label"])} for record in swag])

    for task, letters in (("arc_easy", "ABCD"), ("arc_challenge", "1234")):
        arc = [(i, some(1)[0], some(3 + i % 2), i % 3) for i in range(40)]
        published[task] = write(f"{task}.jsonl", [
            {"id": f"q{i}", "question": {"stem": stem, "choices": [{"text": text, "label": letters[k]} for k, text in enumerate(choices)]},
             "answerKey": letters[gold]} for i, stem, choices, gold in arc])
        hugging_face[task] = write(f"{task}_hf.jsonl", [
            {"id": f"q{i}", "question": stem, "choices": {"text": choices, "label": list(letters[:len(choices)])},
             "answerKey": letters[gold]} for i, stem, choices, gold in arc])

    piqa = [{"goal": some(1)[0], "sol1": some(1)[0], "sol2": some(1)[0]} for _ in range(40)]
    published["piqa"] = write("valid.jsonl", piqa)
    with open(f"{WORK}/valid-labels.lst", "w") as file:
        file.write("".join(f"{i % 2}\n" for i in range(len(piqa))))
    hugging_face["piqa"] = write("piqa_hf.jsonl", [{**record, "label": i % 2} for i, record in enumerate(piqa)])

    # Some end in a space, some are one word, and some are longer than the context.
    words = [{"text": text} for text in some(50) + [" ".join(some(8)) for _ in range(6)] + ["Once", "The cat "]]
    published["lambada_openai"] = hugging_face["lambada_openai"] = write("lambada.jsonl", words)
    published["lambada"] = published["lambada_strict"] = published["lambada_openai"]

    pages = [{"page": f" = Page {i} = \n \n " + text.replace(".", " .").replace(",", " ,") + " \n ( a @-@ b ) N 's \n"}
             for i, text in enumerate(texts[:12])]
    published["wikitext"] = hugging_face["wikitext"] = write("pages.jsonl", pages)
    published["bits_per_byte"] = hugging_face["bits_per_byte"] = write("texts.jsonl", [{"text": text} for text in texts[:12]])
    with open(f"{WORK}/wiki.test.tokens", "w") as file:
        file.write("".join(page["page"] for page in pages[:4]))
    published["wikitext103"] = f"{WORK}/wiki.test.tokens"
    published["hellaswag_llmc"] = published["hellaswag"]
    return published, hugging_face


# -------------------------------------------------------------------------------------- lm_eval

def lm_eval_results(files):
    """What lm_eval's own tasks find of the exported model."""
    included = {"hellaswag": "hellaswag/hellaswag.yaml", "arc_easy": "arc/arc_easy.yaml", "arc_challenge": "arc/arc_challenge.yaml",
                "piqa": "piqa/piqa.yaml", "lambada_openai": "lambada/lambada_openai.yaml", "wikitext": "wikitext/wikitext.yaml"}
    os.makedirs(f"{WORK}/tasks")
    for task, path in files.items():
        head = f"include: {LM_EVAL_TASKS}/{included[task]}\n" if task in included else (
            'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{text}}"\nmetric_list:\n'
            "  - metric: word_perplexity\n  - metric: byte_perplexity\n  - metric: bits_per_byte\n")
        with open(f"{WORK}/tasks/{task}.yaml", "w") as file:
            file.write(head + f"task: {task}\ndataset_path: json\ndataset_name: null\ntraining_split: null\nvalidation_split: null\n"
                       f"test_split: test\ndataset_kwargs:\n  data_files:\n    test: {path}\n")
    tasks = lm_eval.tasks.TaskManager(include_path=f"{WORK}/tasks", include_defaults=False)
    return lm_eval.simple_evaluate(model="hf", model_args={"pretrained": f"{WORK}/exported", "dtype": "float32", "device": "cpu"},
                                   tasks=list(files), task_manager=tasks, batch_size=8, bootstrap_iters=10)["results"]


# --------------------------------------------------------------------- rules that lm_eval lacks

class Reference:
    """Megatron's zero-shot tasks and llm.c's HellaSwag, on the exported model."""

    def __init__(self):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(f"{WORK}/exported")
        self.model = transformers.AutoModelForCausalLM.from_pretrained(f"{WORK}/exported").eval()

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def scores(self, context, answer):
        """The answer's log-probabilities, and whether each of its tokens is the likeliest."""
        tokens = ((context or [self.tokenizer.eos_token_id]) + answer)[-CONTEXT - 1:]
        with torch.no_grad():
            logits = self.model(torch.tensor([tokens[:-1]])).logits[0, -len(answer):].double()
        logprobs = torch.log_softmax(logits, -1)[range(len(answer)), answer]
        return logprobs, logits.argmax(-1).tolist() == answer

    def lambada(self, path, strict):
        right, total, count = 0, 0.0, 0
        for line in open(path):
            text = json.loads(line)["text"]
            if strict:
                word = text.split()[-1]
                context, answer = self.encode(text[:text.rfind(word)].strip()), self.encode(" " + word)
            else:
                tokens = self.encode(text)
                context, answer = tokens[:-1], tokens[-1:]
            logprobs, greedy = self.scores(context, answer)
            right, total, count = right + greedy, total + logprobs.sum().item(), count + 1
        return {"acc": right / count, "perplexity": math.exp(-total / count)}

    def wikitext103(self, path):
        sys.path.insert(0, f"{LM_EVAL_TASKS}/wikitext")
        import preprocess_wikitext  # lm_eval has Megatron's detokenizer
        text = open(path).read()
        original = len(text.strip().split(" "))
        tokens = self.encode(preprocess_wikitext.wikitext_detokenizer({"page": text}))
        total, begin, counted = 0.0, 0, 1
        while counted < len(tokens):
            window = tokens[begin:begin + CONTEXT + 1]
            new = window[counted - begin:]
            total -= self.scores(window[:counted - begin], new)[0].sum().item()
            counted, begin = begin + len(window), begin + STRIDE
        loss, ratio = total / (len(tokens) - 1), (len(tokens) - 1) / (original - 1)
        return {"loss": loss, "ppl": math.exp(min(20, loss)), "adjusted_ppl": math.exp(min(20, loss * ratio)), "token_ratio": ratio}

    def hellaswag_llmc(self, path):
        by_sum = by_mean = count = 0
        for line in open(path):
            record = json.loads(line)
            context = self.encode(record["ctx"])
            found = [self.scores(context, self.encode(" " + ending))[0] for ending in record["endings"]]
            by_sum += max(range(4), key=lambda i: found[i].sum().item()) == record["label"]
            by_mean += max(range(4), key=lambda i: found[i].mean().item()) == record["label"]
            count += 1
        return {"acc": by_sum / count, "acc_norm": by_mean / count}


def compare(what, ours, task, expected):
    for metric, value in expected.items():
        got = ours["results"][task][f"{metric},none"]
        difference = abs(got - value) / abs(value) if value else abs(got)
        check(f"{what}: {task} {metric} {got:.6g}, relative difference {difference:.1e}", difference <= 1e-5)


def main():
    train()
    published, hugging_face = make_files()
    names = list(published)
    arguments = [f"--checkpoint={WORK}/model", "--task=" + ",".join(names), "--path=" + ",".join(published[name] for name in names),
                 f"--overlapping_eval={STRIDE}"]
    layouts = {"one": [], "shared": ["--data_parallel_size=2", "--max_batch=3"],
               "cut": ["--tensor_model_parallel_size=2", "--pipeline_model_parallel_size=2"]}
    ours = {}
    for layout, flags in layouts.items():
        print(run("evaluate", *arguments, f"--output={WORK}/{layout}.json", *flags))
        with open(f"{WORK}/{layout}.json") as file:
            ours[layout] = json.load(file)
    theirs = lm_eval_results(hugging_face)
    for task in hugging_face:
        expected = {key.split(",")[0]: value for key, value in theirs[task].items()
                    if key.endswith(",none") and isinstance(value, float) and "_stderr" not in key}
        check(f"lm_eval: {task} has its metrics", len(expected) >= 2)
        compare("lm_eval", ours["one"], task, expected)
        for key, value in theirs[task].items():
            if key in ("acc_stderr,none", "acc_norm_stderr,none"):
                got = ours["one"]["results"][task][key]
                check(f"lm_eval: {task} {key} {got:.6g}", abs(got - value) <= 1e-9)
        check(f"lm_eval: {task} has its number of examples",
              ours["one"]["n-samples"][task]["original"] == sum(1 for line in open(hugging_face[task])))
    # Files in Hugging Face's form are read as well.
    same = [task for task in hugging_face if hugging_face[task] != published[task]]
    run("evaluate", f"--checkpoint={WORK}/model", "--task=" + ",".join(same), "--path=" + ",".join(hugging_face[task] for task in same),
        f"--output={WORK}/hugging_face.json")
    with open(f"{WORK}/hugging_face.json") as file:
        read = json.load(file)
    check(f"{len(same)} files in Hugging Face's form give the same", all(
        read["results"][task] == ours["one"]["results"][task] for task in same))
    reference = Reference()
    compare("Megatron", ours["one"], "lambada", reference.lambada(published["lambada"], strict=False))
    compare("Megatron", ours["one"], "lambada_strict", reference.lambada(published["lambada"], strict=True))
    compare("Megatron", ours["one"], "wikitext103", reference.wikitext103(published["wikitext103"]))
    compare("llm.c", ours["one"], "hellaswag_llmc", reference.hellaswag_llmc(published["hellaswag"]))
    check("copies of the model share the examples, and find the same bits", ours["shared"]["results"] == ours["one"]["results"])
    for task in names:
        compare("a model that is cut", ours["cut"], task, {key.split(",")[0]: value for key, value in ours["one"]["results"][task].items()
                                                           if isinstance(value, float) and "_stderr" not in key})
    check("accuracies differ from task to task", len({ours["one"]["results"][task].get("acc,none") for task in names}) > 3)
    runs.finish()


main()
