/* What is known of a connected queue pair (RC): what was posted and completed, and for how long. Times are ns of the clock
   that c4bench's ranks use (collective/options.py). */
#pragma once

#include "bias.h"
#include "device.h"
#include "ring.h"

#pragma GCC visibility push(hidden)

/* Counts messages and sums their times, a sum for each stride: collective/ring_layout.py, LatencySums. */
struct tally {
	uint64_t count;
	uint64_t sums[STRIDES];
};

/* How much had been posted up to a work request that will be completed. */
struct mark {
	uint64_t messages;
	uint64_t bytes;
};

enum { NO_MOVE = -1 };

struct qp {
	/* Fixed while the queue pair is connected. */
	struct ibv_qp *handle;
	uint32_t number;
	struct device *device;
	struct ring_qp records;
	struct mark *marks; /* a ring: work requests that are completed, by their order */
	uint64_t mark_mask;
	int all_signaled;
	uint32_t connected;

	/* Written by threads that post, which hold `posting`. */
	struct bias posting;
	struct sent {
		struct mark all; /* everything posted */
		uint64_t marked; /* how many have a mark */
		uint64_t read_bytes;
	} sent;
	struct tally noticed; /* messages whose arrival the receiver notices */

	/* Written by threads that poll, which hold `polling`. */
	struct bias polling;
	struct mark done;
	uint64_t marks_done;
	uint64_t errors;
	uint32_t first_status, first_vendor_err;
	struct tally arrived;
	uint64_t arrived_bytes;
	uint64_t progress_ns;

	/* Written by either, who hold the device's `clock_lock`. */
	int in_transfer;
	uint64_t since_ns, spent_ns;
	uint64_t shared, share_from; /* in 1/SHARE_UNIT ns */

	/* What the program asked for, and what it got: read where they are written, at modifications. */
	struct attributes {
		uint32_t remote_number;
		unsigned int agent; /* which knows its path (agent.h) */
		uint32_t asked_label, label;
		uint8_t asked_timeout, timeout, asked_retries, retries;
		int64_t wanted_timeout, wanted_retries; /* the agent's, NO_ANSWER where it has none */
		union ibv_gid local;
		struct ibv_ah_attr address;
	} attributes;

	/* The path that the agent wants now, NO_MOVE for the present one, and when to try next. */
	_Atomic int64_t wanted_label;
	uint64_t move_not_before_ns;

	/* Publication. */
	atomic_int dirty, publishing;
	struct qp *next_dirty, *next_unused;
	uint64_t published_ns;
};

/* The queue pair of a handle, or of a number that a completion of this device names; NULL for one that is not recorded. */
struct qp *qp_of(const struct ibv_qp *handle);
struct qp *qp_numbered(const struct device *device, uint32_t number);

/* The queue pair of a number on the device of a number. */
struct qp *qp_at(unsigned int device, uint32_t number);

/* The next queue pair of this process behind a place, which begins at 0; NULL after the last. */
struct qp *qp_after(size_t *place);

/* Begin and end to record a queue pair. */
void qp_connect(struct ibv_qp *handle, const union ibv_gid *local, const union ibv_gid *remote, const struct attributes *kept);
void qp_forget(struct ibv_qp *handle);

/* The clock. */
uint64_t now_ns(void);

/* Add one message. */
void tally_add(struct tally *tally, uint64_t now);

/* Work that will be completed was posted on a queue pair that had none of it outstanding; some was completed. */
void qp_begin_transfer(struct qp *qp, uint64_t now);
void qp_note_progress(struct qp *qp, uint64_t now);

/* Publish what has changed since; `looked`: the program has looked in vain for completions since. Costs next to nothing where
   nothing has changed. */
extern struct qp *_Atomic qps_dirty;
void qps_publish(void);
void qp_publish(struct qp *qp, int looked);
void qp_publish_later(struct qp *qp);
static inline void qps_flush(void)
{
	if (atomic_load_explicit(&qps_dirty, memory_order_relaxed))
		qps_publish();
}

/* The record has changed: publish it, at once where the last time is long ago or nobody may come by, or later. `now` is 0
   where nobody knows. */
enum { PUBLISH_NS = 100000 };
static inline void qp_changed(struct qp *qp, uint64_t now)
{
	if (now > qp->published_ns + PUBLISH_NS)
		qp_publish(qp, 0);
	if (!atomic_load_explicit(&qp->dirty, memory_order_relaxed))
		qp_publish_later(qp);
}

#pragma GCC visibility pop
