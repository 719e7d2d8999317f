/* Which of its two NICs a pair belongs to: its program's own, or, where load is shared (C4BENCH_BALANCE), the one that has less
   to do for its rate. */
#pragma once

#include "pairs.h"

#pragma GCC visibility push(hidden)

/* Note which device a side of a new NIC is, and the rate of its port. */
void balance_know(struct nic *nic, int side, const struct ibv_port_attr *port);

/* Whether this end lets the pair's load be shared, of which it tells the peer. */
int balance_may_share(const struct pair *pair);

/* Whether both ends do. */
int balance_is_shared(const struct pair *pair);

/* The caller of these has the keeper's lock. Count which device has how many pairs; a pair leaves its side, by this library's
   own choice. */
void balance_count(uint64_t now_ns);
void balance_leave(const struct pair *pair);

/* How long after its connection a pair waits before it moves for the first time: the peer may be about to move it. */
uint64_t balance_patience_ns(const struct pair *pair);

/* Whether the peer's newest fence says that it has begun the move to share load, and not this end before it. */
int balance_is_led(const struct pair *pair);

/* Whether a pair belongs to the side that is not used; since when the pairs have been where they are. */
int balance_prefers_other(const struct pair *pair);
uint64_t balance_since_ns(void);

#pragma GCC visibility pop
