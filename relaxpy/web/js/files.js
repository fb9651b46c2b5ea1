/**
 * The addresses of the model's files, which `relaxpy web` writes here, so that `load()` finds them without an address.
 * Bundlers read addresses of this form, and copy the files. This one is of a package without a model.
 */

export const FILES = {};
