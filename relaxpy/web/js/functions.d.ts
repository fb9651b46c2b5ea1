/** The functions of a model, which `relaxpy web` writes here. This is for those of any model. */

import type { Argument, Value } from "./relaxpy.js";

export interface Functions {
  [name: string]: (...args: Argument[]) => Promise<Value>;
}
