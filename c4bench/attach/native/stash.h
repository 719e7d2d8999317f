/* Completions that were taken out of a completion queue before its program has asked for them. */
#pragma once

#include "device.h"

#include <stdatomic.h>

#pragma GCC visibility push(hidden)

/* Take what a queue has now, count it, and keep it. Returns how many there were, negative for an error. */
int stash_fill(struct device *device, struct ibv_cq *cq);

/* Hand over at most so many of a queue's, the oldest first. Returns how many. */
int stash_take(struct ibv_cq *cq, int most, struct ibv_wc *completions);

/* The queue goes. */
void stash_forget(struct ibv_cq *cq);

/* How many are kept, of all queues; a thread that fills counts too, so that no other one passes it. */
extern atomic_int stashed;

#pragma GCC visibility pop
