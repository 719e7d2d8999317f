/* Counting what a program posts and what it finds completed. */
#pragma once

#include "qp.h"

#pragma GCC visibility push(hidden)

/* What kind of work a request is. */
enum work { PLAIN, NOTICED /* its arrival completes a receive */, READ };

/* Requests that a thread hands to a queue pair at once. They are counted before the device has them, since another thread
   may find them completed at once; `burst_withdraw` takes back what the device has refused. All of this is in line: it is
   what each message costs. */
struct burst {
	struct qp *qp;
	struct sent before;
	unsigned int noticed;
	enum work newest;
	uint64_t now; /* 0 before it is needed */
};

/* Work is posted on a queue pair that has none outstanding. Returns the time, `now` where that is known. */
uint64_t burst_begin_transfer(struct qp *qp, uint64_t now);

/* Count messages whose arrival the receiver notices; all of a burst are posted at one time, which is returned. */
uint64_t burst_note(struct qp *qp, unsigned int messages, uint64_t now);

static inline void burst_begin(struct burst *burst, struct qp *qp)
{
	bias_enter(&qp->posting);
	burst->qp = qp;
	burst->before = qp->sent;
	burst->noticed = 0;
	burst->newest = PLAIN;
	burst->now = 0;
}

/* More requests than the ring has places are more than the device takes. */
static inline void burst_add(struct burst *burst, enum work work, unsigned int signaled)
{
	struct qp *qp = burst->qp;
	struct sent *sent = &qp->sent;

	if (sent->all.messages == qp->done.messages)
		burst->now = burst_begin_transfer(qp, burst->now);
	sent->all.messages++;
	if ((signaled || qp->all_signaled) && sent->marked - qp->marks_done <= qp->mark_mask)
		qp->marks[sent->marked++ & qp->mark_mask] = sent->all;
	burst->noticed += work == NOTICED;
	burst->newest = work;
}

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

static inline void burst_withdraw(struct burst *burst)
{
	burst->qp->sent = burst->before;
	burst->noticed = 0;
}

static inline void burst_end(struct burst *burst)
{
	struct qp *qp = burst->qp;

	if (burst->noticed)
		burst->now = burst_note(qp, burst->noticed, burst->now);
	bias_leave(&qp->posting);
	qp_changed(qp, burst->now);
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
void count_completions(struct device *device, const struct ibv_wc *completions, int found);

#pragma GCC visibility pop
