/* daemon/serve/modelhash.h - one hash that tells whether two model files are the same.
 *
 * SHA-256 over each tensor's name, type, shape and size and over bytes of its beginning,
 * middle and end: another precision, another training step or another architecture gives
 * another hash, and a file of hundreds of GB is not read through. It is no proof against
 * somebody who means to deceive. Any thread; reads from the disk. */
#ifndef SERVE_MODELHASH_H
#define SERVE_MODELHASH_H

#include "base/sha256.h"

struct err;

/* path: a .gguf file or a folder with safetensors. */
int modelhash(const char *path, char ret[SHA256_CHARS + 1], struct err *e);

#endif
