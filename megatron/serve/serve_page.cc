#include "megatron/serve/serve_page.h"

namespace megatron::serve {

const char kServePage[] = R"html(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>Megatron</title>
<style>
:root { color-scheme: light dark; --ink: #1c2127; --ground: #fff; --line: #687280; --key: #1f5fa8; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e7ec; --ground: #15191e; --line: #93a0ae; --key: #8ab8ee; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 48rem; color: var(--ink);
  background: var(--ground); font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; }
textarea, input, button { font: inherit; color: inherit; background: var(--ground);
  border: 1px solid var(--line); border-radius: 4px; padding: .4rem; }
textarea { width: 100%; }
input { width: 7rem; }
button { padding: .4rem 1rem; cursor: pointer; }
button:disabled { opacity: .5; cursor: default; }
:focus-visible { outline: 3px solid var(--key); outline-offset: 1px; }
.row { display: flex; flex-wrap: wrap; gap: 1rem; align-items: end; margin: 1rem 0; }
label { display: block; }
#text { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line);
  border-radius: 4px; padding: .6rem; min-height: 6rem; }
#text b { color: var(--key); font-weight: 400; }
</style>
</head>
<body>
<main>
<h1 id="model">A language model</h1>
<form id="form">
<label for="prompt">The beginning of a text, which the model continues</label>
<textarea id="prompt" rows="4" autofocus>Once upon a time</textarea>
<div class="row">
<div><label for="tokens">Tokens</label><input id="tokens" type="number" min="1" value="100"></div>
<div><label for="temperature">Temperature</label><input id="temperature" type="number" min="0" step="0.1" value="0.8"></div>
<div><label for="key">Key, if needed</label><input id="key" type="password" autocomplete="off"></div>
<button id="write" type="submit">Write</button>
<button id="stop" type="button" disabled>Stop</button>
</div>
</form>
<h2 style="font-size:1rem" id="label">The text</h2>
<div id="text" role="region" aria-labelledby="label" tabindex="0"></div>
<p id="state" role="status"></p>
</main>
<script>
'use strict';
const at = id => document.getElementById(id);
let running = null;

function headers() {
  const key = at('key').value.trim();
  return Object.assign({'Content-Type': 'application/json'}, key ? {Authorization: 'Bearer ' + key} : {});
}

async function refused(answer) {
  try {
    return (await answer.json()).error.message;
  } catch (error) {
    return 'The server answered with status ' + answer.status + '.';
  }
}

async function write() {
  running = new AbortController();
  at('write').disabled = true;
  at('stop').disabled = false;
  at('state').textContent = 'The model writes.';
  const written = document.createElement('b');
  at('text').replaceChildren(document.createTextNode(at('prompt').value), written);
  let end = 'The connection has ended.';
  try {
    const answer = await fetch('/v1/completions', {method: 'POST', headers: headers(), signal: running.signal,
      body: JSON.stringify({prompt: at('prompt').value, stream: true, max_tokens: Number(at('tokens').value),
        temperature: Number(at('temperature').value)})});
    if (!answer.ok) throw new Error(await refused(answer));
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = '';;) {
      const {value, done} = await reader.read();
      if (done) break;
      const events = (rest + value).split('\n\n');
      rest = events.pop();
      for (const event of events) {
        const data = event.replace(/^data: /, '');
        if (data === '[DONE]') continue;
        const json = JSON.parse(data);
        if (json.error) throw new Error(json.error.message);
        for (const choice of json.choices) {
          written.append(choice.text);
          if (choice.finish_reason === 'stop') end = 'The model has ended the text.';
          if (choice.finish_reason === 'length') end = 'All tokens are written.';
        }
      }
    }
  } catch (error) {
    end = error.name === 'AbortError' ? 'Stopped.' : error.message;
  }
  at('state').textContent = end;
  at('write').disabled = false;
  at('stop').disabled = true;
}

async function name() {
  const answer = await fetch('/v1/models', {headers: headers()});
  if (answer.ok) at('model').textContent = (await answer.json()).data[0].id;
}

at('form').addEventListener('submit', event => { event.preventDefault(); write(); });
at('stop').addEventListener('click', () => running.abort());
at('key').addEventListener('change', name);
name();
</script>
</body>
</html>
)html";

}  // namespace megatron::serve
