/* Counting what a program posts and what it finds completed. */
#pragma once

#include "qp.h"
#include "time.h"

#pragma GCC visibility push(hidden)

/* What kind of work a request is. */
enum work { PLAIN, NOTICED /* its arrival completes a receive */, READ };

/* Requests that a thread hands to a queue pair at once. They are counted here, and for the queue pair before the device has
   them, since another thread may find them completed at once. All of this is in line: it is what each message costs. */
struct burst {
	struct qp *qp;
	int owned; /* bias_enter's answer */
	struct sent sent; /* of the queue pair, with this burst */
	unsigned int noticed;
	struct mark *mark; /* of the newest request; NULL where it has none */
	enum work newest;
	uint64_t now; /* 0 before it is needed */
};

/* Work that will be completed is posted on a queue pair that has none outstanding. Returns the time, `now` where that is known. */
uint64_t burst_begin_transfer(struct qp *qp, uint64_t now);

/* Count messages whose arrival the receiver notices; all of a burst are posted at one time, which is returned. */
uint64_t burst_note(struct qp *qp, unsigned int messages, uint64_t now);

static inline struct burst burst_begin(struct qp *qp)
{
	int owned = bias_enter(&qp->posting);

	return (struct burst){.qp = qp, .owned = owned, .sent = qp->sent};
}

/* The newest request carries so many bytes more. */
static inline void burst_bytes(struct burst *burst, uint64_t bytes)
{
	burst->sent.all.bytes += bytes;
	if (burst->newest == READ)
		burst->sent.read_bytes += bytes;
	if (burst->mark)
		burst->mark->bytes = burst->sent.all.bytes;
}

/* More requests than the ring has places are more than the device takes. */
static inline void burst_add(struct burst *burst, enum work work, unsigned int signaled, uint64_t bytes)
{
	struct qp *qp = burst->qp;
	struct sent *sent = &burst->sent;

	sent->all.messages++;
	burst->mark = NULL;
	if ((signaled || qp->all_signaled) && sent->marked - qp->marks_done <= qp->mark_mask) {
		if (sent->marked == qp->marks_done)
			burst->now = burst_begin_transfer(qp, burst->now);
		burst->mark = &qp->marks[sent->marked++ & qp->mark_mask];
		burst->mark->messages = sent->all.messages;
	}
	burst->noticed += work == NOTICED;
	burst->newest = work;
	burst_bytes(burst, bytes);
}

/* The device is about to have them. */
static inline void burst_count(struct burst *burst)
{
	burst->qp->sent = burst->sent;
}

/* The device has refused the newest request that is left. */
static inline void burst_take_back(struct burst *burst, enum work work, uint64_t bytes)
{
	const struct qp *qp = burst->qp;
	struct sent *sent = &burst->sent;

	if (sent->marked && qp->marks[(sent->marked - 1) & qp->mark_mask].messages == sent->all.messages)
		sent->marked--;
	sent->all.messages--;
	sent->all.bytes -= bytes;
	if (work == READ)
		sent->read_bytes -= bytes;
	burst->noticed -= work == NOTICED;
}

static inline void burst_end(struct burst *burst)
{
	struct qp *qp = burst->qp;

	if (burst->noticed)
		burst->now = burst_note(qp, burst->noticed, burst->now);
	bias_leave(&qp->posting, burst->owned);
	qp_changed(qp, burst->now);
}

/* A thread has looked in vain. In a lab it has slept; elsewhere one look takes so little that some of them tell. */
static inline void note_look(struct device *device, const void *queue)
{
	if (device->woken)
		device->woken--;
	if (device->carried && (queue == device->queue || device->queues > 1) && (c4bench_waited_in_vain || !(++device->looks & 15)))
		device->looked_ns = now_ns();
}

/* Completions that a thread has found at once: completions of one queue pair in a row are counted under one lock. */
struct batch {
	struct device *device;
	struct qp *qp; /* whose completions are being counted */
	uint32_t number;
	int owned; /* bias_enter's answer */
	int moved; /* whether its sends have */
	uint64_t now; /* read first: what follows is done while the clock is read */
};

struct completion {
	uint32_t number, vendor_err, bytes;
	enum ibv_wc_status status;
	int received;
};

/* A queue pair that has failed completes what was left, each request by itself; nothing of it was carried. */
void count_error(struct qp *qp, const struct completion *completion);

static inline void count_sent(struct qp *qp)
{
	if (qp->marks_done < qp->sent.marked)
		qp->done = qp->marks[qp->marks_done++ & qp->mark_mask];
}

static inline void count(struct batch *batch, const struct completion *completion)
{
	struct qp *qp = batch->qp;

	if (completion->status != IBV_WC_SUCCESS) {
		count_error(qp, completion);
	} else if (completion->received) {
		tally_add(&qp->arrived, batch->now);
		qp->arrived_bytes += completion->bytes;
	} else {
		count_sent(qp);
		batch->moved = 1;
	}
}

static inline void batch_end(struct batch *batch)
{
	struct qp *qp = batch->qp;

	if (!qp)
		return;
	if (batch->moved)
		qp_note_progress(qp, batch->now);
	bias_leave(&qp->polling, batch->owned);
	qp_changed(qp, batch->now);
	batch->qp = NULL;
	batch->moved = 0;
}

static inline void batch_add(struct batch *batch, const struct completion *completion)
{
	if (!batch->qp || completion->number != batch->number) {
		batch_end(batch);
		batch->qp = qp_numbered(batch->device, completion->number);
		if (!batch->qp)
			return;
		batch->number = completion->number;
		batch->owned = bias_enter(&batch->qp->polling);
	}
	count(batch, completion);
}

/* Count completions of a device's queue that were found at once. */
void count_completions(struct device *device, const struct ibv_wc *completions, int found);

#pragma GCC visibility pop
