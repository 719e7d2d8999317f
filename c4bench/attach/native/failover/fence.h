/* Moving a pair from one NIC to the other, so that each request is carried out once: both ends take the old queue pairs into the
   error state, which ends all that is under way there, and only then say to each other what has come. */
#pragma once

#include "pairs.h"
#include "relay.h"

#pragma GCC visibility push(hidden)

/* The caller of these has the keeper's lock. A pair is connected: greet its peer. It ends. It cannot go on. It does not move any
   more: what was withheld from its program, or is between two NICs, comes back as errors. */
void fence_greet(struct pair *pair);
void fence_leave(struct pair *pair);
void fence_lose(struct pair *pair);
void fence_stay(struct pair *pair);

/* Do what is to be done for a pair now; returns when there may be more, 0 where only a word or an event brings that. */
uint64_t fence_step(struct pair *pair, uint64_t now_ns);

/* A pair leaves the side that it uses, which has not failed, for the other one. */
void fence_leave_side(struct pair *pair, uint64_t now_ns);

/* A word has come for one of the pairs. */
void fence_hear(struct pair *pair, const char *word);

/* Say something to the peer of a pair. */
void fence_tell(const struct pair *pair, const char *word);

/* The packet that the queue pair in use would take next; -1 where the device does not say. */
int64_t fence_next_packet(const struct pair *pair);

/* The number of the first request that has not been carried out where the peer expects this packet. */
uint64_t fence_reached(const struct pair *pair, int64_t packet);

/* The end of a pair here, and the other one. */
void fence_ends(const struct pair *pair, struct end *own, struct end *peer);

/* The twin of a key of the peer's. Returns 0 where it is not known (yet). */
int fence_foreign_key(const struct pair *pair, uint32_t key, uint32_t *twin);

/* A key of this process is about to end: no peer knows its twin any more, once this returns. */
void fence_forget_key(const struct nic *nic, uint32_t key);

#pragma GCC visibility pop
