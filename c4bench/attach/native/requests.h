/* Queue pairs to which a program posts by ibv_wr_*. */
#pragma once

#include <infiniband/verbs.h>

#pragma GCC visibility push(hidden)

/* Count what is posted so to a queue pair, if it is one of these, from now on; and no longer. */
void requests_watch(struct ibv_qp *handle);
void requests_forget(struct ibv_qp *handle);

#pragma GCC visibility pop
