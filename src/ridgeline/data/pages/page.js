"use strict";
(() => {
  // Notes: the title of a mark is shown at once, also at a tap or when the mark is focused.
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  const noted = (target) => {
    const mark = target instanceof Element ? target.closest("[data-tip]") : null;
    if (mark) return mark;
    const title = target instanceof Element ? target.querySelector(":scope > title") : null;
    if (!title || target.tagName === "svg") return null;
    target.dataset.tip = title.textContent;
    title.remove();
    target.setAttribute("aria-label", target.dataset.tip);
    return target;
  };
  // Spans of one kind are one path: the one under the pointer is found by its place.
  const span = (path, event) => {
    const view = path.ownerSVGElement, seconds = Number(view.ownerSVGElement.dataset.seconds);
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(path.getScreenCTM().inverse()).x;
    const batches = path.dataset.batches.split(" ");
    let index = 0;
    for (const [, x, size] of path.getAttribute("d").matchAll(/M(\d+) [\d.]+h(\d+)/g)) {
      if (at <= Number(x) + Number(size)) {
        const scale = seconds / 1e6, batch = batches[index] >= 0 ? `, micro-batch ${batches[index]}` : "";
        return `${path.dataset.tip}${batch}\n${told(size * scale)}, from ${told(x * scale)}`;
      }
      index += 1;
    }
    return path.dataset.tip;
  };
  const show = (event) => {
    const mark = noted(event.target);
    tip.hidden = !mark;
    if (!mark) return;
    tip.textContent = mark.dataset.batches ? span(mark, event) : mark.dataset.tip;
    const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 6);
    const below = event.clientY + 18;
    const y = below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : below;
    tip.style.left = `${Math.max(4, x)}px`;
    tip.style.top = `${Math.max(4, y)}px`;
  };
  document.addEventListener("pointermove", show);
  document.addEventListener("pointerdown", show);
  document.addEventListener("scroll", () => { tip.hidden = true; }, true);

  // Time: a timeline's view is a window on its spans, which buttons, keys, the wheel with Ctrl and fingers move.
  const told = (s) => {
    const [by, unit] = Math.abs(s) >= 1 || s === 0 ? [1, "s"] : Math.abs(s) >= 1e-3 ? [1e3, "ms"] : [1e6, "us"];
    return `${+(s * by).toPrecision(4)} ${unit}`;
  };
  const zoomable = (svg) => {
    const view = svg.querySelector(".view"), ticks = svg.querySelector(".ticks");
    const [, , all, height] = view.getAttribute("viewBox").split(" ").map(Number);
    const seconds = Number(svg.dataset.seconds), left = Number(view.getAttribute("x")), wide = Number(view.getAttribute("width"));
    let from = 0, size = all;
    const drawn = () => {
      size = Math.min(all, Math.max(all / 5000, size));
      from = Math.min(all - size, Math.max(0, from));
      view.setAttribute("viewBox", `${from} 0 ${size} ${height}`);
      const least = (size / all) * seconds / 6, power = 10 ** Math.floor(Math.log10(least));
      const step = power * [1, 2, 5, 10].find((times) => power * times >= least);
      const labels = ticks.querySelectorAll("text");
      const first = Math.ceil((from / all) * seconds / step - 1e-9);
      labels.forEach((label, index) => {
        const at = (first + index) * step, x = left + ((at / seconds) * all - from) / size * wide;
        label.textContent = x > left + wide + 1 ? "" : told(at);
        label.setAttribute("x", x);
        label.setAttribute("text-anchor", x > left + wide - 60 ? "end" : "start");
      });
    };
    const zoom = (times, share = 0.5) => {
      const at = from + size * share;
      size = times ? Math.min(all, size / times) : all;
      from = at - size * share;
      drawn();
    };
    const share = (event) => {
      const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
      return ((event.clientX - box.left) / scale - left) / wide;
    };
    svg.closest("figure").addEventListener("click", (event) => {
      const button = event.target.closest("[data-zoom]");
      if (button) zoom(Number(button.dataset.zoom));
    });
    svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1.3 : 1 / 1.3, share(event));
    }, { passive: false });
    const fingers = new Map();
    svg.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, share(event)); svg.setPointerCapture(event.pointerId); });
    svg.addEventListener("pointermove", (event) => {
      const was = fingers.get(event.pointerId), now = share(event);
      if (was === undefined) return;
      const other = [...fingers].find(([id]) => id !== event.pointerId);
      if (other) zoom(Math.abs(now - other[1]) / Math.max(0.01, Math.abs(was - other[1])), other[1]);
      else { from -= (now - was) * size; drawn(); }
      fingers.set(event.pointerId, now);
    });
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, (event) => fingers.delete(event.pointerId));
    svg.tabIndex = 0;
    svg.addEventListener("keydown", (event) => {
      const moves = { "+": () => zoom(2), "=": () => zoom(2), "-": () => zoom(0.5), 0: () => zoom(0),
        ArrowLeft: () => { from -= size / 8; drawn(); }, ArrowRight: () => { from += size / 8; drawn(); } };
      if (!moves[event.key]) return;
      event.preventDefault();
      moves[event.key]();
    });
    drawn();
  };
  // A page that changes later (the web app) calls this again on its new part.
  const enliven = (part) => part.querySelectorAll("svg.zooms").forEach(zoomable);
  window.ridgelineEnliven = enliven;
  enliven(document);
})();
