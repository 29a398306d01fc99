"""Opens reports in headless Chromium: what they say, to whom, and what they need.

  check.py BIN_DIRECTORY WORK_DIRECTORY [PICTURES_DIRECTORY]
"""

import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from browser import Browser
from small_runs import SmallRuns

BIN, WORK, PICTURES = sys.argv[1], sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
TIMEOUT = 60
RUN = ["--config=moe_tiny"] + ["--set=" + field for field in (
    "model.hidden_size=64", "model.moe_ffn_hidden_size=32", "model.seq_length=64", "data.stories.num_bytes=200000",
    "train.train_iters=40", "train.eval_interval=10", "train.eval_iters=1", "train.log_interval=2",
    "optimizer.lr_warmup_iters=2", "checkpoint.save_interval=10")]
RANKS = ["--set=" + field for field in (
    "parallel.pipeline_model_parallel_size=2", "parallel.data_parallel_size=2", "logging.profile=true",
    "logging.profile_ranks=[0, 1, 2, 3]")]

runs = SmallRuns(BIN, WORK, RUN, TIMEOUT)
check, start, wait_for = runs.check, runs.start, runs.wait_for


def report(name, *names):
    page = f"{WORK}/{name}.html"
    answer = subprocess.run([f"{BIN}/tools/report/report", f"--output={page}", *[f"{WORK}/{run}" for run in names]],
                            capture_output=True, text=True)
    check(f"{name}: a report is written", answer.returncode == 0 and os.path.getsize(page) < 1000000)
    with open(f"{WORK}/{name}.md") as file:
        return page, file.read()


# Names what a screen reader would stumble over.
WORDS = """
const bad = [], ids = new Set();
for (const node of document.querySelectorAll('[id]')) {
  if (ids.has(node.id)) bad.push('two of ' + node.id);
  ids.add(node.id);
}
for (const name of ['aria-labelledby', 'aria-describedby']) {
  for (const node of document.querySelectorAll('[' + name + ']')) {
    const target = document.getElementById(node.getAttribute(name));
    if (!target || !target.textContent.trim()) bad.push('no words of ' + node.getAttribute(name));
  }
}
let level = 0;
for (const node of document.querySelectorAll('h1,h2,h3')) {
  const own = Number(node.tagName[1]);
  if (own > level + 1) bad.push('a level is skipped before ' + node.textContent);
  level = own;
}
for (const node of document.querySelectorAll('svg'))
  if (node.getAttribute('role') !== 'img' && node.getAttribute('aria-hidden') !== 'true') bad.push('a picture without a role');
for (const node of document.querySelectorAll('table'))
  if (!node.caption || !node.querySelector('th[scope=col]')) bad.push('a table without its words');
return bad;
"""


def check_page(browser, name, page, sentences):
    browser.look("file://" + page)
    text = browser.run("return document.body.innerText")
    for sentence in sentences:
        check(f"{name}: it says {sentence!r}", sentence in text)
    check(f"{name}: no chart is empty", "no data" not in text)
    check(f"{name}: no script and no other file",
          browser.run("return document.scripts.length + performance.getEntriesByType('resource').length") == 0)
    words = browser.run(WORDS)
    check(f"{name}: a screen reader has words for everything {words or ''}", not words)
    pictures = browser.run("return document.querySelectorAll('svg[role=img]').length")
    browser.command("Accessibility.enable")
    nodes = browser.command("Accessibility.getFullAXTree")["nodes"]
    named = [node for node in nodes if node.get("role", {}).get("value") in ("image", "img", "graphics-document")
             and node.get("name", {}).get("value") and not node.get("ignored")]
    check(f"{name}: {pictures} pictures are images with names for a screen reader", pictures > 5 and len(named) == pictures)
    for look in ("light", "dark"):
        browser.look("file://" + page, dark=look == "dark")
        contrast = browser.unreadable()
        check(f"{name}: everything can be read in {look} {contrast or ''}", not contrast)
        browser.picture(f"{name}-{look}")
    check(f"{name}: dark is dark", browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(21, 25, 30)")
    for width in (320, 375, 768, 1280):
        browser.look("file://" + page, width=width)
        check(f"{name}: nothing sticks out of {width} pixels", browser.run("return document.documentElement.scrollWidth") <= width)
        if width == 375:
            browser.picture(f"{name}-narrow")
    check(f"{name}: the console stays empty", browser.messages() == [])


def check_keyboard(browser, page):
    browser.look("file://" + page)
    browser.press("\ue004")
    check("keyboard: the first stop skips to the content",
          browser.run("return document.activeElement.textContent") == "Skip to the content")
    browser.press("\ue007")
    check("keyboard: it leads there", browser.run("return location.hash") == "#main")
    browser.run("document.querySelector('figure summary').focus()")
    browser.press("\ue007")
    check("keyboard: a picture's numbers are opened",
          browser.run("return document.querySelector('figure details').open && document.querySelector('figure table').offsetHeight > 0"))
    check("keyboard: what scrolls can be reached",
          browser.run("return [...document.querySelectorAll('.scroll')].every(node => node.tabIndex === 0)"))


def main():
    os.makedirs(WORK)
    check("a run ends well", start("plain", "--set=logging.tensorboard_dir=\"\"").wait() == 0)
    first = start("ranks", *RANKS, f"--set=logging.pipeline_timeline_file={WORK}/ranks/timeline.txt")
    check("a run on four ranks is killed", wait_for(lambda: len(runs.steps("ranks")) >= 26 or first.poll() is not None))
    first.send_signal(signal.SIGKILL)
    first.wait()
    check("it is continued", start("ranks", *RANKS, f"--set=logging.pipeline_timeline_file={WORK}/ranks/timeline.txt").wait() == 0)

    browser = Browser(PICTURES)
    page, text = report("plain", "plain")
    check("plain: the text has the numbers", "| iterations | 40 |" in text and "| lm loss, validation |" in text)
    check_page(browser, "plain", page, ["lm loss", "train with --profile", "optimizer.lr_warmup_iters", "z_loss",
                                        "Planned memory of a rank", "No step was skipped."])
    check_keyboard(browser, page)
    page, text = report("ranks", "ranks")
    check("ranks: the text has two starts", "| starts | 2 |" in text)
    check_page(browser, "ranks", page, ["Percent of a rank's time", "Own work of each rank", "A step took",
                                        "Calls with other ranks in the whole run", "Milliseconds of a step, by rank", "A step on each rank", "communication pp",
                                        "Calls with other ranks in a step", "A step of the pipeline", "Starts of the program",
                                        "mem-max-allocated-bytes", "bytes held in the profiled steps"])
    page, text = report("both", "plain", "ranks")
    check("both: the text compares", "| parallel.pipeline_model_parallel_size | 1 | 2 |" in text)
    check_page(browser, "both", page, ["A comparison of 2 runs.", "plain, training", "Where the configurations differ"])
    browser.stop()
    runs.finish()


main()
