const data = JSON.parse(document.getElementById("timeline").textContent);
const picture = document.querySelector("svg.memory");
const cursor = document.getElementById("cursor");
const readout = document.getElementById("readout");
const span = data.width - data.left - data.right;
// One unit for all numbers of a line, so that they can be compared.
const [factor, unit] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"]].find(([bytes]) => data.peak >= bytes) ?? [2 ** 10, "KiB"];
const size = bytes => (bytes / factor).toFixed(2) + " " + unit;

picture.addEventListener("mousemove", event => {
  const box = picture.getBoundingClientRect();
  const x = (event.clientX - box.left) * data.width / box.width;
  const place = (x - data.left) / span * (data.length - 1);
  const distance = i => Math.abs(data.places[i] - place);
  const nearest = data.places.reduce((best, _, i) => distance(i) < distance(best) ? i : best, 0);
  const at = data.left + span * data.places[nearest] / Math.max(data.length - 1, 1);
  cursor.setAttribute("x1", at);
  cursor.setAttribute("x2", at);
  cursor.style.visibility = "visible";
  const classes = Object.entries(data.classes);
  const all = classes.reduce((sum, [, bytes]) => sum + bytes[nearest], 0);
  const parts = classes.map(([name, bytes]) => name.replace("_", " ") + " " + size(bytes[nearest]));
  readout.textContent = data.ops[nearest] + ": " + size(all) + " = " + parts.join(" + ");
});
