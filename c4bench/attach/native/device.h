/* Opened RDMA devices whose functions this library stands before. */
#pragma once

#include "bias.h"

#include <infiniband/verbs.h>

#pragma GCC visibility push(hidden)

enum { SHARE_UNIT = 1024, LOOKS_OF_WOKEN = 2 };

/* A device's own functions, by its context. */
struct device {
	struct ibv_context *context;
	unsigned int number; /* of the context in this process, from 1 on */
	int (*poll_cq)(struct ibv_cq *, int, struct ibv_wc *);
	int (*req_notify_cq)(struct ibv_cq *, int);
	int (*post_send)(struct ibv_qp *, struct ibv_send_wr *, struct ibv_send_wr **);
	struct ibv_cq_ex *(*create_cq_ex)(struct ibv_context *, struct ibv_cq_init_attr_ex *);

	/* The device's virtual time, shared equally among the queue pairs in transfer: collective/recorder.py, NicClock. */
	struct bias clock_lock;
	unsigned int carried;
	uint64_t share; /* in 1/SHARE_UNIT ns */
	uint64_t clock_ns;
	/* When a thread last looked in vain for what queue pairs send, of some looks, in this queue or, where there are others
	   too, in any; and whether one sleeps until something completes. */
	const void *queue;
	int queues;
	uint64_t looked_ns;
	unsigned int looks;
	int asleep;
	/* How often threads may still look in vain before they count as such that look again and again, not as such that are
	   woken: these write their records when they change, for they do not come by again. */
	int woken;
};

/* The device of a context that ibv_open_device has returned. */
struct device *device_of(struct ibv_context *context);

/* The functions that a program calls by its context, and that are put in place of a device's own. */
int hooked_poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *completions);
int hooked_req_notify_cq(struct ibv_cq *cq, int solicited);
int hooked_post_send(struct ibv_qp *qp, struct ibv_send_wr *first, struct ibv_send_wr **bad);
struct ibv_cq_ex *hooked_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attributes);

#pragma GCC visibility pop
