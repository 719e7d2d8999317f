/* Completion queues that programs poll by functions of each queue. */
#pragma once

#include <infiniband/verbs.h>

#pragma GCC visibility push(hidden)

/* Whether a queue may be polled so: what has been taken out of it cannot be handed over later. */
int extended_polls(struct ibv_cq *cq);

#pragma GCC visibility pop
