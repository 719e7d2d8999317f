/* Pairs to which a program posts by ibv_wr_*: what it writes is gathered, and posted as by ibv_post_send. */
#pragma once

#include "pairs.h"

#pragma GCC visibility push(hidden)

void writer_make(struct pair *pair);
void writer_free(struct pair *pair);

/* Others may have put their functions in place of ours. */
void writer_replace(struct pair *pair);

#pragma GCC visibility pop
