/* Shared receive queues, each with its twin. What was posted to one of them cannot be taken back, so all queue pairs of a shared
   receive queue move together, and do not return. */
#pragma once

#include "../bias.h"
#include "pairs.h"

#pragma GCC visibility push(hidden)

struct pool {
	struct nic *nic;
	struct ibv_srq *srq[SIDES];
	struct queue *queue; /* in which what its queue pairs receive completes */
	struct bias lock;    /* of its places */
	struct received_request *requests;
	struct ibv_sge *parts;
	uint32_t most, most_parts;
	uint32_t *unused; /* places without a request; the first `unused_count` are */
	unsigned char *used;
	uint32_t unused_count;
	int side;
	uint32_t epoch;
	int others; /* queue pairs that receive from it and have no twin: while there are any, it cannot move */
	int stays;  /* its twin is not as it is, so that it cannot move any more */
};

/* The pool of a shared receive queue of the program; NULL for one without a twin. */
struct pool *pool_of(struct ibv_srq *srq);

/* Whether the epoch of a completion is that of the pool's present side. */
int pool_is_present(const struct pool *pool, uint32_t epoch);

/* A receive has completed: its place is free. Returns whether it was of the present side, and its `wr_id`. The caller has the
   lock of the pool's queue. */
int pool_take(struct pool *pool, uint32_t epoch, uint64_t place, uint64_t *wr_id);

/* A queue pair without a twin receives from a pool, or ends; the pool of one, NULL for none. */
void pool_add_other(struct pool *pool, const struct ibv_qp *qp);
void pool_remove_other(const struct ibv_qp *qp);
struct pool *pool_of_other(const struct nic *nic, uint32_t number);

/* Give all that was not received to the other side. The caller has the lock of the pool's queue. Returns errno. */
int pool_move(struct pool *pool);

/* In place of the device's function. */
int pool_post_receive(struct ibv_srq *srq, struct ibv_recv_wr *first, struct ibv_recv_wr **bad);

#pragma GCC visibility pop
