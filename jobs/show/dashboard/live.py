"""The script of a live page: asks for the sections that have changed and puts them in their places.

A section is replaced in one go and only when its digest differs, so nothing flickers; one in which the reader has
selected text waits. Looks come every few seconds while something runs, rarely otherwise, and never in a hidden tab.
"""

LIVE_SCRIPT = """
(() => {
  const main = document.querySelector("main[data-sections]"), sign = document.querySelector("nav .live");
  if (!main) return;
  let seen = Date.now(), failed = false, timer = 0;
  const sections = () => [...main.querySelectorAll("section[data-digest]")];
  const selectedIn = (section) => {
    const selection = getSelection();
    return selection && !selection.isCollapsed && section.contains(selection.anchorNode);
  };
  const put = (section, digest, html) => {
    const scrolled = [...section.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
    const checked = [...section.querySelectorAll("input:checked")].map((one) => one.value);
    const focus = section.contains(document.activeElement) ? document.activeElement.value : undefined;
    section.innerHTML = html;
    section.dataset.digest = digest;
    section.querySelectorAll(".scroll").forEach((one, index) => {
      if (scrolled[index]) [one.scrollLeft, one.scrollTop] = scrolled[index];
    });
    section.querySelectorAll("input").forEach((one) => {
      one.checked = checked.includes(one.value);
      if (focus !== undefined && one.value === focus) one.focus();
    });
  };
  const show = () => {
    const seconds = Math.round((Date.now() - seen) / 1000);
    sign.className = failed ? "live off" : main.dataset.live === "1" ? "live on" : "live";
    sign.textContent = failed ? `not reachable for ${seconds} s` : main.dataset.live === "1" ? "live" : "at rest";
  };
  const look = async () => {
    clearTimeout(timer);
    if (!document.hidden) {
      try {
        const have = sections().map((one) => one.dataset.digest).join(".");
        const answer = await fetch(`${main.dataset.sections}?have=${have}`, {cache: "no-store"});
        if (!answer.ok) throw new Error(answer.status);
        const news = await answer.json();
        for (const [name, [digest, html]] of Object.entries(news.sections)) {
          const section = document.getElementById(name);
          if (section && !selectedIn(section)) put(section, digest, html);
        }
        main.dataset.live = news.live ? "1" : "0";
        [seen, failed] = [Date.now(), false];
      } catch (error) {
        failed = true;
      }
      show();
    }
    timer = setTimeout(look, failed || main.dataset.live === "1" ? 3000 : 15000);
  };
  document.addEventListener("visibilitychange", () => document.hidden || look());
  show();
  timer = setTimeout(look, 1500);
})();
"""
