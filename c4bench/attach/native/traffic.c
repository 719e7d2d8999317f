#include "traffic.h"

void burst_begin(struct burst *burst, struct qp *qp)
{
	bias_enter(&qp->posting);
	burst->qp = qp;
	burst->before = qp->sent;
	burst->noticed = 0;
	burst->now = 0;
}

/* Work was posted on a queue pair that has none outstanding. */
static void begin_transfer(struct burst *burst)
{
	if (!burst->now)
		burst->now = now_ns();
	qp_begin_transfer(burst->qp, burst->now);
}

/* More requests than the ring has places are more than the device takes. */
void burst_add(struct burst *burst, enum work work, int signaled)
{
	struct qp *qp = burst->qp;
	struct sent *sent = &qp->sent;

	if (sent->all.messages == qp->done.messages)
		begin_transfer(burst);
	sent->all.messages++;
	if ((signaled || qp->all_signaled) && sent->marked - qp->marks_done <= qp->mark_mask)
		qp->marks[sent->marked++ & qp->mark_mask] = sent->all;
	burst->noticed += work == NOTICED;
	burst->newest = work;
}

void burst_withdraw(struct burst *burst)
{
	burst->qp->sent = burst->before;
	burst->noticed = 0;
}

/* All messages of a burst are posted at one time. */
void burst_end(struct burst *burst)
{
	struct qp *qp = burst->qp;

	if (burst->noticed && !burst->now)
		burst->now = now_ns();
	for (; burst->noticed; burst->noticed--)
		tally_add(&qp->noticed, burst->now);
	bias_leave(&qp->posting);
	qp_changed(qp, burst->now);
}

/* A queue pair that has failed completes what was left, each request by itself; nothing of it was carried. */
static void count_error(struct qp *qp, const struct completion *completion)
{
	if (!qp->errors++) {
		qp->first_status = completion->status;
		qp->first_vendor_err = completion->vendor_err;
	}
}

static void count_sent(struct qp *qp)
{
	if (qp->marks_done < qp->sent.marked)
		qp->done = qp->marks[qp->marks_done++ & qp->mark_mask];
}

static void count(struct batch *batch, const struct completion *completion)
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

void batch_add(struct batch *batch, const struct completion *completion)
{
	if (!batch->qp || completion->number != batch->number) {
		batch_end(batch);
		batch->qp = qp_numbered(batch->device, completion->number);
		if (!batch->qp)
			return;
		batch->number = completion->number;
		if (!batch->now)
			batch->now = now_ns();
		bias_enter(&batch->qp->polling);
	}
	count(batch, completion);
}

void batch_end(struct batch *batch)
{
	struct qp *qp = batch->qp;

	if (!qp)
		return;
	if (batch->moved)
		qp_note_progress(qp, batch->now);
	bias_leave(&qp->polling);
	qp_changed(qp, batch->now);
	batch->qp = NULL;
	batch->moved = 0;
}
