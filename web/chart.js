// A small chart of some series over time: lines, the area under the first, and a readout where the pointer is.
import {el, svg} from "./dom.js";

const WIDTH = 320;   // of the view box; the height is the element's in the same proportion
const HEIGHT = 84;
const TOP = 6;
const BOTTOM = 2;

// The smallest round number that is not less.
export function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10]) {
    if (step * power >= value * (1 - 1e-9)) return Number((step * power).toPrecision(2));
  }
  return Number((10 * power).toPrecision(2));
}

// Pieces of [time, value] without gaps: a null, or a pause of more than `pause` seconds, begins a new one.
export function pieces(points, pause) {
  const out = [];
  let piece = null;
  for (const [time, value] of points) {
    if (value === null) {
      piece = null;
      continue;
    }
    if (!piece || time - piece[piece.length - 1][0] > pause) out.push(piece = []);
    piece.push([time, value]);
  }
  return out;
}

export class Chart {
  // series: [{name, className}]; format(value): text with its unit; most: a fixed top of the scale, or null; whole:
  // values are counts.
  constructor({title, series, format, most = null, least = 0}) {
    Object.assign(this, {series, format, most, least});
    this.points = series.map(() => []);
    this.grid = svg("g", {class: "grid"});
    this.marks = svg("g", {});
    this.cursor = svg("g", {class: "cursor"});
    this.picture = svg("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "chart", preserveAspectRatio: "none",
                               role: "img", tabindex: "0", "aria-label": title},
                       this.grid, this.marks, this.cursor);
    this.readout = el("div", {class: "readout", hidden: true});
    this.top = el("span", {class: "scale"});
    this.element = el("div", {class: "chart-box"}, this.top, this.picture, this.readout);
    this.picture.addEventListener("pointermove", (event) => {
      const box = this.picture.getBoundingClientRect();
      this.point((event.clientX - box.left) / box.width);
    });
    this.picture.addEventListener("pointerleave", () => this.point(null));
    this.picture.addEventListener("blur", () => this.point(null));
    this.picture.addEventListener("keydown", (event) => this.onKey(event));
  }

  // points: of each series, [[time, value or null]...], ascending; from, to: what is shown, in seconds.
  show(points, from, to, pause) {
    Object.assign(this, {points, from, to});
    const shown = points.flat().filter(([time, value]) => value !== null && time >= from).map(([, value]) => value);
    this.height = this.most ?? Math.max(niceCeiling(Math.max(0, ...shown) * 1.05), this.least);
    this.top.textContent = this.format(this.height);
    const middle = this.y(this.height / 2);
    this.grid.replaceChildren(
        ...[TOP, middle, HEIGHT - BOTTOM].map((y) => svg("line", {x1: 0, x2: WIDTH, y1: y, y2: y})));
    this.marks.replaceChildren(...this.series.flatMap((series, i) => this.drawing(series, points[i], i === 0, pause)));
    if (this.at !== undefined && this.at !== null) this.point(this.at);
  }

  x(time) {
    return (time - this.from) / (this.to - this.from) * WIDTH;
  }

  y(value) {
    return HEIGHT - BOTTOM - Math.min(1, Math.max(0, value / this.height)) * (HEIGHT - TOP - BOTTOM);
  }

  drawing(series, points, filled, pause) {
    return pieces(points.filter(([time]) => time >= this.from - pause), pause).flatMap((piece) => {
      const corners = piece.map(([time, value]) => `${this.x(time).toFixed(1)} ${this.y(value).toFixed(1)}`);
      const line = `M${corners.join("L")}${piece.length === 1 ? "h0.01" : ""}`;
      const base = HEIGHT - BOTTOM;
      const area = `M${this.x(piece[0][0]).toFixed(1)} ${base}L${corners.join("L")}L${
          this.x(piece[piece.length - 1][0]).toFixed(1)} ${base}Z`;
      return [filled && svg("path", {d: area, class: `area ${series.className}`}),
              svg("path", {d: line, class: `line ${series.className}`})].filter(Boolean);
    });
  }

  // Shows the values at a share of the width, or nothing.
  point(share) {
    this.at = share;
    this.cursor.replaceChildren();
    this.readout.hidden = true;
    if (share === null || this.to === undefined) return;
    const wanted = this.from + Math.min(1, Math.max(0, share)) * (this.to - this.from);
    const nearest = this.points[0].reduce((best, [time], i) => (
        best === null || Math.abs(time - wanted) < Math.abs(this.points[0][best][0] - wanted) ? i : best), null);
    if (nearest === null) return;
    const time = this.points[0][nearest][0];
    const x = this.x(time);
    this.cursor.append(svg("line", {x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM}));
    const ago = Math.round(this.to - time);
    const values = this.series.map((series, i) => {
      const value = this.points[i][nearest]?.[1] ?? null;
      if (value !== null)
        this.cursor.append(svg("path", {d: `M${x} ${this.y(value)}h0.01`, class: `dot ${series.className}`}));
      return el("span", {class: `value ${series.className}`}, series.name ? `${series.name} ` : "",
                el("b", {}, value === null ? "–" : this.format(value)));
    });
    this.readout.replaceChildren(
        ...values,
        el("span", {class: "ago"},
           ago === 0     ? "now" :
               ago < 100 ? `${ago} s ago` :
                           `${Math.round(ago / 60)} min ago`));
    this.readout.hidden = false;
    this.readout.classList.toggle("to-left", x > WIDTH / 2);
  }

  onKey(event) {
    if (event.key === "Escape") return this.point(null);
    const step = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!step || this.points[0].length === 0) return;
    event.preventDefault();
    const seconds = (this.to - this.from) / 60;
    this.point(Math.min(1, Math.max(0, (this.at ?? 1) + step * seconds / (this.to - this.from))));
  }
}
