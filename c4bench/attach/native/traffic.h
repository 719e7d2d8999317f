/* Counting what a program posts and what it finds completed. */
#pragma once

#include "qp.h"

#pragma GCC visibility push(hidden)

/* What kind of work a request is. */
enum work { PLAIN, NOTICED /* its arrival completes a receive */, READ };

/* Requests that a thread hands to a queue pair at once. They are counted before the device has them, since another thread
   may find them completed at once; `burst_withdraw` takes back what the device has refused. */
struct burst {
	struct qp *qp;
	struct sent before;
	unsigned int noticed;
	enum work newest;
	uint64_t now; /* 0 before it is needed */
};

void burst_begin(struct burst *burst, struct qp *qp);
void burst_add(struct burst *burst, enum work work, int signaled);
void burst_withdraw(struct burst *burst);
void burst_end(struct burst *burst);

/* The newest request carries so many bytes more. */
static inline void burst_bytes(struct burst *burst, uint64_t bytes)
{
	struct qp *qp = burst->qp;
	struct sent *sent = &qp->sent;
	struct mark *newest = &qp->marks[(sent->marked - 1) & qp->mark_mask];

	sent->all.bytes += bytes;
	if (burst->newest == READ)
		sent->read_bytes += bytes;
	if (sent->marked && newest->messages == sent->all.messages)
		newest->bytes = sent->all.bytes;
}

/* Completions that a thread has found at once: completions of one queue pair in a row are counted under one lock. */
struct batch {
	struct device *device;
	struct qp *qp; /* whose completions are being counted */
	uint32_t number;
	int moved; /* whether its sends have */
	uint64_t now; /* 0 before it is needed */
};

struct completion {
	uint32_t number, vendor_err, bytes;
	enum ibv_wc_status status;
	int received;
};

void batch_add(struct batch *batch, const struct completion *completion);
void batch_end(struct batch *batch);

#pragma GCC visibility pop
