/* The side of a pair that is not used now: whether it could be, and the way back to it. */
#pragma once

#include "pairs.h"

#pragma GCC visibility push(hidden)

/* The caller of these has the keeper's lock. */

/* Connect the side that is not used with the peer's, whose first packet there has this number; or reset it first, and begin with
   these numbers. Return 0 where the device refuses. */
int standby_connect(struct pair *pair, uint32_t peers_packet);
int standby_connect_again(struct pair *pair, struct beginning beginning);

/* Have the side that is not used take receives, before it is connected. Returns 0 where the device refuses. */
int standby_make_ready(struct pair *pair);

/* Have a side that is connected send, once the program's own does. Returns 0 where the device refuses. */
int standby_enable(struct pair *pair, int side);

/* Whether the pair may go to the side that is not used at all. */
int standby_may_be_used(const struct pair *pair);

/* The side that is not used has just been connected; it has just been left. */
void standby_begin(struct pair *pair, uint64_t now_ns);
void standby_lost(struct pair *pair);

/* Do what is to be done for it now; returns when there may be more. */
uint64_t standby_step(struct pair *pair, uint64_t now_ns);

/* The peer has made its queue pair ready again. */
void standby_hear(struct pair *pair, const char *word);

/* A packet number that differs from those drawn before, so that late packets of an earlier connection are not taken for those of
   this one. */
uint32_t standby_draw(const struct pair *pair);

#pragma GCC visibility pop
