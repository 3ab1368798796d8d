// What the pictures share: elements of an SVG, times in words, and labels that fit.
const drawing = (() => {
  "use strict";
  const NS = "http://www.w3.org/2000/svg";
  const make = (tag, attributes, text) => {
    const node = document.createElementNS(NS, tag);
    for (const name in attributes) node.setAttribute(name, attributes[name]);
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const digits = (v) => (v >= 100 ? v.toFixed(0) : v >= 10 ? v.toFixed(1) : v ? v.toFixed(2) : "0");
  const time = (us) => {
    if (us && us < 0.1) return digits(us * 1000) + " ns";
    return us < 1000 ? digits(us) + " us" : us < 1e6 ? digits(us / 1000) + " ms" : digits(us / 1e6) + " s";
  };
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = "11.5px " + getComputedStyle(document.body).fontFamily;
  const wide = (text) => ruler.measureText(text).width;
  // The first of several labels that fits, else the beginning of the last, else nothing.
  const fitted = (texts, room) => {
    if (room < 14) return "";
    const fitting = texts.find((text) => wide(text) <= room);
    if (fitting) return fitting;
    let text = texts[texts.length - 1].slice(0, Math.ceil(room / 4));
    while (text && wide(text + "\u2026") > room) text = text.slice(0, -1);
    return text.length > 1 ? text + "\u2026" : "";
  };
  return {make, time, fitted};
})();
