/* Completion queues, each with its twin: the program finds in one of them what completes in either. */
#pragma once

#include "../bias.h"
#include "nics.h"

#pragma GCC visibility push(hidden)

struct queue {
	struct nic *nic;
	struct ibv_cq *cq[SIDES];
	struct bias lock; /* of whoever takes completions, and of what is known of them */
	atomic_int asked; /* the keeper's thread wants the lock: others let it go first */
	atomic_int by_events; /* the program waits for events, which only its own NIC sends */
	atomic_int away;      /* how many pairs complete at the twin */
	int last;             /* the side that was looked at first, the last time */
	/* Completions for the program that no device will show. */
	struct ibv_wc *stash;
	int first, count, room;
};

/* The queue of a completion queue of the program; NULL for one without a twin. */
struct queue *queue_of(struct ibv_cq *cq);

/* Take the queue's lock from a thread of this library. */
int queue_enter(struct queue *queue);
void queue_leave(struct queue *queue, int owned);

/* Take what both devices have now, and keep for the program what is its. The caller has the lock. */
void queue_drain(struct queue *queue);

/* Drop all that a queue pair has completed, which is about to end: its program has not asked for it, and a device that still has
   it knows requests by our names. The caller has the lock. */
void queue_forget(struct queue *queue, uint32_t number);

/* Keep a completion for the program. The caller has the lock. */
void queue_add(struct queue *queue, const struct ibv_wc *completion);

/* In place of the device's functions. */
int queue_poll(struct ibv_cq *cq, int most, struct ibv_wc *completions);
int queue_notify(struct ibv_cq *cq, int solicited);
struct ibv_cq_ex *queue_create_extended(struct ibv_context *context, struct ibv_cq_init_attr_ex *attributes);

#pragma GCC visibility pop
