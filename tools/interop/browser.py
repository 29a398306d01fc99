"""Headless Chromium, for the checks of pages in the folders here.

    browser = Browser()
    browser.look("file:///tmp/page.html", width=375, dark=True)
    text = browser.run("return document.body.innerText")
    browser.stop()
"""

import base64
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request

TIMEOUT = 60
# Names the pairs of a color and its ground that differ too little to be read.
CONTRAST = """
const rgb = text => text.match(/[\\d.]+/g).map(Number);
const light = text => {
  const [r, g, b] = rgb(text).map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
const page = getComputedStyle(document.body).backgroundColor, bad = [];
for (const node of document.querySelectorAll('h1,h2,h3,p,a,dt,dd,th,td,summary,figcaption,li,label,button,input,textarea,svg text')) {
  let ground = page;
  for (let up = node; up && ground === page; up = up.parentElement) {
    const own = getComputedStyle(up).backgroundColor;
    if (own !== 'rgba(0, 0, 0, 0)') ground = own;
  }
  if (node.classList.contains('inside')) ground = getComputedStyle(node.previousElementSibling).fill;
  const style = getComputedStyle(node), color = node.closest('svg') ? style.fill : style.color;
  if (ratio(color, ground) < 4.5) bad.push(node.tagName + ' ' + color + ' on ' + ground);
}
for (const node of document.querySelectorAll('.line,.joined')) {
  const color = getComputedStyle(node).stroke;
  if (ratio(color, page) < 3) bad.push(color + ' on ' + page);
}
return [...new Set(bad)];
"""


class Browser:
    """Chromium by its driver, over WebDriver's own protocol."""

    def __init__(self, pictures=""):
        """Pictures go to that folder, if there is one."""
        self.pictures = pictures
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        port = None
        while port is None:
            line = self.driver.stdout.readline()
            if not line:
                sys.exit("chromedriver did not start")
            found = re.search(r"successfully on port (\d+)", line)
            port = found and found[1]
        self.url = f"http://127.0.0.1:{port}/session"
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]}
        value = self.post("", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.url += "/" + value["sessionId"]

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            sys.exit(error.read().decode())

    def command(self, command, **parameters):
        return self.post("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def look(self, url, width=1280, dark=False):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.post("/url", {"url": url})

    def run(self, script):
        return self.post("/execute/sync", {"script": script, "args": []})

    def unreadable(self):
        """Returns the pairs of a color and its ground that differ too little to be read."""
        return self.run(CONTRAST)

    def messages(self):
        return self.post("/se/log", {"type": "browser"})

    def press(self, key):
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self.post("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def picture(self, name):
        if not self.pictures:
            return
        os.makedirs(self.pictures, exist_ok=True)
        shot = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        with open(f"{self.pictures}/{name}.png", "wb") as file:
            file.write(base64.b64decode(shot["data"]))

    def stop(self):
        self.driver.terminate()
        self.driver.wait()
