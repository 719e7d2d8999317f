/* Moving a connected queue pair to another path, as the agent asks, while its program posts. */
#pragma once

#include "qp.h"

#pragma GCC visibility push(hidden)

/* The agent wants a queue pair on the path of this flow label, from the next post on at which it can be moved. Returns 0
   where nobody knows the queue pair. */
int move_want(unsigned int device, uint32_t number, uint32_t label);

/* Move it, if that is possible now. */
void move_try(struct qp *qp);

static inline void move_if_wanted(struct qp *qp)
{
	if (atomic_load_explicit(&qp->wanted_label, memory_order_relaxed) != NO_MOVE)
		move_try(qp);
}

#pragma GCC visibility pop
