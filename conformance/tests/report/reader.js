// What a reader of the page does, and what is to be seen then; the answers go where --dump-dom shows them.
(async () => {
  const until = async (test) => {
    for (let n = 0; n < 500 && !test(); n++) await new Promise((go) => setTimeout(go, 10));
    return test();
  };
  const press = (key) => (document.activeElement || document.body).dispatchEvent(
    new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
  const all = (selector) => [...document.querySelectorAll(selector)];
  const said = {};
  try {
    await until(() => document.documentElement.dataset.whole);
    await until(() => document.querySelector(".detail pre[role=tabpanel]"));
    const detail = document.querySelector(".detail");
    said.linked = detail.previousSibling.querySelector("td").textContent;
    said.message = detail.querySelector("pre").textContent;
    said.planted = all("#planted").length;
    said.first = detail.querySelector("[role=tabpanel]").textContent;
    all("[role=tab]").find((tab) => tab.textContent === "C++").click();
    said.cpp = detail.querySelector("[role=tabpanel]").textContent;
    press("Escape");
    said.closed = all(".detail").length;
    const search = document.querySelector("#cases input[type=search]");
    search.value = "op1"; search.dispatchEvent(new Event("input"));
    said.searched = all("#cases tr.row").length;
    search.value = ""; search.dispatchEvent(new Event("input"));
    const head = all("#cases th button").find((button) => button.textContent === "seconds");
    head.click();
    const seconds = all("#cases tr.row").map((line) => Number(line.children[6].textContent));
    said.sorted = seconds.every((x, n) => !n || seconds[n - 1] <= x) && head.parentNode.getAttribute("aria-sort");
    document.querySelector("#cases tr.row").focus();
    press("j"); press("j"); press("k");
    said.walked = all("#cases tr.row").indexOf(document.activeElement);
    press("Enter");
    said.opened = await until(() => document.querySelector("#cases tr.row:nth-child(2) + .detail") !== null);
    said.hash = decodeURIComponent(location.hash) === "#row=" + document.activeElement.dataset.key;
    document.querySelector("#coverage details").open = true;
    await until(() => document.querySelector("#coverage td.cell button"));
    document.querySelector("#coverage td.cell button").click();
    said.covered = all("#cases tr.row").length;
    const dark = () => getComputedStyle(document.body).backgroundColor;
    const before = dark(); document.getElementById("theme").click();
    said.shaded = before !== dark();
    said.charts = all("#speed svg").length;
    said.marks = all("#speed svg:first-of-type circle").length;
    said.sections = all("section").map((one) => one.id);
  } catch (error) { said.error = String(error.stack || error); }
  const out = document.createElement("pre");
  out.id = "said";
  out.textContent = btoa(unescape(encodeURIComponent(JSON.stringify(said))));
  document.body.append(out);
})();
