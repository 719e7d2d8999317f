/* A pair whose requests do not get on, though nobody reports an error: its peer is asked how far they have come. */
#pragma once

#include "pairs.h"

#pragma GCC visibility push(hidden)

/* The caller of these has the keeper's lock. Look whether a pair gets on; returns when to look again. */
uint64_t stall_step(struct pair *pair, uint64_t now_ns);

/* The peer asks; it answers. */
void stall_answer(struct pair *pair);
void stall_hear(struct pair *pair, const char *word);

#pragma GCC visibility pop
