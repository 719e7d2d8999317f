/* libibverbs' own way to modify a queue pair. */
#pragma once

#include <infiniband/verbs.h>

#pragma GCC visibility push(hidden)

int modify_really(struct ibv_qp *handle, struct ibv_qp_attr *attributes, int mask);

#pragma GCC visibility pop
