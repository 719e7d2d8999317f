/* All pairs, and the thread that keeps them: it hears from ports, agent and peers, and moves pairs. */
#pragma once

#include "pairs.h"

#include <pthread.h>

#pragma GCC visibility push(hidden)

/* Begin and end to keep a pair. What happens to pairs happens under this lock. */
void keeper_lock(void);
void keeper_unlock(void);
int keeper_add(struct pair *pair);
void keeper_remove(struct pair *pair);

/* The pair that has a queue pair of this number at one side of a NIC. */
struct pair *keeper_numbered(const struct nic *nic, int side, uint32_t number);

/* Have the thread run, from now on. Returns 0 where it cannot. */
int keeper_start(void);

/* Something has failed: move the pair; or it cannot move; or look again at what there is to do. From any thread. */
void keeper_want(struct pair *pair);
void keeper_give_up(struct pair *pair);
void keeper_wake(void);

/* Let go of the lock until somebody signals, or until a time. */
void keeper_wait(pthread_cond_t *changed, uint64_t until_ns);

/* The pairs of a queue do not move any more. */
void keeper_stay(const struct queue *queue);

/* A NIC is closed: nothing is done for pairs whose program has not destroyed them. The caller has the lock. */
void keeper_leave(const struct nic *nic);

/* All pairs, by `next`. The caller has the lock. */
struct pair *keeper_all(void);

/* The clock, ns. */
uint64_t keeper_now_ns(void);

#pragma GCC visibility pop
