// Changes to the document that touch only what differs, so that a second's update costs little.

/** A new element with a class and text. */
export function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Set an element's text, if it differs. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set an element's class, if it differs. */
export function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

/** The children of `parent`, kept by key: `make()` makes one, `fill(child, item)` writes an item into it. */
export class Keyed {
  constructor(parent, make, fill) {
    this.parent = parent;
    this.make = make;
    this.fill = fill;
    this.children = new Map();
    this.order = "";
  }

  /** Show these [key, item] pairs, in order. */
  show(items) {
    const keys = new Set();
    for (const [key, item] of items) {
      keys.add(key);
      if (!this.children.has(key)) this.children.set(key, this.make(item));
      this.fill(this.children.get(key), item);
    }
    for (const [key, child] of this.children) {
      if (!keys.has(key)) {
        child.remove();
        this.children.delete(key);
      }
    }
    this.arrange([...keys]);
  }

  /** Put the children into the order of their keys; nothing moves if they are. */
  arrange(keys) {
    const order = keys.join("\n");
    if (order === this.order) return;
    this.order = order;
    let next = null;
    for (const key of keys.reverse()) {
      const child = this.children.get(key);
      if (child.nextSibling !== next || child.parentNode !== this.parent) this.parent.insertBefore(child, next);
      next = child;
    }
  }
}
