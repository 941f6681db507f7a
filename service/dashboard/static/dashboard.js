"use strict";
// Keeps a page up to date, shows networks that are clicked in charts, and counts what a form keeps.
// Everything it does can be had without it by loading pages and sending forms.
(() => {
  // -- parts of the page that are written anew -------------------------------------------------

  // A form's own .id is hidden by a field that is called id.
  const named = (part) => part.getAttribute("id");

  // What the reader has done to a part goes on: drawn charts, ticks, opened details, the focus.
  function keepState(old, fresh) {
    for (const plot of old.querySelectorAll(".plot[id]")) {
      const twin = fresh.querySelector(`#${CSS.escape(plot.id)}`);
      if (twin) twin.replaceWith(plot);
    }
    for (const box of old.querySelectorAll("input[type=checkbox][id]")) {
      const twin = fresh.querySelector(`#${CSS.escape(box.id)}`);
      if (twin) twin.checked = box.checked;
    }
    for (const details of old.querySelectorAll("details[id]")) {
      const twin = fresh.querySelector(`#${CSS.escape(details.id)}`);
      if (twin) twin.open = details.open;
    }
    for (const form of old.querySelectorAll("details[open] form[id]")) {  // what is being typed
      const twin = fresh.querySelector(`#${CSS.escape(named(form))}`);
      if (twin) twin.replaceWith(form);
    }
  }

  const written = new Map();  // part → its text as it came from the server

  function remember() {
    for (const part of document.querySelectorAll("[data-part]")) {
      if (!written.has(named(part))) written.set(named(part), part.outerHTML);
    }
  }

  function swap(fresh) {
    const name = named(fresh);
    const old = document.getElementById(name);
    const text = fresh.outerHTML;
    if (!old || written.get(name) === text) return;
    written.set(name, text);
    const focused = old.contains(document.activeElement) ? document.activeElement.id : "";
    const scrolled = old.scrollTop;
    keepState(old, fresh);
    old.replaceWith(fresh);
    fresh.scrollTop = scrolled;
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  // False when the page has to be loaded as a whole: it has other parts now, is followed no longer,
  // is not to be had, or the login is over. Null after an error that may pass.
  async function refresh() {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok) return answer.status >= 500 || answer.status === 429 ? null : false;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (page.body.dataset.follow !== document.body.dataset.follow) return false;
    const parts = [...page.querySelectorAll("[data-part]")];
    const names = (all) => [...all].map(named).join();
    if (names(parts) !== names(document.querySelectorAll("[data-part]"))) return false;
    parts.forEach(swap);
    arrange();
    return true;
  }

  // At most once a second, and less often where the page takes long or cannot be had.
  const LONGEST_PAUSE_MS = 30000;
  let waiting = null;
  let pauseMs = 1000;

  function refreshSoon() {
    if (waiting) return;
    waiting = setTimeout(async () => {
      const began = performance.now();
      const whole = await refresh().catch(() => null);
      if (whole === null) pauseMs = Math.min(2 * pauseMs, LONGEST_PAUSE_MS);
      else pauseMs = Math.max(1000, 3 * (performance.now() - began));
      waiting = null;
      if (whole === null) refreshSoon();
      if (whole === false) location.reload();
    }, pauseMs);
  }

  // -- what happens to a job --------------------------------------------------------------------

  const REOPEN_MS = 5000;

  function follow() {
    const { follow: address } = document.body.dataset;
    let after = document.body.dataset.after;
    let source = null;
    let again = null;

    function open() {
      source = new EventSource(`${address}?after=${after}`);
      source.onmessage = (message) => {
        after = message.lastEventId || after;
        refreshSoon();
      };
      source.addEventListener("end", () => {
        source.close();
        location.reload();
      });
      // A browser goes on by itself after a lost connection, but not after an answer that is an error.
      source.onerror = () => {
        if (source.readyState !== EventSource.CLOSED) return;
        refreshSoon();
        again = setTimeout(visible, REOPEN_MS);
      };
    }

    // A browser holds few connections to one server, and a hidden page needs none.
    function visible() {
      clearTimeout(again);
      source?.close();
      if (!document.hidden) open();
    }
    document.addEventListener("visibilitychange", visible);
    window.addEventListener("pagehide", () => source?.close());
    visible();
  }

  function poll(seconds) {
    setInterval(() => { if (!document.hidden) refreshSoon(); }, 1000 * seconds);
  }

  // -- networks ---------------------------------------------------------------------------------

  const chosen = document.getElementById("chosen");
  const picked = [];  // ids, the last two that were clicked
  let seen = [];  // those of them that are on the page

  // The address of the page names what is shown, so that it can be sent and loaded again.
  function remembered() {
    const address = new URL(location.href);
    address.searchParams.delete("network");
    picked.forEach((id) => address.searchParams.append("network", id));
    history.replaceState(null, "", address);
  }

  const asked = () => picked.map((one) => `id=${encodeURIComponent(one)}`).join("&");

  async function networks(query) {
    const answer = await fetch(`${chosen.dataset.networks}?${query}`);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.ok) return page;
    throw new Error(page.querySelector("[role=alert]")?.textContent ?? `The service answered ${answer.status}.`);
  }

  // What cannot be shown can be clicked again.
  function fail(error) {
    picked.splice(0, picked.length, ...seen);
    remembered();
    chosen.querySelector(":scope > .fault")?.remove();
    chosen.append(element("p", error.message, "fault"));
  }

  async function show(id) {
    if (picked.includes(id)) return;
    picked.push(id);
    if (picked.length > 2) picked.shift();
    remembered();
    const query = asked();
    const page = await networks(query).catch((error) => { if (query === asked()) fail(error); });
    // Others may have been clicked meanwhile, or closed.
    if (!page || query !== asked()) return;
    seen = [...picked];
    const clear = document.createElement("button");
    clear.type = "button";
    clear.textContent = "Close";
    clear.addEventListener("click", () => {
      picked.length = 0;
      seen = [];
      remembered();
      chosen.replaceChildren();
    });
    chosen.replaceChildren(page.getElementById("networks"), clear);
    chosen.scrollIntoView({ block: "nearest" });
  }

  function bind(plot) {
    if (plot.dataset.bound || !plot.on) return;
    plot.dataset.bound = "yes";
    plot.on("plotly_click", (event) => {
      const id = event.points.map((point) => point.customdata).find(Boolean);
      if (id) show(id);
    });
  }

  function bindAll() {
    if (chosen) document.querySelectorAll("#front .plot").forEach(bind);
  }

  function arrange() {
    document.dispatchEvent(new Event("contents"));  // draws charts and sorts tables
    bindAll();
  }

  if (chosen) {
    for (const id of new URL(location.href).searchParams.getAll("network").slice(0, 2)) show(id);
    document.addEventListener("submit", (event) => {
      const table = event.target.closest("#part-table");
      const none = document.getElementById("none-ticked");
      if (!table || table.querySelector("input[name=id]:checked")) return;
      event.preventDefault();
      none.hidden = false;
    });
    document.addEventListener("click", (event) => {
      const link = event.target.closest("a[data-network]");
      if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      show(link.dataset.network);
    });
  }

  // -- charts as pictures -----------------------------------------------------------------------

  if (document.querySelector(".fronts")) {
    for (const plot of document.querySelectorAll(".plot")) {
      const button = element("button", "PNG");
      button.type = "button";
      button.setAttribute("aria-label", `PNG of ${plot.id.replace("chart-", "")}`);
      button.addEventListener("click", () => {
        const style = { paper_bgcolor: getComputedStyle(document.body).backgroundColor };
        const { data, layout } = plot;
        Plotly.downloadImage(
          { data, layout: { ...layout, ...style } },
          { format: "png", width: 1200, height: 800, filename: plot.id }
        );
      });
      plot.parentElement.append(button);
    }
  }

  // -- the form of a new search -----------------------------------------------------------------

  // The server says of the form as it stands what it would say if it were sent.
  const form = document.querySelector("form.search");
  if (form) {
    const shown = document.getElementById("remaining");
    const problem = document.getElementById("problem");
    const duration = document.getElementById("duration");
    document.getElementById("count").hidden = true;
    let timer = null;
    let asked = 0;

    // A field of the request that has several fields of the form → how their names begin.
    const several = { limits: "limit:", restrict: "gene:", objectives: "objective" };

    function mark(field) {
      const prefix = several[field];
      for (const one of form.elements) {
        if (field && (one.name === field || (prefix && one.name.startsWith(prefix)))) one.setAttribute("aria-invalid", "true");
        else one.removeAttribute("aria-invalid");
      }
    }

    async function check() {
      const number = (asked += 1);
      const body = new URLSearchParams(new FormData(form));
      const path = form.getAttribute("data-check");  // a field hides the form's own .dataset
      const answer = await fetch(path, { method: "POST", body });
      if (number !== asked || !answer.ok) return;  // something was typed meanwhile
      const found = await answer.json();
      if (number !== asked) return;
      problem.hidden = !found.problem;
      if (problem.textContent !== (found.problem ?? "")) problem.textContent = found.problem ?? "";
      mark(found.field);
      if (found.remaining === null) shown.textContent = shown.dataset.around;
      else {
        const what = found.remaining === "1" ? "network remains" : "networks remain";
        shown.replaceChildren(element("strong", found.remaining), ` ${what}`);
      }
      if (found.problem) duration.textContent = "";
      else tell(number, body);
    }

    // The first answer for a space takes seconds.
    async function tell(number, body) {
      const answer = await fetch(form.getAttribute("data-duration"), { method: "POST", body });
      if (number === asked && answer.ok) duration.textContent = (await answer.json()).duration;
    }

    form.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(check, 400);
    });
    form.addEventListener("focusin", check, { once: true });
    const turn = document.getElementById("turn");
    if (turn) {
      document.getElementById("space").addEventListener("change", () => {
        clearTimeout(timer);
        form.requestSubmit(turn);
      });
      turn.hidden = true;
    }
  }

  // -- a network that is asked ------------------------------------------------------------------

  // What an answer holds. A proxy before the service may answer, too, and not with JSON.
  function read(status, text) {
    if (status === 204) return null;
    let found = null;
    try {
      found = JSON.parse(text);
    } catch {
      throw new Error(`the service, or a proxy before it, answered ${status}`);
    }
    if (status < 300) return found;
    const problem = new Error(found?.detail ?? `the service answered ${status}`);
    throw Object.assign(problem, { status });
  }

  async function ask(method, path, body) {
    const headers = body ? { "Content-Type": "application/json" } : {};
    const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
    return read(answer.status, await answer.text());
  }

  function element(name, text, classes = "") {
    const made = document.createElement(name);
    made.textContent = text;
    if (classes) made.className = classes;
    return made;
  }

  function base64(file) {
    return new Promise((done, fail) => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
      reader.onerror = () => fail(new Error(`${file.name} cannot be read`));
      reader.readAsDataURL(file);
    });
  }

  async function question(form) {
    const { picture, text, tokens } = form.elements;
    if (!picture) return { text: text.value, ...(tokens && { tokens: Number(tokens.value) }) };
    const [file] = picture.files;
    if (file.size > Number(form.dataset.most)) throw new Error(`${file.name} is too large: give a smaller one`);
    return { picture: await base64(file) };
  }

  // The likeliest classes with their chances, or what the network has written.
  function told(found) {
    const parts = [];
    if (found.warning) parts.push(element("p", found.warning, "warning"));
    if (found.note) parts.push(element("p", found.note, "warning"));
    // An object's keys that are numbers come in their own order.
    const chances = Object.entries(found.chances).sort((a, b) => b[1] - a[1]).slice(0, 5);
    if (!chances.length) parts.push(element("blockquote", found.answer));
    for (const [name, chance] of chances) {
      const line = element("p", "", "chance");
      const bar = document.createElement("meter");
      bar.value = chance;
      bar.setAttribute("aria-label", name);
      line.append(element("span", name), bar, element("span", `${(100 * chance).toFixed(1)} %`));
      parts.push(line);
    }
    return parts;
  }

  const trying = document.querySelector("form.try");
  if (trying) {
    const status = trying.querySelector("[role=status]");
    const button = trying.querySelector("button");
    button.disabled = false;
    trying.addEventListener("submit", async (event) => {
      event.preventDefault();
      button.disabled = true;
      status.replaceChildren("The network is asked …");
      try {
        const found = await ask("POST", trying.dataset.predict, await question(trying));
        status.replaceChildren(...told(found));
      } catch (error) {
        status.replaceChildren(element("p", error.message, "fault"));
      }
      button.disabled = false;
    });
  }

  // -- a checkpoint that is uploaded ------------------------------------------------------------

  // A request whose progress can be seen, which fetch does not tell; what is answered.
  function send(path, file, tell) {
    return new Promise((done, fail) => {
      const request = new XMLHttpRequest();
      request.open("PUT", path);
      request.setRequestHeader("Content-Type", "application/octet-stream");
      request.upload.onprogress = (event) => tell(event.loaded);
      request.onerror = () => fail(new Error(`the connection was lost while ${file.name} was sent`));
      request.onload = () => {
        try {
          done(read(request.status, request.responseText));
        } catch (error) {
          fail(error);
        }
      };
      request.send(file);
    });
  }

  // The files of a checkpoint by their names in the folder, and the names of all others.
  function chosenFiles(form) {
    const known = new RegExp(`^(?:${form.dataset.files})$`);
    const files = {};
    const others = [];
    for (const file of form.elements.folder.files) {
      const name = file.webkitRelativePath.split("/").slice(1).join("/") || file.name;
      if (known.test(name)) files[name] = file;
      else others.push(name);
    }
    const { whole } = form.dataset;
    if (whole in files) { // all weights in one file: others are not read
      for (const name of Object.keys(files)) {
        if (!name.endsWith(".safetensors") || name === whole) continue;
        delete files[name];
        others.push(name);
      }
    }
    return { files, others };
  }

  // Of a busy machine the files stay, and it is asked again.
  async function finished(place) {
    for (let failed = 1; ; failed += 1) {
      try {
        return await ask("POST", `${place}/finish`);
      } catch (error) {
        if (error.status !== 503 || failed === TRIES) throw error;
        await new Promise((done) => { setTimeout(done, 1000 * 2 ** failed); });
      }
    }
  }

  async function upload(form, bar, say) {
    const { files, others } = chosenFiles(form);
    const sizes = Object.fromEntries(Object.entries(files).map(([name, file]) => [name, file.size]));
    const left = others.length ? ` Left out: ${others.length} other files.` : "";
    const name = form.elements.name.value;
    const begun = await ask("POST", "/api/v1/uploads", { name, files: sizes });
    const place = `/api/v1/uploads/${begun.id}`;
    let whole = false;
    try {
      bar.max = Object.values(sizes).reduce((sum, size) => sum + size, 1);
      let sent = 0;
      for (const [one, file] of Object.entries(files)) {
        say(`Sending ${one}.${left}`);
        await send(`${place}/files/${one}`, file, (bytes) => { bar.value = sent + bytes; });
        sent += file.size;
      }
      say(`The service reads it.${left}`);
      whole = true;
      await finished(place);
    } catch (error) {
      // What the service has read and refused, it has deleted itself.
      const refused = whole && error.status < 500 && error.status !== 429;
      if (!refused) await ask("DELETE", place).catch(() => null);
      throw error;
    }
  }

  const uploading = document.querySelector("form.upload");
  if (uploading) {
    const bar = uploading.querySelector("progress");
    const button = uploading.querySelector("button");
    const status = uploading.querySelector("[role=status]");
    const say = (text) => { status.textContent = text; };
    uploading.elements.folder.addEventListener("change", (event) => {
      const [first] = event.target.files;
      const folder = first?.webkitRelativePath.split("/")[0] ?? "";
      uploading.elements.name.value ||= folder.replace(/[^A-Za-z0-9_.-]/g, "-").slice(0, 100);
    });
    uploading.addEventListener("submit", async (event) => {
      event.preventDefault();
      button.disabled = true;
      bar.hidden = false;
      status.classList.remove("fault");
      try {
        await upload(uploading, bar, say);
        location.assign("/checkpoints");
      } catch (error) {
        status.classList.add("fault");
        say(error.message);
        button.disabled = false;
        bar.hidden = true;
      }
    });
  }

  // -- data that are uploaded ------------------------------------------------------------------

  const CHUNK = 8 * 2 ** 20;
  const TRIES = 5;  // of a chunk, before the reader is asked to go on

  // Upload → when its file was last changed, as far as this browser has sent it.
  const changed = (id) => `changed ${id}`;

  // Sends what the service has not got yet; a file that is on its way goes on there. The upload.
  async function uploadData(form, bar, say) {
    const [file] = form.elements.file.files;
    const { name, task, group_by, skip_bad } = form.elements;
    const known = await ask("GET", "/api/v1/data");
    const same = (one) =>
      one.state === "coming" && one.name === name.value && one.file === file.name && one.bytes === file.size
      && [null, String(file.lastModified)].includes(localStorage.getItem(changed(one.id)));
    // What the form does not show is of another task.
    const filled = (name) =>
      [...form.querySelectorAll(`label:not([hidden]) [name^='${name}']`)].filter((one) => one.value);
    const named = filled("column.");
    const [side] = filled("image_size");
    const [checkpoint] = filled("tokenizer");
    const how = {
      task: task.value,
      skip_bad: skip_bad.checked,
      columns: Object.fromEntries(named.map((one) => [one.name.slice("column.".length), one.value])),
      ...(checkpoint && { tokenizer: checkpoint.value }),
      ...(side && { image_size: Number(side.value) }),
      ...(group_by.value && { group_by: group_by.value }),
    };
    const wanted = { name: name.value, file: file.name, bytes: file.size, ...how };
    let upload = known.uploads.find(same) ?? await ask("POST", "/api/v1/data", wanted);
    const place = `/api/v1/data/${upload.id}`;
    localStorage.setItem(changed(upload.id), file.lastModified);
    bar.max = file.size;
    let failed = 0;
    let told = true;  // whether it is known how much has come
    while (!told || upload.received < file.size) {
      try {
        if (told) {
          const offset = upload.received;
          const part = file.slice(offset, offset + CHUNK);
          say(`Sending ${file.name}.`);
          upload = await send(`${place}/content?offset=${offset}`, part, (bytes) => { bar.value = offset + bytes; });
          failed = 0;
        } else upload = await ask("GET", place);
        told = true;
      } catch (error) {
        told = false;
        failed += 1;
        if (failed === TRIES) throw error;
        say(`${error.message}; trying again.`);
        await new Promise((done) => { setTimeout(done, 1000 * 2 ** failed); });
      }
    }
    say(`The service checks ${file.name}.`);
    await ask("POST", `${place}/finish`, how);
    localStorage.removeItem(changed(upload.id));
    return upload;
  }

  // What is left of an upload when it was checked: nothing of one that has become a data set.
  async function checked(id) {
    for (;;) {
      const { uploads } = await ask("GET", "/api/v1/data");
      const found = uploads.find((one) => one.id === id);
      if (found?.state !== "checking") return found;
      refreshSoon();
      await new Promise((done) => { setTimeout(done, 1000); });
    }
  }

  // Of the fields of a form those that its task has.
  function fitTask(form) {
    for (const label of form.querySelectorAll("[data-tasks]")) {
      label.hidden = !label.dataset.tasks.split(" ").includes(form.elements.task.value);
    }
  }

  document.querySelectorAll("form.prepare").forEach(fitTask);
  document.addEventListener("change", (event) => {
    const form = event.target.closest("form.prepare");
    if (form) fitTask(form);
  });
  document.addEventListener("contents", () => document.querySelectorAll("form.prepare").forEach(fitTask));

  const bringing = document.querySelector("form.data-upload");
  if (bringing) {
    const bar = bringing.querySelector("progress");
    const button = bringing.querySelector("button");
    button.disabled = false;
    const status = bringing.querySelector("[role=status]");
    const say = (text, fault = false) => {
      status.textContent = text;
      status.classList.toggle("fault", fault);
    };
    const { file: chooser, name: naming } = bringing.elements;
    chooser.addEventListener("change", () => {
      say("");
      const stem = chooser.files[0]?.name.split(".")[0] ?? "";
      naming.value ||= stem.replace(/[^A-Za-z0-9_.-]/g, "-").slice(0, 100);
    });
    // The form stays as it was filled in until its file has become a data set.
    bringing.addEventListener("submit", async (event) => {
      event.preventDefault();
      const [file] = chooser.files;
      button.disabled = true;
      bar.hidden = false;
      try {
        const { id, name } = await uploadData(bringing, bar, say);
        const left = await checked(id);
        if (await refresh() === false) location.reload();
        if (left) {
          say(`${name} cannot be used: what is wrong stands below.`, true);
          document.getElementById(`upload-${id}`)?.scrollIntoView({ block: "nearest" });
        } else {
          if (chooser.files[0] === file) bringing.reset();
          fitTask(bringing);
          say("");
          const link = element("a", `Search with ${name}`);
          link.href = `/new?dataset=${encodeURIComponent(name)}`;
          status.append(link);
        }
      } catch (error) {
        say(error.message, true);
      }
      button.disabled = false;
      bar.hidden = true;
    });
  }

  remember();
  bindAll();
  if (document.body.dataset.follow) follow();
  if (document.body.dataset.poll) poll(Number(document.body.dataset.poll));
})();
