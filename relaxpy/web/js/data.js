/**
 * Data types of a program: values that its constructors make, and the comparison of arguments with all that they
 * contain (`relaxpy.runtime.check_data`). Values may be a million levels deep, so nothing here recurs into them.
 */

import { RelaxError } from "./errors.js";
import { enter, explain, fits } from "./patterns.js";
import { Data, describe } from "./values.js";

/** What is matched without looking into data: it was compared before. */
export const CHECKED_BEFORE = ["parameter", "field"];

/** Whether a pattern accepts values of data types, by itself or in a tuple. */
export const holdsData = (pattern) =>
  pattern.op === "TuplePattern" ? pattern.fields.some(holdsData) : pattern.op === "DataPattern";

/** A field's pattern with the arguments of its type in place of parameters. */
function given(pattern, args) {
  if (pattern.op === "ParamPattern") return args[pattern.index];
  if (pattern.op === "DataPattern") return { ...pattern, args: pattern.args.map((each) => given(each, args)) };
  if (pattern.op === "TuplePattern") return { ...pattern, fields: pattern.fields.map((each) => given(each, args)) };
  return pattern;
}

const text = (pattern) => JSON.stringify(pattern, (_, value) => (typeof value === "bigint" ? `${value}n` : value));

export class DataTypes {
  /** @param {object[]} table the types, by `readTypes` */
  constructor(table) {
    this.table = new Map(table.map((info) => [info.name, info]));
    /** The one object for equal patterns, by their text. */
    this.known = new Map();
    /** Pattern → the names and patterns of each constructor's fields. */
    this.made = new Map();
  }

  /** The constructors by type and name: `types.List.Cons(x, tail)` makes a value. */
  get constructors() {
    const of = ({ name, cases }) =>
      cases.map((each) => {
        const key = `${name}.${each.name}(${each.fields.join(", ")})`;
        const make = (...items) => {
          if (items.length === each.fields.length) return new Data(key, items);
          const wanted = each.fields.join(", ") || "nothing";
          throw new RelaxError("arguments", `${name}.${each.name} takes ${wanted}; got ${items.length} values`);
        };
        return [each.name, make];
      });
    return Object.fromEntries([...this.table.values()].map((info) => [info.name, Object.fromEntries(of(info))]));
  }

  one(pattern) {
    const key = text(pattern);
    if (!this.known.has(key)) this.known.set(key, pattern);
    return this.known.get(key);
  }

  /** The names and patterns of the fields of each constructor. */
  cases(pattern) {
    if (!this.made.has(pattern)) {
      const { name, cases } = this.table.get(pattern.name);
      const fields = (each) => each.patterns.map((inner, i) => [each.fields[i], this.one(given(inner, pattern.args))]);
      const made = cases.map((each) => [`${name}.${each.name}(${each.fields.join(", ")})`, fields(each)]);
      this.made.set(pattern, new Map(made));
    }
    return this.made.get(pattern);
  }

  /** A caller's value with its arrays as tensors; a part that does not fit stays what it is. */
  entered(value, pattern, host) {
    const done = new Map();
    const found = (item, inner) => done.get(item)?.get(inner);
    const stack = [[value, this.one(pattern)]];
    while (stack.length) {
      const [at, wanted] = stack.at(-1);
      if (!done.has(at)) done.set(at, new Map());
      const fields = at instanceof Data ? this.cases(wanted).get(at.key) : undefined;
      if (fields === undefined) {
        done.get(at).set(wanted, at);
        stack.pop();
        continue;
      }
      const isData = (i) => fields[i][1].op === "DataPattern";
      const before = stack.length;
      at.items.forEach((item, i) => {
        if (isData(i) && found(item, fields[i][1]) === undefined) stack.push([item, fields[i][1]]);
      });
      if (stack.length > before) continue;
      const items = at.items.map((item, i) =>
        isData(i) ? found(item, fields[i][1]) : enter(item, fields[i][1], host, this),
      );
      const same = items.every((item, i) => item === at.items[i]);
      done.get(at).set(wanted, same ? at : new Data(at.key, items));
      stack.pop();
    }
    return found(value, this.one(pattern));
  }

  /** The reason why a value does not fit; empty if it does. */
  misfit(value, pattern) {
    const waiting = [[value, this.one(pattern), ""]];
    const seen = new Map();
    while (waiting.length) {
      const [at, wanted, place] = waiting.pop();
      if (wanted.op === "TuplePattern") {
        if (!Array.isArray(at) || at.length !== wanted.fields.length) return explain(at, wanted, place);
        at.forEach((item, i) => waiting.push([item, this.one(wanted.fields[i]), ` of field ${i}${place}`]));
        continue;
      }
      if (wanted.op !== "DataPattern") {
        if (!fits(at, wanted)) return explain(at, wanted, place);
        continue;
      }
      if (!seen.has(wanted)) seen.set(wanted, new Set());
      if (seen.get(wanted).has(at)) continue;
      seen.get(wanted).add(at);
      const cases = this.cases(wanted);
      const fields = at instanceof Data ? cases.get(at.key) : undefined;
      if (fields === undefined) {
        const names = [...cases.keys()].map((key) => key.slice(0, key.indexOf("("))).join(", ");
        return `expected a value of ${wanted.name}${place} (${names}), got ${describe(at)}`;
      }
      for (const [i, [name, inner]] of fields.entries()) {
        const item = at.items[i];
        if (holdsData(inner)) waiting.push([item, inner, ` of field ${name}`]);
        else if (!fits(item, inner)) return explain(item, inner, ` of field ${name} of a ${at.name}${place}`);
      }
    }
    return "";
  }
}
