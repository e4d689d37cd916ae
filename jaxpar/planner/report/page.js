"use strict";
// Colors the layouts by a property, and describes the one under the pointer.
{
  const { properties } = JSON.parse(document.getElementById("layouts").textContent);
  const by = document.getElementById("by"), tip = document.getElementById("tip"), keys = document.getElementById("keys");
  const points = [...document.querySelectorAll("#plot .point")];

  const swatch = index => {
    const [svg, rect] = ["svg", "rect"].map(name => document.createElementNS("http://www.w3.org/2000/svg", name));
    for (const [key, value] of [["width", 1], ["height", 1], ["class", "hue" + index]]) rect.setAttribute(key, value);
    svg.setAttribute("viewBox", "0 0 1 1");
    svg.setAttribute("class", "swatch");
    svg.append(rect);
    return svg;
  };
  const color = () => {
    const values = properties[by.value];
    const names = [...new Set(values)].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    for (const point of points) {
      const kind = point.classList.contains("plan") ? "point plan" : "point";
      point.setAttribute("class", kind + " hue" + names.indexOf(values[point.dataset.layout]));
    }
    keys.replaceChildren(...names.map((name, index) => {
      const key = document.createElement("span");
      key.append(swatch(index), name);
      return key;
    }));
  };
  for (const point of points) {
    point.addEventListener("mouseenter", () => { tip.textContent = point.querySelector("title").textContent; });
  }
  by.addEventListener("change", color);
  color();
}
